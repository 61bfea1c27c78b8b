//! Sparse RAM.

use rv::{Addr, Hpa, Pfn, PhysMem};
use std::ops::Range;

const WORDS: usize = 512;
/// The value of each word of a frame before its first write. Not zero, so that a forgotten clearing shows; and, in a
/// table of level 0 or 1, a legal leaf that allows everything.
pub const GARBAGE: u64 = 0x5_5555_5e00 << 10 | 0xdf;

/// The words of a frame.
type Words = [u64; WORDS];

static UNTOUCHED: Words = [GARBAGE; WORDS];

/// A frame.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Frame {
    /// A frame that does not exist.
    Absent,
    /// A frame without a write so far.
    Untouched,
    Written(Box<Words>),
}

/// Frames side by side, from the first one's number on.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Region {
    first: u64,
    frames: Vec<Frame>,
}

/// RAM of which only some frames exist. Reading or writing any other is a bug of the code under
/// test, and panics.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Machine {
    /// The regions of RAM, which do not overlap. There are few: random tests look for frames more than they do anything
    /// else.
    regions: Vec<Region>,
}

impl Machine {
    /// No RAM.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// RAM of `pages` frames from `first`, full of garbage.
    #[must_use]
    pub fn with_ram(first: Pfn<Hpa>, pages: u64) -> Self {
        let mut machine = Self::new();
        machine.add(first, pages);
        machine
    }

    /// Makes `pages` more frames exist, full of garbage. Those that exist already stay as they are.
    pub fn add(&mut self, first: Pfn<Hpa>, pages: u64) {
        for number in first.raw()..first.raw() + pages {
            let frame = self.make(number);
            if matches!(frame, Frame::Absent) {
                *frame = Frame::Untouched;
            }
        }
    }

    /// Makes frames vanish, as if never handed out: any access to them panics.
    pub fn remove(&mut self, first: Pfn<Hpa>, pages: u64) {
        for number in first.raw()..first.raw() + pages {
            *self.make(number) = Frame::Absent;
        }
    }

    fn find(&self, number: u64) -> Option<&Words> {
        let frame =
            self.regions.iter().find_map(|region| region.frames.get(number.wrapping_sub(region.first) as usize));
        match frame? {
            Frame::Absent => None,
            Frame::Untouched => Some(&UNTOUCHED),
            Frame::Written(words) => Some(words),
        }
    }

    /// The place of a frame, which does not exist if it was unknown.
    fn make(&mut self, number: u64) -> &mut Frame {
        let place = |region: &Region| number.wrapping_sub(region.first) as usize;
        let known = self.regions.iter().position(|region| place(region) < region.frames.len());
        let at = known.unwrap_or_else(|| {
            let behind = self.regions.iter().position(|region| place(region) == region.frames.len());
            let at = behind.unwrap_or_else(|| {
                self.regions.push(Region { first: number, frames: Vec::new() });
                self.regions.len() - 1
            });
            self.regions[at].frames.push(Frame::Absent);
            at
        });
        let region = &mut self.regions[at];
        let place = place(region);
        &mut region.frames[place]
    }

    /// The 8 bytes at an 8-aligned address, or `None` if no memory is there.
    #[must_use]
    pub fn peek(&self, at: u64) -> Option<u64> {
        assert!(at.is_multiple_of(8), "a reference to {at:#x} is not aligned");
        Some(self.find(at >> 12)?[(at >> 3) as usize % WORDS])
    }

    /// Writes 8 bytes, bringing the frame into existence, zeroed, if need be: for building tables.
    pub fn poke(&mut self, at: u64, value: u64) {
        assert!(at.is_multiple_of(8), "a reference to {at:#x} is not aligned");
        let frame = self.make(at >> 12);
        if matches!(frame, Frame::Absent) {
            *frame = Frame::Written(Box::new([0; WORDS]));
        }
        frame.written().expect("it exists")[(at >> 3) as usize % WORDS] = value;
    }

    /// The words of a frame.
    ///
    /// # Panics
    /// If it does not exist.
    #[must_use]
    pub fn frame(&self, frame: Pfn<Hpa>) -> &Words {
        self.find(frame.raw()).unwrap_or_else(|| panic!("{frame:?} was never handed out"))
    }

    fn frame_mut(&mut self, frame: Pfn<Hpa>) -> &mut Words {
        let number = frame.raw();
        let mut regions = self.regions.iter_mut();
        let found = regions.find_map(|region| region.frames.get_mut(number.wrapping_sub(region.first) as usize));
        found.and_then(Frame::written).unwrap_or_else(|| panic!("{frame:?} was never handed out"))
    }

    fn word_of(at: Addr<Hpa>) -> usize {
        assert!(at.is_aligned(8), "a reference to {at} is not aligned");
        (at.page_offset() / 8) as usize
    }
}

impl Frame {
    /// Its words, to be written, if it exists.
    fn written(&mut self) -> Option<&mut Words> {
        if matches!(self, Self::Untouched) {
            *self = Self::Written(Box::new(UNTOUCHED));
        }
        match self {
            Self::Written(words) => Some(words),
            _ => None,
        }
    }
}

impl PhysMem for Machine {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        self.frame(at.pfn())[Self::word_of(at)]
    }

    fn write_u64(&mut self, at: Addr<Hpa>, value: u64) {
        self.frame_mut(at.pfn())[Self::word_of(at)] = value;
    }

    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        core::mem::replace(&mut self.frame_mut(at.pfn())[Self::word_of(at)], value)
    }

    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        let word = &mut self.frame_mut(at.pfn())[Self::word_of(at)];
        if *word != old {
            return Err(*word);
        }
        *word = new;
        Ok(())
    }

    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        for i in 0..pages {
            self.frame_mut(first.add(i)).fill(0);
        }
    }

    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64) {
        for i in 0..pages {
            *self.frame_mut(to.add(i)) = *self.frame(from.add(i));
        }
    }

    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]) {
        for piece in pieces(at, into.len()) {
            let place = at.wrapping_add(piece.start as u64);
            let words = self.frame(place.pfn());
            let first = place.page_offset() as usize;
            for (n, byte) in into[piece].iter_mut().enumerate() {
                *byte = words[(first + n) / 8].to_le_bytes()[(first + n) % 8];
            }
        }
    }

    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]) {
        for piece in pieces(at, from.len()) {
            let place = at.wrapping_add(piece.start as u64);
            let words = self.frame_mut(place.pfn());
            let first = place.page_offset() as usize;
            for (n, byte) in from[piece].iter().enumerate() {
                let word = &mut words[(first + n) / 8];
                let mut bytes = word.to_le_bytes();
                bytes[(first + n) % 8] = *byte;
                *word = u64::from_le_bytes(bytes);
            }
        }
    }
}

/// Splits `length` bytes at an address at the ends of frames.
fn pieces(at: Addr<Hpa>, length: usize) -> impl Iterator<Item = Range<usize>> {
    const FRAME: usize = 8 * WORDS;
    let first = FRAME - at.page_offset() as usize;
    let ends = (first..length).step_by(FRAME).chain((length > 0).then_some(length));
    ends.scan(0, |start, end| Some(std::mem::replace(start, end)..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_words_are_the_same_memory() {
        let mut machine = Machine::with_ram(Pfn::new(8), 2);
        let at = Pfn::new(8).at(4093);
        machine.write_bytes(at, b"across");
        let mut back = [0; 6];
        machine.read_bytes(at, &mut back);
        assert_eq!(&back, b"across");
        let (long, mut back) = ([1; 8192], [0; 8192]);
        machine.write_bytes(Pfn::new(8).base(), &long);
        machine.read_bytes(Pfn::new(8).base(), &mut back);
        assert_eq!(back, long);
        machine.write_bytes(at, b"across");
        assert_eq!(machine.read_u64(Pfn::new(9).base()) & 0xff_ffff, u64::from_le_bytes(*b"oss\0\0\0\0\0"));
    }

    #[test]
    fn an_exchange_needs_the_old_value() {
        let mut machine = Machine::with_ram(Pfn::new(8), 1);
        let at = Pfn::new(8).base();
        assert_eq!(machine.compare_exchange_u64(at, 1, 2), Err(GARBAGE));
        assert_eq!(machine.compare_exchange_u64(at, GARBAGE, 2), Ok(()));
        assert_eq!(machine.read_u64(at), 2);
    }

    #[test]
    #[should_panic(expected = "never handed out")]
    fn bad_access_to_a_frame_that_is_not_there() {
        let _ = Machine::with_ram(Pfn::new(8), 1).read_u64(Pfn::new(9).base());
    }
}
