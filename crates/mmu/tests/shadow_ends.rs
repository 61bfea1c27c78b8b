//! The beginning and end of processes' shadow pages, in `steered`: a table is linked when the guest first refuses an
//! access by it, and those that are used no more go before others.

use crate::engine::steered::{Steered, gva, leaf, pointer};
use mmu::shadow::{Answer, GuestFence};
use mmu::table::State;
use rv::format::SV39;
use rv::{Asid, Pte, PteFlags};

/// Guest pages: the root, the table below, and from there on those of leaves.
const ROOT: u64 = 0;
const MIDDLE: u64 = 1;
const TABLES: u64 = 2;
const DATA: u64 = 100;
/// Shadow pages that there may be.
const BOUND: u32 = 64;

fn vm() -> Steered {
    let mut vm = Steered::sized(1, (2048, BOUND, 0), 0..DATA + 1, None);
    vm.store(ROOT, 0, pointer(MIDDLE));
    vm
}

/// Gives the guest a table of a few leaves.
fn begin(vm: &mut Steered, table: u64) {
    (0..4).for_each(|index| vm.store(TABLES + table, index, leaf(DATA)));
    vm.store(MIDDLE, table, pointer(TABLES + table));
}

/// Takes the table from the guest.
fn end(vm: &mut Steered, table: u64) {
    (0..4).for_each(|index| vm.store(TABLES + table, index, 0));
    vm.store(MIDDLE, table, 0);
}

fn is_there(vm: &Steered, table: u64) -> bool {
    vm.entry(gva([0, table, 0])).is_some_and(|entry| State::of(entry) == State::Leaf)
}

#[test]
fn tables_that_are_used_no_more_go_first() {
    let (live, dead, new) = (0..8, 8..48, 48..78);
    let mut vm = vm();
    live.clone().chain(dead.clone()).for_each(|table| begin(&mut vm, table));
    vm.load((&SV39, ROOT, Asid(1)));
    for table in live.clone().chain(dead.clone()) {
        let _ = vm.access(gva([0, table, 0]));
        assert!(is_there(&vm, table));
    }
    dead.for_each(|table| end(&mut vm, table));
    for table in new {
        begin(&mut vm, table);
        let _ = vm.access(gva([0, table, 0]));
        assert!(is_there(&vm, table));
    }
    let counters = *vm.shadow.counters();
    assert!(counters.recycled != 0, "there was room for all");
    for table in live {
        assert!(is_there(&vm, table), "table {table} went, which is in use: {counters:?}");
    }
    vm.end();
}

#[test]
fn a_table_by_which_the_guest_refuses_is_linked() {
    let mut vm = vm();
    begin(&mut vm, 0);
    vm.load((&SV39, ROOT, Asid(1)));
    let at = gva([0, 0, 9]);
    assert_eq!(vm.entry(at), None);
    assert!(matches!(vm.access(at), Answer::Inject(_)));
    assert_eq!(vm.entry(at), Some(Pte::INVALID), "the next fault is the guest's own");
    assert!(is_there(&vm, 0), "what is there needs no fault");
    vm.store(TABLES, 9, leaf(DATA));
    vm.fence(GuestFence { range: Some((at, 1)), asid: Some(Asid(1)) });
    assert_eq!(vm.entry(at).map(State::of), Some(State::Leaf));
    vm.end();
}

#[test]
fn nothing_is_linked_that_a_hart_would_not_follow() {
    let mut vm = vm();
    begin(&mut vm, 0);
    // A is reserved in an entry that leads to a table: a walk ends there.
    vm.store(MIDDLE, 0, pointer(TABLES) | PteFlags::A.bits());
    vm.load((&SV39, ROOT, Asid(1)));
    assert!(matches!(vm.access(gva([0, 0, 0])), Answer::Inject(_)));
    assert_eq!(vm.entry(gva([0, 0, 0])), None);
    vm.end();
}
