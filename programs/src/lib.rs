//! Programs that run under Linux in a guest, without a C library: the agent of `gnomon shell`, what sets the meter's
//! markers, and the bench's workloads where Debian has no program that would do.
//!
//! A program is a binary that names its `main` with [`entry_point!`]. What is computed is in modules of
//! plain functions, which are tested on the host; only the module `linux` and the programs need riscv64.
//! Nothing computes with floating point: the target has none.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod grid;
pub mod gups;
pub mod lattice;
#[cfg(target_arch = "riscv64")]
pub mod linux;
pub mod random;
pub mod simplex;
pub mod users;
