//! The control channel's line, with the requests that have come by it. [`crate::control`] answers them.

use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::SeqCst;
use abi::control::MOST_REQUEST_BYTES;
use abi::control::frame::{Bad, Frame, Reader};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A device of the host's by which bytes come and go.
pub trait Line: Send {
    /// Acknowledges the device's interrupt: input after this interrupts anew.
    fn acknowledge(&mut self);
    /// Returns a piece of what has come, some KiB at most, if there is any. It stays until it is released.
    fn piece(&mut self) -> Option<&[u8]>;
    /// Releases the piece, for others to come.
    fn release(&mut self);
    /// Returns whether there is a piece.
    fn has_more(&mut self) -> bool;
    /// Sends a frame without waiting: if the frame before is not read yet, it is lost.
    fn send(&mut self, frame: Vec<u8>);
}

/// The most pieces that are read at a time: a piece is copied, no more.
const MOST_PIECES: usize = 20;

/// The channel. Without a line it is never used.
#[derive(Default)]
pub struct Channel {
    end: Mutex<Option<End>>,
    /// There is more to be answered, and no interrupt says so.
    is_due: AtomicBool,
}

struct End {
    line: Box<dyn Line>,
    reader: Reader,
    /// The number of bytes of the piece that were read.
    done: usize,
}

impl End {
    /// Returns the next frame, from no more than [`MOST_PIECES`].
    fn next(&mut self) -> Option<Result<Frame, Bad>> {
        for _ in 0..MOST_PIECES {
            let piece = self.line.piece()?;
            let mut rest = &piece[self.done..];
            let frame = self.reader.next(&mut rest);
            self.done = piece.len() - rest.len();
            if rest.is_empty() {
                self.line.release();
                self.done = 0;
            }
            if frame.is_some() {
                return frame;
            }
        }
        None
    }
}

impl Channel {
    /// Makes the channel at that line.
    #[must_use]
    pub fn new(line: Option<Box<dyn Line>>) -> Self {
        let end = |line| End { line, reader: Reader::new(MOST_REQUEST_BYTES), done: 0 };
        Self { end: Mutex::new(line.map(end)), is_due: AtomicBool::new(false) }
    }

    /// Returns whether there is more to be answered that no interrupt announces.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.is_due.load(SeqCst)
    }

    /// Returns the next frame that has come, if there is one. Input behind it waits.
    pub fn next(&self) -> Option<Result<Frame, Bad>> {
        let mut end = self.end.lock();
        let end = end.as_mut()?;
        // Before it is looked at.
        end.line.acknowledge();
        let found = end.next();
        // There is an interrupt of what comes from here on: not of what has come since the last, which is acknowledged.
        self.is_due.store(end.line.has_more(), SeqCst);
        found
    }

    /// Sends an answer.
    pub fn send(&self, frame: Vec<u8>) {
        if let Some(end) = self.end.lock().as_mut() {
            end.line.send(frame);
        }
    }
}
