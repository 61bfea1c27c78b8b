//! QEMU's machine: its devices, its command line, its process and output, and the meter.

pub mod board;
pub mod confine;
pub mod disk;
pub mod group;
pub mod meter;
pub mod monitor;
pub mod net;
pub mod passt;
pub mod port;
mod priority;
pub mod process;
pub mod qemu;
pub mod relay;
mod said;
pub mod scratch;
pub mod server;
pub mod servers;
pub mod share;
pub mod stream;
pub mod swap;
