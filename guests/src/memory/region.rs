//! Markers for the meter (docs/meter.md): where a region begins and ends. Hints, so they do nothing elsewhere.
#![expect(unsafe_code, reason = "hints have no other name")]

use core::arch::asm;

/// A region begins.
pub fn begin(label: u64) {
    // SAFETY: a hint. That it may access memory keeps the compiler from moving accesses across it.
    unsafe { asm!("slti zero, {}, 1", in(reg) label, options(nostack)) };
}

/// Ends the meter's region.
pub fn end(label: u64) {
    // SAFETY: as above.
    unsafe { asm!("slti zero, {}, 2", in(reg) label, options(nostack)) };
}
