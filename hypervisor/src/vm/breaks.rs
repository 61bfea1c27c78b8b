//! The breakpoints of a VM that a debugger looks at.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use abi::control::debug::Stopped;
use alloc::vec::Vec;
use rv::{Addr, Gpa};

/// A place where `c.ebreak` stands instead of the guest's instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Break {
    /// The virtual address by which it was asked for.
    pub gva: u64,
    /// The guest physical address.
    pub gpa: Addr<Gpa>,
    /// The guest's two bytes at that address.
    pub original: [u8; 2],
    /// Set if the breakpoint is there for one step only.
    pub is_for_step: bool,
}

/// The changes that a debugger has made to a VM.
#[derive(Debug, Default)]
pub struct State {
    /// The breakpoints.
    pub all: Vec<Break>,
    /// Which vCPU has come to one, the first since the VM went on.
    pub stopped: Option<Stopped>,
    /// The vCPU that makes a step, and the interrupts that it has disabled meanwhile.
    pub step: Option<(u32, Held)>,
}

/// Values of `sie` in whose place there is 0 for a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The guest's.
    pub own: u64,
    /// The value of the guest's own guest, if that ran.
    pub l2: u64,
}

/// A VM's breakpoints. No other lock is taken while this one is held.
#[derive(Debug, Default)]
pub struct Breaks {
    is_on: AtomicBool,
    /// The state while a debugger is attached.
    pub state: Mutex<State>,
}

impl Breaks {
    /// Returns whether a debugger is attached. Each vCPU is loaded anew since before there is any breakpoint.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Sets whether a debugger is attached; returns the previous value.
    pub fn set_on(&self, on: bool) -> bool {
        self.is_on.swap(on, Ordering::SeqCst)
    }
}
