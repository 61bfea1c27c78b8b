//! A machine of plain data, and tables to put into it.
#![allow(dead_code, reason = "each test uses a part")]

use meter::args::Args;
use meter::block::Block;
use meter::counts::{HartCounts, Misses};
use meter::hart::{AccessSite, Hart, Machine, MemoryAccess, Register, Scoreboard, Seen};
use meter::insn::{Csr, FenceKind, Memory, Special};
use meter::mode::Mode;
use meter::shared::Shared;
use meter::walk::{Roots, Words};
use rv::format::{SV39, SV39X4, SV48, SV48X4, SV57, SV57X4};
use rv::{Addr, Format, Gpa};
use std::cell::RefCell;
use std::collections::HashMap;

/// The first address of RAM.
pub const BASE: u64 = 0x8000_0000;
/// Its bytes.
pub const BYTES: u64 = 64 << 20;
/// V, R, W, X, A, D.
pub const LEAF: u64 = 0xcf;
/// A leaf for user mode, as the G-stage needs it.
pub const USER_LEAF: u64 = 0xdf;

#[derive(Default)]
pub struct Fake {
    words: RefCell<HashMap<u64, u64>>,
    registers: RefCell<HashMap<Register, u64>>,
    /// The physical address of the access.
    pub physical: RefCell<Option<u64>>,
    next: RefCell<u64>,
}

impl Words for Fake {
    fn word(&self, at: u64) -> Option<u64> {
        let is_ram = (BASE..BASE + BYTES).contains(&at) && at.is_multiple_of(8);
        is_ram.then(|| self.words.borrow().get(&at).copied().unwrap_or(0))
    }
}

impl Machine for Fake {
    fn register(&self, register: Register) -> u64 {
        self.registers.borrow().get(&register).copied().unwrap_or(0)
    }

    fn physical(&self) -> Option<u64> {
        *self.physical.borrow()
    }
}

impl Fake {
    pub fn set(&self, register: Register, value: u64) {
        self.registers.borrow_mut().insert(register, value);
    }

    pub fn poke(&self, at: u64, value: u64) {
        self.words.borrow_mut().insert(at, value);
    }

    /// Allocates zero frames, aligned to their number; tables come from the upper half of RAM.
    pub fn frames(&self, count: u64) -> u64 {
        let mut next = self.next.borrow_mut();
        let at = (BASE + BYTES / 2 + *next).next_multiple_of(count << 12);
        *next = at + (count << 12) - (BASE + BYTES / 2);
        at
    }

    /// Makes the entry for `from` at `level` of the table at `root`, with what is missing on the way.
    /// Returns where it is.
    pub fn map(&self, format: &Format, root: u64, from: u64, level: u8, entry: u64) -> u64 {
        let mut table = root;
        for step in format.levels_down() {
            let at = table + 8 * format.index(Addr::<Gpa>::new(from), step) as u64;
            if step.number() == level {
                self.poke(at, entry);
                return at;
            }
            let found = self.word(at).expect("tables are in RAM");
            table = if found & 1 == 1 { found >> 10 << 12 } else { self.frames(1) };
            self.poke(at, table >> 12 << 10 | 1);
        }
        unreachable!("the format has this level")
    }
}

/// A leaf that maps to `to`.
pub fn leaf(to: u64, flags: u64) -> u64 {
    to >> 12 << 10 | flags
}

pub fn root(format: &Format, at: u64, id: u64) -> u64 {
    u64::from(format.mode) << 60 | id << 44 | at >> 12
}

pub const FIRST: [Option<&Format>; 4] = [None, Some(&SV39), Some(&SV48), Some(&SV57)];
pub const G: [Option<&Format>; 4] = [None, Some(&SV39X4), Some(&SV48X4), Some(&SV57X4)];

/// The address to which [`tables`] map a page.
pub const VA: u64 = 0x12_3456_7000;

/// Tables for a page at [`VA`], by both stages; the G-stage maps RAM to itself by leaves of the level.
pub fn tables(fake: &Fake, first: Option<&Format>, g: Option<&Format>, g_level: u8) -> Roots {
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

/// A hart with its machine.
pub struct Rig {
    pub fake: Fake,
    pub shared: Shared,
    pub hart: Hart,
    pub board: Scoreboard,
}

pub const CODE: u64 = BASE + 0x10_0000;
pub const HANDLER: u64 = BASE + 0x20_0000;

impl Rig {
    pub fn new(args: &[&str]) -> Self {
        Self::with(&Args::parse(args.iter().copied()).expect("valid"))
    }

    pub fn with(args: &Args) -> Self {
        let shared = Shared::new(args);
        shared.set_ram(BASE, BYTES);
        let hart = Hart::new(&shared);
        Self { fake: Fake::default(), shared, hart, board: Scoreboard::default() }
    }

    pub fn enter(&mut self, at: u64, mode: Mode) {
        self.fake.set(Register::Pc, at);
        let block = Block { page: at >> 12, mode, crosses: false };
        self.hart.enter_block(block, &mut self.board, &self.shared, &self.fake);
    }

    /// Executes a special instruction at [`CODE`] in a mode.
    pub fn execute(&mut self, special: Special, mode: Mode) {
        self.hart.before(special, mode, CODE + 4, &mut self.board, &self.shared, &self.fake);
        self.hart.reach(CODE + 4, &self.shared, &self.fake);
    }

    pub fn set_csr(&mut self, csr: Csr, register: Register, value: u64) {
        self.fake.set(register, value);
        self.execute(Special::CsrWrite(csr), Mode::M);
    }

    pub fn set_roots(&mut self, roots: Roots) {
        self.set_csr(Csr::Satp, Register::Satp, roots.satp);
        self.set_csr(Csr::Vsatp, Register::Vsatp, roots.vsatp);
        self.set_csr(Csr::Hgatp, Register::Hgatp, roots.hgatp);
    }

    /// A fence with an address, as its register has it.
    pub fn fence(&mut self, kind: FenceKind, mode: Mode, address: Option<u64>) {
        self.fake.set(Register::X(10), address.unwrap_or(0));
        self.execute(Special::Fence { kind, rs1: if address.is_some() { 10 } else { 0 }, rs2: 0 }, mode);
    }

    /// A trap arrives at [`HANDLER`] of a mode, which becomes its vector.
    pub fn trap(&mut self, to: Mode, cause: u64, tval: u64, status: u64) {
        let [vector, cause_in, tval_in, status_in] = match to {
            Mode::M => [Register::Mtvec, Register::Mcause, Register::Mtval, Register::Mstatus],
            _ => [Register::Stvec, Register::Scause, Register::Stval, Register::Sstatus],
        };
        let csr = match to {
            Mode::M => Csr::Mtvec,
            Mode::VS => Csr::Vstvec,
            _ => Csr::Stvec,
        };
        self.fake.set(Register::Vstvec, HANDLER);
        self.set_csr(csr, vector, HANDLER);
        self.fake.set(cause_in, cause);
        self.fake.set(tval_in, tval);
        self.fake.set(status_in, status);
        self.enter(HANDLER, to);
    }

    /// The misses of a mode on the first core.
    pub fn misses(&self, mode: Mode) -> Misses {
        self.counts().cores[0].misses[mode.index()].clone()
    }

    pub fn access(&mut self, at: u64, mode: Mode, memory: Memory) {
        let site = AccessSite::new(memory, mode);
        let shift = if memory == Memory::Block { 0 } else { 3 };
        let access = MemoryAccess { at, shift, mmu_index: mode.mmu_index(), site };
        if self.hart.access(access, &self.shared) == Seen::Never {
            self.hart.access_anew(access, &mut self.board, &self.shared, &self.fake);
        }
    }

    /// Traps: from, to, code, whether it is an interrupt, how many.
    pub fn traps(&self) -> Vec<(Mode, Mode, usize, bool, u64)> {
        let counts = self.counts();
        counts.traps.iter().map(|(kind, one)| (kind.from, kind.to, kind.code, kind.is_interrupt, one.count)).collect()
    }

    pub fn counts(&self) -> HartCounts {
        self.hart.counts(&self.board).1
    }
}

/// The address to which [`guest`] maps pages.
pub const PAGES_AT: u64 = 0x10_0000_0000;

/// 64 pages from [`PAGES_AT`] on, to frames in a row, with the roots in force.
pub fn guest(args: &[&str], g_level: u8) -> Rig {
    let mut rig = Rig::new(args);
    let roots = tables(&rig.fake, Some(&SV39), Some(&SV39X4), g_level);
    let table = (roots.vsatp & ((1 << 44) - 1)) << 12;
    for page in 0..64 {
        let at = PAGES_AT + (page << 12);
        rig.fake.map(&SV39, table, at, 0, leaf(BASE + (page << 12), LEAF));
    }
    rig.set_roots(roots);
    rig
}
