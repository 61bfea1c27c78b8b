//! Gnomon's hypervisor: VMs, vCPUs, exits, SBI, devices. The same in both seats, and on a host
//! under test: everything that needs a real hart is behind [`hart::env::Env`].
//!
//! The modules stand in their order, from bottom to top: a module uses those above it in this list, never one below.
//! `cli/tests/imports.rs` checks that.
//!
//! Start reading at [`exit`] (what an exit does) and [`gnomon`] (the state that all harts share).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(test)]
mod random;
pub mod sync;

pub mod slots;

pub mod machine;

pub mod measure;

pub mod backend;

pub mod device;

pub mod vm;

pub mod hart;

pub mod pager;

pub mod gnomon;

pub mod memory;

pub mod io;

pub mod life;

pub mod control;

pub mod exit;
