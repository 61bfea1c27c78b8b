//! Gnomon's image: boot, the trap handler, and [`hypervisor::hart::env::Env`] made of instructions.
//!
//! Boot order: [`entry`] finds its seat and a stack; [`boot`] reads the machine, sets memory up and
//! releases the other harts; every hart then runs [`hart::Hart`]'s loop.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "the boot and trap code: each block says why it is sound")]

extern crate alloc;

mod block;
mod boot;
mod buffer;
mod control;
mod disks;
mod drivers;
mod entry;
mod guest;
mod hart;
mod heap;
mod net;
mod panic;
mod pen;
mod protect;
mod rng;
mod seat;
mod share;
mod swap;
mod virtio;
