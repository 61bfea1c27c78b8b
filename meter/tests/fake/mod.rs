//! A machine of plain data, and tables to put into it.
#![allow(dead_code, reason = "each test uses a part")]

use meter::hart::{Machine, Register};
use meter::walk::Words;
use rv::format::{SV39, SV39X4, SV48, SV48X4, SV57, SV57X4};
use rv::{Addr, Format, Gpa};
use std::cell::RefCell;
use std::collections::HashMap;

/// Where RAM begins.
pub const BASE: u64 = 0x8000_0000;
/// Its bytes.
pub const BYTES: u64 = 64 << 20;
/// V, R, W, X, A, D.
pub const LEAF: u64 = 0xcf;
/// The same for user mode, as the G-stage needs it.
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

    /// So many zero frames, aligned to their number; tables come from the upper half of RAM.
    pub fn frames(&self, count: u64) -> u64 {
        let mut next = self.next.borrow_mut();
        let at = (BASE + BYTES / 2 + *next).next_multiple_of(count << 12);
        *next = at + (count << 12) - (BASE + BYTES / 2);
        at
    }

    /// Makes the entry for `from` at `level` of the table at `root`, with what is missing on the way.
    pub fn map(&self, format: &Format, root: u64, from: u64, level: u8, entry: u64) {
        let mut table = root;
        for step in format.levels_down() {
            let at = table + 8 * format.index(Addr::<Gpa>::new(from), step) as u64;
            if step.number() == level {
                return self.poke(at, entry);
            }
            let found = self.word(at).expect("tables are in RAM");
            table = if found & 1 == 1 { found >> 10 << 12 } else { self.frames(1) };
            self.poke(at, table >> 12 << 10 | 1);
        }
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
