//! The facts about exits that are more than handled ([`super::probed`]).

use abi::control::Event;

/// The facts about an exit that is noted before it is handled.
pub(super) struct Probed {
    /// The hart's idle time so far, in ticks.
    pub(super) idle: u64,
    /// Its time in Gnomon so far, in ticks.
    pub(super) host: u64,
    /// The vCPU whose doing it is, if it is that of one: its VM's number and its own.
    pub(super) vcpu: Option<(u64, u32)>,
    /// The exit, if it is wanted.
    pub(super) event: Option<Event>,
}

/// The world that runs in the guest's place, whose exits are none of the guest's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Aside {
    /// The guest's own guest.
    L2,
    /// A program that its kernel runs by call.
    Program,
}

/// The facts about exits that are more than handled.
#[derive(Default)]
pub(super) struct Unplain {
    /// Set once an exit has shown that guests do run in their mode.
    pub(super) is_proven: bool,
    /// Set if samples of the hart's counters are taken at exits and entries: counters of the loaded vCPU run (SBI PMU).
    pub(super) samples: bool,
    /// The world that runs in the guest's place, if nothing else makes its exits other than plain.
    pub(super) aside: Option<Aside>,
    /// The exit that is being handled, if it is noted.
    pub(super) exit: Option<Probed>,
}
