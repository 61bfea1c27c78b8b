//! The machine: its description, harts, traps, calls of its firmware, and user mode.

pub mod board;
pub mod event;
pub mod hart;
pub mod sbi;
pub mod schedule;
pub mod sleep;
pub mod start;
pub mod trap;
pub mod user;
