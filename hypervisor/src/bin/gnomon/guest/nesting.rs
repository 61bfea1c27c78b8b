//! The world that a hart runs for a guest which is a hypervisor, and what its registers are made from.

use hypervisor::vm::vcpu::World;
use hypervisor::vm::vcpu::nested::Rights;
use rv::csr::hstatus;

/// The world that the hart runs a guest for, and what its registers are made from besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nesting {
    /// The world.
    pub(super) world: World,
    /// While L2 runs: L1's `hvip`.
    pub(super) held: u64,
    /// Host time at which the loaded VM's time is 0.
    pub(super) time_zero: u64,
    /// Set if hardware sets A and D for the loaded VM.
    pub(super) svadu: bool,
    /// Set if Gnomon makes WFI trap.
    pub(super) traps_wfi: bool,
}

impl Nesting {
    /// The nesting of a hart without a guest.
    pub(super) const NONE: Self = Self { world: World::Own, held: 0, time_zero: 0, svadu: false, traps_wfi: false };

    /// Returns L2's rights, while it runs.
    pub(super) const fn rights(&self) -> Option<&Rights> {
        match &self.world {
            World::L2(rights) => Some(rights),
            World::Own | World::Leaving => None,
        }
    }

    /// Returns the exceptions that are delegated. `guests_own`: those that a guest takes itself; `most`: those that can be delegated to L2.
    pub(super) const fn delegated(&self, guests_own: u64, most: u64) -> u64 {
        match &self.world {
            World::Own => guests_own,
            World::Leaving => 0,
            // A debugger's breakpoints come first; what Gnomon emulates for L1 it does not for L2.
            World::L2(rights) => rights.hedeleg & (guests_own | most),
        }
    }

    /// Returns the bits of `hstatus` that make L1's or L2's instructions trap.
    pub(super) const fn traps(&self) -> u64 {
        let wfi = if self.traps_wfi { hstatus::VTW } else { 0 };
        wfi | match &self.world {
            World::Own => 0,
            World::Leaving => hstatus::VTSR,
            World::L2(rights) => rights.hstatus,
        }
    }
}
