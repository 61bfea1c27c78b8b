//! The format of 9P2000.L: numbers are little-endian, a text is its length (2 bytes) and its bytes.

use crate::errno::{Errno, Result};
use abi::share::RLERROR;
pub(super) use abi::share::{HEAD, READ_HEAD, kind, set};
use alloc::string::String;
use alloc::vec::Vec;

/// The greatest number of an error that Linux gives to programs.
const MOST_ERROR: u32 = 133;

/// A message that is built field by field. Its length and tag are set when it is sent.
#[derive(Debug)]
pub(super) struct Builder(Vec<u8>);

impl Builder {
    /// Begins a message of a type.
    pub(super) fn new(kind: u8) -> Self {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend([0, 0, 0, 0, kind, 0, 0]);
        Self(bytes)
    }

    pub(super) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a text. The caller has bounded it to the longest path.
    pub(super) fn text(self, text: &str) -> Self {
        let length = text.len().min(u16::MAX.into());
        let mut message = self.u16(length as u16);
        message.0.extend(&text.as_bytes()[..length]);
        message
    }

    /// Appends bytes with their count (4 bytes).
    pub(super) fn data(self, bytes: &[u8]) -> Self {
        let mut message = self.u32(bytes.len() as u32);
        message.0.extend(bytes);
        message
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// The fields of an answer that are not read yet. Each method fails with `EIO` if the answer ends before.
#[derive(Debug)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Starts behind the head of an answer.
    pub(super) fn of(answer: &'a [u8]) -> Self {
        Self(answer.get(HEAD..).unwrap_or_default())
    }

    /// Starts at the first byte.
    pub(super) const fn raw(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        self.0.split_off(..count).ok_or(Errno::IO)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.bytes(N)?.try_into().map_err(|_| Errno::IO)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a text. Bytes that are not UTF-8 are replaced.
    pub(super) fn text(&mut self) -> Result<String> {
        let length = self.u16()?;
        Ok(String::from_utf8_lossy(self.bytes(length.into())?).into_owned())
    }

    /// Reads the bytes of an answer to a message that reads, at most `most`.
    pub(super) fn data(&mut self, most: usize) -> Result<&'a [u8]> {
        let count = self.u32()? as usize;
        if count > most { Err(Errno::IO) } else { self.bytes(count) }
    }

    /// Reads the identity of a file: the number by which the server tells it from others.
    pub(super) fn identity(&mut self) -> Result<u64> {
        let _type_and_version = self.bytes(5)?;
        self.u64()
    }
}

/// Checks the head of an answer.
///
/// # Errors
/// The server's error, if it is one that programs may get; `EIO` for an answer that is not to this message.
pub(super) fn check(answer: &[u8], message: u8, tag: u16) -> Result<()> {
    let head = answer.first_chunk::<HEAD>().ok_or(Errno::IO)?;
    let [a, b, c, d, kind, low, high] = *head;
    if u32::from_le_bytes([a, b, c, d]) as usize != answer.len() || u16::from_le_bytes([low, high]) != tag {
        return Err(Errno::IO);
    }
    match kind {
        RLERROR => Err(error(Fields::of(answer).u32()?)),
        kind if kind == message + 1 => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// Returns the error of a number. The numbers that the kernel uses itself, and those that it takes for a reason to wait, are `EIO`.
fn error(number: u32) -> Errno {
    match Errno(number as u16) {
        Errno::AGAIN => Errno::IO,
        error if (1..=MOST_ERROR).contains(&number) => error,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_server_is_one_that_programs_may_get() {
        for (number, expected) in
            [(2, Errno::NOENT), (11, Errno::IO), (512, Errno::IO), (0, Errno::IO), (1 << 16 | 2, Errno::IO)]
        {
            assert_eq!(error(number), expected, "{number}");
        }
    }

    #[test]
    fn only_an_answer_to_the_message_is_one() {
        let answer =
            |length: u32, kind: u8, tag: u16| [&length.to_le_bytes()[..], &[kind], &tag.to_le_bytes()].concat();
        assert_eq!(check(&answer(7, 121, 3), kind::CLUNK, 3), Ok(()));
        for wrong in [answer(8, 121, 3), answer(7, 120, 3), answer(7, 121, 4), answer(7, 7, 3), vec![7, 0, 0]] {
            assert_eq!(check(&wrong, kind::CLUNK, 3), Err(Errno::IO), "{wrong:?}");
        }
    }

    #[test]
    fn fields_end_with_the_answer() {
        let mut fields = Fields::of(&[0, 0, 0, 0, 0, 0, 0, 9, 0, b'a']);
        assert_eq!(fields.text(), Err(Errno::IO));
        let mut fields = Fields::of(&[0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1]);
        assert_eq!(fields.data(usize::MAX), Err(Errno::IO));
    }
}
