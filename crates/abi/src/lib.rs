//! What crosses a boundary: the bundle of VM images that the command line hands to the hypervisor,
//! the records that the hypervisor prints for programs to read, and the reports of test guests.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bundle;
pub mod record;
pub mod report;
pub mod tunable;

/// The serial of the block device that Gnomon pages to.
pub const SWAP_SERIAL: &str = "gnomon-swap";
