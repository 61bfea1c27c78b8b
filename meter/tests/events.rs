//! The effects of events: fences, traps, returns, writes of CSRs, stores to tables.

mod fake;

use fake::{BASE, CODE, Fake, LEAF, PAGES_AT, Rig, USER_LEAF, VA, guest, leaf, root};
use meter::block::Block;
use meter::hart::{AccessSite, Machine, MemoryAccess, Register, Seen};
use meter::insn::{Csr, FenceKind, Memory, Special};
use meter::mode::Mode;
use rv::format::{SV39, SV39X4};

#[test]
fn fences_forget_what_they_name_if_they_are_executed() {
    let at = 0x10_0000_0000;
    let walks = |rig: &mut Rig| {
        rig.access(at, Mode::VS, Memory::Load);
        rig.counts().cores[0].misses[Mode::VS.index()].walks
    };
    let mut rig = guest(&["core=plain"], 0);
    assert_eq!((walks(&mut rig), walks(&mut rig)), (1, 1));
    rig.fake.set(Register::X(10), at);
    let fence = |kind| Special::Fence { kind, rs1: 10, rs2: 0 };
    rig.execute(fence(FenceKind::Sfence), Mode::VS);
    assert_eq!(walks(&mut rig), 2);
    // That of HS is about translations of V=0.
    rig.execute(fence(FenceKind::Sfence), Mode::S);
    assert_eq!(walks(&mut rig), 2);
    rig.execute(fence(FenceKind::HfenceVvma), Mode::S);
    assert_eq!(walks(&mut rig), 3);
    rig.fake.set(Register::X(10), BASE >> 2);
    rig.execute(fence(FenceKind::HfenceGvma), Mode::S);
    assert_eq!(walks(&mut rig), 4);
    // It traps: the next thing that runs is the handler.
    rig.fake.set(Register::X(10), at);
    rig.set_csr(Csr::Mtvec, Register::Mtvec, BASE + 0x800);
    rig.hart.before(fence(FenceKind::Sfence), Mode::VS, CODE + 4, &mut rig.board, &rig.shared, &rig.fake);
    rig.fake.set(Register::Mcause, 22);
    rig.fake.set(Register::Mepc, CODE);
    rig.fake.set(Register::Mstatus, 1 << 39 | 1 << 11);
    rig.enter(BASE + 0x800, Mode::M);
    assert_eq!(walks(&mut rig), 4);
    let counts = rig.counts();
    assert_eq!(rig.traps(), [(Mode::VS, Mode::M, 22, false, 1)]);
    assert_eq!(counts.fences[FenceKind::Sfence as usize][1][Mode::VS.index()], 1);
    assert_eq!(counts.not_retired[Mode::VS.index()], 1);
}

#[test]
fn a_return_to_a_vector_is_no_trap() {
    let mut rig = Rig::new(&["core=plain"]);
    rig.set_csr(Csr::Stvec, Register::Stvec, CODE);
    rig.fake.set(Register::Mepc, CODE);
    rig.hart.before(Special::Return { from_m: true }, Mode::M, BASE, &mut rig.board, &rig.shared, &rig.fake);
    rig.enter(CODE, Mode::S);
    assert_eq!(rig.counts().traps.total(), 0);
    rig.fake.set(Register::Scause, 1 << 63 | 5);
    rig.enter(CODE, Mode::S);
    assert_eq!(rig.traps(), [(Mode::U, Mode::S, 5, true, 1)]);
}

#[test]
fn failed_walks_and_hardware_updates_are_counted() {
    let mut rig = guest(&["core=plain"], 0);
    rig.set_csr(Csr::Stvec, Register::Vstvec, 0);
    rig.set_csr(Csr::Vstvec, Register::Vstvec, CODE);
    rig.fake.set(Register::Scause, 13);
    rig.fake.set(Register::Stval, 0x10_0004_0000);
    rig.fake.set(Register::Sstatus, 1 << 8);
    rig.enter(CODE, Mode::VS);
    let misses = rig.counts().cores[0].misses[Mode::VS.index()].clone();
    // Three guest entries, each behind three of the G-stage; the last guest entry is not valid.
    assert_eq!((misses.failed_walks, misses.failed_refs), (1, 12));
    // D of a leaf that was filled clean is set by hardware at the first store.
    let mut rig = Rig::new(&["core=plain"]);
    let table = rig.fake.frames(1);
    rig.fake.map(&SV39, table, VA, 0, leaf(BASE + 0x5000, LEAF & !0x80));
    rig.set_csr(Csr::Satp, Register::Satp, root(&SV39, table, 0));
    rig.access(VA, Mode::S, Memory::Load);
    rig.fake.map(&SV39, table, VA, 0, leaf(BASE + 0x5000, LEAF));
    rig.access(VA, Mode::S, Memory::Store);
    let counts = rig.counts();
    let misses = &counts.cores[0].misses[Mode::S.index()];
    assert_eq!((misses.walks, misses.dirty_walks, misses.dirty_refs), (1, 1, 3));
    assert_eq!(counts.ad_updates[Mode::S.index()], 1);
}

#[test]
fn protected_memory_is_told_from_holes() {
    let mut rig = Rig::new(&["core=plain"]);
    rig.set_csr(Csr::Mtvec, Register::Mtvec, CODE);
    rig.fake.set(Register::Mstatus, 1 << 11);
    rig.fake.set(Register::Mcause, 5);
    for (at, pmp, other) in [(BASE + 0x1000, 1, 0), (0x4000_0000, 1, 1)] {
        rig.fake.set(Register::Mtval, at);
        rig.enter(CODE, Mode::M);
        assert_eq!((rig.counts().pmp_faults, rig.counts().other_access_faults), (pmp, other));
    }
}

#[test]
fn check_mode_sees_what_a_fence_should_have_removed() {
    let at = 0x10_0000_0000;
    let g_edit = |rig: &Rig, to: u64| {
        let g = rig.fake.word_of_root(Register::Hgatp);
        rig.fake.map(&SV39X4, g, BASE, 0, leaf(to, USER_LEAF))
    };
    for is_fenced in [false, true] {
        let mut rig = guest(&["core=plain", "level=check"], 0);
        rig.access(at, Mode::VS, Memory::Load);
        let entry = g_edit(&rig, BASE + 0x9000);
        // The hypervisor's store.
        *rig.fake.physical.borrow_mut() = Some(entry);
        rig.access(entry, Mode::M, Memory::Store);
        if is_fenced {
            rig.fake.set(Register::X(10), BASE >> 2);
            rig.execute(Special::Fence { kind: FenceKind::HfenceGvma, rs1: 10, rs2: 0 }, Mode::M);
        }
        rig.access(at, Mode::VS, Memory::Load);
        assert_eq!(rig.counts().stale.g_stage, u64::from(!is_fenced));
        assert_eq!(rig.hart.check().map(|check| check.findings.len()), Some(usize::from(!is_fenced)));
    }
}

impl Fake {
    fn word_of_root(&self, register: Register) -> u64 {
        (self.register(register) & ((1 << 44) - 1)) << 12
    }
}

#[test]
fn an_interrupt_behind_a_write_or_a_fence_undoes_neither() {
    let mut rig = Rig::new(&["core=plain"]);
    rig.set_csr(Csr::Stvec, Register::Stvec, CODE + 0x800);
    rig.fake.set(Register::Scause, 1 << 63 | 5);
    // The interrupt comes before the next instruction, which is where it returns to.
    rig.fake.set(Register::Sepc, CODE + 4);
    rig.fake.set(Register::Sstatus, 1 << 8);
    let table = rig.fake.frames(1);
    rig.fake.set(Register::Satp, root(&SV39, table, 1));
    rig.hart.before(Special::CsrWrite(Csr::Satp), Mode::S, CODE + 4, &mut rig.board, &rig.shared, &rig.fake);
    rig.enter(CODE + 0x800, Mode::S);
    let counts = rig.counts();
    assert_eq!((counts.root_switches, counts.traps.total()), ([1, 0, 0], 1));
    let fence = Special::Fence { kind: FenceKind::Sfence, rs1: 0, rs2: 0 };
    rig.hart.before(fence, Mode::S, CODE + 4, &mut rig.board, &rig.shared, &rig.fake);
    rig.enter(CODE + 0x800, Mode::S);
    assert_eq!(rig.counts().fences[FenceKind::Sfence as usize][0][Mode::S.index()], 1);
    // The vector itself was written: the interrupt arrives at the new one.
    rig.fake.set(Register::Stvec, CODE + 0xc00);
    rig.hart.before(Special::CsrWrite(Csr::Stvec), Mode::S, CODE + 4, &mut rig.board, &rig.shared, &rig.fake);
    rig.enter(CODE + 0xc00, Mode::S);
    assert_eq!(rig.counts().traps.total(), 3);
}

#[test]
fn a_guests_write_is_read_where_the_guest_was_left() {
    // With V=1, `satp` is the guest's. An interrupt takes the hart to M, where it is the hypervisor's again.
    let mut rig = Rig::new(&["core=plain"]);
    let (own, guests) = (rig.fake.frames(1), rig.fake.frames(1));
    rig.fake.map(&SV39, guests, VA, 0, leaf(BASE + 0x5000, LEAF));
    rig.set_csr(Csr::Satp, Register::Satp, root(&SV39, own, 1));
    rig.set_csr(Csr::Mtvec, Register::Mtvec, CODE + 0x800);
    rig.hart.before(Special::CsrWrite(Csr::Satp), Mode::VS, CODE + 4, &mut rig.board, &rig.shared, &rig.fake);
    rig.fake.set(Register::Vsatp, root(&SV39, guests, 2));
    rig.fake.set(Register::Mcause, 1 << 63 | 7);
    rig.fake.set(Register::Mepc, CODE + 4);
    rig.fake.set(Register::Mstatus, 1 << 39 | 1 << 11);
    rig.enter(CODE + 0x800, Mode::M);
    assert_eq!(rig.counts().root_switches, [1, 1, 0]);
    rig.access(VA, Mode::VS, Memory::Load);
    assert_eq!(rig.misses(Mode::VS).walks, 1);
    // And where no trap comes between, it is read with V=1.
    rig.fake.set(Register::Satp, 0);
    rig.execute(Special::CsrWrite(Csr::Satp), Mode::VS);
    assert_eq!(rig.counts().root_switches, [1, 2, 0]);
}

#[test]
fn a_write_that_traps_changes_nothing() {
    // VTVM: the hypervisor gets virtual-instruction exceptions.
    let mut rig = guest(&["core=plain"], 0);
    rig.set_csr(Csr::Stvec, Register::Stvec, CODE + 0x800);
    rig.hart.before(Special::CsrWrite(Csr::Satp), Mode::VS, CODE + 4, &mut rig.board, &rig.shared, &rig.fake);
    rig.fake.set(Register::Satp, 0);
    rig.fake.set(Register::Vsatp, 0);
    rig.fake.set(Register::Scause, 22);
    rig.fake.set(Register::Sepc, CODE);
    rig.fake.set(Register::Hstatus, 1 << 7);
    rig.fake.set(Register::Sstatus, 1 << 8);
    rig.enter(CODE + 0x800, Mode::S);
    let counts = rig.counts();
    assert_eq!(counts.root_switches[1], 1);
    assert_eq!(rig.traps(), [(Mode::VS, Mode::S, 22, false, 1)]);
    rig.access(PAGES_AT, Mode::VS, Memory::Load);
    assert_eq!(rig.misses(Mode::VS).walks, 1);
}

#[test]
fn a_tlb_that_has_the_page_refuses_by_itself() {
    const READ_ONLY: u64 = LEAF & !0x84;
    let mut rig = Rig::new(&["core=plain", "core=cached"]);
    let table = rig.fake.frames(1);
    rig.fake.map(&SV39, table, VA, 0, leaf(BASE + 0x5000, READ_ONLY));
    rig.set_csr(Csr::Satp, Register::Satp, root(&SV39, table, 1));
    // No TLB has the page yet: a walk finds the refusal.
    rig.trap(Mode::S, 15, VA, 1 << 8);
    let of = |rig: &Rig| {
        let misses = rig.misses(Mode::S);
        (misses.data, misses.failed_walks, misses.failed_refs, misses.refused_without_walk)
    };
    assert_eq!(of(&rig), (1, 1, 3, 0));
    rig.access(VA, Mode::S, Memory::Load);
    rig.trap(Mode::S, 15, VA, 1 << 8);
    assert_eq!(of(&rig), (2, 1, 3, 1));
    // An address whose upper bits are wrong is not looked up at all.
    rig.trap(Mode::S, 13, 1 << 50, 1 << 8);
    assert_eq!(of(&rig), (2, 1, 3, 2));
    // The same page, which only the L2 TLB of the other core still has.
    for page in 1..40 {
        rig.fake.map(&SV39, table, VA + (page << 12), 0, leaf(BASE + 0x5000, LEAF));
        rig.access(VA + (page << 12), Mode::S, Memory::Load);
    }
    rig.trap(Mode::S, 15, VA, 1 << 8);
    assert_eq!(of(&rig), (2 + 39 + 1, 2, 6, 2));
    let cached = &rig.counts().cores[1].misses[Mode::S.index()];
    assert_eq!((cached.l2_hits, cached.failed_walks, cached.refused_without_walk), (1, 1, 3));
    // Looks: a load, three stores, a load of nowhere, and 39 loads.
    assert_eq!(rig.counts().lookups()[Mode::S.index()], 44);
}

#[test]
fn faults_belong_to_the_translation_that_was_used() {
    // HS loads on behalf of its guest, whose table has no such page: GVA says whose address it is.
    let mut rig = guest(&["core=plain"], 0);
    let nowhere = PAGES_AT + (100 << 12);
    rig.fake.set(Register::Hstatus, 1 << 6 | 1 << 8);
    rig.trap(Mode::S, 13, nowhere, 1 << 8);
    assert_eq!((rig.misses(Mode::VS).failed_walks, rig.misses(Mode::VS).failed_refs), (1, 12));
    rig.fake.set(Register::Hstatus, 1 << 6);
    rig.trap(Mode::S, 21, nowhere, 1 << 8);
    assert_eq!(rig.misses(Mode::VU).failed_walks, 1);
    // Firmware loads with MPRV, as it does to emulate a misaligned access.
    let table = rig.fake.frames(1);
    rig.set_csr(Csr::Satp, Register::Satp, root(&SV39, table, 1));
    rig.trap(Mode::M, 13, nowhere, 3 << 11);
    assert_eq!((rig.misses(Mode::S).failed_walks, rig.misses(Mode::S).failed_refs), (1, 1));
    assert_eq!(rig.misses(Mode::M), Default::default());
}

#[test]
fn what_memory_protection_refuses_was_translated() {
    let mut rig = guest(&["core=plain"], 0);
    for _ in 0..2 {
        rig.trap(Mode::M, 5, PAGES_AT, 1 << 39 | 1 << 11);
    }
    let misses = rig.misses(Mode::VS);
    assert_eq!((misses.walks, misses.refs_first + misses.refs_g, misses.failed_walks), (1, 15, 0));
    assert_eq!((rig.counts().pmp_faults, rig.counts().other_access_faults), (2, 0));
}

#[test]
fn accesses_over_the_end_of_a_page_look_twice() {
    let mut rig = guest(&["core=plain"], 0);
    let site = AccessSite::new(Memory::Load, Mode::VS);
    let access = MemoryAccess { at: PAGES_AT + 0xffc, shift: 3, mmu_index: Mode::VS.mmu_index(), site };
    for _ in 0..2 {
        assert_eq!(rig.hart.access(access, &rig.shared), Seen::Never);
        rig.hart.access_anew(access, &mut rig.board, &rig.shared, &rig.fake);
    }
    assert_eq!((rig.misses(Mode::VS).data, rig.counts().lookups()[Mode::VS.index()]), (2, 4));
    assert_eq!(rig.counts().crossings[Mode::VS.index()], 2);
}

#[test]
fn code_over_the_end_of_a_page_is_fetched_from_both() {
    let mut rig = guest(&["core=plain"], 0);
    let fetches = |rig: &Rig| rig.misses(Mode::VS).fetch;
    rig.fake.set(Register::Pc, PAGES_AT + 0xff0);
    let block = Block { page: 7, mode: Mode::VS, crosses: true };
    rig.hart.enter_block(block, &mut rig.board, &rig.shared, &rig.fake);
    assert_eq!(fetches(&rig), 2);
    // The block behind it, in the second page, and one back in the first: both have to be looked at.
    assert_eq!(rig.board.place, meter::block::NOWHERE);
    rig.enter(PAGES_AT + 0x1002, Mode::VS);
    rig.enter(PAGES_AT, Mode::VS);
    assert_eq!(fetches(&rig), 2);
}

#[test]
fn amos_are_one_look_and_zeroed_blocks_too() {
    let mut rig = guest(&["core=plain"], 0);
    rig.access(PAGES_AT, Mode::VS, Memory::Amo);
    (0..64).for_each(|byte| rig.access(PAGES_AT + 64 + byte, Mode::VS, Memory::Block));
    let counts = rig.counts();
    assert_eq!(counts.lookups()[Mode::VS.index()], 2);
    let of = |kind| counts.accesses_of(&[kind])[Mode::VS.index()];
    assert_eq!((of(Memory::Amo), of(Memory::Block), of(Memory::Store)), (1, 1, 0));
}

#[test]
fn tags_keep_spaces_apart_and_global_pages_join_them() {
    let mut rig = Rig::new(&["core=plain", "core=u74"]);
    let table = rig.fake.frames(1);
    rig.fake.map(&SV39, table, VA, 0, leaf(BASE + 0x5000, LEAF));
    rig.fake.map(&SV39, table, VA + 0x1000, 0, leaf(BASE + 0x6000, LEAF | 0x20));
    let switch = |rig: &mut Rig, asid| rig.set_csr(Csr::Satp, Register::Satp, root(&SV39, table, asid));
    let walks = |rig: &Rig| [0, 1].map(|core: usize| rig.counts().cores[core].misses[Mode::S.index()].walks);
    let load = |rig: &mut Rig| [VA, VA + 0x1000].iter().for_each(|at| rig.access(*at, Mode::S, Memory::Load));
    switch(&mut rig, 1);
    load(&mut rig);
    assert_eq!(walks(&rig), [2, 2]);
    switch(&mut rig, 2);
    load(&mut rig);
    assert_eq!(walks(&rig), [3, 3]);
    // `u74` has no ASIDs here: what was the first space's is gone.
    switch(&mut rig, 1);
    load(&mut rig);
    assert_eq!(walks(&rig), [3, 4]);
    // On a core without ASIDs, a fence of another ASID removes all but the global page.
    rig.fake.set(Register::X(11), 9);
    rig.execute(Special::Fence { kind: FenceKind::Sfence, rs1: 0, rs2: 11 }, Mode::S);
    load(&mut rig);
    assert_eq!(walks(&rig), [3, 5]);
    // One of this ASID leaves the global page alone, too.
    rig.fake.set(Register::X(11), 1);
    rig.execute(Special::Fence { kind: FenceKind::Sfence, rs1: 0, rs2: 11 }, Mode::S);
    load(&mut rig);
    assert_eq!(walks(&rig), [4, 6]);
}

#[test]
fn a_global_page_may_be_in_the_tables_of_one_address_space_only() {
    for (flags, is_unmapped, findings) in [(LEAF | 0x20, false, 0), (LEAF | 0x20, true, 1), (LEAF, true, 0)] {
        let mut rig = Rig::new(&["core=plain", "level=check"]);
        let tables = [1_u64, 2].map(|asid| (rig.fake.frames(1), asid));
        let entry = rig.fake.map(&SV39, tables[0].0, VA, 0, leaf(BASE + 0x5000, flags));
        rig.set_csr(Csr::Satp, Register::Satp, root(&SV39, tables[0].0, 1));
        rig.access(VA, Mode::S, Memory::Load);
        if is_unmapped {
            *rig.fake.physical.borrow_mut() = Some(entry);
            rig.fake.poke(entry, 0);
            rig.access(entry, Mode::M, Memory::Store);
        }
        // Where nothing is mapped.
        rig.set_csr(Csr::Satp, Register::Satp, root(&SV39, tables[1].0, 2));
        rig.trap(Mode::S, 13, VA, 1 << 8);
        assert_eq!(rig.counts().stale.missed_faults, findings, "{flags:#x} {is_unmapped}");
    }
}

#[test]
fn vmids_keep_guests_apart() {
    let mut rig = guest(&["core=plain"], 0);
    let hgatp = rig.fake.register(Register::Hgatp);
    let walks = |rig: &mut Rig| {
        rig.access(PAGES_AT, Mode::VS, Memory::Load);
        rig.misses(Mode::VS).walks
    };
    assert_eq!(walks(&mut rig), 1);
    rig.set_csr(Csr::Hgatp, Register::Hgatp, hgatp ^ 1 << 44);
    assert_eq!(walks(&mut rig), 2);
    // The other guest's fence, and one for the other guest.
    rig.fence(FenceKind::Sfence, Mode::VS, None);
    rig.fake.set(Register::X(11), hgatp >> 44 & 0x3fff ^ 1);
    rig.execute(Special::Fence { kind: FenceKind::HfenceGvma, rs1: 0, rs2: 11 }, Mode::S);
    rig.set_csr(Csr::Hgatp, Register::Hgatp, hgatp);
    assert_eq!(walks(&mut rig), 2);
}

#[test]
fn a_fence_for_one_address_of_a_superpage_means_all_of_it() {
    // In check mode too, and in the G-stage: the guest's page is a piece of the G-stage's leaf.
    let mut rig = guest(&["core=plain", "level=check"], 1);
    let g = rig.fake.word_of_root(Register::Hgatp);
    rig.access(PAGES_AT, Mode::VS, Memory::Load);
    rig.fake.map(&SV39X4, g, BASE, 1, leaf(BASE + (2 << 20), USER_LEAF));
    *rig.fake.physical.borrow_mut() = Some(g);
    rig.access(g, Mode::M, Memory::Store);
    rig.fence(FenceKind::HfenceGvma, Mode::M, Some((BASE + 0x1f_f000) >> 2));
    rig.access(PAGES_AT, Mode::VS, Memory::Load);
    assert_eq!(rig.counts().stale, Default::default());
    assert_eq!(rig.misses(Mode::VS).walks, 2);
}

#[test]
fn lost_pages_are_no_walks() {
    // QEMU still had what tables no longer say.
    let mut rig = guest(&["core=plain"], 0);
    rig.access(PAGES_AT + (100 << 12), Mode::VS, Memory::Load);
    let misses = rig.misses(Mode::VS);
    assert_eq!((misses.data, misses.walks, misses.vanished), (1, 0, 1));
}

#[test]
fn a_trap_whose_vector_cannot_be_fetched_is_two() {
    // A guest's timer interrupt; its vector's page is not in the shadow table, so that the hart goes on to M.
    let vector = PAGES_AT + (100 << 12);
    let arrive = |rig: &mut Rig| {
        rig.set_csr(Csr::Vstvec, Register::Vstvec, vector);
        rig.set_csr(Csr::Mtvec, Register::Mtvec, CODE);
        for (register, value) in [
            (Register::Vscause, 1 << 63 | 5),
            (Register::Vsepc, PAGES_AT),
            (Register::Vsstatus, 0),
            (Register::Mcause, 12),
            (Register::Mepc, vector),
            (Register::Mtval, vector),
            (Register::Mstatus, 1 << 39 | 1 << 11),
        ] {
            rig.fake.set(register, value);
        }
        rig.enter(CODE, Mode::M);
    };
    let mut rig = guest(&["core=plain"], 0);
    arrive(&mut rig);
    let both = [(Mode::VS, Mode::M, 12, false, 1), (Mode::VU, Mode::VS, 5, true, 1)];
    assert_eq!(rig.traps(), both);
    // Firmware returns to the vector: the trap was taken already.
    let mret = Special::Return { from_m: true };
    rig.hart.before(mret, Mode::M, CODE + 0x40, &mut rig.board, &rig.shared, &rig.fake);
    rig.enter(vector, Mode::VS);
    assert_eq!(rig.counts().traps.total(), 2);
    // It still cannot be fetched: one more trap to M, and no interrupt.
    rig.hart.before(mret, Mode::M, CODE + 0x40, &mut rig.board, &rig.shared, &rig.fake);
    rig.enter(CODE, Mode::M);
    assert_eq!(rig.traps().into_iter().map(|(.., count)| count).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn powering_off_freezes_the_counts() {
    // Through an address of the kernel's, as Linux does where its firmware lets it.
    for level in ["level=counts", "level=tlb"] {
        let mut rig = Rig::new(&["core=plain", level]);
        let table = rig.fake.frames(1);
        rig.fake.map(&SV39, table, VA, 0, leaf(0x10_0000, LEAF));
        rig.set_csr(Csr::Satp, Register::Satp, root(&SV39, table, 1));
        let store = |rig: &mut Rig, to| {
            *rig.fake.physical.borrow_mut() = Some(to);
            rig.access(VA, Mode::S, Memory::Store);
        };
        store(&mut rig, 0x10_1000);
        assert!(!rig.shared.is_over(), "{level}");
        rig.fence(FenceKind::Sfence, Mode::S, None);
        store(&mut rig, 0x10_0000);
        assert!(rig.shared.is_over(), "{level}");
    }
}

#[test]
fn what_was_executed_long_ago_has_happened() {
    // Where only counting is asked for, the block behind a fence may not be looked at.
    let mut rig = Rig::new(&["level=counts"]);
    let fence = Special::Fence { kind: FenceKind::Sfence, rs1: 0, rs2: 0 };
    for _ in 0..2 {
        rig.hart.before(fence, Mode::S, CODE + 4, &mut rig.board, &rig.shared, &rig.fake);
    }
    let mark = Special::Marker { label: 0, code: 1 };
    rig.hart.before(mark, Mode::S, CODE + 8, &mut rig.board, &rig.shared, &rig.fake);
    assert_eq!(rig.counts().fences[FenceKind::Sfence as usize][0][Mode::S.index()], 2);
}

#[test]
fn a_page_that_becomes_a_table_is_watched() {
    // Stores to it had been of no concern.
    let mut rig = Rig::new(&["core=plain"]);
    let (table, future) = (rig.fake.frames(1), rig.fake.frames(1));
    rig.fake.map(&SV39, table, VA, 0, leaf(future, LEAF));
    rig.set_csr(Csr::Satp, Register::Satp, root(&SV39, table, 1));
    let store = |rig: &mut Rig| {
        *rig.fake.physical.borrow_mut() = Some(future);
        rig.access(VA, Mode::S, Memory::Store);
    };
    store(&mut rig);
    // Its first entry maps a page without A and D; the level above comes to know it by a fetch.
    rig.fake.poke(future, leaf(BASE, LEAF & !0xc0));
    rig.fake.map(&SV39, table, PAGES_AT, 1, future >> 12 << 10 | 1);
    rig.enter(PAGES_AT, Mode::S);
    // Software sets them: that is no update by hardware.
    rig.fake.poke(future, leaf(BASE, LEAF));
    store(&mut rig);
    rig.fence(FenceKind::Sfence, Mode::S, None);
    rig.access(PAGES_AT, Mode::S, Memory::Load);
    assert_eq!(rig.counts().ad_updates[Mode::S.index()], 0);
}

#[test]
fn exits_last_until_the_guest_runs_again() {
    const MPV: u64 = 1 << 39;
    const MPP_S: u64 = 1 << 11;
    const SPV: u64 = 1 << 7;
    const TIMER: u64 = 1 << 63 | 7;
    let mut rig = Rig::new(&["level=counts"]);
    rig.board.insns[Mode::VS.index()] = 1000;
    rig.set_csr(Csr::Mtvec, Register::Mtvec, CODE);
    rig.set_csr(Csr::Stvec, Register::Stvec, CODE + 0x800);
    let arrive = |rig: &mut Rig, to: Mode, cause: u64, insns: u64| {
        let (register, at) = if to == Mode::M { (Register::Mcause, CODE) } else { (Register::Scause, CODE + 0x800) };
        rig.fake.set(register, cause);
        rig.enter(at, to);
        rig.board.insns[to.index()] += insns;
    };
    let back = |rig: &mut Rig, from: Mode| {
        let special = Special::Return { from_m: from == Mode::M };
        rig.hart.before(special, from, CODE + 0x40, &mut rig.board, &rig.shared, &rig.fake);
    };
    // A host in HS that calls the firmware while it handles a fault of its guest's.
    rig.fake.set(Register::Hstatus, SPV);
    rig.fake.set(Register::Sstatus, 1 << 8);
    arrive(&mut rig, Mode::S, 21, 100);
    rig.fake.set(Register::Mstatus, MPP_S);
    arrive(&mut rig, Mode::M, 9, 7);
    back(&mut rig, Mode::M);
    rig.board.insns[Mode::S.index()] += 20;
    let exits = |rig: &Rig| rig.counts().traps.iter().map(|(kind, one)| (kind.code, one.handling)).collect::<Vec<_>>();
    assert_eq!(exits(&rig), [(9, 7), (21, 0)]);
    back(&mut rig, Mode::S);
    // The ecall itself was one of the host's that did not retire.
    assert_eq!(exits(&rig), [(9, 7), (21, 126)]);
    rig.board.insns[Mode::VS.index()] += 50;
    // The firmware hands an interrupt on, and its own return in M ends nothing.
    rig.fake.set(Register::Mstatus, MPV | MPP_S);
    arrive(&mut rig, Mode::M, TIMER, 5);
    rig.fake.set(Register::Mstatus, 3 << 11);
    back(&mut rig, Mode::M);
    rig.fake.set(Register::Mstatus, MPP_S);
    back(&mut rig, Mode::M);
    rig.board.insns[Mode::S.index()] += 10;
    back(&mut rig, Mode::S);
    back(&mut rig, Mode::S);
    assert_eq!(exits(&rig), [(9, 7), (7, 15), (21, 126)]);
    // It is `hstatus` that says where an `sret` leads, in M mode too.
    rig.fake.set(Register::Mstatus, MPV | MPP_S);
    arrive(&mut rig, Mode::M, 22, 30);
    rig.fake.set(Register::Mstatus, 0);
    rig.hart.before(Special::Return { from_m: false }, Mode::M, CODE, &mut rig.board, &rig.shared, &rig.fake);
    assert!(exits(&rig).contains(&(22, 30)));
}
