//! Frames: messages on a line that may lose bytes, or begin in the middle.
//!
//! | bytes | content |
//! |---|---|
//! | 2 | the version, little endian |
//! | 4 | the message's number, little endian |
//! | 4 | the length of a long message, little endian; 0 if the message is here |
//! | – | the message, postcard-encoded; of a long message nothing |
//! | 4 | CRC-32 (ISO-HDLC) of all that, little endian |
//!
//! All of it is stuffed (COBS), so that it has no byte 0, and stands between two of those: after lost or damaged bytes the next 0 begins
//! a frame, and a line of serial ports is as good as a socket. Versions may differ in the message and its length, and in nothing else.
//!
//! A long message, for example pages of RAM, follows its frame unstuffed, and its number and length follow it again: to stuff a page and to
//! compute its CRC-32 takes some 50,000 instructions, and to copy it 2,000. Lost bytes are noticed, damaged ones are not. A sender sends all
//! of a long message or ends the line: the receiver takes so many bytes for it, whatever they are.

use alloc::vec::Vec;
use core::mem::take;
use core::ops::Range;
use crc::{CRC_32_ISO_HDLC, Crc, Table};
use postcard::ser_flavors::Flavor;
use postcard::serialize_with_flavor;
use serde::{Deserialize, Serialize};

/// Between two frames.
const DELIMITER: u8 = 0;
/// Bytes before the message, and behind it.
const HEADER: usize = 10;
const TRAILER: usize = 4;
/// Bytes behind a long message.
const LONG_TRAILER: usize = 8;
/// The least length of a long message, in bytes.
const LONG: usize = 1 << 10;

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

/// A frame that has arrived whole, of this version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    number: u32,
    bytes: Vec<u8>,
    /// The message's place in `bytes`.
    message: Range<usize>,
}

/// The frame of a message, with the message behind it if that is long.
#[must_use]
pub fn encode<T: Serialize>(number: u32, message: &T) -> Vec<u8> {
    encode_as(super::VERSION, number, message)
}

/// The frame of a message, for a receiver of that version.
#[must_use]
pub fn encode_as<T: Serialize>(version: u16, number: u32, message: &T) -> Vec<u8> {
    let plain = plain(version, number, message);
    let message = plain.get(HEADER..).unwrap_or_default();
    if message.len() < LONG {
        return stuffed(plain, 0);
    }
    let length = message.len() as u32;
    let mut frame = stuffed(header(version, number, length), message.len() + LONG_TRAILER);
    frame.extend_from_slice(message);
    frame.extend(long_trailer(number, length));
    frame
}

/// The frame of a message that is stuffed whatever its length is, for a line that may lose the end of a message.
#[must_use]
pub fn encode_stuffed_as<T: Serialize>(version: u16, number: u32, message: &T) -> Vec<u8> {
    stuffed(plain(version, number, message), 0)
}

fn header(version: u16, number: u32, length: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER + TRAILER);
    header.extend(version.to_le_bytes());
    header.extend(number.to_le_bytes());
    header.extend(length.to_le_bytes());
    header
}

/// Returns the header and the message.
fn plain<T: Serialize>(version: u16, number: u32, message: &T) -> Vec<u8> {
    // Serializing plain data into memory cannot fail.
    serialize_with_flavor(message, Behind(header(version, number, 0))).unwrap_or_default()
}

/// Serializes behind what there is. Bytes are copied at once, which `postcard::to_extend` does one by one.
struct Behind(Vec<u8>);

impl Flavor for Behind {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

fn long_trailer(number: u32, length: u32) -> [u8; LONG_TRAILER] {
    (u64::from(length) << 32 | u64::from(number)).to_le_bytes()
}

/// Returns a frame of these bytes, with room for so many more behind it.
fn stuffed(mut plain: Vec<u8>, room: usize) -> Vec<u8> {
    plain.extend(CRC.checksum(&plain).to_le_bytes());
    let most = cobs::max_encoding_length(plain.len());
    let mut stuffed = Vec::with_capacity(most + 2 + room);
    stuffed.resize(most + 2, DELIMITER);
    let length = cobs::encode(&plain, &mut stuffed[1..]);
    stuffed.truncate(1 + length);
    stuffed.push(DELIMITER);
    stuffed
}

/// Decodes the message in a frame that a [`Reader`] has found, and its number.
///
/// # Errors
/// [`Bad::Malformed`].
pub fn decode<'a, T: Deserialize<'a>>(frame: &'a Frame) -> Result<(u32, T), Bad> {
    match postcard::take_from_bytes(&frame.bytes[frame.message.clone()]) {
        Ok((message, [])) => Ok((frame.number, message)),
        _ => Err(Bad::Malformed { number: frame.number }),
    }
}

/// A long message that is awaited.
#[derive(Clone, Copy, Debug)]
struct Long {
    number: u32,
    length: u32,
}

impl Long {
    /// Bytes of the message and its trailer.
    const fn bytes(self) -> usize {
        self.length as usize + LONG_TRAILER
    }
}

/// The content of a frame without its stuffing.
enum Opened {
    Whole(Frame),
    Long(Long),
}

/// Removes the stuffing of a frame of the wanted version and checks it.
fn open(mut frame: Vec<u8>, wanted: u16) -> Result<Opened, Bad> {
    let length = cobs::decode_in_place(&mut frame).map_err(|_| Bad::Garbled)?;
    frame.truncate(length);
    let (rest, sum) = frame.split_last_chunk::<TRAILER>().ok_or(Bad::Garbled)?;
    if CRC.checksum(rest) != u32::from_le_bytes(*sum) {
        return Err(Bad::Garbled);
    }
    let (version, rest) = rest.split_first_chunk().ok_or(Bad::Garbled)?;
    let (number, rest) = rest.split_first_chunk().ok_or(Bad::Garbled)?;
    let (version, number) = (u16::from_le_bytes(*version), u32::from_le_bytes(*number));
    if version != wanted {
        return Err(Bad::Version { number, version });
    }
    let (length, message) = rest.split_first_chunk().ok_or(Bad::Malformed { number })?;
    match u32::from_le_bytes(*length) {
        0 => Ok(Opened::Whole(Frame { number, message: HEADER..HEADER + message.len(), bytes: frame })),
        length => Ok(Opened::Long(Long { number, length })),
    }
}

/// Finds frames in bytes that arrive.
#[derive(Clone, Debug)]
pub struct Reader {
    /// The frame or long message that has begun.
    bytes: Vec<u8>,
    most: usize,
    version: u16,
    /// True if the frame is too long already.
    is_too_long: bool,
    /// The long message whose frame has arrived.
    long: Option<Long>,
}

impl Reader {
    /// A reader for frames, and for long messages, of up to so many bytes. It never has more memory than that, and a few bytes.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self::for_version(super::VERSION, most)
    }

    /// Like [`Reader::new`], for frames of that version.
    #[must_use]
    pub const fn for_version(version: u16, most: usize) -> Self {
        Self { bytes: Vec::new(), most, version, is_too_long: false, long: None }
    }

    /// Takes bytes away until a frame is complete, or none are left: then it is `None`.
    ///
    /// # Errors
    /// [`Bad`], instead of a frame.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<Result<Frame, Bad>> {
        loop {
            if let Some(long) = self.long {
                let count = bytes.len().min(long.bytes() - self.bytes.len());
                self.bytes.extend_from_slice(&bytes[..count]);
                *bytes = &bytes[count..];
                if self.bytes.len() < long.bytes() {
                    return None;
                }
                self.long = None;
                let bytes = take(&mut self.bytes);
                let is_whole = bytes.ends_with(&long_trailer(long.number, long.length));
                let frame = Frame { number: long.number, message: 0..long.length as usize, bytes };
                return Some(if is_whole { Ok(frame) } else { Err(Bad::Garbled) });
            }
            let Some(at) = bytes.iter().position(|byte| *byte == DELIMITER) else {
                self.keep(bytes);
                *bytes = &[];
                return None;
            };
            self.keep(&bytes[..at]);
            *bytes = &bytes[at + 1..];
            let frame = take(&mut self.bytes);
            if take(&mut self.is_too_long) {
                return Some(Err(Bad::TooLong));
            }
            // Two delimiters in a row: the end of one, and the beginning of the next.
            if frame.is_empty() {
                continue;
            }
            match open(frame, self.version) {
                Ok(Opened::Whole(frame)) => return Some(Ok(frame)),
                Ok(Opened::Long(long)) if long.length as usize > self.most => return Some(Err(Bad::TooLong)),
                Ok(Opened::Long(long)) => {
                    self.bytes.reserve_exact(long.bytes());
                    self.long = Some(long);
                }
                Err(bad) => return Some(Err(bad)),
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
