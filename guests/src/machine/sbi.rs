//! SBI calls.
#![expect(unsafe_code, reason = "ecall")]

use core::arch::asm;
use sbi_spec::{base, binary, dbcn, hsm, rfnc, spi, srst, time};

/// Success.
pub const SUCCESS: i64 = binary::RET_SUCCESS as i64;
/// No such extension or function.
pub const NOT_SUPPORTED: i64 = binary::RET_ERR_NOT_SUPPORTED as i64;
/// A bad parameter.
pub const INVALID_PARAM: i64 = binary::RET_ERR_INVALID_PARAM as i64;
/// A bad address.
pub const INVALID_ADDRESS: i64 = binary::RET_ERR_INVALID_ADDRESS as i64;
/// The hart is started already.
pub const ALREADY_AVAILABLE: i64 = binary::RET_ERR_ALREADY_AVAILABLE as i64;
/// The implementation does not allow it.
pub const DENIED: i64 = -4;
/// The hart is started already.
pub const ALREADY_STARTED: i64 = -7;
/// The hart is stopped already.
pub const ALREADY_STOPPED: i64 = -8;
/// No memory is shared.
pub const NO_SHMEM: i64 = -9;
/// Not in this state.
pub const INVALID_STATE: i64 = -10;
/// Numbers beyond those that there are.
pub const BAD_RANGE: i64 = -11;
/// Denied by an earlier call.
pub const DENIED_LOCKED: i64 = -14;

/// Gnomon's SBI implementation id.
const GNOMON: u64 = 0x676e_6f6d;

/// All harts, as a hart mask base.
pub const ALL_HARTS: u64 = u64::MAX;

/// Calls function `fid` of extension `eid` with up to six arguments; returns (error, value).
///
/// Safe in a guest: the one thing at stake is the guest itself.
pub fn call(eid: usize, fid: usize, args: [u64; 6]) -> (i64, u64) {
    let (error, value): (i64, u64);
    // SAFETY: SBI preserves every register but a0 and a1; memory may be read or written (no
    // `nomem`), and a buffer to be written is passed by its exposed address.
    unsafe {
        asm!("ecall", inlateout("a0") args[0] => error, inlateout("a1") args[1] => value,
             in("a2") args[2], in("a3") args[3], in("a4") args[4], in("a5") args[5],
             in("a6") fid, in("a7") eid, options(nostack));
    }
    (error, value)
}

fn call3(eid: usize, fid: usize, [a, b, c]: [u64; 3]) -> (i64, u64) {
    call(eid, fid, [a, b, c, 0, 0, 0])
}

/// A function of the base extension.
#[must_use]
pub fn base(fid: usize) -> (i64, u64) {
    call3(base::EID_BASE, fid, [0; 3])
}

/// Returns whether the extension is there.
#[must_use]
pub fn probe(eid: usize) -> bool {
    call3(base::EID_BASE, base::PROBE_EXTENSION, [eid as u64, 0, 0]).1 != 0
}

/// Returns whether Gnomon is underneath, rather than a bare machine's firmware.
#[must_use]
pub fn is_gnomon() -> bool {
    base(base::GET_SBI_IMPL_ID).1 == GNOMON
}

/// Writes bytes to the debug console; returns (error, bytes written).
pub fn console_write(bytes: &[u8]) -> (i64, u64) {
    let at = bytes.as_ptr().expose_provenance() as u64;
    call3(dbcn::EID_DBCN, dbcn::CONSOLE_WRITE, [bytes.len() as u64, at, 0])
}

/// Makes the next timer interrupt of this hart come at `time`.
pub fn set_timer(time: u64) -> i64 {
    call3(time::EID_TIME, time::SET_TIMER, [time, 0, 0]).0
}

/// Sends a software interrupt to the harts of the mask.
pub fn send_ipi(mask: u64, mask_base: u64) -> i64 {
    call3(spi::EID_SPI, spi::SEND_IPI, [mask, mask_base, 0]).0
}

/// Starts a hart at a physical address.
pub fn hart_start(hart: u64, at: u64, opaque: u64) -> i64 {
    call3(hsm::EID_HSM, hsm::HART_START, [hart, at, opaque]).0
}

/// Stops this hart; returns only on an error.
pub fn hart_stop() -> i64 {
    call3(hsm::EID_HSM, hsm::HART_STOP, [0; 3]).0
}

/// The HSM state of a hart: (error, state).
#[must_use]
pub fn hart_status(hart: u64) -> (i64, u64) {
    call3(hsm::EID_HSM, hsm::HART_GET_STATUS, [hart, 0, 0])
}

/// A remote fence over `[start, start + bytes)`; `asid` matters for `REMOTE_SFENCE_VMA_ASID` only.
pub fn remote_fence(fid: usize, mask: u64, mask_base: u64, start: u64, bytes: u64, asid: u64) -> i64 {
    call(rfnc::EID_RFNC, fid, [mask, mask_base, start, bytes, asid, 0]).0
}

/// Asks for a system reset of the type, with the reason; returns only on an error.
pub fn reset(kind: u32, reason: u32) -> i64 {
    call3(srst::EID_SRST, srst::SYSTEM_RESET, [u64::from(kind), u64::from(reason), 0]).0
}

/// Turns the machine off.
pub fn shutdown(is_failure: bool) -> ! {
    let reason = if is_failure { srst::RESET_REASON_SYSTEM_FAILURE } else { srst::RESET_REASON_NO_REASON };
    reset(srst::RESET_TYPE_SHUTDOWN, reason);
    loop {
        metal::wait_for_interrupt();
    }
}
