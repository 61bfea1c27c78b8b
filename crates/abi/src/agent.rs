//! The messages between a command that runs programs in a guest (`gnomon shell`, `gnomon cp`) and the guest's agent.
//!
//! They go through one guest port ([`PORT`]) in the frames of the control channel ([`crate::control::frame`]), with this
//! protocol's own [`VERSION`]. A frame's number is that of the session: a program in the guest, with its streams.
//!
//! ```text
//!  gnomon shell ─┐                            one line for all sessions
//!  gnomon shell ─┼─► gnomon run (sessions) ─► guest port ─► agent ─► a program for each session
//!  gnomon cp ────┘   gives each a number
//! ```
//!
//! 1. The agent sends [`Tell::Hello`] with 0 when it starts, and when a connection begins. It answers [`Ask::Hello`]
//!    with the same number. A new number ends all sessions.
//! 2. A session begins with [`Ask::Open`], and ends with [`Tell::Ended`] or [`Tell::Refused`].
//! 3. The sender of a stream may have [`WINDOW`] bytes of it under way. The receiver returns room for bytes that it has
//!    passed on: [`Ask::Room`], [`Tell::Room`]. So no session waits for the reader of another one.
//! 4. A frame that is damaged is skipped. A frame for a session that the agent does not have is answered by
//!    [`End::Lost`].

use crate::control::frame::{self, Bad, Frame, Reader};
use crate::snapshot::bytes::Bytes;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The name of the guest port.
pub const PORT: &str = "gnomon";
/// The version of this protocol.
pub const VERSION: u16 = 1;
/// Most bytes of a frame.
pub const MOST_FRAME: usize = 64 << 10;
/// Most bytes of arguments, variables and names in [`Ask::Open`], together.
pub const MOST_WORDS: usize = 48 << 10;
/// Most words in [`Ask::Open`].
pub const MOST_COUNT: usize = 4096;
/// Most bytes of a stream in a message. Its frame fits into one request of the control channel.
pub const PIECE: usize = 3840;
/// Most bytes of a stream that are under way.
pub const WINDOW: u32 = 64 << 10;
/// Most sessions of a VM at a time.
pub const MOST_SESSIONS: usize = 16;

/// An output stream of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output; of a program on a terminal, all output.
    Out,
    /// Standard error.
    Error,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Size {
    /// Lines.
    pub lines: u16,
    /// Columns.
    pub columns: u16,
}

/// A program to start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Open {
    /// The program and its arguments. Without any, it is the user's login shell.
    pub words: Vec<Bytes>,
    /// The size of its terminal. `None`: three pipes.
    pub terminal: Option<Size>,
    /// Its user; `root` by default.
    pub user: Option<Bytes>,
    /// Its working directory; the user's home directory by default.
    pub cwd: Option<Bytes>,
    /// Environment variables, each `NAME=VALUE`.
    pub env: Vec<Bytes>,
}

impl Open {
    /// Returns whether it keeps the bounds, and no word has a byte 0.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let all = || self.words.iter().chain(&self.user).chain(&self.cwd).chain(&self.env);
        all().count() <= MOST_COUNT
            && all().map(|word| word.0.len()).sum::<usize>() <= MOST_WORDS
            && all().all(|word| !word.0.contains(&0))
            && self.env.iter().all(|word| word.0.iter().position(|byte| *byte == b'=').is_some_and(|at| at > 0))
    }
}

/// A message to the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Begins a connection with this number, which is not 0. It ends all sessions of another one.
    Hello(u64),
    /// Starts a program.
    Open(Open),
    /// Bytes of its input.
    Input(Bytes),
    /// Its input has ended.
    EndInput,
    /// A number of bytes of an output stream that were passed on.
    Room(Stream, u32),
    /// No one reads that output stream any more.
    Close(Stream),
    /// Its terminal has another size.
    Resize(Size),
    /// Sends a signal to its process group, by Linux's number.
    Signal(u8),
    /// The command has gone: ends the program.
    Hangup,
}

/// The end of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum End {
    /// The program has exited with a status.
    Exited(u8),
    /// A signal has killed it.
    Killed(u8),
    /// The agent does not know the session.
    Lost,
}

/// A message from the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Tell {
    /// The answer to [`Ask::Hello`], with its number; 0 without one.
    Hello(u64),
    /// The program cannot be started.
    Refused(String),
    /// Bytes of an output stream.
    Output(Stream, Bytes),
    /// A number of bytes of input that were passed on.
    Room(u32),
    /// The program has ended, and all its output was sent.
    Ended(End),
}

/// Returns a reader for frames.
#[must_use]
pub const fn reader() -> Reader {
    Reader::for_version(VERSION, MOST_FRAME)
}

/// Returns the frame of a message of a session.
#[must_use]
pub fn encode<T: Serialize>(session: u32, message: &T) -> Vec<u8> {
    // A port loses what was on its way when a connection ends: the next one must find its first frame.
    frame::encode_stuffed_as(VERSION, session, message)
}

/// Decodes the message in a frame, and the number of its session.
///
/// # Errors
/// [`Bad::Malformed`].
pub fn decode<'a, T: Deserialize<'a>>(frame: &'a Frame) -> Result<(u32, T), Bad> {
    frame::decode(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_frame_of_a_piece_fits_into_a_request() {
        let piece = Bytes(vec![0xff; PIECE]);
        let frames = [encode(u32::MAX, &Ask::Input(piece.clone())), encode(7, &Tell::Output(Stream::Error, piece))];
        assert!(frames.iter().all(|frame| frame.len() <= crate::control::port::MOST_SENT));
        let words = Open { words: vec![Bytes(vec![1; MOST_WORDS - MOST_COUNT]); 1], ..Open::default() };
        assert!(words.is_sound() && encode(1, &Ask::Open(words)).len() < MOST_FRAME);
        let many = Open { words: vec![Bytes(vec![1; MOST_WORDS / MOST_COUNT]); MOST_COUNT], ..Open::default() };
        assert!(many.is_sound() && encode(1, &Ask::Open(many)).len() < MOST_FRAME);
    }

    #[test]
    fn words_without_bounds_are_refused() {
        let words = |words| Open { words, ..Open::default() };
        assert!(words(vec![Bytes(b"a b".into()), Bytes(vec![])]).is_sound());
        assert!(!words(vec![Bytes(b"a\0b".into())]).is_sound());
        assert!(!words(vec![Bytes(vec![1; MOST_WORDS + 1])]).is_sound());
        assert!(!words(vec![Bytes(vec![]); MOST_COUNT + 1]).is_sound());
        for (variable, is_one) in [("A=", true), ("A=b=c", true), ("A", false), ("=b", false)] {
            let open = Open { env: vec![Bytes(variable.as_bytes().into())], ..Open::default() };
            assert_eq!(open.is_sound(), is_one, "{variable}");
        }
    }

    #[test]
    fn another_version_is_told() {
        let other = frame::encode_as(VERSION + 1, 3, &Tell::Hello(0));
        let read = reader().next(&mut other.as_slice());
        assert_eq!(read, Some(Err(Bad::Version { number: 3, version: VERSION + 1 })));
    }

    #[test]
    fn a_frame_that_was_cut_off_costs_itself_only() {
        let cut = &encode(1, &Ask::Input(Bytes(vec![7; PIECE])))[..2000];
        let (mut reader, next) = (reader(), encode(0, &Ask::Hello(5)));
        let mut bytes = cut;
        assert_eq!(reader.next(&mut bytes), None);
        let mut bytes = next.as_slice();
        assert_eq!(reader.next(&mut bytes), Some(Err(Bad::Garbled)));
        let frame = reader.next(&mut bytes).expect("the next").expect("whole");
        assert_eq!(decode::<Ask>(&frame), Ok((0, Ask::Hello(5))));
    }
}
