//! Ids against the TLBs: whatever VMs run wherever, no VMID stands for two of them in one TLB. (ASIDs
//! and shadow roots are the same to the allocator.)

use mmu::ids::Group;
use mmu::{Acquired, IdSlot, Ids};
use oracle::IdModel;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

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
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

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

/// The events of vCPUs and their VMs.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A hart takes one of a VM.
    Enter { hart: usize, vm: usize, vcpu: usize },
    /// A VM's table changes, and every hart fences for it.
    Edit { vm: usize },
    /// One is stopped, or sleeps: nothing that it had is its own when it is taken again.
    Stop { vm: usize, vcpu: usize },
    /// A VM ends, and another one comes in its place.
    Replace { vm: usize },
}

/// The ways in which hosts of vCPUs may fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// A fence is for one id, and the others are not given up.
    KeepsOthers,
    /// One that was elsewhere meanwhile comes back as if not.
    ForgetsMove,
    /// One that was stopped comes back as if not.
    ForgetsStop,
    /// Those of a new VM remember what was its predecessor's.
    ForgetsEnd,
}

const VCPUS: usize = 3;

fn events() -> impl Strategy<Value = Vec<Event>> {
    let enter = (0..HARTS, 0..VMS, 0..VCPUS).prop_map(|(hart, vm, vcpu)| Event::Enter { hart, vm, vcpu });
    let edit = (0..VMS).prop_map(|vm| Event::Edit { vm });
    let stop = (0..VMS, 0..VCPUS).prop_map(|(vm, vcpu)| Event::Stop { vm, vcpu });
    let replace = (0..VMS).prop_map(|vm| Event::Replace { vm });
    prop::collection::vec(prop_oneof![16 => enter, 4 => edit, 1 => stop, 1 => replace], 1..300)
}

/// A vCPU and what it is to the model: a name for each stay on a hart, and for each state of its VM's table that it may have seen.
#[derive(Clone, Copy)]
struct Member {
    known: IdSlot,
    home: usize,
    name: u32,
}

/// Runs the events beside the model. To the model, the translations that a vCPU has left on a hart are another's when
/// it has been elsewhere since, or stopped. So are those from before a change of a table, except under the id for which
/// the change was fenced.
fn run_vcpus(bits: u32, events: &[Event], fault: Fault) -> Result<(), oracle::IdReused> {
    let mut model = IdModel::new(HARTS);
    let mut ids = vec![Ids::new(1, bits); HARTS];
    let mut groups = [[Group::new(); VMS]; HARTS];
    let new = Member { known: IdSlot::new(), home: usize::MAX, name: 0 };
    let mut members = [[new; VCPUS]; VMS];
    let mut names = 0..;
    members.as_flattened_mut().iter_mut().zip(&mut names).for_each(|(member, name)| member.name = name);
    let mut rename = |member: &mut Member| member.name = names.next().unwrap();
    for event in events {
        match *event {
            Event::Edit { vm } => {
                for hart in 0..HARTS {
                    let mut group = groups[hart][vm];
                    let fenced = group.give_up_others(&ids[hart]);
                    if fault != Fault::KeepsOthers {
                        groups[hart][vm] = group;
                    }
                    let others = |member: &&mut Member| member.home == hart && member.known.id() != fenced;
                    members[vm].iter_mut().filter(others).for_each(&mut rename);
                }
            }
            Event::Stop { vm, vcpu } => {
                let member = &mut members[vm][vcpu];
                rename(member);
                if fault != Fault::ForgetsStop {
                    member.home = usize::MAX;
                }
            }
            Event::Replace { vm } => {
                members[vm].iter_mut().for_each(&mut rename);
                if fault != Fault::ForgetsEnd {
                    members[vm].iter_mut().for_each(|member| *member = Member { name: member.name, ..new });
                    groups.iter_mut().for_each(|groups| groups[vm] = Group::new());
                }
            }
            Event::Enter { hart, vm, vcpu } => {
                let member = &mut members[vm][vcpu];
                let stays = member.home == hart;
                if !stays {
                    rename(member);
                }
                member.home = hart;
                model.leave(hart);
                let stays = stays || fault == Fault::ForgetsMove;
                if groups[hart][vm].come(&mut member.known, stays, &mut ids[hart]) == Acquired::RolledOver {
                    model.fence_all(hart);
                }
                model.enter(hart, member.name, member.known.id())?;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn vcpus_of_a_vm_have_ids_of_their_own(bits in 0..6u32, events in events()) {
        prop_assert_eq!(run_vcpus(bits, &events, Fault::None), Ok(()));
    }
}

#[test]
fn hosts_that_fail_are_found() {
    let enter = |hart, vcpu| Event::Enter { hart, vm: 0, vcpu };
    let edited = [enter(0, 0), enter(0, 1), Event::Edit { vm: 0 }, enter(0, 0)];
    let moved = [enter(0, 0), enter(1, 0), enter(0, 0)];
    let stopped = [enter(0, 0), Event::Stop { vm: 0, vcpu: 0 }, enter(0, 0)];
    let ended = [enter(0, 0), Event::Replace { vm: 0 }, enter(0, 0)];
    let faults = [
        (&edited[..], Fault::KeepsOthers),
        (&moved, Fault::ForgetsMove),
        (&stopped, Fault::ForgetsStop),
        (&ended, Fault::ForgetsEnd),
    ];
    for (events, fault) in faults {
        assert_eq!(run_vcpus(4, events, Fault::None), Ok(()));
        assert!(run_vcpus(4, events, fault).is_err(), "{fault:?}");
    }
}

/// A roll-over without its fence is found, for each small number of bits.
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
