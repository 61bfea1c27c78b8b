//! Atomics, and the wait for another hart. With the feature `model` they are those of a model checker (shuttle), which
//! decides at each of them which thread continues.

#[cfg(not(feature = "model"))]
pub use core::hint::spin_loop;
#[cfg(not(feature = "model"))]
pub use core::sync::atomic;
#[cfg(feature = "model")]
pub use shuttle::hint::spin_loop;
#[cfg(feature = "model")]
pub use shuttle::sync::atomic;
