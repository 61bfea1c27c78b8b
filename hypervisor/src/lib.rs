//! Gnomon's hypervisor: VMs, vCPUs, exits, SBI, devices. The same in both seats, and on a host
//! under test: everything that needs a real hart is behind [`hart::env::Env`].
//!
//! The modules, from bottom to top. A module uses those before it in this list, never one behind it (`cli/tests/imports.rs`):
//!
//! 1. [`sync`]: atomics and locks
//! 2. [`slots`]: places that tenants take and leave
//! 3. [`machine`]: the host machine: its device tree, extensions, memory map and settings
//! 4. [`measure`]: counters, and the notes that harts take on request
//! 5. [`backend`]: the host's side of devices
//! 6. [`device`]: the devices of a guest's board, and the machine's offer to guests
//! 7. [`vm`]: a VM, its vCPUs and its events; all VMs
//! 8. [`hart`]: harts: their functions, their shared state, their queues
//! 9. [`pager`]: the state of paging and of promotion
//! 10. [`gnomon`]: the state that all harts share
//! 11. [`memory`]: VMs' memory: translation, fences between harts, paging
//! 12. [`io`]: interrupt lines, devices' access to guest memory, events of the host's devices
//! 13. [`life`]: creation, start, reset and end of VMs; snapshots
//! 14. [`control`]: the control channel, the debugger, statistics
//! 15. [`exit`]: exits and the SBI
//!
//! Start reading at [`exit`] and [`gnomon`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod backend;
pub mod control;
pub mod device;
pub mod exit;
pub mod gnomon;
pub mod hart;
pub mod io;
pub mod life;
pub mod machine;
pub mod measure;
pub mod memory;
pub mod pager;
#[cfg(test)]
mod random;
pub mod slots;
pub mod sync;
pub mod vm;
