//! The lock of a VM's memory: held exclusively, or shared by vCPUs whose faults only fill invalid entries
//! ([`mmu::AddressSpace::fill`]), as KVM's `mmu_lock` is for its TDP MMU.
//!
//! A vCPU that shares the lock takes no other lock but the heap's, so a hart that waits for it waits for one fault at most: while it
//! waits, no more vCPUs share the lock.

use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use core::sync::atomic::{AtomicU64, Ordering};
use mmu::sync::spin_loop;

/// A value behind a lock that vCPUs can share.
#[derive(Debug)]
pub struct SharedLock<T> {
    value: RwLock<T>,
    /// Number of harts that wait for it.
    waiting: crate::sync::atomic::AtomicU64,
    /// Number of times that a hart has waited.
    waits: AtomicU64,
}

/// Exclusive access to the value, until it is dropped.
pub type Exclusive<'a, T> = RwLockWriteGuard<'a, T>;

impl<T> SharedLock<T> {
    /// Creates a free lock.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { value: RwLock::new(value), waiting: crate::sync::atomic::AtomicU64::new(0), waits: AtomicU64::new(0) }
    }

    /// Takes the lock exclusively. Waits for its holder, or for those that share it.
    #[inline(always)]
    pub fn lock(&self) -> Exclusive<'_, T> {
        match self.value.try_write() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> Exclusive<'_, T> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = self.value.write();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// Takes the lock exclusively, if it is free.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Exclusive<'_, T>> {
        self.value.try_write()
    }

    /// Shares the lock. Returns `None` if it is held, or if a hart waits for it.
    #[inline(always)]
    pub fn share(&self) -> Option<RwLockReadGuard<'_, T>> {
        if self.waiting.load(Ordering::Relaxed) != 0 { None } else { self.value.try_read() }
    }

    /// Shares the lock, after a while if it is held. Returns `None` if it is held for long. A vCPU that can share the lock does not queue for it
    /// exclusively at once: then others would find it waiting, and queue as well, without an end.
    #[inline(always)]
    pub fn share_soon(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.share().or_else(|| self.wait_to_share())
    }

    #[cold]
    #[inline(never)]
    fn wait_to_share(&self) -> Option<RwLockReadGuard<'_, T>> {
        /// Looks, some ten instructions each: longer than any exit takes, several times.
        const LOOKS: u32 = 100_000;
        self.waits.fetch_add(1, Ordering::Relaxed);
        (0..LOOKS).find_map(|_| {
            spin_loop();
            self.share()
        })
    }

    /// Returns the number of times that a hart has waited for the lock.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}
