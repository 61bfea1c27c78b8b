//! The output of guests until it is printed, and the end of the printed output, for clients that read it from
//! elsewhere.

use abi::control::Output;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The amount of printed output that is kept, in bytes. It goes in pieces of [`SLACK`].
const KEPT: usize = 8 << 10;
const SLACK: usize = 512;
/// The part of that which a new client sees, in bytes.
const SCREEN: u64 = 4 << 10;

/// Output of one guest on its way to the screen.
#[derive(Default, Debug)]
pub(super) struct Ring {
    /// The output that was printed lately, then the output that is still to be printed.
    bytes: VecDeque<u8>,
    /// The number of bytes that were printed.
    printed: usize,
    /// The number of bytes still to be printed that end a line.
    pub(super) line_ends: usize,
    /// The number of the VM that has the slot, or had it last.
    guest: Option<u64>,
    /// The number of bytes before these.
    dropped: u64,
    /// The number of bytes before that VM had the slot.
    before: u64,
    /// Set if a client has read that VM's output.
    is_watched: bool,
    /// Set if that VM is gone.
    is_over: bool,
}

impl Ring {
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.line_ends += line_ends(bytes);
        self.bytes.extend(bytes);
    }

    /// Marks the oldest `count` bytes as printed.
    fn is_printed(&mut self, count: usize) {
        self.printed += count;
        if self.printed >= KEPT + SLACK {
            let old = self.printed - KEPT;
            self.bytes.drain(..old);
            self.dropped += old as u64;
            self.printed = KEPT;
        }
    }

    /// Returns the next byte that is still to be printed.
    pub(super) fn first(&self) -> Option<u8> {
        self.bytes.get(self.printed).copied()
    }

    pub(super) fn pop(&mut self) -> Option<u8> {
        let byte = self.first()?;
        self.line_ends -= usize::from(byte == b'\n');
        self.is_printed(1);
        Some(byte)
    }

    /// Returns the number of bytes that are still to be printed.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.printed
    }

    /// Returns the number of bytes that there ever were.
    fn total(&self) -> u64 {
        self.dropped + self.bytes.len() as u64
    }

    /// Returns `count` bytes, from `start` on.
    fn slices(&self, start: usize, count: usize) -> [&[u8]; 2] {
        let (front, back) = self.bytes.as_slices();
        // What of the range is in front, and what behind.
        let in_front = |at: usize| at.min(front.len());
        let behind = |at: usize| at.saturating_sub(front.len());
        [&front[in_front(start)..in_front(start + count)], &back[behind(start)..behind(start + count)]]
    }

    /// Takes up to `most` of the oldest that are still to be printed; returns how many.
    pub(super) fn take(&mut self, most: usize, mut to: impl FnMut(&[u8])) -> usize {
        let count = most.min(self.len());
        // The screen asks until nothing is left.
        if count == 0 {
            return 0;
        }
        let mut ends = 0;
        for part in self.slices(self.printed, count) {
            ends += line_ends(part);
            to(part);
        }
        self.line_ends -= ends;
        self.is_printed(count);
        count
    }

    /// Leaves so many of the oldest unprinted.
    pub(super) fn forget(&mut self, count: usize) {
        self.take(count, |_| ());
    }

    /// Gives the slot to the VM of that number.
    pub(super) fn open(&mut self, number: u64) {
        self.clear_if_empty();
        *self = Self {
            guest: Some(number),
            before: self.total(),
            is_watched: false,
            is_over: false,
            ..core::mem::take(self)
        };
    }

    /// Ends the VM's output. Clients that read it may still read its last words.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        if !self.is_watched {
            self.clear_if_empty();
        }
    }

    fn clear_if_empty(&mut self) {
        if self.len() == 0 {
            *self = Self::default();
        }
    }

    /// Returns the output of the VM of that number, from byte `from` of all that ever were on, up to `most` bytes;
    /// without `from`, the last of it. `None` if the VM does not have this slot.
    pub(super) fn read(&mut self, number: u64, from: Option<u64>, most: usize) -> Option<Output> {
        if self.guest != Some(number) {
            return None;
        }
        self.is_watched = true;
        let total = self.total();
        let oldest = self.dropped.max(self.before);
        let at = from.unwrap_or(total.saturating_sub(SCREEN)).clamp(oldest, total);
        let newer = (total - at) as usize;
        let count = newer.min(most);
        let bytes: Vec<u8> = self.slices(self.bytes.len() - newer, count).concat();
        Some(Output { at, bytes, is_over: self.is_over && count == newer })
    }
}

fn line_ends(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// All that was put in, and a ring.
    #[test]
    fn what_is_printed_is_all_and_what_is_read_is_the_end_of_it() {
        for seed in 1..40 {
            let (mut random, mut ring) = (Random(seed * 977), Ring::default());
            ring.open(7);
            let (mut all, mut printed, mut read, mut at): (Vec<u8>, Vec<u8>, Vec<u8>, u64) = Default::default();
            for _ in 0..2000 {
                match random.below(4) {
                    0 => {
                        let bytes: Vec<u8> =
                            (0..random.below(300)).map(|_| [b'\n', b'a'][random.below(2) as usize]).collect();
                        ring.extend(&bytes);
                        all.extend(&bytes);
                        assert!(ring.bytes.len() <= ring.len() + KEPT + SLACK);
                    }
                    1 => printed.extend(ring.pop()),
                    2 => _ = ring.take(random.below(400) as usize, |bytes| printed.extend(bytes)),
                    _ => {
                        let output = ring.read(7, Some(at), random.below(500) as usize).expect("it has the slot");
                        assert!(output.at >= at && !output.is_over);
                        // What was lost is older than what is kept.
                        assert!(
                            output.at == at
                                || output.at + KEPT as u64 >= all.len() as u64 - ring.len() as u64 - SLACK as u64
                        );
                        assert_eq!(output.bytes, all[output.at as usize..][..output.bytes.len()]);
                        at = output.at + output.bytes.len() as u64;
                        read.extend(&output.bytes);
                    }
                }
                assert_eq!(ring.line_ends, all[printed.len()..].iter().filter(|byte| **byte == b'\n').count());
                assert_eq!((ring.len(), ring.first()), (all.len() - printed.len(), all.get(printed.len()).copied()));
            }
            ring.take(usize::MAX, |bytes| printed.extend(bytes));
            assert_eq!(printed, all, "seed {seed}");
        }
    }

    #[test]
    fn whoever_comes_anew_sees_a_screenful() {
        let mut ring = Ring::default();
        ring.open(1);
        assert_eq!(ring.read(1, None, 100), Some(Output { at: 0, bytes: Vec::new(), is_over: false }));
        ring.extend(&[b'x'; 3 * SCREEN as usize]);
        ring.forget(usize::MAX);
        let output = ring.read(1, None, usize::MAX).expect("it is there");
        assert_eq!((output.at, output.bytes.len()), (2 * SCREEN, SCREEN as usize));
        // Places that never were.
        for from in [u64::MAX, 3 * SCREEN + 1] {
            assert_eq!(
                ring.read(1, Some(from), 9).map(|output| (output.at, output.bytes.len())),
                Some((3 * SCREEN, 0))
            );
        }
        assert_eq!((ring.read(2, None, 9), ring.read(0, Some(0), 9)), (None, None));
    }

    #[test]
    fn nobody_sees_what_another_vm_has_printed() {
        let mut ring = Ring::default();
        ring.open(1);
        ring.extend(b"secret");
        ring.end();
        // It is still to be printed, as ever.
        ring.open(2);
        ring.extend(b"own");
        let output = ring.read(2, Some(0), 99).expect("it has the slot");
        assert_eq!((output.at, output.bytes.as_slice(), ring.read(1, Some(0), 99)), (6, &b"own"[..], None));
        let mut printed: Vec<u8> = Vec::new();
        ring.take(usize::MAX, |bytes| printed.extend(bytes));
        assert_eq!(printed, b"secretown");
        // An ended VM's output can be read until the next VM gets the slot; then its memory is given back.
        ring.end();
        let output = ring.read(2, Some(7), 99).expect("it had the slot");
        assert_eq!((output.bytes.as_slice(), output.is_over), (&b"wn"[..], true));
        assert!(!ring.read(2, Some(6), 2).expect("the same").is_over, "there is more");
        ring.open(3);
        assert_eq!((ring.read(2, None, 9), ring.bytes.capacity()), (None, 0));
        ring.extend(b"x");
        ring.pop();
        ring.end();
        assert_eq!(ring.bytes.capacity(), 0);
    }
}
