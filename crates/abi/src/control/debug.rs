//! Requests of a debugger about a VM.
//!
//! It is attached first, and detached at the end. Registers, memory and breakpoints are looked at and changed while the VM is stopped
//! ([`Stopped`]): all vCPUs have left their harts then.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Most bytes of memory in an answer.
pub const MOST_READ: u32 = 4096;
/// Most bytes of memory in a request.
pub const MOST_WRITE: usize = 128;
/// The number of `pc` in [`Debug::SetRegister`].
pub const PC: u8 = 32;
/// The number of f0 there.
pub const F0: u8 = 33;
/// The number of `fcsr` there.
pub const FCSR: u8 = 65;
/// Most breakpoints of a VM.
pub const MOST_BREAKS: usize = 64;

/// A debugger's request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Debug {
    /// Begin, and stop the VM: [`super::Answer::Done`]. It is refused while another debugger is attached.
    Attach,
    /// Take out all breakpoints, and let the VM go on: [`super::Answer::Done`], or [`super::Answer::Later`].
    Detach,
    /// Stop it soon: [`super::Answer::Done`].
    Halt,
    /// Asks whether the VM has stopped: [`super::Answer::Stopped`].
    State,
    /// The registers of that vCPU: [`super::Answer::Registers`].
    Registers(u32),
    /// Set a register of a vCPU: [`super::Answer::Done`].
    SetRegister {
        /// The vCPU.
        vcpu: u32,
        /// Its number: 1 to 31 are x1 to x31, [`PC`], [`F0`] to `F0 + 31`, [`FCSR`].
        register: u8,
        /// The new value.
        value: u64,
    },
    /// A vector register of a vCPU: [`super::Answer::Memory`] with [`Registers::vlenb`] bytes. It is refused if these are over
    /// [`MOST_READ`].
    Vector {
        /// The vCPU.
        vcpu: u32,
        /// The number, below 32.
        register: u8,
    },
    /// Set a vector register: [`super::Answer::Done`]. It is refused if [`Registers::vlenb`] is over [`MOST_WRITE`].
    SetVector {
        /// The vCPU.
        vcpu: u32,
        /// The number, below 32.
        register: u8,
        /// Its [`Registers::vlenb`] bytes.
        bytes: Vec<u8>,
    },
    /// Up to so many bytes (at most [`MOST_READ`]) from that virtual address of the vCPU on, within a page of 4 KiB:
    /// [`super::Answer::Memory`], or [`super::Answer::Later`].
    Read {
        /// The vCPU whose tables are walked as they are now.
        vcpu: u32,
        /// The virtual address.
        at: u64,
        /// The number of bytes.
        bytes: u32,
    },
    /// Store bytes, at most [`MOST_WRITE`], within a page of 4 KiB: [`super::Answer::Done`], or [`super::Answer::Later`].
    Write {
        /// The vCPU.
        vcpu: u32,
        /// The virtual address.
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Stop where an instruction at that address is about to be executed: as [`Debug::Write`].
    Break {
        /// The vCPU.
        vcpu: u32,
        /// The virtual address.
        at: u64,
    },
    /// Do so no more: as [`Debug::Write`].
    Unbreak(u64),
    /// Let the VM go on: [`super::Answer::Done`].
    Continue,
    /// Let that vCPU alone execute one instruction; of an LR/SC sequence, all. As [`Debug::Write`].
    Step(u32),
}

/// The state of a VM under a debugger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Stopped {
    /// The VM has not stopped, or not all of its vCPUs have.
    Not,
    /// The VM has stopped on request.
    Halted,
    /// The vCPU has reached a breakpoint.
    AtBreak(u32),
    /// The vCPU has made its step.
    Stepped(u32),
}

/// A vCPU's registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Registers {
    /// x0 to x31.
    pub x: [u64; 32],
    /// The program counter.
    pub pc: u64,
    /// True if it is in supervisor mode.
    pub is_supervisor: bool,
    /// `sstatus`.
    pub sstatus: u64,
    /// `sie`.
    pub sie: u64,
    /// `stvec`.
    pub stvec: u64,
    /// `sscratch`.
    pub sscratch: u64,
    /// `sepc`.
    pub sepc: u64,
    /// `scause`.
    pub scause: u64,
    /// `stval`.
    pub stval: u64,
    /// `satp`.
    pub satp: u64,
    /// f0 to f31.
    pub f: [u64; 32],
    /// `fcsr`.
    pub fcsr: u64,
    /// Bytes in a vector register, 0 without V.
    pub vlenb: u32,
    /// `vstart`, `vl`, `vtype` and `vcsr`.
    pub vector: [u64; 4],
}
