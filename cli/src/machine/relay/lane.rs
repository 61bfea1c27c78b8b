//! The socket to a passt, a stream: frames that have come by it, and those that wait to go.

use super::card::Closed;
use super::frames::{Garbled, Stream};
use crate::machine::passt::LENGTH;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;

/// A socket with frames, which never waits.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) socket: UnixStream,
    stream: Stream,
    /// Frames that wait to go, with their lengths.
    queue: VecDeque<u8>,
}

impl Lane {
    pub(super) fn new(socket: UnixStream) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, stream: Stream::default(), queue: VecDeque::new() })
    }

    /// Reads a piece, if one has come.
    pub(super) fn read(&mut self) -> Result<(), Closed> {
        let mut piece = [0; PIECE];
        match self.socket.read(&mut piece) {
            Ok(0) => Err(Closed),
            Ok(count) => {
                self.stream.push(&piece[..count]);
                Ok(())
            }
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(_) => Err(Closed),
        }
    }

    /// Returns the next frame that has come.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, Garbled> {
        self.stream.take()
    }

    /// Bytes that wait to go.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Has a frame wait to go.
    pub(super) fn push(&mut self, frame: &[u8]) {
        self.queue.extend((frame.len() as u32).to_be_bytes());
        self.queue.extend(frame);
    }

    /// Writes what waits, as far as the socket takes it.
    pub(super) fn write(&mut self) -> Result<(), Closed> {
        while !self.queue.is_empty() {
            match self.socket.write(self.queue.as_slices().0) {
                Ok(count) => drop(self.queue.drain(..count)),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(Closed),
            }
        }
        Ok(())
    }
}

/// The bytes that a frame takes in a stream.
pub(super) const fn size(frame: &[u8]) -> usize {
    LENGTH + frame.len()
}
