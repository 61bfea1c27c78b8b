//! The operations of an engine.

mod below;
mod companion;
mod faults;
mod fences;
mod host;
mod lane;
mod roots;
mod writes;

pub use below::{fence_below, go_by, is_current};
pub use companion::companion;
pub use fences::GuestFence;
pub use writes::Wrote;
