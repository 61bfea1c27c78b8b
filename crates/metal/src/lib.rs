//! The instructions: CSR access, fences, RAM and device access, SBI calls, the world switch.
//!
//! This is the one crate that cannot run on a host, so it takes no decisions: each function is one
//! instruction or one short sequence, with the reason why it is sound.
#![no_std]
#![cfg(target_arch = "riscv64")]
#![expect(unsafe_code, reason = "this crate is where instructions and pointers live")]

pub mod csr;
pub mod fence;
pub mod float;
pub mod guest_byte;
pub mod guest_memory;
pub mod lane;
mod lane_table;
pub mod mmio;
pub mod ram;
pub mod sbi;
pub mod vector;
pub mod world;

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

/// Waits for an interrupt that is enabled in `mie` or `sie`, pending or to come; it is not taken
/// while interrupts are globally disabled.
pub fn wait_for_interrupt() {
    // SAFETY: WFI changes no state that Rust knows of. Not `nomem`: others write memory meanwhile.
    unsafe { asm!("wfi", options(nostack)) };
}

/// The address of the `mtime` register that [`time`] reads, 0 for the `time` CSR.
static MTIME: AtomicU64 = AtomicU64::new(0);

/// Makes [`time`] read the register `mtime` at this address, on all harts, because one of them has no `time` CSR.
///
/// # Safety
/// The address of the platform's `mtime`, 8 bytes wide, which every hart may read by that address.
pub unsafe fn use_mtime(address: u64) {
    MTIME.store(address, Ordering::Relaxed);
}

/// Reads the time: ticks of the platform's timebase.
#[must_use]
#[inline]
pub fn time() -> u64 {
    let mtime = MTIME.load(Ordering::Relaxed);
    if mtime != 0 {
        // SAFETY: by the promise of `use_mtime`.
        return unsafe { mmio::read64(mtime) };
    }
    let ticks: u64;
    // SAFETY: reading a counter has no effect.
    unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

/// Reads `instret`: instructions retired by this hart.
#[must_use]
pub fn instructions_retired() -> u64 {
    let count: u64;
    // SAFETY: reading a counter has no effect.
    unsafe { asm!("rdinstret {}", out(reg) count, options(nomem, nostack)) };
    count
}
