//! The world that a hart runs for a guest which is a hypervisor, or runs programs by call, and what its registers are made from.

use hypervisor::device::offer::GuestMode;
use hypervisor::vm::vcpu::World;
use hypervisor::vm::vcpu::nested::Rights;
use rv::csr::hstatus;

/// The place of the loaded guest's interrupt lines. Brief exits look at it, and at nothing else to raise one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lines {
    /// `hvip`: the guest runs in VS mode.
    Virtual,
    /// `mip`: it runs in S mode.
    Supervisor,
    /// [`Nesting::held`]: its own guest runs.
    Held,
}

/// The world that the hart runs a guest for, and what its registers are made from besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nesting {
    /// The world.
    pub(super) world: World,
    /// The place of the interrupt lines in that world.
    pub(super) lines: Lines,
    /// While L2 runs: L1's `hvip`.
    pub(super) held: u64,
    /// While L2 runs, in S mode: its comparator, which Gnomon watches.
    pub(super) comparator: u64,
    /// Host time at which the loaded VM's time is 0.
    pub(super) time_zero: u64,
    /// Set if hardware sets A and D for the loaded VM.
    pub(super) svadu: bool,
    /// Set if Gnomon makes WFI trap.
    pub(super) traps_wfi: bool,
}

impl Lines {
    /// Returns the place of the lines of a guest in that mode that runs no guest of its own.
    const fn of(mode: GuestMode) -> Self {
        match mode {
            GuestMode::Virtual => Self::Virtual,
            GuestMode::Supervisor => Self::Supervisor,
        }
    }
}

impl Nesting {
    /// Returns the nesting of a hart without a guest, whose guests run in that mode.
    pub(super) const fn none(mode: GuestMode) -> Self {
        let (world, lines, comparator) = (World::Own, Lines::of(mode), u64::MAX);
        Self { world, lines, held: 0, comparator, time_zero: 0, svadu: false, traps_wfi: false }
    }

    /// Changes the world. Returns the previous one.
    pub(super) const fn enter(&mut self, world: World, mode: GuestMode) -> World {
        self.lines = if matches!(world, World::L2(_)) { Lines::Held } else { Lines::of(mode) };
        core::mem::replace(&mut self.world, world)
    }

    /// Returns L2's rights, while it runs.
    pub(super) const fn rights(&self) -> Option<&Rights> {
        match &self.world {
            World::L2(rights) => Some(rights),
            World::Own | World::Leaving | World::Program(_) => None,
        }
    }

    /// Returns the exceptions that are delegated. `guests_own`: those that a guest takes itself; `most`: those that can be delegated to L2.
    pub(super) const fn delegated(&self, guests_own: u64, most: u64) -> u64 {
        match &self.world {
            World::Own => guests_own,
            World::Leaving | World::Program(_) => 0,
            // A debugger's breakpoints come first; what Gnomon emulates for L1 it does not for L2.
            World::L2(rights) => rights.hedeleg & (guests_own | most),
        }
    }

    /// Returns the bits of `hstatus` that make L1's or L2's instructions trap.
    pub(super) const fn traps(&self) -> u64 {
        let wfi = if self.traps_wfi { hstatus::VTW } else { 0 };
        wfi | match &self.world {
            World::Own | World::Program(_) => 0,
            World::Leaving => hstatus::VTSR,
            World::L2(rights) => rights.hstatus,
        }
    }
}
