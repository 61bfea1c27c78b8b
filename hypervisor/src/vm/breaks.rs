//! The breakpoints of a VM that a debugger looks at.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use abi::control::debug::Stopped;
use alloc::vec::Vec;
use rv::{Addr, Gpa};

/// Where `c.ebreak` stands in place of what the guest has there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Break {
    /// By which virtual address it was asked for.
    pub gva: u64,
    /// Where it is.
    pub gpa: Addr<Gpa>,
    /// What was there.
    pub original: [u8; 2],
    /// Whether it is there for one step only.
    pub is_for_step: bool,
}

/// What a debugger has done to a VM.
#[derive(Debug, Default)]
pub struct State {
    /// The breakpoints.
    pub all: Vec<Break>,
    /// Which vCPU has come to one, the first since the VM went on.
    pub stopped: Option<Stopped>,
    /// The vCPU that makes a step, and its `sie`, which holds 0 meanwhile.
    pub step: Option<(u32, u64)>,
}

/// A VM's breakpoints. Nobody takes another lock while this one is held.
#[derive(Debug, Default)]
pub struct Breaks {
    is_on: AtomicBool,
    /// What there is while a debugger is attached.
    pub state: Mutex<State>,
}

impl Breaks {
    /// Whether a debugger is attached. Each vCPU is loaded anew since before there is any breakpoint.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Says so, or says no more so; returns how it was.
    pub fn set_on(&self, on: bool) -> bool {
        self.is_on.swap(on, Ordering::SeqCst)
    }
}
