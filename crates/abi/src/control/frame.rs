//! Frames: messages on a line that may lose bytes, or begin in the middle.
//!
//! | bytes | what |
//! |---|---|
//! | 2 | the version, little endian |
//! | 4 | the message's number, little endian |
//! | – | the message, postcard-encoded |
//! | 4 | CRC-32 (ISO-HDLC) of all that, little endian |
//!
//! All of it is stuffed (COBS), so that it has no byte 0, and stands between two of those. So whatever was lost or is garbage, the next
//! 0 begins anew; and a line of serial ports is as good as a socket. Versions may differ in the message, and in nothing else.

use alloc::vec;
use alloc::vec::Vec;
use crc::{CRC_32_ISO_HDLC, Crc, Table};
use serde::{Deserialize, Serialize};

/// Between two frames.
const DELIMITER: u8 = 0;
/// Bytes before the message, and behind it.
const HEADER: usize = 6;
const TRAILER: usize = 4;

/// The large table: pages of a snapshot are summed up, too.
static CRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);

/// The reason for which a frame is no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// The frame is longer than any message.
    TooLong,
    /// The frame is damaged, or garbage.
    Garbled,
    /// The frame is of another version.
    Version {
        /// Its number.
        number: u32,
        /// Its version.
        version: u16,
    },
    /// The frame arrived as it was sent, and its message is unknown.
    Malformed {
        /// Its number.
        number: u32,
    },
}

/// The frame of a message.
#[must_use]
pub fn encode<T: Serialize>(number: u32, message: &T) -> Vec<u8> {
    encode_as(super::VERSION, number, message)
}

/// The frame of a message, for a receiver of that version.
#[must_use]
pub fn encode_as<T: Serialize>(version: u16, number: u32, message: &T) -> Vec<u8> {
    let mut plain = Vec::with_capacity(HEADER + TRAILER);
    plain.extend(version.to_le_bytes());
    plain.extend(number.to_le_bytes());
    // Serializing plain data into memory cannot fail.
    let mut plain = postcard::to_extend(message, plain).unwrap_or_default();
    plain.extend(CRC.checksum(&plain).to_le_bytes());
    let mut stuffed = vec![DELIMITER; cobs::max_encoding_length(plain.len()) + 2];
    let length = cobs::encode(&plain, &mut stuffed[1..]);
    stuffed.truncate(1 + length);
    stuffed.push(DELIMITER);
    stuffed
}

/// Decodes the message in a frame that a [`Reader`] has found, and its number. The frame is used up.
///
/// # Errors
/// [`Bad`], except [`Bad::TooLong`].
pub fn decode<'a, T: Deserialize<'a>>(frame: &'a mut [u8]) -> Result<(u32, T), Bad> {
    decode_as(super::VERSION, frame)
}

/// Like [`decode`], for a receiver of that version.
///
/// # Errors
/// [`Bad`], except [`Bad::TooLong`].
pub fn decode_as<'a, T: Deserialize<'a>>(wanted: u16, frame: &'a mut [u8]) -> Result<(u32, T), Bad> {
    let length = cobs::decode_in_place(frame).map_err(|_| Bad::Garbled)?;
    let plain: &'a [u8] = frame.get(..length).ok_or(Bad::Garbled)?;
    let (rest, sum) = plain.split_last_chunk::<TRAILER>().ok_or(Bad::Garbled)?;
    if CRC.checksum(rest) != u32::from_le_bytes(*sum) {
        return Err(Bad::Garbled);
    }
    let (version, rest) = rest.split_first_chunk().ok_or(Bad::Garbled)?;
    let (number, message) = rest.split_first_chunk().ok_or(Bad::Garbled)?;
    let (version, number) = (u16::from_le_bytes(*version), u32::from_le_bytes(*number));
    if version != wanted {
        return Err(Bad::Version { number, version });
    }
    match postcard::take_from_bytes(message) {
        Ok((message, [])) => Ok((number, message)),
        _ => Err(Bad::Malformed { number }),
    }
}

/// Finds frames in what comes.
#[derive(Clone, Debug)]
pub struct Reader {
    /// The frame that has begun.
    bytes: Vec<u8>,
    most: usize,
    /// True if the frame is too long already.
    is_too_long: bool,
}

impl Reader {
    /// One for frames of up to so many bytes. It never has more memory than that.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), most, is_too_long: false }
    }

    /// Takes bytes away until a frame is complete, or none are left: then it is `None`. The frame is as it came, for [`decode`].
    ///
    /// # Errors
    /// [`Bad::TooLong`], instead of a frame.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<Result<Vec<u8>, Bad>> {
        loop {
            let Some(at) = bytes.iter().position(|byte| *byte == DELIMITER) else {
                self.keep(bytes);
                *bytes = &[];
                return None;
            };
            self.keep(&bytes[..at]);
            *bytes = &bytes[at + 1..];
            let frame = core::mem::take(&mut self.bytes);
            if core::mem::take(&mut self.is_too_long) {
                return Some(Err(Bad::TooLong));
            }
            // Two delimiters in a row: the end of one, and the beginning of the next.
            if !frame.is_empty() {
                return Some(Ok(frame));
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if bytes.len() > self.most - self.bytes.len() {
            self.is_too_long = true;
            self.bytes = Vec::new();
        } else if !self.is_too_long {
            self.bytes.extend_from_slice(bytes);
        }
    }
}
