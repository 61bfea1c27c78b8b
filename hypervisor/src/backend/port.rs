//! Ports, by which guests reach devices of the host's: [disks](crate::backend::disks),
//! [shares](crate::backend::shares).
//!
//! ```text
//!  guest's memory ◄── copied ──► units of the port's buffer ◄── the host's device ──► its file
//!     the VM's                    Gnomon's own, for ever
//! ```
//!
//! The host's device never writes a guest's memory, and it reads none except memory that a guest has
//! [lent](mmu::frames::Loan) to a disk. It uses a *buffer* that belongs to the *port* from the start of the machine to
//! its end. So whatever becomes of a VM while a request of its is in flight, the device writes only there. A port is
//! one VM's, and so data that is left in its buffer is that VM's own.
//!
//! The buffer is divided into *units*. A request takes some, fills them or has them filled, and gives them back. When a
//! VM, or its driver, starts over, all that was asked for before is forgotten: units come free as the device finishes
//! with them, and nothing is asked for on behalf of the next life until it has finished with all.

use crate::backend::User;
use crate::sync::Mutex;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// Units of a port's buffer.
pub const UNITS: usize = 64;
/// Bytes of a unit.
pub const UNIT_BYTES: usize = 8 << 10;

/// The name of a request from its begin until it is finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(pub u16);

/// The reason why a request was not begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotBegun {
    /// There are as many as the device takes at a time: one has to be finished first.
    Busy,
    /// The device refuses it.
    Failed,
}

/// Units that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Units {
    /// The first one.
    pub first: usize,
    /// The number of units.
    pub count: usize,
}

impl Units {
    /// None: for what has no data.
    pub const NONE: Self = Self { first: 0, count: 0 };

    /// Returns the size of the units in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.count * UNIT_BYTES
    }

    /// Returns a mask with a bit for each unit.
    const fn mask(self) -> u64 {
        ((1 << self.count) - 1) << self.first
    }
}

/// A request to a device.
pub trait Request: Copy {
    /// Returns the units that it goes through.
    fn units(&self) -> Units;
}

/// A device of the host's, with a buffer of [`UNITS`] units.
pub trait HostDevice: Send {
    /// The type of its requests.
    type Asked: Request;
    /// The type of their results.
    type Outcome: Copy;

    /// Returns units of its buffer, none of which is in flight.
    fn buffer(&mut self, units: Units) -> &mut [u8];
    /// Begins what is asked. The units are the device's until it is finished.
    ///
    /// # Errors
    /// Why not. Nothing has happened then.
    fn begin(&mut self, asked: &Self::Asked) -> Result<Token, NotBegun>;
    /// Returns a request that was finished since the last time, and its result.
    fn finished(&mut self) -> Option<(Token, Self::Outcome)>;
    /// Acknowledges the device's interrupt: a request that is finished after this interrupts anew.
    fn acknowledge(&mut self);
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    token: Token,
    units: Units,
    /// The tag by which the user knows it.
    tag: usize,
    /// The life that has asked.
    life: u64,
    /// The memory that was lent for it, which the device reads: bytes, and pieces.
    lent: Lent,
}

/// The amount that is lent for a request: bytes, and pieces.
pub(crate) type Lent = (usize, usize);

/// Nothing is.
pub(crate) const NOT_LENT: Lent = (0, 0);

/// A port, with what is under way.
pub struct Port<D: HostDevice + ?Sized> {
    device: Box<D>,
    /// Most requests in flight.
    most_flying: usize,
    /// The VM that has the port.
    user: Option<User>,
    /// Counts how often its user has started over.
    life: u64,
    /// Free units, by bit.
    free: u64,
    flying: Vec<Flight>,
    /// The finished requests of this life: the tag, and the result.
    landed: VecDeque<(usize, D::Outcome)>,
    /// Set if the user serves several of those at once.
    pub(crate) gathers: bool,
}

impl<D: HostDevice + ?Sized> fmt::Debug for Port<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("user", &self.user).field("flying", &self.flying).finish_non_exhaustive()
    }
}

impl<D: HostDevice + ?Sized> Port<D> {
    /// Makes a port without a user, with so many requests in flight at most.
    pub(crate) fn of(device: Box<D>, most_flying: usize) -> Self {
        let (flying, landed) = (Vec::new(), VecDeque::new());
        Self { device, most_flying, user: None, life: 0, free: u64::MAX, flying, landed, gathers: false }
    }

    /// Sets the device that has the port.
    pub const fn set_user(&mut self, user: User) {
        self.user = Some(user);
    }

    /// Returns the device that has the port.
    #[must_use]
    pub const fn user(&self) -> Option<User> {
        self.user
    }

    /// Returns the device itself.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Takes so many units that follow each other, fewer than all, if there are as many.
    pub(crate) fn take_exactly(&mut self, count: usize) -> Option<Units> {
        let starts = (1..count).fold(self.free, |starts, n| starts & self.free >> n);
        let units = (starts != 0).then(|| Units { first: starts.trailing_zeros() as usize, count })?;
        self.free &= !units.mask();
        Some(units)
    }

    /// Gives units back.
    pub const fn give(&mut self, units: Units) {
        self.free |= units.mask();
    }

    /// Returns the bytes of units that were taken and are not in flight.
    pub fn buffer(&mut self, units: Units) -> &mut [u8] {
        self.device.buffer(units)
    }

    /// Begins what is asked. It is known by `tag` when it has landed; until it has, its units are the device's.
    ///
    /// # Errors
    /// Why not. Nothing has happened then. That the device is [`NotBegun::Busy`] means that something is in flight.
    pub fn begin(&mut self, asked: &D::Asked, tag: usize) -> Result<(), NotBegun> {
        self.begin_by(|device| device.begin(asked), (asked.units(), NOT_LENT), tag)
    }

    /// Like [`Port::begin`], for a request that `begin` begins.
    pub(crate) fn begin_by(
        &mut self,
        begin: impl FnOnce(&mut D) -> Result<Token, NotBegun>,
        (units, lent): (Units, Lent),
        tag: usize,
    ) -> Result<(), NotBegun> {
        if self.is_full() {
            return Err(NotBegun::Busy);
        }
        let token = match begin(&mut self.device) {
            Err(NotBegun::Busy) if self.flying.is_empty() => return Err(NotBegun::Failed),
            begun => begun?,
        };
        self.flying.push(Flight { token, units, tag, life: self.life, lent });
        Ok(())
    }

    /// Returns whether the port has its most requests in flight.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.flying.len() >= self.most_flying
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub const fn flying(&self) -> usize {
        self.flying.len()
    }

    /// Returns the oldest finished request that is still to be handled: its tag, and its result.
    pub fn landed(&mut self) -> Option<(usize, D::Outcome)> {
        self.collect();
        self.landed_before()
    }

    /// Like [`Port::landed`], but only for requests that the device was known to have finished.
    pub(crate) fn landed_before(&self) -> Option<(usize, D::Outcome)> {
        self.landed.front().copied()
    }

    /// Removes the oldest finished request, which was handled.
    pub fn forget_landed(&mut self) {
        self.landed.pop_front();
    }

    /// Returns whether a request of an earlier life is in flight.
    #[must_use]
    pub fn has_strangers(&self) -> bool {
        self.flying.iter().any(|flight| flight.life != self.life)
    }

    /// Returns whether one of those reads memory that was lent for it.
    pub(crate) fn has_lent_strangers(&self) -> bool {
        self.flying.iter().any(|flight| flight.lent != NOT_LENT && flight.life != self.life)
    }

    /// Returns whether a request of this life with that tag is in flight.
    pub(crate) fn is_flying(&self, tag: usize) -> bool {
        self.flying.iter().any(|flight| flight.tag == tag && flight.life == self.life)
    }

    /// Acknowledges the device's interrupt.
    pub(crate) fn acknowledge(&mut self) {
        self.device.acknowledge();
    }

    /// Collects the requests that the device has finished.
    pub(crate) fn collect(&mut self) {
        while self.collect_one().is_some() {}
    }

    /// Looks whether the device has finished something, and says what was lent for it: that is not any more.
    pub(crate) fn collect_one(&mut self) -> Option<Lent> {
        // Asked often, and mostly when nothing is in flight: a device is not looked at then.
        if self.flying.is_empty() {
            return None;
        }
        let (token, outcome) = self.device.finished()?;
        let at = self.flying.iter().position(|flight| flight.token == token);
        let Some(at) = at else { panic!("a device has finished what was not begun") };
        let flight = self.flying.swap_remove(at);
        if flight.life == self.life {
            self.landed.push_back((flight.tag, outcome));
        } else {
            self.give(flight.units);
        }
        Some(flight.lent)
    }

    /// Starts over: requests so far are no longer the user's.
    pub fn start_over(&mut self) {
        self.life += 1;
        self.gathers = false;
        self.landed.clear();
        self.free = self.flying.iter().fold(u64::MAX, |free, flight| free & !flight.units.mask());
    }
}

/// Ports of one kind, by the numbers of their devices.
pub struct Ports<D: HostDevice + ?Sized>(Vec<(u32, Arc<Mutex<Port<D>>>)>);

impl<D: HostDevice + ?Sized> Ports<D> {
    /// Makes the ports, each with its number.
    pub(crate) fn of(ports: impl Iterator<Item = (u32, Port<D>)>) -> Self {
        Self(ports.map(|(number, port)| (number, Arc::new(Mutex::new(port)))).collect())
    }

    /// Returns the port of the device of that number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Arc<Mutex<Port<D>>>> {
        self.0.iter().find(|(other, _)| *other == number).map(|(_, port)| port)
    }
}

// What is derived would ask the same of devices.
impl<D: HostDevice + ?Sized> Default for Ports<D> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<D: HostDevice + ?Sized> Clone for Ports<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: HostDevice + ?Sized> fmt::Debug for Ports<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(number, _)| number)).finish()
    }
}
