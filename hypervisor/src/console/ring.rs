//! What guests print, until it is printed.

use alloc::collections::VecDeque;

/// Output of one guest on its way to the screen.
#[derive(Default, Debug)]
pub(super) struct Ring {
    pub(super) bytes: VecDeque<u8>,
    /// How many of them end a line.
    pub(super) line_ends: usize,
}

impl Ring {
    pub(super) fn push(&mut self, byte: u8) {
        self.line_ends += usize::from(byte == b'\n');
        self.bytes.push_back(byte);
    }

    pub(super) fn pop(&mut self) -> Option<u8> {
        let byte = self.bytes.pop_front()?;
        self.line_ends -= usize::from(byte == b'\n');
        Some(byte)
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Drops the oldest so many.
    pub(super) fn forget(&mut self, count: usize) {
        for _ in 0..count {
            self.pop();
        }
    }
}
