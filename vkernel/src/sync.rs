//! Locks. The kernel's harts may be more than the host's: a hart that waits long gives way, for the one that has the lock may not run.

use crate::machine;
pub use spin::Once;
use spin::relax::RelaxStrategy;

/// A lock that is waited for by [`Relax`].
pub type Mutex<T> = spin::mutex::SpinMutex<T, Relax>;

/// The right to what a [`Mutex`] has.
pub type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T, Relax>;

/// Waits a moment ([`machine::relax`]).
#[derive(Clone, Copy, Debug)]
pub struct Relax;

impl RelaxStrategy for Relax {
    fn relax() {
        machine::relax();
    }
}
