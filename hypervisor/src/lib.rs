//! Gnomon's hypervisor: VMs, vCPUs, exits, SBI, devices. The same in both seats, and on a host
//! under test: everything that needs a real hart is behind [`env::Env`].
//!
//! Start reading at [`exit`] (what an exit does) and [`gnomon`] (what all harts share).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod adaptive;
pub mod ballooning;
pub mod board;
pub mod breaks;
mod build;
pub mod channel;
pub mod chores;
mod coalescing;
pub mod connections;
pub mod console;
pub mod control;
pub mod counters;
pub mod debug;
pub mod device;
pub mod disks;
mod dma;
pub mod entropy;
pub mod env;
pub mod events;
pub mod exit;
pub mod fetch;
mod gigapages;
pub mod gnomon;
pub mod harts;
pub mod host_map;
pub mod idle;
pub mod isa;
pub mod lifecycle;
pub mod lines;
pub mod machine;
pub mod memory;
pub mod network;
pub mod offer;
pub mod pager;
pub mod port;
pub mod probe;
pub mod promoter;
#[cfg(test)]
mod random;
mod root_cache;
mod saving;
pub mod savings;
pub mod sbi;
pub mod sched;
pub mod serial;
mod shadow;
pub mod shares;
pub mod shootdown;
pub mod slots;
pub mod snapshot;
pub mod stats;
pub mod sync;
pub mod tenant;
pub mod translation;
pub mod tunables;
mod two_stage;
mod undone;
pub mod vcpu;
pub mod vm;
pub mod vms;
