//! The first program of a vkernel: a file in the archive that its VM starts with ([`Start`]), and the program's input and output on a
//! port of the VM ([`Message`]).

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The name of the file, in the root directory.
pub const FILE: &str = ".vkernel";

/// The first program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The path of its file.
    pub program: Vec<u8>,
    /// Its arguments, from the name on.
    pub arguments: Vec<Vec<u8>>,
    /// Its environment, `NAME=value`.
    pub environment: Vec<Vec<u8>>,
    /// The directory that it starts in.
    pub directory: String,
    /// The use of the port.
    pub io: Io,
}

/// The program's input and output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Io {
    /// The VM's console.
    Console,
    /// The port, as three pipes.
    Pipes,
    /// The port, as a terminal.
    Terminal,
}

impl Start {
    /// A program without further arguments.
    #[must_use]
    pub fn new(program: &[u8]) -> Self {
        let environment = [&b"PATH=/bin:/sbin:/usr/bin:/usr/sbin"[..], b"HOME=/root", b"TERM=linux"];
        Self {
            program: program.into(),
            arguments: alloc::vec![program.into()],
            environment: environment.map(<[u8]>::to_vec).into(),
            directory: "/".into(),
            io: Io::Console,
        }
    }

    /// Returns the bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Reads the file; `None` if it is not one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

/// The name of the port.
pub const PORT: &str = "exec";
/// Bytes of input that the kernel has room for at the start.
pub const ROOM: usize = 32 << 10;
/// The most bytes of a message's content.
pub const MOST: usize = 64 << 10;
/// Bytes before the content.
const HEADER: usize = 4;

/// A message on the port. The host sends those up to [`Message::Seen`], the kernel the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Input of the program, as far as there is room.
    Input(Vec<u8>),
    /// The input has ended.
    End,
    /// A signal for the program.
    Signal(u8),
    /// The terminal's rows and columns.
    Size(u16, u16),
    /// The host has seen how the program has ended.
    Seen,
    /// Output of the program.
    Output(Vec<u8>),
    /// Output of the program for errors.
    Error(Vec<u8>),
    /// Room for so many further bytes of input.
    Room(u32),
    /// The program has ended with this status, as a shell has it.
    Exited(u8),
    /// Words of the kernel's.
    Word(Vec<u8>),
}

impl Message {
    /// Appends the message: a byte for the kind, three for the size of the content, and the content.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let (kind, content): (u8, Vec<u8>) = match self {
            Self::Input(bytes) => return raw(to, 0, bytes),
            Self::End => (1, Vec::new()),
            Self::Signal(signal) => (2, alloc::vec![*signal]),
            Self::Size(rows, columns) => (3, [rows.to_le_bytes(), columns.to_le_bytes()].concat()),
            Self::Seen => (4, Vec::new()),
            Self::Output(bytes) => return raw(to, 5, bytes),
            Self::Error(bytes) => return raw(to, 6, bytes),
            Self::Room(bytes) => (7, bytes.to_le_bytes().into()),
            Self::Exited(status) => (8, alloc::vec![*status]),
            Self::Word(bytes) => return raw(to, 9, bytes),
        };
        raw(to, kind, &content);
    }

    fn decode(kind: u8, content: &[u8]) -> Option<Self> {
        Some(match (kind, content) {
            (0, bytes) => Self::Input(bytes.into()),
            (1, []) => Self::End,
            (2, [signal]) => Self::Signal(*signal),
            (3, [a, b, c, d]) => Self::Size(u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d])),
            (4, []) => Self::Seen,
            (5, bytes) => Self::Output(bytes.into()),
            (6, bytes) => Self::Error(bytes.into()),
            (7, bytes) => Self::Room(u32::from_le_bytes(bytes.try_into().ok()?)),
            (8, [status]) => Self::Exited(*status),
            (9, bytes) => Self::Word(bytes.into()),
            _ => return None,
        })
    }
}

fn raw(to: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let [a, b, c, _] = (content.len() as u32).to_le_bytes();
    to.extend([kind, a, b, c]);
    to.extend(content);
}

/// Messages from bytes that come in pieces.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decoder(Vec<u8>);

impl Decoder {
    /// Takes bytes. Returns the messages that are complete; `Err` if one of them is none.
    ///
    /// # Errors
    /// The other side does not speak this protocol.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Message>, NoMessage> {
        self.0.extend(bytes);
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some([kind, a, b, c]) = self.0.get(at..at + HEADER) {
            let size = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
            if size > MOST {
                return Err(NoMessage);
            }
            let Some(content) = self.0.get(at + HEADER..at + HEADER + size) else { break };
            found.push(Message::decode(*kind, content).ok_or(NoMessage)?);
            at += HEADER + size;
        }
        self.0.drain(..at);
        Ok(found)
    }
}

/// Bytes that are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMessage;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_however_they_are_cut() {
        let all = [
            Message::Input(b"abc".to_vec()),
            Message::End,
            Message::Signal(2),
            Message::Size(24, 80),
            Message::Seen,
            Message::Output(alloc::vec![0; MOST]),
            Message::Error(Vec::new()),
            Message::Room(70_000),
            Message::Exited(7),
            Message::Word(b"x".to_vec()),
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|message| message.encode(&mut bytes));
        for piece in [1, 3, 1000, bytes.len()] {
            let mut decoder = Decoder::default();
            let found: Vec<_> = bytes.chunks(piece).flat_map(|piece| decoder.push(piece).expect("messages")).collect();
            assert_eq!(found, all);
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [&[99, 0, 0, 0][..], &[2, 0, 0, 0], &[0, 1, 0, 1], &[7, 1, 0, 0, 5]] {
            assert_eq!(Decoder::default().push(bytes), Err(NoMessage), "{bytes:?}");
        }
    }

    #[test]
    fn the_start_comes_back() {
        let start = Start { io: Io::Terminal, ..Start::new(b"/bin/sh") };
        assert_eq!(Start::decode(&start.encode()), Some(start));
        assert_eq!(Start::decode(&[1]), None);
    }
}
