//! The shared side of a lock: a readers-writer lock with one flag per sharer, as for page faults under KVM's `mmu_lock`.
//!
//! The exclusive side is a lock of the caller's. No two sharers' flags are in one cache line, so sharers write no common line and never wait.
//! The protocol, in which all accesses are sequentially consistent:
//!
//! | side | steps |
//! |---|---|
//! | shared | set the own flag; load `is_excluding`; if it is set, clear the flag and take the lock instead |
//! | exclusive | take the lock; set `is_excluding`; wait for each flag to be clear |
//!
//! Either the sharer sees `is_excluding`, or the holder of the lock sees the flag. A sharer must not wait for the lock while its flag is set.

use crate::sync::atomic::AtomicBool;
#[cfg(feature = "sabotage")]
use crate::sync::atomic::AtomicU8;
use crate::sync::atomic::Ordering::{Release, SeqCst};
use crate::sync::spin_loop;
use alloc::boxed::Box;

/// Faults that tests put into the protocol.
#[cfg(feature = "sabotage")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SharersSabotage {
    /// None.
    Sound,
    /// A sharer loads `is_excluding` before it sets its flag.
    LooksBeforeItShares,
    /// A sharer goes on when `is_excluding` is set.
    SharesWhenExcluded,
    /// The holder of the lock does not wait for flags.
    DoesNotWait,
}

/// The sharers of a lock.
#[derive(Debug)]
pub struct Sharers {
    is_excluding: AtomicBool,
    /// Each sharer's flag, [`STRIDE`] bytes apart.
    flags: Box<[AtomicBool]>,
    #[cfg(feature = "sabotage")]
    sabotage: AtomicU8,
}

/// Bytes of a cache line.
const STRIDE: usize = 64;

/// A share of the lock, until it is dropped.
#[must_use = "dropping it ends the share"]
#[derive(Debug)]
pub struct SharedGuard<'a>(&'a AtomicBool);

impl Sharers {
    /// Creates `count` sharers, none of which has a share.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self {
            is_excluding: AtomicBool::new(false),
            flags: (0..(count * STRIDE).saturating_sub(STRIDE - 1)).map(|_| AtomicBool::new(false)).collect(),
            #[cfg(feature = "sabotage")]
            sabotage: AtomicU8::new(SharersSabotage::Sound as u8),
        }
    }

    /// Returns whether the lock has no sharers, so that it is never shared.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.flags.is_empty()
    }

    /// Shares the lock as sharer number `sharer`, which must have no share yet. Returns `None` if the lock is held, or if there is no such
    /// sharer.
    #[inline(always)]
    pub fn share(&self, sharer: usize) -> Option<SharedGuard<'_>> {
        let flag = self.flags.get(sharer * STRIDE)?;
        let was_excluding = self.looks_first() && self.is_excluding.load(SeqCst);
        flag.store(true, SeqCst);
        let share = SharedGuard(flag);
        let is_excluding = if self.looks_first() { was_excluding } else { self.is_excluding.load(SeqCst) };
        (!is_excluding || self.ignores_exclusion()).then_some(share)
    }

    /// Excludes all sharers: refuses new shares, and waits for the existing ones to end. The caller holds the lock.
    #[inline(always)]
    pub fn exclude(&self) {
        self.is_excluding.store(true, SeqCst);
        for flag in self.flags.iter().step_by(STRIDE) {
            while flag.load(SeqCst) && !self.does_not_wait() {
                spin_loop();
            }
        }
    }

    /// Allows shares again. The caller still holds the lock.
    #[inline(always)]
    pub fn readmit(&self) {
        self.is_excluding.store(false, Release);
    }
}

#[cfg(feature = "sabotage")]
impl Sharers {
    /// Puts a fault into the protocol.
    pub fn sabotage(&self, how: SharersSabotage) {
        self.sabotage.store(how as u8, SeqCst);
    }

    fn is_sabotaged(&self, how: SharersSabotage) -> bool {
        self.sabotage.load(SeqCst) == how as u8
    }

    fn looks_first(&self) -> bool {
        self.is_sabotaged(SharersSabotage::LooksBeforeItShares)
    }

    fn ignores_exclusion(&self) -> bool {
        self.is_sabotaged(SharersSabotage::SharesWhenExcluded)
    }

    fn does_not_wait(&self) -> bool {
        self.is_sabotaged(SharersSabotage::DoesNotWait)
    }
}

#[cfg(not(feature = "sabotage"))]
impl Sharers {
    const fn looks_first(&self) -> bool {
        false
    }

    const fn ignores_exclusion(&self) -> bool {
        false
    }

    const fn does_not_wait(&self) -> bool {
        false
    }
}

impl Drop for SharedGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}
