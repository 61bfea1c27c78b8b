//! The format of 9P2000.L: numbers are little-endian, a text is its length (2 bytes) and its bytes.
//!
//! Names are bytes, as in Linux. (The crate `p9` of crosvm refuses names that are not UTF-8, so one such file would make
//! its directory unreadable.)

pub use abi::share::{HEAD, MOST_MESSAGE, READ_HEAD, RLERROR, kind, set};
use rustix::io::Errno;

/// Most names in a walk.
pub const MOST_NAMES: u16 = 16;
/// The dialect.
pub const DIALECT: &[u8] = b"9P2000.L";

/// The unread fields of a message.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Starts behind the head of `message`, which has at least [`HEAD`] bytes.
    #[must_use]
    pub fn of(message: &'a [u8]) -> Self {
        Self(message.get(HEAD..).unwrap_or_default())
    }

    /// Reads `count` bytes.
    ///
    /// # Errors
    /// [`Errno::INVAL`] if the message ends before: for this and the other methods.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Errno> {
        self.0.split_off(..count).ok_or(Errno::INVAL)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        self.bytes(N)?.try_into().map_err(|_| Errno::INVAL)
    }

    /// Reads a byte.
    ///
    /// # Errors
    /// As [`Fields::bytes`].
    pub fn u8(&mut self) -> Result<u8, Errno> {
        self.array().map(u8::from_le_bytes)
    }

    /// Reads a number of 2 bytes.
    ///
    /// # Errors
    /// As [`Fields::bytes`].
    pub fn u16(&mut self) -> Result<u16, Errno> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads a number of 4 bytes.
    ///
    /// # Errors
    /// As [`Fields::bytes`].
    pub fn u32(&mut self) -> Result<u32, Errno> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads a number of 8 bytes.
    ///
    /// # Errors
    /// As [`Fields::bytes`].
    pub fn u64(&mut self) -> Result<u64, Errno> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// As [`Fields::bytes`].
    pub fn text(&mut self) -> Result<&'a [u8], Errno> {
        let length = self.u16()?;
        self.bytes(length.into())
    }

    /// Reads a text that is the name of a directory entry: not empty, without `/` and NUL, and not `.` or `..`.
    ///
    /// # Errors
    /// As [`Fields::bytes`], and for other texts.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        match self.text()? {
            b"" => Err(Errno::NOENT),
            b"." | b".." => Err(Errno::INVAL),
            text if text.contains(&b'/') || text.contains(&0) => Err(Errno::NOENT),
            text => Ok(text),
        }
    }
}

/// Appends fields to an answer.
pub trait Put {
    /// Appends a byte.
    fn put_u8(&mut self, value: u8);
    /// Appends a number of 2 bytes.
    fn put_u16(&mut self, value: u16);
    /// Appends a number of 4 bytes.
    fn put_u32(&mut self, value: u32);
    /// Appends a number of 8 bytes.
    fn put_u64(&mut self, value: u64);
    /// Appends a text. It has at most 65,535 bytes; the rest is cut off.
    fn put_text(&mut self, text: &[u8]);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u16(&mut self, value: u16) {
        self.extend(value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend(value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend(value.to_le_bytes());
    }

    fn put_text(&mut self, text: &[u8]) {
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
        self.put_u16(length);
        self.extend(&text[..length.into()]);
    }
}
