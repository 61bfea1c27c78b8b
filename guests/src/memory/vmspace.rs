//! A kernel's side of the address-space calls (docs/vmspace.md).

use crate::paging::{Page, Space, page};
use crate::sbi;
use abi::vmspace::{
    CAUSE_AT, CREATE, DESTROY, EXTENSION, FLAGS_AT, INFO, INSTRUCTION_AT, INVALIDATE, PC_AT, READ, RUN, SET_ROOT,
    SWITCH, TVAL_AT, WRITE,
};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Makes a call. Returns (error, value).
pub fn call(function: usize, args: [u64; 4]) -> (i64, u64) {
    let [a, b, c, d] = args;
    sbi::call(EXTENSION, function, [a, b, c, d, 0, 0])
}

/// Returns what INFO says: (error, value).
#[must_use]
pub fn info() -> (i64, u64) {
    call(INFO, [0; 4])
}

/// A space that Gnomon knows, by its handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle(pub u64);

impl Handle {
    /// Makes a space of those tables.
    ///
    /// # Errors
    /// The SBI's error.
    pub fn of(space: &Space) -> Result<Self, i64> {
        match call(CREATE, [space.satp(), 0, 0, 0]) {
            (sbi::SUCCESS, handle) => Ok(Self(handle)),
            (error, _) => Err(error),
        }
    }

    /// Ends it.
    #[must_use]
    pub fn destroy(self) -> i64 {
        call(DESTROY, [self.0, 0, 0, 0]).0
    }

    /// Gives it other tables.
    #[must_use]
    pub fn set_root(self, space: &Space) -> i64 {
        call(SET_ROOT, [self.0, space.satp(), 0, 0]).0
    }

    /// Invalidates all of it.
    #[must_use]
    pub fn invalidate_all(self) -> i64 {
        call(INVALIDATE, [self.0, 0, 0, 0]).0
    }

    /// Invalidates ranges: (first address, bytes).
    #[must_use]
    pub fn invalidate(self, list: &'static Page, ranges: &[(u64, u64)]) -> i64 {
        for (slot, (start, bytes)) in list.0.chunks_exact(2).zip(ranges) {
            slot[0].store(*start, Relaxed);
            slot[1].store(*bytes, Relaxed);
        }
        call(INVALIDATE, [self.0, list.address(), ranges.len() as u64, 0]).0
    }

    /// Makes it the present root.
    #[must_use]
    pub fn switch(self) -> i64 {
        call(SWITCH, [self.0, 0, 0, 0]).0
    }

    /// Copies bytes of it to RAM. Returns (error, bytes).
    #[must_use]
    pub fn read(self, va: u64, to: u64, bytes: u64) -> (i64, u64) {
        call(READ, [self.0, va, to, bytes])
    }

    /// Copies bytes of RAM to it. Returns (error, bytes).
    #[must_use]
    pub fn write(self, va: u64, from: u64, bytes: u64) -> (i64, u64) {
        call(WRITE, [self.0, va, from, bytes])
    }
}

/// A program's context page.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The page.
    pub page: &'static Page,
}

impl Program {
    /// A program that starts at `pc`.
    #[must_use]
    pub fn at(pc: u64) -> Self {
        let this = Self { page: page() };
        this.word(PC_AT).store(pc, Relaxed);
        this
    }

    fn word(&self, at: u64) -> &'static AtomicU64 {
        &self.page.0[at as usize / 8]
    }

    /// A register.
    #[must_use]
    pub fn x(&self, register: usize) -> u64 {
        self.page.0[register].load(Relaxed)
    }

    /// Sets a register.
    pub fn set(&self, register: usize, value: u64) {
        self.page.0[register].store(value, Relaxed);
    }

    /// The program counter.
    #[must_use]
    pub fn pc(&self) -> u64 {
        self.word(PC_AT).load(Relaxed)
    }

    /// Sets it.
    pub fn go_to(&self, pc: u64) {
        self.word(PC_AT).store(pc, Relaxed);
    }

    /// Sets the flags.
    pub fn set_flags(&self, flags: u64) {
        self.word(FLAGS_AT).store(flags, Relaxed);
    }

    /// Runs it until it traps. Returns cause, trap value, and instruction.
    ///
    /// # Errors
    /// The SBI's error.
    pub fn run(&self, space: Handle) -> Result<(u64, u64, u64), i64> {
        match call(RUN, [space.0, self.page.address(), 0, 0]) {
            (sbi::SUCCESS, 0) => {
                let [cause, tval, insn] = [CAUSE_AT, TVAL_AT, INSTRUCTION_AT].map(|at| self.word(at).load(Relaxed));
                Ok((cause, tval, insn))
            }
            (error, _) => Err(error),
        }
    }
}
