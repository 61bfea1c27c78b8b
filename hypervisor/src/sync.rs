//! The atomics and locks by which harts share memory. With the feature `model` they are those of a model checker
//! (shuttle), which decides at each of them which thread goes on: `tests/models` runs harts by it. Counters are none of
//! these: no hart's behaviour depends on them.

pub use mmu::sync::atomic;
#[cfg(feature = "model")]
pub use model::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, TicketMutex};
#[cfg(not(feature = "model"))]
pub use spin::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, mutex::TicketMutex};

#[cfg(feature = "model")]
mod model {
    pub use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    /// A lock with the interface of those that harts use.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// A [`Mutex`] in place of the ticket lock: the one that waits longest does not go first.
    pub type TicketMutex<T> = Mutex<T>;

    impl<T> Mutex<T> {
        /// Makes a free lock.
        pub const fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        /// Waits for it.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("a hart has panicked")
        }

        /// Takes it if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// A lock that can be shared, with the interface of that which harts use.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        /// Makes a free lock.
        pub const fn new(value: T) -> Self {
            Self(shuttle::sync::RwLock::new(value))
        }

        /// Waits for it.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("a hart has panicked")
        }

        /// Takes it if it is free.
        pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }

        /// Shares it if it is not held.
        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }
    }
}
