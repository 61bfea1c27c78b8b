//! Calls to the firmware below, in the payload seat.

use core::arch::asm;

/// Calls function `fid` of extension `eid`; returns (error, value).
///
/// # Safety
/// The call must not make the firmware write memory that Rust owns, nor start a hart at an address
/// that is not meant for it.
pub unsafe fn call(eid: usize, fid: usize, args: [u64; 3]) -> (i64, u64) {
    let (error, value): (i64, u64);
    // SAFETY: the SBI calling convention preserves every register but a0 and a1 (SBI 2.0, chapter 3);
    // the rest is the caller's promise.
    unsafe {
        asm!("ecall", inlateout("a0") args[0] => error, inlateout("a1") args[1] => value,
             in("a2") args[2], in("a6") fid, in("a7") eid, options(nostack));
    }
    (error, value)
}
