//! Supervisor software events (SBI 3.0, chapter 17): the events that are registered, enabled, pending and running in a
//! VM, and the changes of a vCPU when an event is entered and when it completes.
//!
//! ```text
//!        register          enable            comes to its hart
//! unused ──────► registered ──────► enabled ──────────────────► running
//!        ◄──────            ◄──────         ◄──────────────────
//!       unregister          disable              complete          (one shot: complete ──► registered)
//! ```
//!
//! There are two: one of each vCPU's own and one of the VM. Both are for kernels to inject: no other source of events
//! (RAS, counters that overflow, double traps) is part of a guest's machine.

mod event;

pub use event::{ATTRIBUTES, GLOBAL_SOFTWARE, LOCAL_SOFTWARE, Place};

use crate::vm::sbi_error::Error;
use abi::snapshot::EventsState;
use alloc::vec::Vec;
use event::{Event, State};

/// Events that the specification knows and a guest's machine has no source of: RAS of both priorities, double traps, counters
/// that overflow.
const ABSENT: [u32; 6] = [0, 1, 0x8000, 0x1_0000, 0x10_0000, 0x10_8000];

/// The events of a VM.
#[derive(Debug)]
pub struct Events {
    /// The local events, by hart.
    local: Vec<Event>,
    global: Event,
    /// Harts (by bit) to which events may come.
    unmasked: u64,
}

impl Events {
    /// Makes the events of `harts` harts, all unused.
    #[must_use]
    pub fn new(harts: u32) -> Self {
        let local = (0..harts).map(|hart| Event::new(LOCAL_SOFTWARE, hart)).collect();
        Self { local, global: Event::new(GLOBAL_SOFTWARE, 0), unmasked: 0 }
    }

    /// Returns the state for a snapshot.
    #[must_use]
    pub fn save(&self) -> EventsState {
        let local = self.local.iter().map(Event::save).collect();
        EventsState { local, global: self.global.save(), unmasked: self.unmasked }
    }

    /// Restores the events from a snapshot, for `harts` harts. `None` if they cannot be like that.
    #[must_use]
    pub fn of(state: &EventsState, harts: u32) -> Option<Self> {
        let own = |(hart, event)| Event::of(event, LOCAL_SOFTWARE, (hart, hart));
        let local: Vec<_> = (0..harts).zip(&state.local).map(own).collect::<Option<_>>()?;
        let global = Event::of(&state.global, GLOBAL_SOFTWARE, (0, harts.checked_sub(1)?))?;
        let unmasked = state.unmasked & ((1 << harts) - 1);
        (local.len() == state.local.len() && local.len() == harts as usize).then_some(Self { local, global, unmasked })
    }

    /// Resets the events of a hart that starts anew: the handler that ran on it will never complete.
    pub fn start(&mut self, hart: u32) {
        self.unmasked &= !(1 << hart);
        self.local[hart as usize] = Event::new(LOCAL_SOFTWARE, hart);
        if self.global.hart() == hart && self.global.state >= State::Enabled {
            self.global = Event::new(GLOBAL_SOFTWARE, hart);
        }
    }

    fn event(&mut self, id: u32, hart: u32) -> Result<&mut Event, Error> {
        match id {
            LOCAL_SOFTWARE => self.local.get_mut(hart as usize).ok_or(Error::InvalidParam),
            GLOBAL_SOFTWARE => Ok(&mut self.global),
            _ if ABSENT.contains(&id) => Err(Error::NotSupported),
            _ => Err(Error::InvalidParam),
        }
    }

    /// Returns the events that are on a hart.
    fn on(&mut self, hart: u32) -> impl Iterator<Item = &mut Event> {
        let global = Some(&mut self.global).filter(|event| event.hart() == hart);
        self.local.get_mut(hart as usize).into_iter().chain(global)
    }

    /// Sets the handler of an event: its address, and the value of a7.
    ///
    /// # Errors
    /// The handler is at an odd address, there is no such event, or it has a handler.
    pub fn register(&mut self, hart: u32, id: u32, (pc, arg): (u64, u64)) -> Result<(), Error> {
        let event = self.event(id, hart)?;
        if pc & 1 != 0 {
            return Err(Error::InvalidParam);
        }
        event.register((pc, arg))
    }

    /// Takes the handler back.
    ///
    /// # Errors
    /// There is no such event, or it has no handler or is enabled.
    pub fn unregister(&mut self, hart: u32, id: u32) -> Result<(), Error> {
        let event = self.event(id, hart)?;
        event.go(State::Registered, State::Unused)?;
        event.is_pending = false;
        Ok(())
    }

    /// Enables an event. Returns its hart.
    ///
    /// # Errors
    /// There is no such event, or it has no handler or is enabled.
    pub fn enable(&mut self, hart: u32, id: u32) -> Result<u32, Error> {
        let event = self.event(id, hart)?;
        event.go(State::Registered, State::Enabled)?;
        Ok(event.hart())
    }

    /// Disables an event.
    ///
    /// # Errors
    /// There is no such event, or it is not enabled, or running.
    pub fn disable(&mut self, hart: u32, id: u32) -> Result<(), Error> {
        self.event(id, hart)?.go(State::Enabled, State::Registered)
    }

    /// Makes an event pending: that of `hart`, or that of all, whatever `hart` is. Returns its hart.
    ///
    /// # Errors
    /// There is no such event or hart, or it is not enabled.
    pub fn inject(&mut self, id: u32, hart: u64) -> Result<u32, Error> {
        let event = self.event(id, u32::try_from(hart).unwrap_or(u32::MAX))?;
        if event.state < State::Enabled {
            return Err(Error::InvalidState);
        }
        event.is_pending = true;
        Ok(event.hart())
    }

    /// Keeps all events from a hart, as from its start on.
    ///
    /// # Errors
    /// They are kept from it already.
    pub fn mask(&mut self, hart: u32) -> Result<(), Error> {
        if self.unmasked & 1 << hart == 0 {
            return Err(Error::AlreadyStopped);
        }
        self.unmasked &= !(1 << hart);
        Ok(())
    }

    /// Unmasks the events of a hart.
    ///
    /// # Errors
    /// They may come already.
    pub fn unmask(&mut self, hart: u32) -> Result<(), Error> {
        if self.unmasked & 1 << hart != 0 {
            return Err(Error::AlreadyStarted);
        }
        self.unmasked |= 1 << hart;
        Ok(())
    }

    /// Returns all attributes of an event.
    ///
    /// # Errors
    /// There is no such event.
    pub fn read(&mut self, hart: u32, id: u32) -> Result<[u64; ATTRIBUTES], Error> {
        Ok(self.event(id, hart)?.read())
    }

    /// Writes attributes from `first` on, all or none. `is_started` says of which harts there are.
    ///
    /// # Errors
    /// There is no such event, an attribute cannot be written or not now, or cannot have its value.
    pub fn write(
        &mut self,
        (hart, id): (u32, u32),
        first: usize,
        values: &[u64],
        is_started: impl Fn(u64) -> bool,
    ) -> Result<(), Error> {
        self.event(id, hart)?.write(first, values, is_started)
    }

    /// Returns the event that comes to a hart now, if one does: the first of those that are pending, if it is before
    /// all that run.
    fn next(&mut self, hart: u32) -> Option<&mut Event> {
        if self.unmasked & 1 << hart == 0 {
            return None;
        }
        let first = self
            .on(hart)
            .filter(|event| event.state == State::Running || event.state == State::Enabled && event.is_pending);
        first.min_by_key(|event| event.rank()).filter(|event| event.state == State::Enabled)
    }

    /// Returns whether [`Events::enter`] has something to do on a hart.
    pub fn is_due(&mut self, hart: u32) -> bool {
        self.next(hart).is_some()
    }

    /// Delivers the event to a hart, if there is one, and returns whether there was. The vCPU is at `place`.
    pub fn enter(&mut self, hart: u32, place: &mut Place) -> bool {
        match self.next(hart) {
            Some(event) => {
                event.enter(hart, place);
                true
            }
            None => false,
        }
    }

    /// Ends the first of those that run on a hart.
    ///
    /// # Errors
    /// None does.
    pub fn complete(&mut self, hart: u32, place: &mut Place) -> Result<(), Error> {
        let running = self.on(hart).filter(|event| event.state == State::Running).min_by_key(|event| event.rank());
        running.ok_or(Error::InvalidState)?.leave(place);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
