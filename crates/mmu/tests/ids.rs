//! Ids against the TLBs: whatever VMs run wherever, no VMID stands for two of them in one TLB. (ASIDs
//! and shadow roots are the same to the allocator.)

use mmu::{Acquired, IdSlot, Ids};
use oracle::IdModel;
use proptest::prelude::*;

const HARTS: usize = 3;
const VMS: usize = 6;

#[derive(Clone, Copy, Debug)]
struct Entry {
    hart: usize,
    vm: usize,
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    prop::collection::vec((0..HARTS, 0..VMS).prop_map(|(hart, vm)| Entry { hart, vm }), 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// One allocator per hart, as its documentation recommends: a roll-over is that hart's affair.
    #[test]
    fn one_allocator_per_hart(first in 0..3u16, bits in 0..4u32, entries in entries()) {
        let mut model = IdModel::new(HARTS);
        let mut ids = vec![Ids::new(first, bits); HARTS];
        let mut slots = [[IdSlot::new(); VMS]; HARTS];
        for Entry { hart, vm } in entries {
            model.leave(hart);
            let slot = &mut slots[hart][vm];
            if ids[hart].acquire(slot) == Acquired::RolledOver {
                model.fence_all(hart);
            }
            prop_assert!(u32::from(slot.id()) < 1 << bits);
            prop_assert!(slot.id() >= first.min((1 << bits) - 1));
            prop_assert_eq!(model.enter(hart, vm as u32, slot.id()), Ok(()));
        }
    }

    /// One for all harts: at a roll-over all harts leave, fence, and acquire again.
    #[test]
    fn one_allocator_for_all_harts(first in 0..2u16, bits in 2..4u32, entries in entries()) {
        let mut model = IdModel::new(HARTS);
        let mut ids = Ids::new(first, bits);
        let mut slots = [IdSlot::new(); VMS];
        let mut running = [None; HARTS];
        for Entry { hart, vm } in entries {
            model.leave(hart);
            running[hart] = Some(vm);
            let mut rolled_over = ids.acquire(&mut slots[vm]) == Acquired::RolledOver;
            if rolled_over {
                (0..HARTS).for_each(|h| model.leave(h));
                (0..HARTS).for_each(|h| model.fence_all(h));
                // Fewer VMs run than there are VMIDs, so this does not roll over again.
                for other in running.into_iter().flatten() {
                    rolled_over = ids.acquire(&mut slots[other]) == Acquired::RolledOver;
                    prop_assert!(!rolled_over);
                }
            }
            for (h, other) in running.iter().enumerate() {
                if let Some(other) = other && !model.is_running(h) {
                    prop_assert_eq!(model.enter(h, *other as u32, slots[*other].id()), Ok(()));
                }
            }
        }
    }
}

/// What goes wrong without the fence of a roll-over, for each small number of bits.
#[test]
fn bad_roll_over_without_a_fence() {
    for bits in 0..3 {
        let (mut model, mut ids) = (IdModel::new(1), Ids::new(0, bits));
        let mut slots = [IdSlot::new(); 5];
        let verdicts: Vec<_> = slots
            .iter_mut()
            .enumerate()
            .map(|(vm, slot)| {
                model.leave(0);
                let _ = ids.acquire(slot);
                model.enter(0, vm as u32, slot.id())
            })
            .collect();
        assert!(verdicts[..1 << bits].iter().all(Result::is_ok));
        assert!(verdicts[1 << bits].is_err());
    }
}
