//! The host's clock: the time of day, from the ticks of `time`.

/// The host's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// Ticks of `time` in a second.
    pub timebase: u64,
    /// The time of day when `time` was 0, in nanoseconds since 1970, modulo 2^64.
    pub zero: u64,
}

const NANOSECONDS: u128 = 1_000_000_000;

impl Clock {
    /// Makes a clock that showed `nanoseconds` at host time `now`.
    #[must_use]
    pub const fn new(timebase: u64, now: u64, nanoseconds: u64) -> Self {
        let at_zero = Self { timebase, zero: 0 };
        Self { zero: nanoseconds.wrapping_sub(at_zero.nanoseconds(now)), ..at_zero }
    }

    /// Returns the time of day at host time `now`, in nanoseconds since 1970.
    #[must_use]
    pub const fn nanoseconds(&self, now: u64) -> u64 {
        self.zero.wrapping_add((now as u128 * NANOSECONDS / self.timebase as u128) as u64)
    }

    /// Converts nanoseconds to ticks, rounded up.
    pub(crate) const fn ticks(&self, nanoseconds: u64) -> u64 {
        // Less than 2^64: no timebase is beyond 1 GHz by so much, and later than that is never.
        let ticks = (nanoseconds as u128 * self.timebase as u128).div_ceil(NANOSECONDS);
        if ticks > u64::MAX as u128 { u64::MAX } else { ticks as u64 }
    }
}
