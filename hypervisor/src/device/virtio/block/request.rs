//! The requests to a disk, with their checks, and the features that it offers. [`super::Block`] reads their headers.

use crate::backend::disks::{Clears, Operation, Port, SECTOR};
use crate::device::virtio::queue::MOST;
use crate::device::virtio::wire::block::{
    BLK_SIZE, DISCARD, FLUSH, MAX_DISCARD_SECTORS, MAX_WRITE_ZEROES_SECTORS, MQ, NUM_QUEUES, READ_ONLY, S_IOERR,
    S_UNSUPP, SEG_MAX, WRITE_ZEROES, WRITE_ZEROES_MAY_UNMAP,
};

/// Bytes of the configuration, as far as it is read.
const CONFIG: usize = 60;
/// The device's counts. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Requests to read.
    pub reads: u64,
    /// Requests to write.
    pub writes: u64,
    /// Requests to flush.
    pub flushes: u64,
    /// Requests to discard sectors.
    pub discards: u64,
    /// Requests to zero them.
    pub zeroes: u64,
    /// Bytes that were asked for.
    pub bytes_read: u64,
    /// Bytes that were to be written.
    pub bytes_written: u64,
    /// The part of those bytes that the host's device has read, or reads, from the guest's memory itself.
    pub bytes_lent: u64,
    /// Requests that the host's device was given.
    pub parts: u64,
    /// The number of those that failed there.
    pub errors: u64,
    /// Requests that are none, or that are not for this disk.
    pub refused: u64,
}

impl Counts {
    /// Returns every count with its name, as `docs/counters.md` lists them.
    pub(super) const fn each(&self) -> [(&'static str, u64); 11] {
        [
            ("disk.reads", self.reads),
            ("disk.writes", self.writes),
            ("disk.flushes", self.flushes),
            ("disk.discards", self.discards),
            ("disk.zeroes", self.zeroes),
            ("disk.bytes_read", self.bytes_read),
            ("disk.bytes_written", self.bytes_written),
            ("disk.bytes_lent", self.bytes_lent),
            ("disk.parts", self.parts),
            ("disk.errors", self.errors),
            ("disk.refused", self.refused),
        ]
    }
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) sector: u64,
    /// Bytes of data, or of what is to be cleared.
    pub(super) bytes: u64,
}

/// Returns the ways in which the guest may clear sectors: none if it may not write.
fn clears(port: &Port) -> Clears {
    if port.device().is_read_only() { Clears::default() } else { port.device().clears() }
}

/// Returns the features of a disk with so many queues.
pub(super) fn features(port: &Port, queues: usize) -> u64 {
    let device = port.device();
    let clears = clears(port);
    let given = |feature, is_given| if is_given { feature } else { 0 };
    SEG_MAX
        | BLK_SIZE
        | given(READ_ONLY, device.is_read_only())
        | given(FLUSH, device.has_cache())
        | given(MQ, queues > 1)
        | given(DISCARD, clears.most_discarded != 0)
        | given(WRITE_ZEROES, clears.most_zeroed != 0)
}

/// Returns its configuration.
pub(super) fn config(port: &Port, queues: usize) -> [u8; CONFIG] {
    let mut config = [0; CONFIG];
    let (sectors, clears) = (port.device().sectors(), clears(port));
    config[NUM_QUEUES..NUM_QUEUES + 2].copy_from_slice(&(queues as u16).to_le_bytes());
    let mut put = |at: usize, value: u32| config[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(0, sectors as u32);
    put(4, (sectors >> 32) as u32);
    // Beside the data there are header and status.
    put(12, MOST as u32 - 2);
    put(20, SECTOR as u32);
    if clears.most_discarded != 0 {
        let words = [clears.most_discarded, 1, clears.alignment.max(1)];
        (0..).zip(words).for_each(|(n, word)| put(MAX_DISCARD_SECTORS + 4 * n, word));
    }
    if clears.most_zeroed != 0 {
        (0..).zip([clears.most_zeroed, 1]).for_each(|(n, word)| put(MAX_WRITE_ZEROES_SECTORS + 4 * n, word));
        put(WRITE_ZEROES_MAY_UNMAP, clears.may_unmap.into());
    }
    config
}

impl Request {
    /// Checks whether the disk can do it. The error is the status.
    pub(super) fn check(&self, port: &Port) -> Result<(), u8> {
        let (device, sectors) = (port.device(), self.bytes / SECTOR);
        let end = self.sector.checked_add(sectors);
        let is_there = self.bytes.is_multiple_of(SECTOR) && end.is_some_and(|end| end <= device.sectors());
        if !is_there || self.operation.changes() && device.is_read_only() {
            return Err(S_IOERR);
        }
        if !self.operation.changes() || self.operation.has_data() {
            return Ok(());
        }
        let most = device.clears().most(self.operation).ok_or(S_UNSUPP)?;
        if sectors > most.into() { Err(S_IOERR) } else { Ok(()) }
    }
}

impl Counts {
    pub(super) fn count(&mut self, operation: Operation, bytes: u64) {
        match operation {
            Operation::Read => {
                self.reads += 1;
                self.bytes_read += bytes;
            }
            Operation::Write => {
                self.writes += 1;
                self.bytes_written += bytes;
            }
            Operation::Flush => self.flushes += 1,
            Operation::Discard => self.discards += 1,
            Operation::Zero | Operation::ZeroUnmap => self.zeroes += 1,
        }
    }
}
