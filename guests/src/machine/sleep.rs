//! Non-retentive suspend of a hart: it loses its registers, and comes back where it left.
#![expect(unsafe_code, reason = "assembly that keeps and restores the registers which Rust expects to find")]

use crate::trap;
use core::arch::global_asm;
use core::mem::offset_of;
use metal::csr;
use sbi_spec::hsm;

/// A hart's state that the suspend loses and Rust needs, and what it finds afterwards.
#[repr(C)]
#[derive(Debug, Default)]
struct Kept {
    /// ra, sp, gp, tp, s0 to s11.
    registers: [u64; 16],
    /// a0, a1, `sstatus`, `satp` at the first instruction.
    found: [u64; 4],
}

global_asm!(
    ".section .text",
    ".macro each_kept op",
    "\\op ra, 0(a1)",
    "\\op sp, 8(a1)",
    "\\op gp, 16(a1)",
    "\\op tp, 24(a1)",
    "\\op s0, 32(a1)",
    "\\op s1, 40(a1)",
    "\\op s2, 48(a1)",
    "\\op s3, 56(a1)",
    "\\op s4, 64(a1)",
    "\\op s5, 72(a1)",
    "\\op s6, 80(a1)",
    "\\op s7, 88(a1)",
    "\\op s8, 96(a1)",
    "\\op s9, 104(a1)",
    "\\op s10, 112(a1)",
    "\\op s11, 120(a1)",
    ".endm",
    // a0: the type, a1: where to keep what is needed. Returns the call's error, or 1 after a resume.
    ".balign 4",
    ".global guest_sleep",
    "guest_sleep:",
    "each_kept sd",
    "mv a2, a1",
    "la a1, 1f",
    "li a6, {suspend}",
    "li a7, {hsm}",
    "ecall",
    "ret",
    ".balign 4",
    "1: sd a0, {found}(a1)",
    "sd a1, {found}+8(a1)",
    "csrr t0, sstatus",
    "sd t0, {found}+16(a1)",
    "csrr t0, satp",
    "sd t0, {found}+24(a1)",
    "csrw sie, x0",
    "each_kept ld",
    "li a0, 1",
    "ret",
    suspend = const hsm::HART_SUSPEND,
    hsm = const hsm::EID_HSM,
    found = const offset_of!(Kept, found),
);

unsafe extern "C" {
    fn guest_sleep(kind: u64, kept: *mut Kept) -> i64;
}

/// A hart that has come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Woken {
    /// a0 at the first instruction.
    pub hart: u64,
    /// True if a1 was what the call named.
    pub has_opaque: bool,
    /// `sstatus` there.
    pub sstatus: u64,
    /// `satp` there.
    pub satp: u64,
}

/// Suspends this hart, which loses its state. Afterwards `sie` is 0, and translation as it is found.
///
/// # Errors
/// That of the call.
pub fn suspend(kind: u64) -> Result<Woken, i64> {
    let mut kept = Kept::default();
    let at = &raw mut kept;
    // SAFETY: returns once, with all registers restored that a callee must keep; memory is mapped to itself.
    match unsafe { guest_sleep(kind, at) } {
        1 => {
            // SAFETY: the runtime's own vector, which the suspend has lost.
            unsafe { csr::stvec::write(trap::vector()) };
            let [hart, opaque, sstatus, satp] = kept.found;
            Ok(Woken { hart, has_opaque: opaque == at.expose_provenance() as u64, sstatus, satp })
        }
        error => Err(error),
    }
}
