//! Access to a byte of a guest's memory with the guest's own rights (firmware seat): `mstatus.MPRV` makes loads and stores of M mode
//! translate and be checked as in the mode that `mstatus.MPP` and `MPV` name, which is the one that has trapped.

use crate::csr;
use core::arch::asm;

const MPRV: u64 = 1 << 17;

/// Makes such an access by an instruction on `{byte}` and `({at})`, with the trap vector behind it: evaluates to whether it trapped.
macro_rules! access {
    ($insn:literal, $at:expr, $byte:tt $(($out:expr))? $([$in:expr])?) => {{
        let trapped: u64;
        // SAFETY: M mode, by the callers' promise, with interrupts disabled. A trap comes to `mtvec`, which is as before at the
        // end. It changes `mstatus`, which is as before, too, and trap CSRs, which nothing reads but `fault`. With MPRV
        // set no instruction but this one accesses memory. What it stores is the guest's memory, which no Rust object occupies.
        unsafe {
            asm!(
                "la {vector}, 2f",
                "csrrw {vector}, mtvec, {vector}",
                "csrrs {status}, mstatus, {mprv}",
                "li {trapped}, 1",
                $insn,
                "li {trapped}, 0",
                ".balign 4",
                "2: csrw mstatus, {status}",
                "csrw mtvec, {vector}",
                vector = out(reg) _, status = out(reg) _, trapped = out(reg) trapped,
                mprv = in(reg) MPRV, at = in(reg) $at, $(byte = inlateout(reg) $out,)? $(byte = in(reg) $in,)?
                options(nostack)
            );
        }
        trapped != 0
    }};
}

/// The cause and the address of the fault of a byte. On harts with the H extension, `mtval2` and `mtinst` tell more.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// `mcause`.
    pub cause: u64,
    /// `mtval`.
    pub tval: u64,
}

fn fault() -> Fault {
    Fault { cause: csr::mcause::read(), tval: csr::mtval::read() }
}

/// Loads the byte at the guest's address `at`.
///
/// # Errors
/// The fault.
///
/// # Safety
/// Firmware seat, while an exit is handled: `mstatus` names the guest's mode. Trap CSRs of the exit have been read.
pub unsafe fn load(at: u64) -> Result<u8, Fault> {
    let mut byte: u64 = 0;
    if access!("lbu {byte}, 0({at})", at, byte(byte)) { Err(fault()) } else { Ok(byte as u8) }
}

/// Stores a byte at the guest's address `at`.
///
/// # Errors
/// The fault.
///
/// # Safety
/// As for [`load`].
pub unsafe fn store(at: u64, byte: u8) -> Result<(), Fault> {
    let byte = u64::from(byte);
    if access!("sb {byte}, 0({at})", at, byte[byte]) { Err(fault()) } else { Ok(()) }
}
