//! The catalogue of the fence model: for every rule, what is wrong (`bad_*`) and what is right
//! (`good_*`).

use oracle::{FenceModel, Machine, Violation};
use rv::format::SV39X4;
use rv::{Addr, Fence, FenceScope, Gpa, Hpa, Pfn, PhysMem};

const ROOT: u64 = 0x100;
const L1: u64 = 0x104;
const L0: u64 = 0x105;
const SPARE: u64 = 0x106;
const DATA: u64 = 0x200;
const RX: u64 = 0x5b;
const RW: u64 = 0xd7;
/// Guest page 5 is what the tests are about.
const PAGE: u64 = 5;

fn pointer(frame: u64) -> u64 {
    frame << 10 | 1
}

fn leaf(frame: u64, flags: u64) -> u64 {
    frame << 10 | flags
}

fn slot(table: u64, index: u64) -> Addr<Hpa> {
    Pfn::new(table).at(8 * index)
}

fn page(page: u64) -> FenceScope<Gpa> {
    FenceScope::Range { start: Pfn::new(page).base(), bytes: 4096 }
}

/// Two harts in a guest whose page 5 is `DATA`, RW.
fn running() -> FenceModel {
    let mut machine = Machine::new();
    for frame in ROOT..=SPARE {
        machine.poke(frame << 12, 0);
    }
    machine.add(Pfn::new(DATA), 1024);
    machine.poke(ROOT << 12, pointer(L1));
    machine.poke(L1 << 12, pointer(L0));
    machine.poke((L0 << 12) + 8 * PAGE, leaf(DATA, RW));
    let mut model = FenceModel::new(machine, 2);
    model.watch(&SV39X4, Pfn::new(ROOT));
    model.enter_guest(0);
    model.enter_guest(1);
    model
}

#[test]
fn good_freed_after_the_fence() {
    let mut m = running();
    m.write_u64(slot(L0, PAGE), 0);
    m.fence(page(PAGE));
    m.free(Pfn::new(DATA));
    m.enter_guest(0);
    assert_eq!(m.verdict(), Ok(()));
}

#[test]
fn bad_frame_freed_before_the_fence() {
    let mut m = running();
    m.write_u64(slot(L0, PAGE), 0);
    m.free(Pfn::new(DATA));
    assert_eq!(m.verdict(), Err(Violation::FreedWhileReachable { frame: DATA, hart: 0 }));
}

#[test]
fn bad_frame_freed_before_the_other_hart_has_fenced() {
    let mut m = running();
    m.write_u64(slot(L0, PAGE), 0);
    m.fence_hart(0, page(PAGE));
    m.free(Pfn::new(DATA));
    assert_eq!(m.verdict(), Err(Violation::FreedWhileReachable { frame: DATA, hart: 1 }));
}

#[test]
fn bad_frame_freed_while_mapped() {
    let mut m = running();
    m.fence(FenceScope::Everything);
    m.free(Pfn::new(DATA));
    assert_eq!(m.verdict(), Err(Violation::FreedWhileReachable { frame: DATA, hart: 0 }));
}

#[test]
fn bad_fence_of_another_page() {
    let mut m = running();
    m.write_u64(slot(L0, PAGE), 0);
    m.fence(page(PAGE + 1));
    m.free(Pfn::new(DATA));
    assert!(m.verdict().is_err());
}

#[test]
fn bad_fence_before_the_write() {
    let mut m = running();
    m.fence(page(PAGE));
    m.write_u64(slot(L0, PAGE), 0);
    m.enter_guest(1);
    assert_eq!(m.verdict(), Err(Violation::StalePermission { hart: 1, page: PAGE }));
}

#[test]
fn bad_permission_reduced_without_a_fence() {
    let mut m = running();
    m.write_u64(slot(L0, PAGE), leaf(DATA, RX));
    m.enter_guest(0);
    assert_eq!(m.verdict(), Err(Violation::StalePermission { hart: 0, page: PAGE }));
}

#[test]
fn bad_frame_changed_without_a_fence() {
    let mut m = running();
    m.write_u64(slot(L0, PAGE), leaf(DATA + 1, RW));
    m.enter_guest(0);
    assert_eq!(m.verdict(), Err(Violation::StalePermission { hart: 0, page: PAGE }));
}

#[test]
fn bad_older_translation_survives_a_later_edit_of_the_same_entry() {
    let mut m = running();
    m.write_u64(slot(L0, PAGE), 0);
    m.write_u64(slot(L0, PAGE), leaf(DATA + 1, RW));
    m.enter_guest(0);
    assert!(m.verdict().is_err());
}

#[test]
fn good_permission_grown_without_a_fence() {
    let mut m = running();
    m.write_u64(slot(L0, 6), leaf(DATA + 1, 0x53));
    m.write_u64(slot(L0, 6), leaf(DATA + 1, RW));
    m.enter_guest(0);
    assert_eq!(m.verdict(), Ok(()));
}

#[test]
fn good_invalid_to_valid_without_a_fence() {
    let mut m = running();
    m.write_u64(slot(L0, 6), leaf(DATA + 1, RW));
    m.enter_guest(0);
    assert_eq!(m.verdict(), Ok(()));
}

#[test]
fn good_destroyed_when_nobody_uses_the_tables() {
    let mut m = running();
    (0..2).for_each(|hart| m.detach(hart));
    m.fence(FenceScope::Everything);
    [DATA, L0, L1, ROOT, ROOT + 3].into_iter().for_each(|frame| m.free(Pfn::new(frame)));
    assert_eq!(m.verdict(), Ok(()));
}

#[test]
fn bad_destroyed_while_a_tlb_remembers() {
    let mut m = running();
    (0..2).for_each(|hart| m.detach(hart));
    m.fence_hart(0, FenceScope::Everything);
    m.free(Pfn::new(DATA));
    assert_eq!(m.verdict(), Err(Violation::FreedWhileReachable { frame: DATA, hart: 1 }));
}

#[test]
fn bad_root_freed_while_in_hgatp() {
    let mut m = running();
    m.fence(FenceScope::Everything);
    m.free(Pfn::new(ROOT + 2));
    assert!(m.verdict().is_err());
}

#[test]
fn bad_table_freed_after_a_fence_by_address() {
    // A fence by address orders leaf entries only: the pointer may still be cached.
    let mut m = running();
    m.write_u64(slot(L1, 0), 0);
    m.fence(FenceScope::Range { start: Addr::new(0), bytes: 512 * 4096 });
    m.free(Pfn::new(L0));
    assert_eq!(m.verdict(), Err(Violation::FreedWhileReachable { frame: L0, hart: 0 }));
}

#[test]
fn good_table_freed_after_a_fence_of_everything() {
    let mut m = running();
    m.write_u64(slot(L1, 0), 0);
    m.fence(FenceScope::Everything);
    m.free(Pfn::new(L0));
    m.free(Pfn::new(DATA));
    m.enter_guest(1);
    assert_eq!(m.verdict(), Ok(()));
}

#[test]
fn bad_data_below_an_orphaned_table_freed_after_a_fence_by_address() {
    let mut m = running();
    m.write_u64(slot(L1, 0), 0);
    m.fence(FenceScope::Range { start: Addr::new(0), bytes: 512 * 4096 });
    m.free(Pfn::new(DATA));
    assert_eq!(m.verdict(), Err(Violation::FreedWhileReachable { frame: DATA, hart: 0 }));
}

#[test]
fn bad_orphaned_table_is_written_and_walked() {
    let mut m = running();
    m.write_u64(slot(L1, 0), pointer(SPARE));
    m.write_u64(slot(L0, 9), leaf(DATA + 9, RW));
    m.fence(page(PAGE));
    m.enter_guest(0);
    assert!(m.verdict().is_err());
}

#[test]
fn good_superpage_split_into_the_same_pages() {
    let mut m = running();
    m.write_u64(slot(L1, 1), leaf(DATA, RW));
    for i in 0..512 {
        m.write_u64(slot(SPARE, i), leaf(DATA + i, RW));
    }
    m.write_u64(slot(L1, 1), pointer(SPARE));
    m.enter_guest(0);
    m.write_u64(slot(SPARE, 7), 0);
    m.fence(page(512 + 7));
    m.enter_guest(0);
    assert_eq!(m.verdict(), Ok(()));
}

#[test]
fn bad_superpage_split_forgets_one_page() {
    let mut m = running();
    m.write_u64(slot(L1, 1), leaf(DATA, RW));
    for i in (0..512).filter(|i| *i != 300) {
        m.write_u64(slot(SPARE, i), leaf(DATA + i, RW));
    }
    m.write_u64(slot(L1, 1), pointer(SPARE));
    m.fence(page(512 + 7));
    m.enter_guest(0);
    assert_eq!(m.verdict(), Err(Violation::StalePermission { hart: 0, page: 512 + 300 }));
}
