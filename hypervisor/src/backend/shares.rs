//! Folders of the host that guests reach, by [ports](crate::backend::port) of devices that speak the protocol 9P. A
//! message and room for the answer to it lie in units that follow each other.
//!
//! ```text
//!  units: │ head │ message │ head │ answer, as far as one packet has it │ the rest │ padding │ head of the rest │
//! ```
//!
//! The host's device is a network device, whose packets reach the share's server ([`abi::share`]). Each begins with a
//! head of the device's.

use crate::backend::port;
use crate::backend::port::{HostDevice, Request};
pub use crate::backend::port::{NotBegun, Token, UNIT_BYTES, UNITS, Units};
pub use abi::share::MOST_MESSAGE;
use abi::share::{HEAD, LOST_BYTES, MOST_PACKET, PADDING};
use alloc::boxed::Box;
use core::ops::Range;

/// Most messages in flight.
pub const MOST_FLYING: usize = 32;
/// Bytes of the head of a packet: `virtio_net_hdr` with the number of buffers.
pub const PACKET_HEAD: usize = 12;
/// The offset in the head of the number of buffers that the packet has needed (2 bytes, the last).
pub const BUFFERS_AT: usize = 10;
/// The offset of the message in the units: behind a head, and aligned.
const MESSAGE_AT: usize = 16;

/// A message for the host's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The units.
    pub units: Units,
    /// The length of the message, in bytes.
    pub message: usize,
    /// Room for the answer, in bytes, at most [`MOST_MESSAGE`].
    pub room: usize,
}

/// The server of a share has ended, or has answered what is no answer. The share is of no use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost;

impl Asked {
    /// Returns the bytes of the units that are the message.
    #[must_use]
    pub const fn message(&self) -> Range<usize> {
        MESSAGE_AT..MESSAGE_AT + self.message
    }

    /// Returns the bytes of the units that are the room for the answer.
    #[must_use]
    pub const fn answer(&self) -> Range<usize> {
        let at = self.message().end.next_multiple_of(8) + MESSAGE_AT;
        at..at + self.room
    }

    /// Returns the bytes of units that it needs.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.answer().end + PADDING + PACKET_HEAD
    }

    /// Returns the bytes of the units that go as packets, in their order: each has a head in front of it.
    pub fn sent(&self) -> impl Iterator<Item = Range<usize>> {
        let Range { start, end } = self.message();
        let cut = end.min(start + MOST_PACKET);
        [start..cut, cut..end].into_iter().filter(|part| !part.is_empty())
    }

    /// Returns the bytes of the units that the packets of the answer fill: the first, and the second if it has two
    /// ([`abi::share::has_two_packets`]).
    #[must_use]
    pub fn filled(&self, has_two: bool) -> (Range<usize>, Range<usize>) {
        let Range { start, end } = self.answer();
        let cut = end.min(start + MOST_PACKET);
        (start..cut, cut..if has_two { end + PADDING } else { cut })
    }

    /// Returns the length of the answer to `message`, by the lengths of its packets, in bytes.
    ///
    /// # Errors
    /// [`Lost`] if they are no answer to this message: lengths differ, or the tag does.
    pub fn answered(&self, message: &[u8], answer: &[u8], packets: &[usize]) -> Result<usize, Lost> {
        let [l0, l1, l2, l3, _, tag @ ..] = *answer.first_chunk::<HEAD>().ok_or(Lost)?;
        let size = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let fits = match *packets {
            [length] => length == size,
            [first, second] => first == size.min(MOST_PACKET) && second == size - first + PADDING,
            _ => false,
        };
        let is_answer = (HEAD..=self.room).contains(&size) && message.get(5..HEAD) == Some(&tag[..]);
        if fits && is_answer { Ok(size) } else { Err(Lost) }
    }
}

/// Returns the bytes of content of a packet that has come: `length` bytes with its head, to a place with `room` bytes for content.
///
/// # Errors
/// [`Lost`] if it says that the server has ended: no packet follows, so it is known of the first of two, and of an answer to
/// the message that the device has not sent yet. Also if the packet is shorter than a head, or longer than the place.
pub fn content(length: usize, room: usize) -> Result<usize, Lost> {
    let content = length.checked_sub(PACKET_HEAD).filter(|content| *content <= room);
    content.filter(|content| *content != LOST_BYTES).ok_or(Lost)
}

impl Request for Asked {
    fn units(&self) -> Units {
        self.units
    }
}

/// A device of the host's. The result of a message is the length of the answer, in bytes.
pub type HostShare = dyn HostDevice<Asked = Asked, Outcome = Result<usize, Lost>>;

/// A share, with what is under way.
pub type Port = port::Port<HostShare>;

impl Port {
    /// Makes a port for a share, without a user.
    #[must_use]
    pub fn new(device: Box<HostShare>) -> Self {
        Self::of(device, MOST_FLYING)
    }

    /// Takes units for so many bytes, fewer than all, if there are as many that follow each other.
    pub fn take(&mut self, bytes: usize) -> Option<Units> {
        self.take_exactly(bytes.div_ceil(UNIT_BYTES).clamp(1, UNITS - 1))
    }

    /// Handles the device's interrupt.
    pub fn attend(&mut self) {
        self.acknowledge();
        self.collect();
    }
}

/// The shares of the host's that guests have, by their number.
pub type Shares = port::Ports<HostShare>;

impl Shares {
    /// Makes the shares, each with its number.
    #[must_use]
    pub fn new(shares: impl IntoIterator<Item = (u32, Box<HostShare>)>) -> Self {
        Self::of(shares.into_iter().map(|(number, device)| (number, Port::new(device))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn asked(message: usize, room: usize) -> Asked {
        Asked { units: Units { first: 0, count: 40 }, message, room }
    }

    fn read(count: usize) -> Vec<u8> {
        let mut message = vec![0; 23];
        (message[0], message[4], message[5]) = (23, 116, 9);
        message[19..].copy_from_slice(&(count as u32).to_le_bytes());
        message
    }

    #[test]
    fn parts_of_units_keep_apart_and_have_heads_in_front() {
        for (message, room) in
            [(7, 11), (23, MOST_PACKET), (23, MOST_PACKET + 1), (23, MOST_MESSAGE), (MOST_MESSAGE, 6 << 10)]
        {
            let asked = asked(message, room);
            let sent: Vec<_> = asked.sent().collect();
            let (first, second) = asked.filled(room > MOST_PACKET);
            assert_eq!(sent.iter().map(ExactSizeIterator::len).sum::<usize>(), message);
            assert!(sent.iter().all(|part| part.len() <= MOST_PACKET) && sent[0].start >= PACKET_HEAD);
            assert!(sent.last().unwrap().end + PACKET_HEAD <= first.start && first.start.is_multiple_of(8));
            assert_eq!(second.is_empty(), room <= MOST_PACKET);
            assert!(second.start == first.end && second.is_empty() || second.len() == room - MOST_PACKET + PADDING);
            let end = second.end;
            assert!(end + PACKET_HEAD <= asked.bytes());
        }
    }

    #[test]
    fn a_server_that_has_ended_is_known_by_one_packet() {
        assert_eq!(content(PACKET_HEAD + 50, 50), Ok(50));
        assert_eq!(content(PACKET_HEAD + LOST_BYTES, MOST_PACKET), Err(Lost));
        // The device writes no more than there is room for, and no less than a head.
        assert_eq!((content(PACKET_HEAD + 51, 50), content(PACKET_HEAD - 1, 50)), (Err(Lost), Err(Lost)));
    }

    #[test]
    fn only_an_answer_to_the_message_is_one() {
        let message = read(100);
        let answer = |size: usize, tag: u8| [&(size as u32).to_le_bytes()[..], &[117, tag, 0], &[0; 200]].concat();
        let short = asked(23, 111);
        let judge = |answer: &[u8], packets: &[usize]| short.answered(&message, answer, packets);
        assert_eq!(judge(&answer(50, 9), &[50]), Ok(50));
        // The server has ended; another tag; other lengths; a packet too many, or too short.
        assert_eq!(judge(&[0xff; 7], &[LOST_BYTES]), Err(Lost));
        assert_eq!(judge(&answer(50, 8), &[50]), Err(Lost));
        for (size, length) in [(50, 49), (LOST_BYTES, LOST_BYTES), (0, 0), (112, 112), (u32::MAX as usize, 50)] {
            assert_eq!(judge(&answer(size, 9), &[length]), Err(Lost), "{size}");
        }
        assert_eq!(judge(&answer(50, 9), &[50, PADDING]), Ok(50));
        assert_eq!(judge(&answer(50, 9), &[50, LOST_BYTES]), Err(Lost));
        let (long, most) = (asked(23, MOST_MESSAGE), MOST_PACKET);
        let judge = |size: usize, packets: &[usize]| long.answered(&message, &answer(size, 9), packets);
        assert_eq!(judge(most + 4, &[most, 4 + PADDING]), Ok(most + 4));
        assert_eq!(judge(most + LOST_BYTES, &[most, LOST_BYTES]), Err(Lost));
        assert_eq!(judge(most + 4, &[most + 4]), Ok(most + 4));
    }
}
