//! Quiet tables, in `steered`: what a wide fence does hangs on how many tables have changed, and not on how many there are.

use crate::engine::steered::{Steered, gva, leaf, pointer};
use crate::shadow_rig::lane;
use mmu::shadow::{Answer, GuestFence, Sabotage};
use rv::format::SV39;
use rv::{Addr, Asid, Gva};

/// Guest pages: a root, tables of level 1, tables of level 0, one more by which the guest reaches its tables, and data.
const ROOT: u64 = 0;
const MIDDLES: u64 = 1;
const TABLES: u64 = 32;
const MANY: u64 = 10_000;
const WINDOW: u64 = TABLES + MANY;
const DATA: u64 = WINDOW + 1;
const REGIONS: usize = 21;

/// Tables of level 1 whose entries all lead to one table.
const CROWD: u64 = 5;

/// Returns the address of the data that table `n` leads to.
fn address(n: u64) -> Addr<Gva> {
    gva([n / 512, n % 512, 7])
}

/// Returns the address of one of the guest's frames that the window shows.
fn window(index: u64) -> Addr<Gva> {
    gva([MANY / 512, MANY % 512, index])
}

fn vm() -> Steered {
    let mut vm = Steered::sized(REGIONS, (70_000, 12_000, 2), 0..DATA + 2, None);
    for n in 0..=MANY {
        vm.store(MIDDLES + n / 512, n % 512, pointer(TABLES + n));
        vm.store(ROOT, n / 512, pointer(MIDDLES + n / 512));
        vm.store(TABLES + n, 7, leaf(DATA));
    }
    vm.load((&SV39, ROOT, Asid(0)));
    vm
}

fn all_addresses() -> GuestFence {
    GuestFence { range: None, asid: None }
}

/// Tables compared by a fence of all addresses.
fn fence(vm: &mut Steered) -> u64 {
    let before = vm.shadow.counters().synced_pages;
    vm.fence(all_addresses());
    vm.shadow.counters().synced_pages - before
}

#[test]
fn of_ten_thousand_tables_those_that_change_are_compared() {
    let mut vm = vm();
    for first in (0..MANY).step_by(32) {
        // As long as they are used between two fences, they are not left out for that reason.
        for _ in 0..4 {
            (first..MANY.min(first + 32)).for_each(|n| _ = vm.access(address(n)));
            fence(&mut vm);
        }
    }
    // What was left out meanwhile comes back.
    let mut rounds = 0;
    while {
        (0..MANY).for_each(|n| _ = vm.access(address(n)));
        fence(&mut vm) != 0
    } {
        rounds += 1;
        assert!(rounds < 100, "some tables do not become quiet");
    }
    assert!((0..MANY).all(|n| vm.entry(address(n)).is_some()), "all are linked");
    assert!(vm.shadow.counters().quieted >= MANY);

    // One table, in the middle: the guest comes there by its window, and writes.
    let (changed, page) = (MANY / 2, TABLES + MANY / 2);
    vm.store(TABLES + MANY, 9, leaf(page));
    vm.fence(GuestFence { range: Some((window(9), 1)), asid: None });
    assert!(matches!(vm.access(window(9)), Answer::Filled { .. }));
    assert_eq!(vm.shadow.counters().woken, 1);
    vm.store(page, 7, leaf(DATA + 1));
    let compared = fence(&mut vm);
    // It, and what leads there from the root.
    assert!((1..=4).contains(&compared), "{compared} tables are compared");
    assert_eq!(vm.entry(address(changed)).map(|found| found.pfn()), Some(vm.there(DATA + 1)), "TLB-LIKE");
    vm.end();
}

/// A table that more entries lead to than are looked at when it is quiet no more: those of one root come first, and one of another last.
/// Says whether that one has what the guest has changed since.
fn crowd(sabotage: Option<Sabotage>) -> bool {
    const DATA: u64 = TABLES + 2;
    const OTHER: u64 = 20;
    let mut vm = Steered::sized(1, (4096, 256, 2), 0..DATA + 2, sabotage);
    for n in 0..CROWD {
        vm.store(ROOT, n, pointer(MIDDLES + n));
        (0..512).for_each(|index| vm.store(MIDDLES + n, index, pointer(TABLES)));
    }
    vm.store(OTHER, 1, pointer(OTHER + 1));
    vm.store(OTHER + 1, 1, pointer(TABLES));
    vm.store(OTHER, 2, pointer(OTHER + 2));
    vm.store(OTHER + 2, 2, pointer(TABLES + 1));
    vm.store(TABLES, 7, leaf(DATA));
    vm.store(TABLES + 1, 9, leaf(TABLES));
    let rest = |vm: &mut Steered, root, address| {
        vm.load((&SV39, root, Asid(0)));
        for _ in 0..60 {
            vm.access(address);
            vm.fence(all_addresses());
        }
    };
    rest(&mut vm, OTHER, gva([1, 1, 7]));
    rest(&mut vm, ROOT, gva([0, 0, 7]));
    for address in (0..CROWD).flat_map(|n| (0..512).map(move |index| gva([n, index, 7]))) {
        vm.access(address);
    }
    rest(&mut vm, OTHER, gva([1, 1, 7]));
    assert_eq!(fence(&mut vm), 0, "the tables are not at rest");
    let (inputs, root) = (vm.shadow.lane_inputs().expect("a lane"), vm.root.expect("a root"));
    assert!(lane::rests(&vm.mem, &inputs, root.table.base()), "the lane is not told");
    assert!(matches!(vm.access(gva([2, 2, 9])), Answer::Filled { .. }));
    assert_eq!(vm.shadow.counters().woken, 1);
    let (inputs, root) = (vm.shadow.lane_inputs().expect("a lane"), vm.root.expect("a root"));
    let is_told = !lane::rests(&vm.mem, &inputs, root.table.base());
    vm.store(TABLES, 7, leaf(DATA + 1));
    vm.fence(all_addresses());
    vm.shadow.audit(&vm.mem);
    let found = vm.entry(gva([1, 1, 7])).map(|found| found.pfn());
    let is_right = found.is_none_or(|found| found == vm.there(DATA + 1));
    vm.end();
    is_right && is_told
}

#[test]
fn a_table_that_thousands_of_entries_lead_to_is_found_when_it_is_quiet_no_more() {
    assert!(crowd(None), "TLB-LIKE");
    for mutant in [Sabotage::ForgetsMostParents, Sabotage::KeepsEpoch] {
        assert!(!crowd(Some(mutant)), "{mutant:?} is not caught");
    }
}
