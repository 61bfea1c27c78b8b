//! The data in a chain's buffers. They are cut at whatever borders the driver likes: reads and writes count from their
//! start.

use super::portion::{Budget, Stop};
use super::queue::{Buffer, Chain, Trouble};
use crate::device::interface::{Outside, Unreached};
use core::ops::Range;
use rv::PAGE_BYTES;

/// Converts the result of an access to guest memory: `true` if there is memory, `false` if there is none. If memory is
/// not present yet, the operation is done again.
fn reached(access: Result<(), Unreached>) -> Result<bool, Trouble> {
    match access {
        Ok(()) => Ok(true),
        Err(Unreached::Nowhere) => Ok(false),
        Err(Unreached::Later) => Err(Trouble::Later),
    }
}

impl Chain {
    fn of_kind(&self, is_written: bool) -> impl Iterator<Item = &Buffer> {
        self.buffers.iter().filter(move |buffer| buffer.is_written == is_written)
    }

    /// Returns the bytes of the buffers that the device writes, or of those that it reads.
    pub(super) fn room(&self, is_written: bool) -> u64 {
        self.of_kind(is_written).map(|buffer| u64::from(buffer.bytes)).sum()
    }

    /// Returns the bytes at the start of the buffers that the device reads which lie together within a page: at most `most`.
    pub(super) fn first(&self, most: usize) -> usize {
        let first = self.places((false, 0), most).next();
        first.map_or(0, |(gpa, bytes)| bytes.min((PAGE_BYTES - gpa % PAGE_BYTES) as usize))
    }

    /// Returns the places, address and bytes (1 or more), at `offset` of the buffers that the device writes, or of
    /// those that it reads: no more than `most` bytes.
    pub(super) fn places(
        &self,
        (is_written, mut offset): (bool, u64),
        mut most: usize,
    ) -> impl Iterator<Item = (u64, usize)> {
        self.of_kind(is_written).filter_map(move |buffer| {
            let before = offset.min(buffer.bytes.into());
            offset -= before;
            let bytes = most.min((u64::from(buffer.bytes) - before) as usize);
            most -= bytes;
            // An address that wraps is nowhere.
            (bytes != 0).then(|| (buffer.gpa.saturating_add(before), bytes))
        })
    }

    /// Goes through `bytes` of what is `offset` behind the start of those buffers, from the one of number `done` on, by
    /// pieces that lie together, within a page: passes on the address of each. Returns whether there is room for all,
    /// and memory.
    fn go_through<E>(
        &self,
        (is_written, offset): (bool, u64),
        (bytes, done): (usize, &mut usize),
        mut act: impl FnMut(u64, Range<usize>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        for (gpa, length) in self.places((is_written, offset + *done as u64), bytes - *done) {
            let end = *done + length;
            let mut gpa = gpa;
            while *done < end {
                let part = ((PAGE_BYTES - gpa % PAGE_BYTES) as usize).min(end - *done);
                if !act(gpa, *done..*done + part)? {
                    return Ok(false);
                }
                *done += part;
                gpa = gpa.saturating_add(part as u64);
            }
        }
        Ok(*done == bytes)
    }

    /// Copies `bytes`, from number `done` on, to what is `offset` behind the start of the buffers that the device
    /// writes; or to them from those that it reads. Stops when the budget is spent, or memory is not there yet: then
    /// another call continues from there. Returns whether there is room for all, and memory.
    pub(super) fn copy(
        &self,
        place: (bool, u64),
        (bytes, done): (&mut [u8], &mut usize),
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<bool, Stop> {
        self.go_through(place, (bytes.len(), done), |gpa, at| {
            budget.pay_for_copy(at.len(), gpa.is_multiple_of(8) && at.start.is_multiple_of(8))?;
            let bytes = &mut bytes[at];
            Ok(reached(if place.0 { outside.write(gpa, bytes) } else { outside.read(gpa, bytes) })?)
        })
    }

    /// Writes a few bytes at `offset` of the buffers that the device writes. Returns whether there is room, and memory.
    pub(super) fn tell(&self, offset: u64, bytes: &[u8], outside: &mut dyn Outside) -> Result<bool, Trouble> {
        self.go_through((true, offset), (bytes.len(), &mut 0), |gpa, at| reached(outside.write(gpa, &bytes[at])))
    }

    /// Reads bytes at `offset` of the buffers that the device reads. Returns whether there are so many, and memory.
    pub(super) fn hear_some(&self, offset: u64, bytes: &mut [u8], outside: &mut dyn Outside) -> Result<bool, Trouble> {
        let place = (false, offset);
        self.go_through(place, (bytes.len(), &mut 0), |gpa, at| reached(outside.read(gpa, &mut bytes[at])))
    }

    /// Reads a few bytes from what is `offset` behind the start of the buffers that the device reads; `None` if there are not so many.
    pub(super) fn hear<const N: usize>(
        &self,
        offset: u64,
        outside: &mut dyn Outside,
    ) -> Result<Option<[u8; N]>, Trouble> {
        let mut bytes = [0; N];
        Ok(self.hear_some(offset, &mut bytes, outside)?.then_some(bytes))
    }
}
