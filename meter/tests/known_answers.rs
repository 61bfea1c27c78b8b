//! What is known without a model: how many references a walk makes, and what becomes of fences, traps
//! and hints.

mod fake;

use fake::{BASE, BYTES, FIRST, Fake, G, LEAF, USER_LEAF, leaf, root};
use meter::args::Args;
use meter::block::Block;
use meter::counts::HartCounts;
use meter::hart::{Hart, MemoryAccess, Register, Scoreboard, Seen};
use meter::insn::{Csr, FenceKind, Memory, Special};
use meter::mode::Mode;
use meter::shared::Shared;
use meter::walk::{Roots, Space, Trace, permissive};
use rv::format::{SV39, SV39X4};
use rv::{Access, Format};

const VA: u64 = 0x12_3456_7000;

/// Tables for a page at [`VA`], by both stages; the G-stage maps RAM to itself by leaves of the level.
fn tables(fake: &Fake, first: Option<&Format>, g: Option<&Format>, g_level: u8) -> Roots {
    let vsatp = first.map_or(0, |format| {
        let table = fake.frames(1);
        fake.map(format, table, VA, 0, leaf(BASE + 0x5000, LEAF));
        root(format, table, 7)
    });
    let hgatp = g.map_or(0, |format| {
        let table = fake.frames(4);
        let step = 4096 << (9 * g_level);
        for at in (BASE..BASE + BYTES).step_by(step) {
            fake.map(format, table, at, g_level, leaf(at, USER_LEAF));
        }
        root(format, table, 3)
    });
    Roots { satp: 0, vsatp, hgatp }
}

fn walk(fake: &Fake, roots: Roots, at: u64) -> Option<Trace> {
    let space = Space::new(true, roots)?;
    let mut trace = Trace::default();
    trace.walk(&space, at, &permissive(Access::Load, rv::Mode::Supervisor), fake);
    Some(trace)
}

#[test]
fn references_of_all_combinations_of_formats() {
    for first in FIRST {
        for g in G {
            let fake = Fake::default();
            let at = if first.is_some() { VA } else { BASE + 0x5000 };
            let Some(trace) = walk(&fake, tables(&fake, first, g, 0), at) else {
                assert!(first.is_none() && g.is_none());
                continue;
            };
            let levels = |format: Option<&Format>| format.map_or(0, |format| usize::from(format.levels));
            assert_eq!(trace.refs.len(), (levels(first) + 1) * (levels(g) + 1) - 1, "{first:?} {g:?}");
            assert_eq!(trace.outcome.map(|mapping| mapping.page), Ok((BASE + 0x5000) >> 12));
        }
    }
}

#[test]
fn references_with_superpages() {
    let fake = Fake::default();
    assert_eq!(walk(&fake, tables(&fake, Some(&SV39), Some(&SV39X4), 1), VA).expect("translated").refs.len(), 11);
    let roots = tables(&fake, Some(&SV39), Some(&SV39X4), 1);
    fake.map(&SV39, (roots.vsatp & ((1 << 44) - 1)) << 12, VA & !0x1f_ffff, 1, leaf(BASE, LEAF));
    let trace = walk(&fake, roots, VA).expect("translated");
    assert_eq!((trace.refs.len(), trace.outcome.map(|mapping| mapping.span())), (8, Ok(9)));
}

/// A hart with its machine.
struct Rig {
    fake: Fake,
    shared: Shared,
    hart: Hart,
    board: Scoreboard,
}

const CODE: u64 = BASE + 0x10_0000;

impl Rig {
    fn new(args: &[&str]) -> Self {
        let shared = Shared::new(&Args::parse(args.iter().copied()).expect("valid"));
        shared.set_ram(BASE, BYTES);
        let hart = Hart::new(&shared);
        Self { fake: Fake::default(), shared, hart, board: Scoreboard::default() }
    }

    fn enter(&mut self, at: u64, mode: Mode) {
        self.fake.set(Register::Pc, at);
        self.hart.enter_block(Block { at, mode, crosses: false }, &mut self.board, &self.shared, &self.fake);
    }

    /// Executes a special instruction at [`CODE`] in a mode.
    fn execute(&mut self, special: Special, mode: Mode) {
        self.hart.before(special, mode, CODE + 4, &mut self.board, &self.shared, &self.fake);
        self.hart.reach(CODE + 4, &self.shared, &self.fake);
    }

    fn set_csr(&mut self, csr: Csr, register: Register, value: u64) {
        self.fake.set(register, value);
        self.execute(Special::CsrWrite(csr), Mode::M);
    }

    fn access(&mut self, at: u64, mode: Mode, memory: Memory) {
        let access = MemoryAccess { at, bytes: 8, code: mode, mode, memory };
        if self.hart.access(&access, &self.shared) == Seen::Never {
            self.hart.access_anew(&access, &mut self.board, &self.shared, &self.fake);
        }
    }

    fn counts(&self) -> HartCounts {
        self.hart.counts(&self.board).1
    }
}

/// 64 pages from [`VA`] on, to frames in a row, with the roots in force.
fn guest(args: &[&str], g_level: u8) -> Rig {
    let mut rig = Rig::new(args);
    let roots = tables(&rig.fake, Some(&SV39), Some(&SV39X4), g_level);
    let table = (roots.vsatp & ((1 << 44) - 1)) << 12;
    for page in 0..64 {
        let at = 0x10_0000_0000 + (page << 12);
        rig.fake.map(&SV39, table, at, 0, leaf(BASE + (page << 12), LEAF));
    }
    rig.set_csr(Csr::Vsatp, Register::Vsatp, roots.vsatp);
    rig.set_csr(Csr::Hgatp, Register::Hgatp, roots.hgatp);
    rig
}

#[test]
fn walk_caches_spare_what_they_hold() {
    let mut rig = guest(&["core=plain", "core=cached"], 0);
    for page in 0..64 {
        rig.access(0x10_0000_0000 + (page << 12), Mode::VS, Memory::Load);
    }
    let counts = rig.counts();
    let refs = |core: usize| {
        let misses = &counts.cores[core].misses[Mode::VS.index()];
        (misses.walks, misses.refs_first + misses.refs_g)
    };
    assert_eq!(refs(0), (64, 64 * 15));
    // The first: the tables are in the same 2 MiB, and cost 3, 1 and 1 of the G-stage; the pages are in
    // others, and cost 2. Then one entry of the guest's table each, and one G-stage leaf of the page.
    assert_eq!(refs(1), (64, 3 + 3 + 1 + 1 + 2 + 63 * 2));
    assert_eq!(counts.accesses_of(&[Memory::Load])[Mode::VS.index()], 64);
}

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
    assert_eq!(counts.traps.iter().collect::<Vec<_>>(), [(Mode::VS, Mode::M, 22, false, 1)]);
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
    assert_eq!(rig.counts().traps.iter().collect::<Vec<_>>(), [(Mode::U, Mode::S, 5, true, 1)]);
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
        rig.fake.map(&SV39X4, g, BASE, 0, leaf(to, USER_LEAF));
    };
    for is_fenced in [false, true] {
        let mut rig = guest(&["core=plain", "level=check"], 0);
        rig.access(at, Mode::VS, Memory::Load);
        g_edit(&rig, BASE + 0x9000);
        // The hypervisor's store.
        *rig.fake.physical.borrow_mut() = Some(BASE + BYTES / 2);
        rig.access(BASE + BYTES / 2, Mode::M, Memory::Store);
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
        use meter::hart::Machine;
        (self.register(register) & ((1 << 44) - 1)) << 12
    }
}
