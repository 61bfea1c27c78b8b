//! Files of snapshots.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | [`VERSION`], little endian as all numbers |
//! | 4 | CRC-32 (ISO-HDLC) of those 12 |
//! | – | sections |
//!
//! A section is a head of 24 bytes and a body:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | its kind |
//! | 4 | CRC-32 of the rest of the head, and of the body |
//! | 8 | of pages, the number of the first one in RAM, else 0 |
//! | 8 | the length of the body |
//!
//! | kind | how many | body |
//! |---|---|---|
//! | 1 | one, first | a [`State`], postcard-encoded |
//! | 2 | any | whole pages of RAM, at most [`MOST_PAGES`] that follow each other; sections ascend, and what is in none is zero |
//! | 3 | one, last | how many sections of pages there were, how many pages (8 bytes each), CRC-64 (XZ) of all before this section |
//!
//! Who reads one needs no more memory than the longest section, whatever the file says.

use super::{MOST_RAM_BYTES, MOST_STATE_BYTES, State};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use crc::{CRC_32_ISO_HDLC, CRC_64_XZ, Crc, Digest, Table};

/// The first eight bytes.
pub const MAGIC: [u8; 8] = *b"GNOMSNAP";
/// The version of the format, and of all that is in it.
pub const VERSION: u32 = 7;
/// Bytes in front of the first section.
pub const HEADER: usize = 16;
/// Bytes in front of a body.
const HEAD: usize = 24;
/// Most pages of a section.
pub const MOST_PAGES: usize = 512;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of the last section's body.
const END: usize = 24;

const STATE: u32 = 1;
const PAGES: u32 = 2;
const LAST: u32 = 3;

static CRC_32: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);
static CRC_64: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_XZ);

/// The reason for which a file is no usable snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// The file does not begin like a snapshot.
    NotASnapshot,
    /// The file was made by another version.
    Version(u32),
    /// A check sum is wrong.
    Damaged,
    /// Its sums are right, and still it says what cannot be.
    Malformed(&'static str),
    /// Something follows its end.
    Trailing,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASnapshot => f.write_str("it is not a snapshot"),
            Self::Version(version) => write!(f, "it has version {version}, and this program reads {VERSION}"),
            Self::Damaged => f.write_str("it is damaged: a check sum is wrong"),
            Self::Malformed(what) => write!(f, "it is malformed: {what}"),
            Self::Trailing => f.write_str("something follows its end"),
        }
    }
}

impl core::error::Error for Bad {}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// The check sum of a section, itself excluded.
fn sum(kind: u32, at: u64, body: &[u8]) -> u32 {
    let mut digest = CRC_32.digest();
    digest.update(&kind.to_le_bytes());
    digest.update(&at.to_le_bytes());
    digest.update(&(body.len() as u64).to_le_bytes());
    digest.update(body);
    digest.finalize()
}

/// Makes a file, piece by piece: what it returns is to be written in that order.
pub struct Writer {
    digest: Digest<'static, u64, Table<16>>,
    sections: u64,
    pages: u64,
}

impl Writer {
    /// Begins one, with its state.
    #[must_use]
    pub fn begin(state: &[u8]) -> (Self, Vec<u8>) {
        let mut writer = Self { digest: CRC_64.digest(), sections: 0, pages: 0 };
        let mut out = Vec::with_capacity(HEADER + HEAD + state.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(CRC_32.checksum(&out).to_le_bytes());
        writer.digest.update(&out);
        out.extend(writer.section(STATE, 0, state));
        out.extend(state);
        (writer, out)
    }

    /// Counts a section; returns its head.
    fn section(&mut self, kind: u32, at: u64, body: &[u8]) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&sum(kind, at, body).to_le_bytes());
        head[8..16].copy_from_slice(&at.to_le_bytes());
        head[16..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        self.digest.update(&head);
        self.digest.update(body);
        head
    }

    /// The head of a section of pages: whole ones that follow each other, at most [`MOST_PAGES`], behind those of
    /// before.
    #[must_use]
    pub fn pages(&mut self, first: u64, pages: &[u8]) -> [u8; HEAD] {
        self.sections += 1;
        self.pages += (pages.len() / PAGE) as u64;
        self.section(PAGES, first, pages)
    }

    /// The end.
    #[must_use]
    pub fn end(mut self) -> Vec<u8> {
        let mut body = Vec::with_capacity(END);
        body.extend(self.sections.to_le_bytes());
        body.extend(self.pages.to_le_bytes());
        body.extend(self.digest.clone().finalize().to_le_bytes());
        let mut out = self.section(LAST, 0, &body).to_vec();
        out.extend(body);
        out
    }
}

/// The result of reading a part of a file.
#[derive(PartialEq, Eq, Debug)]
pub enum Part<'a> {
    /// Nothing yet.
    Nothing,
    /// The state.
    State(Box<State>),
    /// Pages of RAM that follow each other, none of which came before.
    Pages {
        /// The number of the first one in RAM.
        first: u64,
        /// Their bytes.
        bytes: &'a [u8],
    },
    /// The end: all of it is whole.
    End,
}

#[derive(Clone, Copy)]
enum Stage {
    Header,
    Head,
    Body { kind: u32, sum: u32, at: u64, bytes: usize },
    Done,
}

/// Reads a file, piece by piece, of as many bytes as it wants.
pub struct Reader {
    stage: Stage,
    digest: Digest<'static, u64, Table<16>>,
    /// The head of the section, until it is known whether that is the last.
    head: Vec<u8>,
    has_state: bool,
    /// Pages of RAM.
    ram: u64,
    /// The first page that may come.
    next: u64,
    sections: u64,
    pages: u64,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            stage: Stage::Header,
            digest: CRC_64.digest(),
            head: Vec::new(),
            has_state: false,
            ram: 0,
            next: 0,
            sections: 0,
            pages: 0,
        }
    }
}

impl Reader {
    /// The number of bytes that come next, at most [`MOST_STATE_BYTES`]; 0 at the end.
    #[must_use]
    pub const fn wants(&self) -> usize {
        match self.stage {
            Stage::Header => HEADER,
            Stage::Head => HEAD,
            Stage::Body { bytes, .. } => bytes,
            Stage::Done => 0,
        }
    }

    /// Takes as many as it [wants](Reader::wants).
    ///
    /// # Errors
    /// [`Bad`]. Nothing else is to be read then.
    pub fn take<'a>(&mut self, piece: &'a [u8]) -> Result<Part<'a>, Bad> {
        if piece.len() != self.wants() {
            return Err(Bad::Malformed("it is truncated"));
        }
        match self.stage {
            Stage::Header => {
                if piece[..8] != MAGIC {
                    return Err(Bad::NotASnapshot);
                }
                if CRC_32.checksum(&piece[..12]) != word(piece, 12) {
                    return Err(Bad::Damaged);
                }
                if word(piece, 8) != VERSION {
                    return Err(Bad::Version(word(piece, 8)));
                }
                self.digest.update(piece);
                self.stage = Stage::Head;
                Ok(Part::Nothing)
            }
            Stage::Head => {
                self.stage = self.body(piece)?;
                self.head = piece.to_vec();
                Ok(Part::Nothing)
            }
            Stage::Body { kind, sum: expected, at, .. } => {
                if sum(kind, at, piece) != expected {
                    return Err(Bad::Damaged);
                }
                if kind == LAST {
                    return self.end(piece);
                }
                self.digest.update(&self.head);
                self.digest.update(piece);
                self.stage = Stage::Head;
                if kind == STATE { self.state(piece) } else { self.some_pages(at, piece) }
            }
            Stage::Done => Err(Bad::Trailing),
        }
    }

    /// The contents of a head, if it is valid.
    fn body(&self, head: &[u8]) -> Result<Stage, Bad> {
        let (kind, sum, at, length) = (word(head, 0), word(head, 4), number(head, 8), number(head, 16));
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let is_possible = match kind {
            STATE => !self.has_state && at == 0 && bytes <= MOST_STATE_BYTES,
            PAGES => self.has_state && bytes > 0 && bytes <= MOST_PAGES * PAGE && bytes.is_multiple_of(PAGE),
            LAST => self.has_state && at == 0 && bytes == END,
            _ => false,
        };
        // A head that is damaged is not known by its sum before its body is read, whose length it says.
        if is_possible { Ok(Stage::Body { kind, sum, at, bytes }) } else { Err(Bad::Damaged) }
    }

    fn state<'a>(&mut self, body: &[u8]) -> Result<Part<'a>, Bad> {
        let state = State::decode(body).ok_or(Bad::Malformed("its state is none"))?;
        let ram = state.told.memory_bytes;
        if ram == 0 || !ram.is_multiple_of(PAGE as u64) {
            return Err(Bad::Malformed("its RAM is not a multiple of 4 KiB"));
        }
        if ram >= MOST_RAM_BYTES {
            return Err(Bad::Malformed("it has more RAM than there can be"));
        }
        (self.has_state, self.ram) = (true, ram / PAGE as u64);
        Ok(Part::State(Box::new(state)))
    }

    fn some_pages<'a>(&mut self, first: u64, bytes: &'a [u8]) -> Result<Part<'a>, Bad> {
        let end = first.checked_add((bytes.len() / PAGE) as u64).filter(|end| *end <= self.ram);
        let end = end.ok_or(Bad::Malformed("it has pages beyond its RAM"))?;
        if first < self.next {
            return Err(Bad::Malformed("its pages do not ascend"));
        }
        self.next = end;
        self.sections += 1;
        self.pages += (bytes.len() / PAGE) as u64;
        Ok(Part::Pages { first, bytes })
    }

    fn end<'a>(&mut self, body: &[u8]) -> Result<Part<'a>, Bad> {
        let counts = (number(body, 0), number(body, 8));
        if counts != (self.sections, self.pages) || number(body, 16) != self.digest.clone().finalize() {
            return Err(Bad::Damaged);
        }
        self.stage = Stage::Done;
        Ok(Part::End)
    }
}
