//! Messages of 9P2000.L, as far as a device has to know them.
//!
//! Each message is checked before it goes to the server: every field that its type has is in it. The meaning of the fields
//! is the server's affair, with two exceptions: the lengths of answers, since Gnomon has the room for them, and the
//! numbers of files, which Gnomon counts.

use crate::backend::shares::MOST_MESSAGE;

/// Bytes of a message's head: its length (4 bytes), its type, its tag (2 bytes).
pub(super) const HEAD: usize = 7;
/// Bytes of an answer that says why nothing came of it.
pub(super) const ERROR: usize = 11;
/// The longest message but one that writes, and the longest answer but to one that reads: names have up to 255 bytes, a walk up to 16
/// of them, a path up to 4096 bytes.
pub(super) const SMALL: usize = 6 << 10;
/// The offset of the count in the two messages that read: behind a file's number and an offset.
const COUNT_AT: usize = HEAD + 12;
/// Bytes of an answer in front of what was read.
pub(super) const READ_HEAD: usize = HEAD + 4;
/// Numbers of files are below this. Linux takes the least one that is free.
pub(super) const MOST_FILES: u32 = 1 << 16;
/// The longest extended attribute that can be set: the server keeps it in its memory.
const MOST_ATTRIBUTE: u64 = 4096;

/// The reason why a message fails: Linux's numbers of errors, which are the protocol's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Errno {
    TooBig = 7,
    BadAddress = 14,
    Invalid = 22,
    TooManyFiles = 24,
    Io = 5,
    MessageSize = 90,
    NotSupported = 95,
}

const XATTRWALK: u8 = 30;
const VERSION: u8 = 100;
const ATTACH: u8 = 104;
const WALK: u8 = 110;
const CLUNK: u8 = 120;
const REMOVE: u8 = 122;
const READ: u8 = 116;
const READ_FOLDER: u8 = 40;
const WRITE: u8 = 118;
const RLERROR: u8 = 7;
const RVERSION: u8 = 101;

/// The dialect that a client of this device speaks.
const DIALECT: &[u8] = b"9P2000.L";

/// A field of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    /// A number of bytes.
    Plain(usize),
    /// The number that a file is to have.
    NewFile,
    /// A length (2 bytes) and so many bytes.
    Text,
    /// A count (2 bytes), up to 16, and as many texts.
    Texts,
    /// The length of an attribute.
    Attribute,
    /// A length (4 bytes) and so many bytes.
    Data,
}

use Field::{Attribute, Data, NewFile, Plain, Text, Texts};

/// The fields of each type of message, behind its head.
const TYPES: [(u8, &[Field]); 27] = [
    (8, &[Plain(4)]),                        // statfs
    (12, &[Plain(8)]),                       // lopen
    (14, &[Plain(4), Text, Plain(12)]),      // lcreate
    (16, &[Plain(4), Text, Text, Plain(4)]), // symlink
    (18, &[Plain(4), Text, Plain(16)]),      // mknod
    (20, &[Plain(8), Text]),                 // rename
    (22, &[Plain(4)]),                       // readlink
    (24, &[Plain(12)]),                      // getattr
    (26, &[Plain(60)]),                      // setattr
    (XATTRWALK, &[Plain(4), NewFile, Text]),
    (32, &[Plain(4), Text, Attribute, Plain(4)]), // xattrcreate
    (READ_FOLDER, &[Plain(16)]),
    (50, &[Plain(8)]),                           // fsync
    (52, &[Plain(4 + 1 + 4 + 8 + 8 + 4), Text]), // lock
    (54, &[Plain(4 + 1 + 8 + 8 + 4), Text]),     // getlock
    (70, &[Plain(8), Text]),                     // link
    (72, &[Plain(4), Text, Plain(8)]),           // mkdir
    (74, &[Plain(4), Text, Plain(4), Text]),     // renameat
    (76, &[Plain(4), Text, Plain(4)]),           // unlinkat
    (VERSION, &[Plain(4), Text]),
    (ATTACH, &[NewFile, Plain(4), Text, Text, Plain(4)]),
    (108, &[Plain(2)]), // flush
    (WALK, &[Plain(4), NewFile, Texts]),
    (READ, &[Plain(16)]),
    (WRITE, &[Plain(12), Data]),
    (CLUNK, &[Plain(4)]),
    (REMOVE, &[Plain(4)]),
];

/// The fields of each type, by its number.
static FIELDS: [Option<&[Field]>; 128] = {
    let (mut fields, mut at) = ([None; 128], 0);
    while at < TYPES.len() {
        fields[TYPES[at].0 as usize] = Some(TYPES[at].1);
        at += 1;
    }
    fields
};

/// Returns the fields of a type of messages, if there is such a type.
fn fields_of(kind: u8) -> Option<&'static [Field]> {
    FIELDS.get(usize::from(kind)).copied().flatten()
}

/// The head of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// Bytes of the message.
    pub(super) bytes: usize,
    kind: u8,
    pub(super) tag: u16,
}

/// The change that a message has made to the file numbers of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Nothing.
    Nothing,
    /// There is one more.
    More,
    /// There is one less.
    Less,
    /// There are none any more.
    None,
}

/// The verdict on a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The message is for the host's device, in its present form.
    Pass,
    /// This is answered.
    Answer(Answer),
}

/// A short answer of Gnomon's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    bytes: [u8; 32],
    length: usize,
}

impl Answer {
    /// Makes the answer to a message that failed.
    pub(super) fn error(tag: u16, why: Errno) -> Self {
        Self::new(RLERROR, tag, &[&(why as u32).to_le_bytes()])
    }

    fn new(kind: u8, tag: u16, parts: &[&[u8]]) -> Self {
        let (mut bytes, mut length) = ([0; 32], HEAD);
        for part in parts {
            bytes[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        bytes[4] = kind;
        bytes[5..HEAD].copy_from_slice(&tag.to_le_bytes());
        Self { bytes, length }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Head {
    pub(super) fn of(head: [u8; HEAD]) -> Self {
        let [l0, l1, l2, l3, kind, t0, t1] = head;
        Self { bytes: u32::from_le_bytes([l0, l1, l2, l3]) as usize, kind, tag: u16::from_le_bytes([t0, t1]) }
    }

    fn put(self, message: &mut [u8]) {
        message[..4].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        message[4] = self.kind;
        message[5..HEAD].copy_from_slice(&self.tag.to_le_bytes());
    }

    /// Checks the head alone, of a message whose buffers have `there` bytes.
    pub(super) fn check(self, there: u64) -> Result<(), Errno> {
        if self.bytes < HEAD || self.bytes as u64 > there {
            return Err(Errno::Invalid);
        }
        let most = if self.kind == WRITE { MOST_MESSAGE } else { SMALL };
        if self.bytes > most {
            return Err(Errno::MessageSize);
        }
        fields_of(self.kind).map(drop).ok_or(Errno::NotSupported)
    }

    /// Returns the offset at which the message says how many bytes it asks for, if it reads.
    pub(super) fn count_at(self) -> Option<usize> {
        matches!(self.kind, READ | READ_FOLDER).then_some(COUNT_AT)
    }

    /// Checks a whole message, and shortens the answer that it asks for to `room`, in bytes.
    ///
    /// The head is this one: the guest may have written there since it was read.
    pub(super) fn examine(self, message: &mut [u8], room: usize) -> Verdict {
        self.put(message);
        if let Err(why) = self.fields(message) {
            return Verdict::Answer(Answer::error(self.tag, why));
        }
        match self.kind {
            READ | READ_FOLDER => {
                lower(&mut message[COUNT_AT..], room.min(MOST_MESSAGE).saturating_sub(READ_HEAD) as u32);
            }
            VERSION if &message[HEAD + 6..] == DIALECT => lower(&mut message[HEAD..], MOST_MESSAGE as u32),
            // "If the server does not understand the client's version string, it should respond with" this (version(5)).
            VERSION => {
                let msize = [message[7], message[8], message[9], message[10]];
                return Verdict::Answer(Answer::new(RVERSION, self.tag, &[&msize, &[7, 0], b"unknown"]));
            }
            _ => {}
        }
        Verdict::Pass
    }

    /// Returns the change that a message has made, which was passed, by its answer.
    pub(super) fn change(self, message: &[u8], answer: &[u8]) -> Change {
        /// No such file, in an answer of [`RLERROR`].
        const NO_ENTRY: u64 = 2;
        let read = |from: &[u8], at: usize, bytes: usize| from.get(at..at + bytes).map(number);
        let is_done = answer.get(4).is_some_and(|kind| *kind == self.kind + 1);
        match self.kind {
            VERSION if is_done => Change::None,
            ATTACH | XATTRWALK if is_done => Change::More,
            // Of a walk that has come all the way, and not with the same number.
            WALK if is_done => {
                let is_whole = read(message, HEAD + 8, 2) == read(answer, HEAD, 2);
                let is_new = read(message, HEAD, 4) != read(message, HEAD + 4, 4);
                if is_whole && is_new { Change::More } else { Change::Nothing }
            }
            // These end a number whatever else comes of them, if there is such a one.
            CLUNK | REMOVE if is_done || read(answer, HEAD, 4) != Some(NO_ENTRY) => Change::Less,
            _ => Change::Nothing,
        }
    }

    /// Checks that a message has all fields of its type, and nothing behind them.
    fn fields(self, message: &[u8]) -> Result<(), Errno> {
        let fields = fields_of(self.kind).ok_or(Errno::NotSupported)?;
        let mut rest = message.get(HEAD..).ok_or(Errno::Invalid)?;
        for field in fields {
            match *field {
                Plain(bytes) => _ = take(&mut rest, bytes)?,
                NewFile => match number(take(&mut rest, 4)?) {
                    file if file >= MOST_FILES.into() => return Err(Errno::TooManyFiles),
                    _ => {}
                },
                Text => text(&mut rest)?,
                Texts => {
                    let count = number(take(&mut rest, 2)?);
                    if count > 16 {
                        return Err(Errno::Invalid);
                    }
                    (0..count).try_for_each(|_| text(&mut rest))?;
                }
                Attribute => match number(take(&mut rest, 8)?) {
                    bytes if bytes > MOST_ATTRIBUTE => return Err(Errno::TooBig),
                    _ => {}
                },
                Data => {
                    let bytes = number(take(&mut rest, 4)?);
                    take(&mut rest, usize::try_from(bytes).map_err(|_| Errno::Invalid)?)?;
                }
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(Errno::Invalid) }
    }
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], Errno> {
    rest.split_off(..bytes).ok_or(Errno::Invalid)
}

/// Decodes a number of up to 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn text(rest: &mut &[u8]) -> Result<(), Errno> {
    let bytes = number(take(rest, 2)?);
    take(rest, bytes as usize).map(drop)
}

/// Lowers the number of 4 bytes that something begins with to `most`.
fn lower(bytes: &mut [u8], most: u32) {
    let value = (number(&bytes[..4]) as u32).min(most);
    bytes[..4].copy_from_slice(&value.to_le_bytes());
}
