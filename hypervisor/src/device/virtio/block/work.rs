//! The requests that a disk works on, and their parts.

use super::request::Request;
use crate::backend::disks::{Operation, Port, SECTOR, Units};
use crate::device::interface::Outside;
use crate::device::virtio::portion::{Budget, Stop};
use crate::device::virtio::queue::{Chain, Trouble};
use crate::device::virtio::wire::block::{
    HEADER, S_IOERR, S_OK, S_UNSUPP, SEGMENT, SEGMENT_UNMAP, T_DISCARD, T_WRITE_ZEROES,
};

/// A request that is worked on.
#[derive(Default, Debug)]
pub(super) struct Work {
    pub(super) chain: Chain,
    /// The queue by which it came, and goes back; `None` if the driver has stopped that.
    pub(super) queue: Option<usize>,
    /// Once its header was read, and if it is one for the host's device.
    pub(super) request: Option<Request>,
    /// Bytes for which parts were begun.
    pub(super) begun: u64,
    /// Set if nothing more is to be begun.
    pub(super) is_asked: bool,
    /// Parts in flight.
    pub(super) flying: u32,
    /// The status so far.
    pub(super) status: u8,
}

/// A part of a request, which the host's device does at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The place of its request.
    pub(super) work: usize,
    /// The part's offset in the request's data.
    pub(super) offset: u64,
    pub(super) bytes: usize,
    pub(super) units: Units,
    /// Bytes that were copied, one way or the other.
    pub(super) copied: usize,
    pub(super) is_lent: bool,
}

/// The state of the next part of a request that is to be lent.
pub(super) enum Lent {
    /// The part was begun.
    Begun(Part),
    /// The part is to be copied.
    Not,
    /// The request has failed.
    Failed,
}

impl Work {
    /// Begins the work anew: nothing is known of it but its chain.
    pub(super) const fn begin_anew(&mut self) {
        let Self { chain: _, queue: _, request, begun, is_asked, flying, status } = self;
        (*request, *begun, *is_asked, *flying, *status) = (None, 0, false, 0, S_OK);
    }

    /// Returns whether nothing has failed so far.
    pub(super) const fn is_well(&self) -> bool {
        self.status == S_OK
    }

    /// Fails, unless it has before.
    pub(super) const fn fail(&mut self, status: u8) {
        if self.status == S_OK {
            self.status = status;
        }
    }

    /// Reads the one segment of a request to discard sectors or to zero them: the operation, the first sector, and the
    /// number of bytes. The error is the status, if there is no valid segment.
    pub(super) fn segment(&self, kind: u32, outside: &mut dyn Outside) -> Result<Result<Request, u8>, Trouble> {
        if self.chain.room(false) != (HEADER + SEGMENT) as u64 {
            return Ok(Err(S_IOERR));
        }
        let segment = self.chain.hear::<SEGMENT>(HEADER as u64, outside)?;
        let Some([sector @ .., n0, n1, n2, n3, f0, f1, f2, f3]) = segment else { return Ok(Err(S_IOERR)) };
        let operation = match (kind, u32::from_le_bytes([f0, f1, f2, f3])) {
            (T_DISCARD, 0) => Operation::Discard,
            (T_WRITE_ZEROES, 0) => Operation::Zero,
            (T_WRITE_ZEROES, SEGMENT_UNMAP) => Operation::ZeroUnmap,
            _ => return Ok(Err(S_UNSUPP)),
        };
        let bytes = u64::from(u32::from_le_bytes([n0, n1, n2, n3])) * SECTOR;
        Ok(Ok(Request { operation, sector: u64::from_le_bytes(sector), bytes }))
    }

    /// Copies the data of a part, or the rest of it, from or to the guest. If there is no memory for it, the request
    /// fails.
    pub(super) fn copy(
        &mut self,
        part: &mut Part,
        operation: Operation,
        port: &mut Port,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let is_read = operation == Operation::Read;
        let place = (is_read, if is_read { 0 } else { HEADER as u64 } + part.offset);
        let bytes = &mut port.buffer(part.units)[..part.bytes];
        if self.is_well() && !self.chain.copy(place, (bytes, &mut part.copied), outside, budget)? {
            self.fail(S_IOERR);
        }
        Ok(())
    }
}
