//! One software event.

use crate::vm::sbi_error::Error;
use abi::snapshot::EventState;
use rv::Mode;
use rv::csr::status;

/// The event that each vCPU has for itself.
pub const LOCAL_SOFTWARE: u32 = 0xffff_0000;
/// The event that goes to the hart which a kernel prefers.
pub const GLOBAL_SOFTWARE: u32 = 0xffff_8000;
/// Attributes of an event.
pub const ATTRIBUTES: usize = 10;
const STATUS: usize = 0;
const PRIORITY: usize = 1;
const CONFIG: usize = 2;
const PREFERRED_HART: usize = 3;
const ENTRY_PC: usize = 4;
const ENTRY_ARG: usize = 5;
const SEPC: usize = 6;
const FLAGS: usize = 7;
const A6: usize = 8;
const A7: usize = 9;

/// In the status: whether it is pending, and that it can be injected.
const PENDING: u64 = 1 << 2;
const INJECTABLE: u64 = 1 << 3;
/// In the configuration: it is disabled when it is complete.
const ONE_SHOT: u64 = 1 << 0;
/// In the flags: `sstatus`.SPP and SPIE of what was interrupted. Those behind them are of extensions that guests have not, and are
/// kept as they are written.
const SPP: u64 = 1 << 0;
const SPIE: u64 = 1 << 1;
const ALL_FLAGS: u64 = (1 << 6) - 1;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(super) enum State {
    Unused = 0,
    Registered = 1,
    Enabled = 2,
    Running = 3,
}

/// The part of a vCPU's state that an event changes when it is entered, and that is restored when it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The program counter.
    pub pc: u64,
    /// Its privilege.
    pub mode: Mode,
    /// `sstatus`.
    pub status: u64,
    /// `sepc`.
    pub sepc: u64,
    /// a6 and a7.
    pub a6_a7: [u64; 2],
}

/// One event.
#[derive(Clone, Debug)]
pub(super) struct Event {
    id: u32,
    pub(super) state: State,
    pub(super) is_pending: bool,
    /// The attributes, indexed by the numbers above. The status is not kept here.
    attributes: [u64; ATTRIBUTES],
}

impl Event {
    pub(super) fn new(id: u32, hart: u32) -> Self {
        let mut attributes = [0; ATTRIBUTES];
        attributes[PREFERRED_HART] = hart.into();
        Self { id, state: State::Unused, is_pending: false, attributes }
    }

    pub(super) fn save(&self) -> EventState {
        EventState { state: self.state as u8, is_pending: self.is_pending, attributes: self.attributes }
    }

    /// Restores an event from a snapshot; it may prefer the harts from `first` to `last`. `None` if no kernel could
    /// bring it there.
    pub(super) fn of(from: &EventState, id: u32, (first, last): (u32, u32)) -> Option<Self> {
        let state = match from.state {
            0 => State::Unused,
            1 => State::Registered,
            2 => State::Enabled,
            3 => State::Running,
            _ => return None,
        };
        let mut attributes = from.attributes;
        attributes[STATUS] = 0;
        let is_possible = attributes[PRIORITY] <= u32::MAX.into()
            && attributes[CONFIG] & !ONE_SHOT == 0
            && (u64::from(first)..=u64::from(last)).contains(&attributes[PREFERRED_HART])
            && attributes[ENTRY_PC] & 1 == 0
            && attributes[FLAGS] & !ALL_FLAGS == 0;
        is_possible.then_some(Self { id, state, is_pending: from.is_pending, attributes })
    }

    /// Returns the event's rank: the event with the least one is delivered first.
    pub(super) fn rank(&self) -> (u64, u32) {
        (self.attributes[PRIORITY], self.id)
    }

    /// Returns the hart that it is delivered to.
    pub(super) fn hart(&self) -> u32 {
        self.attributes[PREFERRED_HART] as u32
    }

    pub(super) fn go(&mut self, from: State, to: State) -> Result<(), Error> {
        if self.state != from {
            return Err(Error::InvalidState);
        }
        self.state = to;
        Ok(())
    }

    pub(super) fn read(&self) -> [u64; ATTRIBUTES] {
        let mut all = self.attributes;
        all[STATUS] = self.state as u64 | INJECTABLE | if self.is_pending { PENDING } else { 0 };
        all
    }

    /// Checks whether an attribute may have a value now.
    fn check(&self, at: usize, value: u64, is_started: impl Fn(u64) -> bool) -> Result<(), Error> {
        let (writable, valid) = match at {
            PRIORITY => (self.state < State::Enabled, value <= u64::from(u32::MAX)),
            CONFIG => (self.state < State::Enabled, value & !ONE_SHOT == 0),
            PREFERRED_HART if self.id == GLOBAL_SOFTWARE => (self.state < State::Enabled, is_started(value)),
            FLAGS => (self.state == State::Running, value & !ALL_FLAGS == 0),
            SEPC | A6 | A7 => (self.state == State::Running, true),
            _ => return Err(Error::Denied),
        };
        match (writable, valid) {
            (false, _) => Err(Error::InvalidState),
            (true, false) => Err(Error::InvalidParam),
            (true, true) => Ok(()),
        }
    }

    /// Sets the handler: its address, and the value of a7.
    pub(super) fn register(&mut self, (pc, arg): (u64, u64)) -> Result<(), Error> {
        self.go(State::Unused, State::Registered)?;
        (self.attributes[ENTRY_PC], self.attributes[ENTRY_ARG]) = (pc, arg);
        Ok(())
    }

    /// Writes attributes from `first` on, all or none.
    pub(super) fn write(
        &mut self,
        first: usize,
        values: &[u64],
        is_started: impl Fn(u64) -> bool,
    ) -> Result<(), Error> {
        for (at, value) in values.iter().enumerate() {
            self.check(first + at, *value, &is_started)?;
        }
        self.attributes[first..first + values.len()].copy_from_slice(values);
        Ok(())
    }

    /// Enters the event: the vCPU continues in the handler.
    pub(super) fn enter(&mut self, hart: u32, place: &mut Place) {
        (self.state, self.is_pending) = (State::Running, false);
        let flag = |bit, flag| if place.status & bit != 0 { flag } else { 0 };
        self.attributes[SEPC] = place.sepc;
        self.attributes[FLAGS] = flag(status::SPP, SPP) | flag(status::SPIE, SPIE);
        [self.attributes[A6], self.attributes[A7]] = place.a6_a7;
        let spp = if place.mode == Mode::Supervisor { status::SPP } else { 0 };
        let spie = flag(status::SIE, status::SPIE);
        place.status = place.status & !(status::SPP | status::SPIE | status::SIE) | spp | spie;
        place.sepc = place.pc;
        place.mode = Mode::Supervisor;
        place.pc = self.attributes[ENTRY_PC];
        place.a6_a7 = [hart.into(), self.attributes[ENTRY_ARG]];
    }

    /// Completes the event: the vCPU continues where it was, or where the handler has said.
    pub(super) fn leave(&mut self, place: &mut Place) {
        let is_one_shot = self.attributes[CONFIG] & ONE_SHOT != 0;
        self.state = if is_one_shot { State::Registered } else { State::Enabled };
        let flag = |flag, bit| if self.attributes[FLAGS] & flag != 0 { bit } else { 0 };
        place.pc = place.sepc;
        place.mode = if place.status & status::SPP != 0 { Mode::Supervisor } else { Mode::User };
        let sie = if place.status & status::SPIE != 0 { status::SIE } else { 0 };
        place.status &= !(status::SPP | status::SPIE | status::SIE);
        place.status |= sie | flag(SPP, status::SPP) | flag(SPIE, status::SPIE);
        place.sepc = self.attributes[SEPC];
        place.a6_a7 = [self.attributes[A6], self.attributes[A7]];
    }
}
