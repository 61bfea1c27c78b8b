//! The lock of a VM's memory: held exclusively, or shared by vCPUs whose faults only fill invalid entries ([`mmu::gstage::Filler`]).
//!
//! The exclusive side is a mutex, the shared side [`mmu::sharers`]. A vCPU that shares the lock takes no other lock but the heap's, so a hart that
//! waits for it waits for one fault at most.

use crate::sync::{Mutex, MutexGuard};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};
use mmu::sharers::{SharedGuard, Sharers};

/// A value behind a lock that vCPUs can share.
#[derive(Debug)]
pub struct SharedLock<T> {
    value: Mutex<T>,
    sharers: Sharers,
    /// Number of times that a hart has waited for the mutex.
    waits: AtomicU64,
}

/// Exclusive access to the value, until it is dropped.
pub struct Exclusive<'a, T> {
    /// The sharers to readmit; `None` if the lock has none.
    excluded: Option<&'a Sharers>,
    guard: MutexGuard<'a, T>,
}

impl<T> SharedLock<T> {
    /// Creates a free lock with `sharers` sharers.
    #[must_use]
    pub fn new(value: T, sharers: usize) -> Self {
        Self { value: Mutex::new(value), sharers: Sharers::new(sharers), waits: AtomicU64::new(0) }
    }

    /// Takes the lock exclusively. Waits for its holder, and for its sharers.
    #[inline(always)]
    pub fn lock(&self) -> Exclusive<'_, T> {
        let guard = match self.value.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        };
        let excluded = if self.sharers.is_empty() { None } else { Some(&self.sharers) };
        excluded.inspect(|sharers| sharers.exclude());
        Exclusive { excluded, guard }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> MutexGuard<'_, T> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.value.lock()
    }

    /// Takes the mutex without excluding sharers, if it is free. The caller must not change what sharers read, and must accept any entry that
    /// they fill meanwhile.
    #[inline(always)]
    pub fn try_lock_beside_sharers(&self) -> Option<MutexGuard<'_, T>> {
        self.value.try_lock()
    }

    /// Shares the lock as a vCPU. Returns `None` if it is held.
    #[inline(always)]
    pub fn share(&self, vcpu: u32) -> Option<SharedGuard<'_>> {
        self.sharers.share(vcpu as usize)
    }

    /// Returns the number of times that a hart has waited for the lock's holder.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Exclusive<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Before the mutex is released: its next holder excludes them itself.
        if let Some(sharers) = self.excluded {
            sharers.readmit();
        }
    }
}

impl<T> Deref for Exclusive<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Exclusive<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
