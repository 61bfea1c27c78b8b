//! Atomics. With the feature `model` they are those of a model checker (shuttle), which decides at each of them who goes on.

#[cfg(not(feature = "model"))]
pub use core::sync::atomic;
#[cfg(feature = "model")]
pub use shuttle::sync::atomic;
