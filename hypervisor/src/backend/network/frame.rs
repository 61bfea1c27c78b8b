//! A frame of an Ethernet, as it goes through Gnomon.

use abi::mac::Mac;

/// Bytes of the header that virtio puts in front of a frame (chapter 5.1.6, with `num_buffers`).
pub const HEADER: usize = 12;
/// Bytes of the shortest frame: its two addresses and its type.
pub const LEAST: usize = 14;
/// Bytes of the longest: 1500 behind those, and the tag of a VLAN.
pub const MOST: usize = 1518;
/// Bytes that a frame has room for, with its header.
pub const ROOM: usize = (HEADER + MOST).next_multiple_of(8);

/// A frame in one buffer, whose content is plain, with nothing left to be done about its checksums.
const PLAIN: [u8; HEADER] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// A frame, with the header of virtio in front of it.
#[derive(Debug)]
#[repr(align(8))]
pub struct Frame {
    bytes: [u8; ROOM],
    /// The number of those bytes that are header and frame.
    length: usize,
}

impl Default for Frame {
    fn default() -> Self {
        Self { bytes: [0; ROOM], length: HEADER + LEAST }
    }
}

impl Frame {
    /// Returns the room for a header and a frame.
    pub const fn room(&mut self) -> &mut [u8; ROOM] {
        &mut self.bytes
    }

    /// Sets the number of bytes that were put there, the header among them, which is made plain. Returns whether they
    /// are a frame, by their length.
    pub fn fill(&mut self, length: usize) -> bool {
        self.bytes[..HEADER].copy_from_slice(&PLAIN);
        let is_frame = (HEADER + LEAST..=HEADER + MOST).contains(&length);
        self.length = if is_frame { length } else { HEADER + LEAST };
        is_frame
    }

    /// Returns header and frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns the frame.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.bytes[HEADER..self.length]
    }

    fn mac(&self, at: usize) -> Mac {
        Mac(core::array::from_fn(|n| self.bytes[HEADER + at + n]))
    }

    /// Returns the destination address.
    #[must_use]
    pub fn destination(&self) -> Mac {
        self.mac(0)
    }

    /// Returns the source address that the frame claims.
    #[must_use]
    pub fn source(&self) -> Mac {
        self.mac(6)
    }
}
