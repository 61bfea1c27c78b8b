//! Disks of the host's that guests have.
//!
//! ```text
//!  guest's memory ◄── copied ──► units of the port's buffer ◄── the host's device ──► its file
//!     the VM's                    Gnomon's own, for ever
//! ```
//!
//! What the host's device reads and writes is never a guest's memory: it is a *buffer* that belongs to the disk's *port* from the start
//! of the machine to its end. So whatever becomes of a VM while a request of its is in flight, the device writes where nobody else
//! is. A disk is one VM's, and so what is left in its buffer is nobody else's either.
//!
//! The buffer is divided into *units*. Who asks for something takes some, fills them or has them filled, and gives them back. When
//! a VM, or its driver, starts over, all that was asked for before is forgotten: units come free as the device finishes with them, and
//! nothing is asked for on behalf of the next life until it has finished with all.

use crate::slots::Handle;
use crate::sync::Mutex;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// Bytes of a sector, in which all disks count.
pub const SECTOR: u64 = 512;
/// Units of a port's buffer.
pub const UNITS: usize = 64;
/// Bytes of a unit.
pub const UNIT_BYTES: usize = 8 << 10;
/// Most units of one request.
pub const MOST_UNITS: usize = 8;
/// Most requests in flight.
pub const MOST_FLYING: usize = 64;

/// As many requests in flight are so many that nobody waits for one of them alone.
const BUSY: usize = 4;

/// What a request that was begun is known by until it is finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(pub u16);

/// Why a request was not begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotBegun {
    /// There are as many as the device takes at a time: one has to be finished first.
    Busy,
    /// The device refuses it.
    Failed,
}

/// The device has not done what it was asked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoError;

/// What a disk is asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// To read sectors.
    Read,
    /// To write them.
    Write,
    /// To make what it has written last.
    Flush,
    /// To drop what sectors hold: whatever they read as afterwards.
    Discard,
    /// To make sectors read as zero, and keep their place on the medium.
    Zero,
    /// To make them read as zero, and give their place back if that can be.
    ZeroUnmap,
}

impl Operation {
    /// Whether there is data that goes through units.
    #[must_use]
    pub const fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Whether the disk is another one afterwards.
    #[must_use]
    pub const fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::Zero | Self::ZeroUnmap)
    }
}

/// How a device clears sectors without data that is written there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Clears {
    /// Most sectors of an [`Operation::Discard`]; 0 if it knows none.
    pub most_discarded: u32,
    /// At multiples of how many sectors a discard does most.
    pub alignment: u32,
    /// Most sectors of an [`Operation::Zero`] or [`Operation::ZeroUnmap`]; 0 if it knows none.
    pub most_zeroed: u32,
    /// Whether [`Operation::ZeroUnmap`] may give something back.
    pub may_unmap: bool,
}

impl Clears {
    /// Most sectors that may be meant at a time; `None` if the device does not know the operation.
    #[must_use]
    pub fn most(&self, operation: Operation) -> Option<u32> {
        let most = if operation == Operation::Discard { self.most_discarded } else { self.most_zeroed };
        Some(most).filter(|most| *most != 0)
    }
}

/// Units that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Units {
    /// The first one.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl Units {
    /// None: for what has no data.
    pub const NONE: Self = Self { first: 0, count: 0 };

    /// Bytes that they have.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.count * UNIT_BYTES
    }

    /// A bit for each.
    const fn mask(self) -> u64 {
        ((1 << self.count) - 1) << self.first
    }
}

/// A request to the host's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// What is to be done.
    pub operation: Operation,
    /// The first sector.
    pub sector: u64,
    /// Where the data is, or is to be.
    pub units: Units,
    /// How many bytes are meant: whole sectors, none for [`Operation::Flush`]. They lie in the units if there is
    /// [data](Operation::has_data).
    pub bytes: usize,
}

/// A block device of the host's, with a buffer of [`UNITS`] units.
pub trait HostDisk: Send {
    /// How many sectors it has.
    fn sectors(&self) -> u64;
    /// Whether nothing can be written.
    fn is_read_only(&self) -> bool;
    /// Whether it may hold back what was written until it is flushed.
    fn has_cache(&self) -> bool;
    /// What it can clear. A disk that is read-only is not asked to.
    fn clears(&self) -> Clears;
    /// Units of its buffer, none of which is in flight.
    fn buffer(&mut self, units: Units) -> &mut [u8];
    /// Begins what is asked. The units are the device's until it is finished.
    ///
    /// # Errors
    /// Why not. Nothing has happened then.
    fn begin(&mut self, asked: &Asked) -> Result<Token, NotBegun>;
    /// A request that was finished since the last time, and what has come of it.
    fn finished(&mut self) -> Option<(Token, Result<(), IoError>)>;
    /// Its interrupt is noticed: what is finished after this interrupts anew.
    fn acknowledge(&mut self);
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    token: Token,
    units: Units,
    /// By what who has asked knows it.
    tag: usize,
    /// The life that has asked.
    life: u64,
}

/// A disk, with what is under way.
pub struct Port {
    device: Box<dyn HostDisk>,
    /// Whose disk it is.
    user: Option<Handle>,
    /// Counts how often its user has started over.
    life: u64,
    /// Units that are nobody's, by bit.
    free: u64,
    flying: Vec<Flight>,
    /// What is finished and was asked by this life: what it was, and what has come of it.
    landed: VecDeque<(usize, Result<(), IoError>)>,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("user", &self.user).field("flying", &self.flying).finish_non_exhaustive()
    }
}

impl Port {
    /// A disk that nobody has yet.
    #[must_use]
    pub fn new(device: Box<dyn HostDisk>) -> Self {
        Self { device, user: None, life: 0, free: u64::MAX, flying: Vec::new(), landed: VecDeque::new() }
    }

    /// Whose disk it is from now on.
    pub const fn set_user(&mut self, user: Handle) {
        self.user = Some(user);
    }

    /// Whose disk it is.
    #[must_use]
    pub const fn user(&self) -> Option<Handle> {
        self.user
    }

    /// The device itself.
    #[must_use]
    pub fn device(&self) -> &dyn HostDisk {
        &*self.device
    }

    /// Takes units that follow each other: so many, or as many as there are.
    pub fn take(&mut self, most: usize) -> Option<Units> {
        let most = most.clamp(1, MOST_UNITS);
        let runs = |count: usize| (1..count).fold(self.free, |runs, n| runs & self.free >> n);
        let count = (1..=most).rev().find(|count| runs(*count) != 0)?;
        let units = Units { first: runs(count).trailing_zeros() as usize, count };
        self.free &= !units.mask();
        Some(units)
    }

    /// Gives them back.
    pub const fn give(&mut self, units: Units) {
        self.free |= units.mask();
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
        self.flying.push(Flight { token, units: asked.units, tag, life: self.life });
        Ok(())
    }

    /// What has landed first of all that is still to be looked after: its tag, and what has come of it.
    pub fn landed(&mut self) -> Option<(usize, Result<(), IoError>)> {
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

    /// Whether so much is in flight that it is worth while to look after several at once, a moment later.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.flying.len() >= BUSY
    }

    /// The device has interrupted. Says whether what it has finished is to be looked after now; else it is in a moment, and until then
    /// the device does not interrupt again.
    pub fn attend(&mut self) -> bool {
        self.device.acknowledge();
        if self.is_busy() {
            return false;
        }
        self.collect();
        true
    }

    /// Looks what the device has finished.
    fn collect(&mut self) {
        while let Some((token, result)) = self.device.finished() {
            let at = self.flying.iter().position(|flight| flight.token == token);
            let Some(at) = at else { panic!("a disk has finished what was not begun") };
            let flight = self.flying.swap_remove(at);
            if flight.life == self.life {
                self.landed.push_back((flight.tag, result));
            } else {
                self.give(flight.units);
            }
        }
    }

    /// Its user starts over: what was asked for is nobody's any more.
    pub fn start_over(&mut self) {
        self.life += 1;
        self.landed.clear();
        self.free = self.flying.iter().fold(u64::MAX, |free, flight| free & !flight.units.mask());
    }
}

/// The disks of the host's that guests have, by their number.
#[derive(Clone, Default, Debug)]
pub struct Disks(Vec<(u32, Arc<Mutex<Port>>)>);

impl Disks {
    /// Those, each with its number.
    #[must_use]
    pub fn new(disks: impl IntoIterator<Item = (u32, Box<dyn HostDisk>)>) -> Self {
        Self(disks.into_iter().map(|(number, device)| (number, Arc::new(Mutex::new(Port::new(device))))).collect())
    }

    /// The disk of that number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Arc<Mutex<Port>>> {
        self.0.iter().find(|(other, _)| *other == number).map(|(_, port)| port)
    }
}
