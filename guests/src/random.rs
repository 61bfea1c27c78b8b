//! Numbers that look random, and are the same for the same seed.

use crate::hart;

/// Such numbers (xorshift64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Those of a seed, others for each hart.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self((seed << 8 | (hart::id() + 1)).wrapping_mul(0x2545_f491_4f6c_dd1d) | 1)
    }

    /// Any number but 0.
    pub fn any_bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `count`.
    pub fn below(&mut self, count: u64) -> u64 {
        (self.any_bits() >> 8) % count
    }

    /// One of those.
    pub fn any<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
