//! Counts of what hardware would see of software that an emulator runs: instructions and traps by privilege mode, TLB
//! misses, page walks and their memory references, for cores that are described in files.
//!
//! The emulator tells a [`hart::Hart`] what its hart does: the blocks that it enters, the accesses
//! that it makes, the instructions of [`insn::Special`]. All is pure: guest memory and registers are
//! read through [`hart::Machine`], which the plugin implements with QEMU and tests with plain data.
//! See docs/meter.md.
#![forbid(unsafe_code)]

pub mod args;
pub mod array;
pub mod block;
pub mod check;
pub mod core;
pub mod counts;
pub mod hart;
pub mod insn;
pub mod mode;
pub mod model;
pub mod report;
pub mod shared;
pub mod tables;
pub mod walk;
