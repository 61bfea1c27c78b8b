//! A small kernel that runs Linux programs in a VM of their own.
//!
//! | module | what it has |
//! |---|---|
//! | `machine` | all that needs a hart |
//! | `memory` | frames, tables, address spaces |
//! | `fs` | files |
//! | `net` | the network beyond the VM |
//! | `share` | directories of the host |
//! | `task` | threads and processes |
//! | `call` | system calls |
//! | `boot` | the start and the end of the VM |
#![cfg_attr(feature = "machine", no_std)]
// Off the machine the numbers of calls are another architecture's, and nothing starts the kernel.
#![cfg_attr(not(feature = "machine"), allow(dead_code, unreachable_patterns))]

extern crate alloc;

pub mod boot;
pub mod call;
pub mod device;
pub mod errno;
pub mod fs;
pub mod link;
pub mod machine;
pub mod memory;
pub mod net;
pub mod random;
pub mod share;
pub mod sync;
pub mod task;
pub mod terminal;

/// The release that programs are told: of a Linux that has the calls of this kernel.
pub const RELEASE: &str = "6.12.0-vkernel";
/// The VM's name for programs.
pub const NAME: &str = "vkernel";

/// Prints a line of the kernel's own.
pub fn report(line: core::fmt::Arguments<'_>) {
    if link::is_used() {
        link::say(alloc::format!("{line}").as_bytes());
    } else {
        machine::put(alloc::format!("vkernel: {line}\r\n").as_bytes());
    }
}
