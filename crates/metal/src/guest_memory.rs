//! Loads, stores and fetches in the place of the loaded guest, by the instructions that a hypervisor has for that (HLV, HSV, HLVX): the hart
//! translates and checks them as in VS mode (VU mode if `hstatus.SPVP` is 0).

use core::arch::asm;

/// Makes such an access by an instruction on `{value}` and `({at})`, with the trap vector behind it: evaluates to whether it trapped.
/// `$vector`, `$status`: the CSRs that a trap of this mode uses. `$save`, `$restore`: instructions that keep `hstatus`, which a trap to HS mode
/// changes.
macro_rules! access {
    ($vector:literal, $status:literal, ($save:literal, $restore:literal), $insn:expr, $at:expr, $value:ident) => {{
        let trapped: u64;
        // SAFETY: by the callers' promise a trap comes to this vector, with interrupts disabled. It changes the status register and, in
        // HS mode, `hstatus`, which are as before at the end, and trap CSRs, which nothing reads before the next trap. What is stored is
        // the guest's memory, which no Rust object occupies.
        unsafe {
            asm!(
                ".option push",
                ".option arch, +h",
                "la {vector}, 2f",
                concat!("csrrw {vector}, ", $vector, ", {vector}"),
                concat!("csrr {status}, ", $status),
                $save,
                "li {trapped}, 1",
                $insn,
                "li {trapped}, 0",
                "j 3f",
                ".balign 4",
                concat!("2: csrw ", $status, ", {status}"),
                $restore,
                concat!("3: csrw ", $vector, ", {vector}"),
                ".option pop",
                vector = out(reg) _, status = out(reg) _, hstatus = out(reg) _, trapped = out(reg) trapped,
                at = in(reg) $at, value = inlateout(reg) $value,
                options(nostack)
            );
        }
        trapped != 0
    }};
}

/// The mode that Gnomon runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    /// M mode: traps come to `mtvec`.
    Machine,
    /// HS mode: traps come to `stvec`.
    Supervisor,
}

macro_rules! accesses {
    ($($(#[$doc:meta])* $name:ident: $insn:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Returns the value loaded, or `None` if the access traps: the guest's own access would trap.
        ///
        /// # Safety
        /// `own` is the mode that this hart runs in, interrupts are disabled, and the trap CSRs of the last exit have been read. The hart has
        /// the H extension, and a guest is loaded and could be entered: its translations in this hart's TLB are up to date, and other
        /// harts wait for this one as if the guest ran.
        #[must_use]
        #[inline(always)]
        unsafe fn $name(own: Own, at: u64, value: u64) -> Option<u64> {
            let mut value = value;
            let trapped = match own {
                Own::Machine => access!("mtvec", "mstatus", ("// {hstatus}", ""), concat!($insn, " {value}, ({at})"), at, value),
                Own::Supervisor => {
                    access!("stvec", "sstatus", ("csrr {hstatus}, hstatus", "csrw hstatus, {hstatus}"), concat!($insn, " {value}, ({at})"), at, value)
                }
            };
            (!trapped).then_some(value)
        }
    )*};
}

accesses! {
    /// Loads a byte.
    hlv_bu: "hlv.bu";
    /// Loads 2 bytes.
    hlv_hu: "hlv.hu";
    /// Loads 4 bytes.
    hlv_wu: "hlv.wu";
    /// Loads 8 bytes.
    hlv_d: "hlv.d";
    /// Stores a byte.
    hsv_b: "hsv.b";
    /// Stores 2 bytes.
    hsv_h: "hsv.h";
    /// Stores 4 bytes.
    hsv_w: "hsv.w";
    /// Stores 8 bytes.
    hsv_d: "hsv.d";
    /// Loads 4 bytes of code.
    hlvx_wu: "hlvx.wu";
}

/// Loads 1, 2, 4 or 8 bytes at the guest's address `at`, extended by zeroes. `None` if that traps.
///
/// # Safety
/// `own` is the mode that this hart runs in, interrupts are disabled, and the trap CSRs of the last exit have been read. The hart has the H
/// extension, and a guest is loaded and could be entered: its translations in this hart's TLB are up to date, and other harts wait for
/// this one as if the guest ran.
#[must_use]
#[inline(always)]
pub unsafe fn load(own: Own, at: u64, width: u8) -> Option<u64> {
    // SAFETY: by the caller's promise.
    unsafe {
        match width {
            8 => hlv_d(own, at, 0),
            4 => hlv_wu(own, at, 0),
            2 => hlv_hu(own, at, 0),
            _ => hlv_bu(own, at, 0),
        }
    }
}

/// Stores the low 1, 2, 4 or 8 bytes of `value` at the guest's address `at`. Returns whether that was done: it was not if it traps.
///
/// # Safety
/// As for [`load`].
#[must_use]
#[inline(always)]
pub unsafe fn store(own: Own, at: u64, width: u8, value: u64) -> bool {
    // SAFETY: by the caller's promise.
    unsafe {
        match width {
            8 => hsv_d(own, at, value),
            4 => hsv_w(own, at, value),
            2 => hsv_h(own, at, value),
            _ => hsv_b(own, at, value),
        }
    }
    .is_some()
}

/// Loads 4 bytes of code at the guest's address `at`, a multiple of 4: the guest may execute them, apart from `sstatus.SUM`, which does not hold
/// for fetches but does here. `None` if that traps.
///
/// # Safety
/// As for [`load`].
#[must_use]
#[inline(always)]
pub unsafe fn fetch(own: Own, at: u64) -> Option<u32> {
    // SAFETY: by the caller's promise.
    unsafe { hlvx_wu(own, at, 0) }.map(|word| word as u32)
}
