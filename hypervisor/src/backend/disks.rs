//! Disks of the host's that guests have, by [ports](crate::backend::port).

use crate::backend::port;
use crate::backend::port::{HostDevice, Request};
pub use crate::backend::port::{NotBegun, Token, UNIT_BYTES, UNITS, Units};
use alloc::boxed::Box;
use mmu::frames::Loan;

/// Bytes of a sector, in which all disks count.
pub const SECTOR: u64 = 512;
/// Most units of one request.
pub const MOST_UNITS: usize = 8;
/// Most requests in flight.
pub const MOST_FLYING: usize = 64;
/// Most bytes that are lent for one request.
pub const MOST_LENT: usize = 1 << 20;

/// The number of requests in flight from which on no guest waits for one of them alone.
const BUSY: usize = 4;
/// The number of requests of an earlier life whose end is handled at once.
const AT_ONCE: usize = 8;

/// The device has not done what it was asked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoError;

/// An operation of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads sectors.
    Read,
    /// Writes sectors.
    Write,
    /// Makes written data durable.
    Flush,
    /// Drops the content of sectors: they may read as anything afterwards.
    Discard,
    /// Makes sectors read as zero, and keeps their place on the medium.
    Zero,
    /// Makes sectors read as zero, and gives their place back if that can be.
    ZeroUnmap,
}

impl Operation {
    /// Returns whether there is data that goes through units.
    #[must_use]
    pub const fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Returns whether the operation changes the disk.
    #[must_use]
    pub const fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::Zero | Self::ZeroUnmap)
    }
}

/// The ways in which a device clears sectors without data that is written there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Clears {
    /// Most sectors of an [`Operation::Discard`]; 0 if it knows none.
    pub most_discarded: u32,
    /// At multiples of how many sectors a discard does most.
    pub alignment: u32,
    /// Most sectors of an [`Operation::Zero`] or [`Operation::ZeroUnmap`]; 0 if it knows none.
    pub most_zeroed: u32,
    /// Set if [`Operation::ZeroUnmap`] may give something back.
    pub may_unmap: bool,
}

impl Clears {
    /// Returns the most sectors of an operation; `None` if the device does not know it.
    #[must_use]
    pub fn most(&self, operation: Operation) -> Option<u32> {
        let most = if operation == Operation::Discard { self.most_discarded } else { self.most_zeroed };
        Some(most).filter(|most| *most != 0)
    }
}

/// A request to the host's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The operation.
    pub operation: Operation,
    /// The first sector.
    pub sector: u64,
    /// The units of the data.
    pub units: Units,
    /// The length in bytes: whole sectors, none for [`Operation::Flush`]. They lie in the units if there is
    /// [data](Operation::has_data).
    pub bytes: usize,
}

impl Request for Asked {
    fn units(&self) -> Units {
        self.units
    }
}

/// A block device of the host's.
pub trait HostDisk: HostDevice<Asked = Asked, Outcome = Result<(), IoError>> {
    /// Returns the number of sectors.
    fn sectors(&self) -> u64;
    /// Returns whether the disk cannot be written.
    fn is_read_only(&self) -> bool;
    /// Returns whether the disk may hold back written data until it is flushed.
    fn has_cache(&self) -> bool;
    /// Returns the ways in which it can clear sectors. A disk that is read-only is not asked to.
    fn clears(&self) -> Clears;
    /// Returns the most pieces of RAM that it reads for one request: 1 or more.
    fn most_pieces(&self) -> usize;
    /// Begins to write what is lent, from that sector on: whole sectors, one or more. The loan ends when that is finished.
    ///
    /// # Errors
    /// Why not. Nothing has happened then.
    fn begin_lent(&mut self, sector: u64, loan: Loan) -> Result<Token, NotBegun>;
}

/// A disk, with what is under way.
pub type Port = port::Port<dyn HostDisk>;

impl Port {
    /// Makes a port for a disk, without a user.
    #[must_use]
    pub fn new(device: Box<dyn HostDisk>) -> Self {
        Self::of(device, MOST_FLYING)
    }

    /// Takes units that follow each other: so many, or as many as there are.
    pub fn take(&mut self, most: usize) -> Option<Units> {
        (1..=most.clamp(1, MOST_UNITS)).rev().find_map(|count| self.take_exactly(count))
    }

    /// Begins to write what is lent. It is known by `tag` when it has landed.
    ///
    /// # Errors
    /// As for [`Port::begin`].
    pub fn begin_lent(&mut self, sector: u64, loan: Loan, tag: usize) -> Result<(), NotBegun> {
        let lent = (loan.bytes(), loan.pieces().len());
        self.begin_by(|device| device.begin_lent(sector, loan), (Units::NONE, lent), tag)
    }

    /// Returns whether several requests are better served at once, a moment later: enough are in flight, or the port's
    /// user says so.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.flying() >= BUSY || self.gathers
    }

    /// Sets whether the user finds that several requests are better served at once.
    pub const fn set_gathering(&mut self, gathers: bool) {
        self.gathers = gathers;
    }

    /// Handles the device's interrupt. Returns whether the finished requests are to be handled now; otherwise they are
    /// in a moment, and until then the device does not interrupt again.
    pub fn attend(&mut self) -> bool {
        // Requests of an earlier life of the VM are collected here: there may be no driver, and so no moment in which
        // the device is served. Ending their loans takes time: after a portion, the rest gets an exit of its own,
        // because the device keeps interrupting.
        if self.has_strangers() && (0..AT_ONCE).all(|_| self.collect_one().is_some()) {
            return true;
        }
        self.acknowledge();
        if self.is_busy() && !self.has_strangers() {
            return false;
        }
        self.collect();
        true
    }
}

/// The disks of the host's that guests have, by their number.
pub type Disks = port::Ports<dyn HostDisk>;

impl Disks {
    /// Makes the disks, each with its number.
    #[must_use]
    pub fn new(disks: impl IntoIterator<Item = (u32, Box<dyn HostDisk>)>) -> Self {
        Self::of(disks.into_iter().map(|(number, device)| (number, Port::new(device))))
    }
}
