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
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.line_ends += line_ends(bytes);
        self.bytes.extend(bytes);
    }

    pub(super) fn pop(&mut self) -> Option<u8> {
        let byte = self.bytes.pop_front()?;
        self.line_ends -= usize::from(byte == b'\n');
        Some(byte)
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes up to `most` of the oldest; returns how many.
    pub(super) fn take(&mut self, most: usize, mut to: impl FnMut(&[u8])) -> usize {
        let count = most.min(self.bytes.len());
        let (front, back) = self.bytes.as_slices();
        let from_front = count.min(front.len());
        for part in [&front[..from_front], &back[..count - from_front]] {
            self.line_ends -= line_ends(part);
            to(part);
        }
        self.bytes.drain(..count);
        count
    }

    /// Drops the oldest so many.
    pub(super) fn forget(&mut self, count: usize) {
        self.take(count, |_| ());
    }
}

fn line_ends(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}
