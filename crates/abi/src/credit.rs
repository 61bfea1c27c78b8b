//! Flow control between Gnomon and the relay that connects it with the world: by credits, for each VM's card.
//!
//! The relay has at most [`WINDOW`] frames for one card on their way. Gnomon reports, by a frame of its own to the relay, the frames for
//! each card that have come, and those that are done with. So the frames of a VM that takes none delay no frames of another, and none are
//! lost because they came too fast.

use crate::mac::Mac;

/// Frames for one card that are on their way at most: sent by the relay, and not done with.
pub const WINDOW: u32 = 32;

/// The source of a report: an address of a group, by which Gnomon's switch lets no VM send.
const SOURCE: Mac = Mac([0x03, b'g', b'c', b'r', b'd', 0]);
/// The type of frames for experiments on one network (IEEE 802, clause 9.2).
const KIND: [u8; 2] = [0x88, 0xb5];
/// The bytes in front of the counts: two addresses and the type.
const HEAD: usize = 14;
/// The bytes of an entry: a card's address, and its counts in big-endian byte order.
const ENTRY: usize = 14;

/// The frames for a card since the start, modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Frames that have come to Gnomon.
    pub come: u32,
    /// Of those, frames that were given to the card's driver, or lost.
    pub done: u32,
}

/// Writes a report into `room`: the counts of cards. Cards that have no room are left out. Returns the report's length in bytes.
///
/// # Panics
/// If `room` has less than 14 bytes.
pub fn write(counts: impl Iterator<Item = (Mac, Counts)>, room: &mut [u8]) -> usize {
    let (head, rest) = room.split_at_mut(HEAD);
    head[..6].copy_from_slice(&SOURCE.0);
    head[6..12].copy_from_slice(&SOURCE.0);
    head[12..].copy_from_slice(&KIND);
    let mut length = HEAD;
    for (entry, (mac, counts)) in rest.chunks_exact_mut(ENTRY).zip(counts) {
        entry[..6].copy_from_slice(&mac.0);
        entry[6..10].copy_from_slice(&counts.come.to_be_bytes());
        entry[10..].copy_from_slice(&counts.done.to_be_bytes());
        length += ENTRY;
    }
    length
}

/// Reads a frame: the counts, if it is a report.
#[must_use]
pub fn read(frame: &[u8]) -> Option<impl Iterator<Item = (Mac, Counts)>> {
    let (head, rest) = frame.split_at_checked(HEAD)?;
    let is_report = head[6..12] == SOURCE.0 && head[12..] == KIND;
    let counts = |entry: &[u8; ENTRY]| {
        let [mac @ .., a, b, c, d, e, f, g, h] = *entry;
        (Mac(mac), Counts { come: u32::from_be_bytes([a, b, c, d]), done: u32::from_be_bytes([e, f, g, h]) })
    };
    is_report.then(|| rest.as_chunks().0.iter().map(counts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn what_is_written_is_read() {
        let of = |come, done| Counts { come, done };
        let counts = [(Mac([2, 0, 0, 0, 0, 1]), of(7, 3)), (Mac([2, 0, 0, 0, 0, 2]), of(0, u32::MAX))];
        let mut room = [0; 64];
        let length = write(counts.into_iter(), &mut room);
        assert_eq!(length, 42);
        assert_eq!(read(&room[..length]).expect("a report").collect::<Vec<_>>(), counts);
        assert!(SOURCE.is_group());
        // A part has fewer counts, and no frame of a card's is one.
        assert_eq!(read(&room[..41]).expect("a report").count(), 1);
        assert!(read(&room[..13]).is_none());
        room[6] = 2;
        assert!(read(&room[..length]).is_none());
        assert_eq!(write(counts.into_iter(), &mut room[..28]), 28);
    }
}
