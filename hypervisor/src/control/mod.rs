//! The control channel: requests of clients, the debugger, statistics, shutdown, ports of VMs, and the balloon's target.

pub mod ballooning;
pub mod connections;
pub mod debug;
mod power;
mod requests;
pub mod stats;

pub use requests::{answer_frame, attend, go_on};
