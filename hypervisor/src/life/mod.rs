//! The life of a VM: it is created, started, paused, resumed, reset, stopped and destroyed; snapshots of it are taken.

mod build;
mod gigapages;
pub mod idle;
pub mod lifecycle;
pub mod snapshot;
pub(crate) mod undone;
