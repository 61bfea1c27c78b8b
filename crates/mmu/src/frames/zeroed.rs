//! Runs of 2 MiB of which all or some frames hold zeroes: cleared while no hart waits for them, and free like any
//! others.
//!
//! Each is in a *place*, a word with the first frame's number and the number of cleared frames. The hart that changes
//! the word to "nothing" owns the run. A hart that looks for frames and finds none gives these runs back to the store
//! one by one, and looks again: a run here makes no allocation fail. A hart that clears a part of a run owns the run
//! meanwhile, and hides it from others ([`super::store`]).

use super::tags::{BLOCK, BLOCK_ORDER};
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use crate::sync::atomic::{AtomicU64, AtomicUsize};
#[cfg(feature = "sabotage")]
use core::sync::atomic::AtomicU8;

/// The counters of runs of zeroes.
#[derive(Default, Debug)]
pub struct ZeroedCounters {
    /// Runs that were filled.
    pub made: core::sync::atomic::AtomicU64,
    /// Of those, the ones that were taken as zeroes.
    pub taken: core::sync::atomic::AtomicU64,
}

/// Most runs that are kept.
pub const MOST_ZEROED: u64 = 16;

/// The defects of the pool that tests can switch on.
#[cfg(feature = "sabotage")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PoolSabotage {
    /// None.
    Sound,
    /// Runs of which a part is still to be cleared count as ready.
    HandsOutHalf,
    /// A hart that has cleared a part does not announce that the run is back.
    PutsBackUnsaid,
}

/// The places.
#[derive(Default)]
pub(super) struct Zeroed {
    places: [AtomicU64; MOST_ZEROED as usize],
    /// Runs in them, or with harts that clear a part.
    count: AtomicUsize,
    /// Harts that look for frames and have found none so far: no new run is taken to be cleared while there are any.
    pub seekers: AtomicUsize,
    #[cfg(feature = "sabotage")]
    sabotage: AtomicU8,
}

/// A place with nothing in it.
const NOTHING: u64 = 0;
/// Bits of a word below the first frame's number: those of how many are cleared, which is never none.
const BITS: u32 = BLOCK_ORDER as u32 + 1;

impl Zeroed {
    /// Runs that are kept, whether ready or not.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed) as u64
    }

    /// A run has been taken from the store, to be put here soon.
    pub fn begin(&self) {
        self.count.fetch_add(1, Relaxed);
    }

    /// A run has left for good.
    fn end(&self) {
        self.count.fetch_sub(1, Relaxed);
    }

    /// Takes a run out, for a time, of which that many frames are cleared: the first frame and their number.
    pub fn take_out(&self, fits: impl Fn(u64) -> bool) -> Option<(u64, u64)> {
        self.places.iter().find_map(|place| {
            let word = place.load(Relaxed);
            let cleared = word & ((1 << BITS) - 1);
            if word == NOTHING || !fits(cleared) {
                return None;
            }
            place
                .compare_exchange(word, NOTHING, Acquire, Relaxed)
                .is_ok()
                .then_some((word >> BITS << BLOCK_ORDER, cleared))
        })
    }

    /// Takes a run out that is cleared, if there is one: its first frame.
    pub fn take_ready(&self) -> Option<u64> {
        let (first, _) = self.take_out(|cleared| cleared == BLOCK || self.is_sabotaged_half())?;
        self.end();
        Some(first)
    }

    /// Takes any run out, to be given back: its first frame.
    pub fn take_any(&self) -> Option<u64> {
        let (first, _) = self.take_out(|_| true)?;
        self.end();
        Some(first)
    }

    /// Puts a run of which some frames are cleared into a place. Returns false if no place is free: the run is not kept
    /// here then, and the caller owns it.
    #[must_use]
    pub fn put(&self, first: u64, cleared: u64) -> bool {
        debug_assert!((1..=BLOCK).contains(&cleared) && first.is_multiple_of(BLOCK));
        let word = first >> BLOCK_ORDER << BITS | cleared;
        let put = |place: &AtomicU64| place.compare_exchange(NOTHING, word, AcqRel, Relaxed).is_ok();
        let has_place = self.places.iter().any(put);
        if !has_place {
            self.end();
        }
        has_place
    }

    #[cfg(feature = "sabotage")]
    pub fn sabotage(&self, how: PoolSabotage) {
        self.sabotage.store(how as u8, core::sync::atomic::Ordering::Relaxed);
    }

    #[cfg(feature = "sabotage")]
    fn is_sabotaged(&self, how: PoolSabotage) -> bool {
        self.sabotage.load(core::sync::atomic::Ordering::Relaxed) == how as u8
    }

    #[cfg(feature = "sabotage")]
    fn is_sabotaged_half(&self) -> bool {
        self.is_sabotaged(PoolSabotage::HandsOutHalf)
    }

    #[cfg(not(feature = "sabotage"))]
    const fn is_sabotaged_half(&self) -> bool {
        false
    }

    /// Returns whether a hart that puts a run back announces that, as it must.
    #[cfg(feature = "sabotage")]
    pub fn says_so(&self) -> bool {
        !self.is_sabotaged(PoolSabotage::PutsBackUnsaid)
    }

    /// Returns whether a hart that puts a run back announces that, as it must.
    #[cfg(not(feature = "sabotage"))]
    pub const fn says_so(&self) -> bool {
        true
    }
}
