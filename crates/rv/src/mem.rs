//! Host RAM as the engines see it.

use crate::addr::{Addr, Hpa, Pfn};
use crate::format::ENTRIES;

/// Physical memory. The machine's implementation is a pointer dereference; a test's is a map.
///
/// Every address passed must lie in RAM that the caller owns (a frame it allocated, or one that an
/// address space leads to); implementations may panic on others, they never touch devices.
pub trait PhysMem {
    /// Reads 8 bytes at an 8-aligned address, atomically.
    fn read_u64(&self, at: Addr<Hpa>) -> u64;
    /// Reads 8 bytes at an 8-aligned address in memory that only the holder of the caller's lock accesses, no hardware either: the value
    /// was written under that lock. Nothing else is ordered by it, which spares a fence.
    #[inline(always)]
    fn read_own(&self, at: Addr<Hpa>) -> u64 {
        self.read_u64(at)
    }
    /// Writes 8 bytes there, in the same way.
    #[inline(always)]
    fn write_own(&mut self, at: Addr<Hpa>, value: u64) {
        self.write_u64(at, value);
    }
    /// Returns whether one of the 8 words at a 64-aligned address is not 0.
    fn any_of_eight(&self, at: Addr<Hpa>) -> bool {
        (0..8).any(|n| self.read_u64(at.wrapping_add(8 * n)) != 0)
    }
    /// Returns whether one of the 64 words at a 512-aligned address is not 0.
    fn any_of_64(&self, at: Addr<Hpa>) -> bool {
        (0..64).any(|n| self.read_u64(at.wrapping_add(8 * n)) != 0)
    }
    /// Returns whether one of the 64 words at a 512-aligned address differs from its counterpart at another such.
    fn any_differs_of_64(&self, one: Addr<Hpa>, other: Addr<Hpa>) -> bool {
        (0..64).any(|n| self.read_u64(one.wrapping_add(8 * n)) != self.read_u64(other.wrapping_add(8 * n)))
    }
    /// Returns whether one of the 8 words at a 64-aligned address differs from its counterpart at another such.
    fn any_differs_of_eight(&self, one: Addr<Hpa>, other: Addr<Hpa>) -> bool {
        (0..8).any(|n| self.read_u64(one.wrapping_add(8 * n)) != self.read_u64(other.wrapping_add(8 * n)))
    }
    /// The bits of those of 64 words at a 512-aligned address that are not what stands in their place at another such.
    fn differing_of_64(&self, one: Addr<Hpa>, other: Addr<Hpa>) -> u64 {
        let differs = |n: u64| self.read_u64(one.wrapping_add(8 * n)) != self.read_u64(other.wrapping_add(8 * n));
        (0..64).filter(|n| differs(*n)).fold(0, |found, n| found | 1 << n)
    }
    /// Compares the words of two frames that `among` has a bit for, in order, of the 64 from number 64 * `part` on: the bits
    /// of those that differ.
    ///
    /// # Panics
    /// If a frame has no such part.
    #[inline(always)]
    fn differing(&self, (one, other): (Pfn<Hpa>, Pfn<Hpa>), part: usize, among: u64) -> u64 {
        assert!(part < ENTRIES / 64);
        let mut found = 0;
        // Eight bits at a time: mostly, many of them are clear.
        for first in (0..64).step_by(8) {
            let mut left = among >> first & 0xff;
            let mut word = 64 * part as u64 + first;
            while left != 0 {
                if left & 1 != 0 && self.read_u64(one.at(8 * word)) != self.read_u64(other.at(8 * word)) {
                    found |= 1 << (word % 64);
                }
                left >>= 1;
                word += 1;
            }
        }
        found
    }
    /// Writes 8 bytes at an 8-aligned address, atomically: a concurrent hardware walk sees the old
    /// value or the new one, and a reader of the new one sees all earlier writes (release).
    fn write_u64(&mut self, at: Addr<Hpa>, value: u64);
    /// Makes all words of a frame `value`. Nothing else reads the frame meanwhile.
    fn fill_frame(&mut self, frame: Pfn<Hpa>, value: u64) {
        (0..ENTRIES as u64).for_each(|n| self.write_u64(frame.at(8 * n), value));
    }
    /// Writes 8 bytes at an 8-aligned address, and returns what was there, both at once; otherwise as
    /// [`PhysMem::write_u64`].
    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64;
    /// Writes `new` if the value is `old`; otherwise returns the value found.
    ///
    /// # Errors
    /// The value found, if it is not `old`.
    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64>;
    /// Fills `pages` frames from `first` with zero bytes.
    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64);
    /// Returns the number of frames that it fills with zero bytes in some 80,000 instructions, or fewer: 1 at least.
    fn zeroed_at_once(&self) -> u64 {
        128
    }
    /// Copies `pages` frames; the runs do not overlap. 64 take some 80,000 instructions.
    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64);
    /// Copies bytes out of RAM.
    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]);
    /// Copies bytes into RAM.
    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]);
}
