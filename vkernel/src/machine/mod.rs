//! All that needs a hart: entry, traps, accesses to programs' memory, timers, fences, firmware calls.
//!
//! The rest of the kernel calls these functions. Off the machine, in tests, `host` has the same ones on plain memory.

#[cfg(not(feature = "machine"))]
mod host;
#[cfg(feature = "machine")]
mod riscv;

#[cfg(not(feature = "machine"))]
pub use host::*;
#[cfg(feature = "machine")]
pub use riscv::*;

/// The most harts that the kernel uses.
pub const MAX_HARTS: usize = 64;

/// The registers of a thread while it is not in its program.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Context {
    /// x0 to x31. x0 is unused.
    pub x: [u64; 32],
    /// The address of the next instruction.
    pub pc: u64,
}

impl Context {
    /// A program's first: all registers 0.
    #[must_use]
    pub const fn new(pc: u64, sp: u64) -> Self {
        let mut x = [0; 32];
        x[2] = sp;
        Self { x, pc }
    }

    /// The argument registers a0 to a5.
    #[must_use]
    pub fn args(&self) -> [u64; 6] {
        core::array::from_fn(|n| self.x[10 + n])
    }
}

/// Numbers of registers, by the calling convention.
pub mod reg {
    /// The return address.
    pub const RA: usize = 1;
    /// The stack pointer.
    pub const SP: usize = 2;
    /// The thread pointer.
    pub const TP: usize = 4;
    /// The first argument, and the result.
    pub const A0: usize = 10;
    /// The second argument.
    pub const A1: usize = 11;
    /// The third argument.
    pub const A2: usize = 12;
    /// The number of the system call.
    pub const A7: usize = 17;
}

/// The end of a program's turn on a hart.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trap {
    /// The cause, in the format of `scause`.
    pub cause: u64,
    /// The trap value, in the format of `stval`.
    pub value: u64,
}
