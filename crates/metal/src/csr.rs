//! CSRs by name, as modules with `read`, `write`, `set` and `clear`.
//!
//! Reading is safe: none of these has a read side effect. Writing can change what memory means or
//! where control goes, so it is unsafe and the caller says why it may.

/// Returns whether a read of a CSR does not trap: the trap vector, which is as before at the end, is behind the read meanwhile.
macro_rules! is_read {
    ($name:ident, $vector:literal) => {{
        let is_there: u64;
        asm!(
            "la {old}, 2f",
            concat!("csrrw {old}, ", $vector, ", {old}"),
            "li {there}, 0",
            concat!("csrr {scratch}, ", stringify!($name)),
            "li {there}, 1",
            ".balign 4",
            concat!("2: csrw ", $vector, ", {old}"),
            old = out(reg) _, there = out(reg) is_there, scratch = out(reg) _,
            options(nostack)
        );
        is_there == 1
    }};
}

macro_rules! csrs {
    ($($name:ident)*) => {$(
        #[doc = concat!("The CSR `", stringify!($name), "`. Traps where the hart lacks it or the mode may not access it.")]
        pub mod $name {
            use core::arch::asm;

            /// Reads the register.
            #[must_use]
            #[inline(always)]
            pub fn read() -> u64 {
                let value: u64;
                // SAFETY: reading has no effect beyond the result. Not `nomem`, so that reads stay
                // in order with memory accesses (`hvip` beside posted interrupts, for one).
                unsafe { asm!(concat!("csrr {}, ", stringify!($name)), out(reg) value, options(nostack)) };
                value
            }

            /// Writes the register.
            ///
            /// # Safety
            /// The new value must leave this code's own memory mapped and its traps handled.
            #[inline(always)]
            pub unsafe fn write(value: u64) {
                // SAFETY: by the caller's promise.
                unsafe { asm!(concat!("csrw ", stringify!($name), ", {}"), in(reg) value, options(nostack)) };
            }

            /// Writes the register. Returns what was in it.
            ///
            /// # Safety
            /// As for [`write`].
            #[inline(always)]
            pub unsafe fn swap(value: u64) -> u64 {
                let old: u64;
                // SAFETY: by the caller's promise.
                unsafe {
                    asm!(concat!("csrrw {}, ", stringify!($name), ", {}"), out(reg) old, in(reg) value, options(nostack));
                }
                old
            }

            /// Sets the bits given.
            ///
            /// # Safety
            /// As for [`write`].
            #[inline(always)]
            pub unsafe fn set(bits: u64) {
                // SAFETY: by the caller's promise.
                unsafe { asm!(concat!("csrs ", stringify!($name), ", {}"), in(reg) bits, options(nostack)) };
            }

            /// Clears the bits given.
            ///
            /// # Safety
            /// As for [`write`].
            #[inline(always)]
            pub unsafe fn clear(bits: u64) {
                // SAFETY: by the caller's promise.
                unsafe { asm!(concat!("csrc ", stringify!($name), ", {}"), in(reg) bits, options(nostack)) };
            }

            /// Returns whether this hart has the register, by reading it with the trap vector behind the read.
            ///
            /// # Safety
            /// M mode, with interrupts disabled. Overwrites the trap CSRs and `mstatus.MPP` where there
            /// is none.
            #[must_use]
            pub unsafe fn exists() -> bool {
                // SAFETY: M mode, so the illegal instruction comes to `mtvec`.
                unsafe { is_read!($name, "mtvec") }
            }

            /// Like [`exists`], in HS or S mode.
            ///
            /// # Safety
            /// HS or S mode, with interrupts disabled; an illegal instruction comes to `stvec`. Overwrites the trap CSRs, `sstatus.SPP`
            /// and `hstatus.SPV` where there is none.
            #[must_use]
            pub unsafe fn exists_for_supervisor() -> bool {
                // SAFETY: by the caller's promise the trap comes to `stvec`.
                unsafe { is_read!($name, "stvec") }
            }
        }
    )*};
}

csrs! {
    sstatus sie stvec scounteren senvcfg sscratch sepc scause stval sip satp stimecmp
    hstatus hedeleg hideleg hie hcounteren hgeie htval hip hvip htinst hgatp henvcfg htimedelta hstateen0
    vsstatus vsie vstvec vsscratch vsepc vscause vstval vsip vsatp vstimecmp
    mstatus misa medeleg mideleg mie mtvec mcounteren menvcfg mscratch mepc mcause mtval mip mtval2 mtinst mhartid
    mvendorid marchid mimpid mstateen0 mcountinhibit scountinhibit time
    pmpcfg0 pmpaddr0 pmpaddr1 pmpaddr2 pmpaddr3 pmpaddr4 pmpaddr5 pmpaddr6 pmpaddr7
    vlenb vstart vcsr vl vtype fcsr
    mcycle minstret cycle instret
    hpmcounter3 hpmcounter4 hpmcounter5 hpmcounter6 hpmcounter7 hpmcounter8
}

/// The VS-level registers under the names by which a guest knows them.
pub mod vs {
    pub use super::{
        vsatp as satp, vscause as scause, vsepc as sepc, vsie as sie, vsip as sip, vsscratch as sscratch,
        vsstatus as sstatus, vstimecmp as stimecmp, vstval as stval, vstvec as stvec,
    };
}
