//! The lane's work in `steered` (`crates/metal`, `docs/lane.md`), as a model.

use super::subject::Subject;
use ::lane::{Lane, LaneSync};
use mmu::shadow::{GLOBAL_LEAVES, LEAVES, MARK};
use mmu::table::{State, Writer, is_poison};
use oracle::Machine;
use rv::{Addr, Caps, Entry, Format, Hpa, Level, PAGE_BYTES, Pfn, PhysMem, Pte};

/// Brings the entry of `gva` in step with the guest's, if it can. Says whether the fence is done.
pub fn sync<S: Subject>(
    machine: &mut Machine,
    inputs: &LaneSync,
    (root, format): (Pfn<Hpa>, &'static Format),
    gva: Addr<S>,
) -> bool {
    let gate = Addr::new(inputs.gate);
    let next = machine.exchange_u64(gate, 0);
    if next == 0 {
        return false;
    }
    let is_full = next.is_multiple_of(PAGE_BYTES);
    let line = if is_full { None } else { line(machine, inputs, (root, format), gva) };
    let Some((entry, pte, made)) = line else {
        machine.write_u64(gate, next);
        return false;
    };
    machine.write_u64(Addr::new(next), entry);
    if let Some(made) = made {
        machine.write_u64(Addr::new(next + 8), pte.0);
        assert!(State::of(made).may_be_made_by(Writer::LaneAlone, Level::PAGE));
        machine.write_u64(Addr::new(entry - Lane::POINTER_FLAGS), made.0);
    }
    machine.write_u64(gate, next + LaneSync::LINE_BYTES);
    true
}

/// The log's line for an entry, the guest's, and what is to be made of it; or for an address that there is no table of level 0 for.
fn line<S: Subject>(
    machine: &Machine,
    inputs: &LaneSync,
    (mut table, format): (Pfn<Hpa>, &'static Format),
    gva: Addr<S>,
) -> Option<(u64, Pte, Option<Pte>)> {
    for level in format.levels_down().filter(|level| *level > Level::PAGE) {
        let at = table.at(8 * format.index(gva, level) as u64);
        let pte = Pte(machine.peek(at.raw()).expect("a shadow table"));
        if !pte.flags().contains(MARK) {
            return is_poison(pte).then_some((gva.raw() | 1, pte, None));
        }
        let Entry::Table(next) = pte.decode::<Hpa>(level, Caps::default()) else { panic!("MARK on {pte:x?}") };
        table = next;
    }
    let index = format.index(gva, Level::PAGE) as u64;
    let word = |at: u64| machine.peek(at).expect("memory that the lane was told of");
    let guest = word(table.base().raw().wrapping_add_signed(LaneSync::GUEST_AT));
    let pte = Pte(word(guest + 8 * index));
    let entry = table.at(8 * index).raw() + Lane::POINTER_FLAGS;
    let leaves = if inputs.leaves == GLOBAL_LEAVES.as_ptr() as u64 { &GLOBAL_LEAVES } else { &LEAVES };
    let leaf = leaves[(pte.0 & 0x3ff) as usize];
    if leaf == 0 {
        return Some((entry, pte, Some(Pte::INVALID)));
    }
    let chunk = pte.0 >> 19;
    if chunk >= inputs.count {
        return None;
    }
    let there = word(inputs.chunks + 8 * chunk);
    if there >> 63 == 1 {
        return Some((entry, pte, Some(Pte(pte.0.wrapping_add(leaf).wrapping_add(there)))));
    }
    if there == 0 {
        return None;
    }
    let page = word(there + 8 * (pte.0 >> 10 & 511));
    let flags = pte.0.wrapping_add(leaf) & 0x3ff;
    (page & 0xf == 0xf).then_some((entry, pte, Some(Pte(page >> 10 << 10 | flags))))
}

/// Returns whether a wide fence has nothing to do while that is the root.
pub fn rests(machine: &Machine, inputs: &LaneSync, root: Addr<Hpa>) -> bool {
    let word = |at: u64| machine.peek(at).expect("memory that the lane was told of");
    word(root.raw().wrapping_add_signed(LaneSync::REST_AT)) == word(inputs.gate + LaneSync::EPOCH_AT)
}

/// A fence of all addresses and all ASIDs. Says whether it is done; `blindly`: also if there is something to do.
pub fn wide(machine: &mut Machine, inputs: &LaneSync, root: Addr<Hpa>, blindly: bool) -> bool {
    if !blindly && !rests(machine, inputs, root) {
        return false;
    }
    let gate = Addr::new(inputs.gate);
    let next = machine.exchange_u64(gate, 0);
    if next == 0 {
        return false;
    }
    let is_full = next.is_multiple_of(PAGE_BYTES);
    if !is_full {
        machine.write_u64(Addr::new(next), LaneSync::WIDE);
    }
    machine.write_u64(gate, if is_full { next } else { next + LaneSync::LINE_BYTES });
    !is_full
}
