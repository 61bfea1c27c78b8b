//! What is in a chain's buffers. They are cut at whatever borders the driver likes: whoever reads or writes counts from their start.

use super::queue::{Buffer, Chain, Trouble};
use crate::device::interface::{Outside, Unreached};
use rv::PAGE_BYTES;

/// What comes of an access to guest memory: whether there is any. Where it is not there yet, the same is done again.
pub(super) fn reached(access: Result<(), Unreached>) -> Result<bool, Trouble> {
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

    /// Bytes of the buffers that the device writes, or of those that it reads.
    pub(super) fn room(&self, is_written: bool) -> u64 {
        self.of_kind(is_written).map(|buffer| u64::from(buffer.bytes)).sum()
    }

    /// Where what is `offset` bytes behind their start is, and how much of it lies there, within a page.
    pub(super) fn place(&self, is_written: bool, mut offset: u64) -> Option<(u64, usize)> {
        self.of_kind(is_written).find_map(|buffer| {
            let bytes = u64::from(buffer.bytes);
            if offset >= bytes {
                offset -= bytes;
                return None;
            }
            // An address that wraps is nowhere.
            let at = buffer.gpa.saturating_add(offset);
            Some((at, (bytes - offset).min(PAGE_BYTES - at % PAGE_BYTES) as usize))
        })
    }

    /// Writes a few bytes to what is `offset` behind the start of the buffers that the device writes. Says whether there is room,
    /// and memory.
    pub(super) fn tell(&self, offset: u64, bytes: &[u8], outside: &mut dyn Outside) -> Result<bool, Trouble> {
        let mut done = 0;
        while done < bytes.len() {
            let Some((gpa, left)) = self.place(true, offset + done as u64) else { return Ok(false) };
            let end = bytes.len().min(done + left);
            if !reached(outside.write(gpa, &bytes[done..end]))? {
                return Ok(false);
            }
            done = end;
        }
        Ok(true)
    }

    /// Reads a few bytes from what is `offset` behind the start of the buffers that the device reads; `None` if there are not so many.
    pub(super) fn hear<const N: usize>(
        &self,
        offset: u64,
        outside: &mut dyn Outside,
    ) -> Result<Option<[u8; N]>, Trouble> {
        let (mut bytes, mut done) = ([0; N], 0);
        while done < N {
            let Some((gpa, left)) = self.place(false, offset + done as u64) else { return Ok(None) };
            let end = N.min(done + left);
            if !reached(outside.read(gpa, &mut bytes[done..end]))? {
                return Ok(None);
            }
            done = end;
        }
        Ok(Some(bytes))
    }
}
