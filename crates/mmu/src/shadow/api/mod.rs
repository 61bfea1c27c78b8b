//! The operations of an engine.

mod faults;
mod fences;
mod host;
mod lane;
mod roots;
mod writes;

pub use fences::GuestFence;
pub use writes::Wrote;
