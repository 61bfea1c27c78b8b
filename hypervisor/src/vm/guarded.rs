//! The lock of a VM's memory, which counts who waited for it.

use crate::sync::{Mutex, MutexGuard};
use core::sync::atomic::{AtomicU64, Ordering};

/// Something that one hart uses at a time.
#[derive(Debug, Default)]
pub struct Guarded<T> {
    value: Mutex<T>,
    waits: AtomicU64,
}

impl<T> Guarded<T> {
    /// A free one.
    pub const fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waits: AtomicU64::new(0) }
    }

    /// Takes it, waiting for the hart that has it.
    #[inline(always)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.value.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> MutexGuard<'_, T> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.value.lock()
    }

    /// Takes it if it is free.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.value.try_lock()
    }

    /// How often a hart has waited for it.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}
