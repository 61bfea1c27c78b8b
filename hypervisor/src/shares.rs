//! Folders of the host's that guests reach, by devices of the host's that speak the protocol 9P.
//!
//! As with [disks](crate::disks), what such a device reads and writes is never a guest's memory, but a *buffer* of the share's *port*,
//! which is Gnomon's for ever. A message and room for the answer to it lie in *units* of that which follow each other. When a VM, or its
//! driver, starts over, what it has asked for before is forgotten: units come free as the device answers, and nothing is asked for on
//! behalf of the next life until it has answered all.

use crate::disks::NotBegun;
pub use crate::disks::{Token, UNIT_BYTES, UNITS, Units};
use crate::slots::Handle;
use crate::sync::Mutex;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// The longest message, in bytes: what `msize` is at most.
pub const MOST_MESSAGE: usize = 128 << 10;
/// Most messages in flight.
pub const MOST_FLYING: usize = 32;

/// A message for the host's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Where it is, from their first byte on.
    pub units: Units,
    /// Its length, in bytes.
    pub message: usize,
    /// Room for the answer, in bytes, from [`Asked::answer_at`] on.
    pub room: usize,
}

impl Asked {
    /// Where in the units the answer is to be.
    #[must_use]
    pub const fn answer_at(&self) -> usize {
        self.message.next_multiple_of(8)
    }

    /// Bytes of units that it needs.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.answer_at() + self.room
    }
}

/// A device of the host's, with a buffer of [`UNITS`] units.
pub trait HostShare: Send {
    /// Units of its buffer, none of which is in flight.
    fn buffer(&mut self, units: Units) -> &mut [u8];
    /// Begins what is asked. The units are the device's until it has answered.
    ///
    /// # Errors
    /// Why not. Nothing has happened then.
    fn begin(&mut self, asked: &Asked) -> Result<Token, NotBegun>;
    /// What it has answered since the last time, and how many bytes that has.
    fn finished(&mut self) -> Option<(Token, usize)>;
    /// Its interrupt is noticed: what it answers after this interrupts anew.
    fn acknowledge(&mut self);
}

/// A message in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    token: Token,
    asked: Asked,
    /// By what who has asked knows it.
    tag: usize,
    /// The life that has asked.
    life: u64,
}

/// A share, with what is under way.
pub struct Port {
    device: Box<dyn HostShare>,
    /// Whose share it is.
    user: Option<Handle>,
    /// Counts how often its user has started over.
    life: u64,
    /// Units that are nobody's, by bit.
    free: u64,
    flying: Vec<Flight>,
    /// What was answered and asked by this life: what it was, and how many bytes the answer has.
    landed: VecDeque<(usize, usize)>,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("user", &self.user).field("flying", &self.flying).finish_non_exhaustive()
    }
}

/// A bit for each of some units.
const fn mask(units: Units) -> u64 {
    ((1 << units.count) - 1) << units.first
}

impl Port {
    /// A share that nobody has yet.
    #[must_use]
    pub fn new(device: Box<dyn HostShare>) -> Self {
        Self { device, user: None, life: 0, free: u64::MAX, flying: Vec::new(), landed: VecDeque::new() }
    }

    /// Whose share it is from now on.
    pub const fn set_user(&mut self, user: Handle) {
        self.user = Some(user);
    }

    /// Whose share it is.
    #[must_use]
    pub const fn user(&self) -> Option<Handle> {
        self.user
    }

    /// Takes units for so many bytes, fewer than all, if there are as many that follow each other.
    pub fn take(&mut self, bytes: usize) -> Option<Units> {
        let count = bytes.div_ceil(UNIT_BYTES).clamp(1, UNITS - 1);
        let starts = (1..count).fold(self.free, |starts, n| starts & self.free >> n);
        let units = (starts != 0).then(|| Units { first: starts.trailing_zeros() as usize, count })?;
        self.free &= !mask(units);
        Some(units)
    }

    /// Gives them back.
    pub const fn give(&mut self, units: Units) {
        self.free |= mask(units);
    }

    /// The bytes of units that were taken and are not in flight.
    pub fn buffer(&mut self, units: Units) -> &mut [u8] {
        self.device.buffer(units)
    }

    /// Begins what is asked. It is known by `tag` when it has landed; until it has, its units are the device's.
    ///
    /// # Errors
    /// Why not. Nothing has happened then. That the device is [`NotBegun::Busy`] means that something is in flight.
    pub fn begin(&mut self, asked: &Asked, tag: usize) -> Result<(), NotBegun> {
        if self.flying.len() >= MOST_FLYING {
            return Err(NotBegun::Busy);
        }
        let token = match self.device.begin(asked) {
            Err(NotBegun::Busy) if self.flying.is_empty() => return Err(NotBegun::Failed),
            begun => begun?,
        };
        self.flying.push(Flight { token, asked: *asked, tag, life: self.life });
        Ok(())
    }

    /// What has landed first of all that is still to be looked after: its tag, and how many bytes were answered.
    pub fn landed(&mut self) -> Option<(usize, usize)> {
        self.collect();
        self.landed.front().copied()
    }

    /// That has been looked after.
    pub fn forget_landed(&mut self) {
        self.landed.pop_front();
    }

    /// Whether something is in flight that an earlier life has asked for.
    #[must_use]
    pub fn has_strangers(&self) -> bool {
        self.flying.iter().any(|flight| flight.life != self.life)
    }

    /// The device has interrupted.
    pub fn attend(&mut self) {
        self.device.acknowledge();
        self.collect();
    }

    /// Looks what the device has answered.
    fn collect(&mut self) {
        while let Some((token, bytes)) = self.device.finished() {
            let at = self.flying.iter().position(|flight| flight.token == token);
            let Some(at) = at else { panic!("a share has answered what was not asked") };
            let flight = self.flying.swap_remove(at);
            if flight.life == self.life {
                self.landed.push_back((flight.tag, bytes.min(flight.asked.room)));
            } else {
                self.give(flight.asked.units);
            }
        }
    }

    /// Its user starts over: what was asked for is nobody's any more.
    pub fn start_over(&mut self) {
        self.life += 1;
        self.landed.clear();
        self.free = self.flying.iter().fold(u64::MAX, |free, flight| free & !mask(flight.asked.units));
    }
}

/// The shares of the host's that guests have, by their number.
#[derive(Clone, Default, Debug)]
pub struct Shares(Vec<(u32, Arc<Mutex<Port>>)>);

impl Shares {
    /// Those, each with its number.
    #[must_use]
    pub fn new(shares: impl IntoIterator<Item = (u32, Box<dyn HostShare>)>) -> Self {
        Self(shares.into_iter().map(|(number, device)| (number, Arc::new(Mutex::new(Port::new(device))))).collect())
    }

    /// The share of that number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Arc<Mutex<Port>>> {
        self.0.iter().find(|(other, _)| *other == number).map(|(_, port)| port)
    }
}
