//! Vector registers, of a length known only at run time.

use ::lane::VectorCsrs;
use core::arch::asm;

/// Stores v0 to v31 and the vector CSRs. `to` holds 32 × `vlenb` bytes.
///
/// # Safety
/// `status.VS` must not be Off and the hart must have V. `to.len()` is 32 × `vlenb`.
pub unsafe fn save(to: &mut [u8]) -> VectorCsrs {
    use crate::csr::{vcsr, vl, vstart, vtype};
    let csrs = VectorCsrs { vstart: vstart::read(), vl: vl::read(), vtype: vtype::read(), vcsr: vcsr::read() };
    // SAFETY: whole-register stores write 8 × vlenb bytes each; `to` has room for four.
    unsafe {
        vstart::write(0);
        asm!(
            ".option push", ".option arch, +v",
            "csrr {step}, vlenb", "slli {step}, {step}, 3",
            "vs8r.v v0, ({at})", "add {at}, {at}, {step}",
            "vs8r.v v8, ({at})", "add {at}, {at}, {step}",
            "vs8r.v v16, ({at})", "add {at}, {at}, {step}",
            "vs8r.v v24, ({at})",
            ".option pop",
            at = inout(reg) to.as_mut_ptr() => _, step = out(reg) _, options(nostack)
        );
    }
    csrs
}

/// Loads what [`save`] stored.
///
/// # Safety
/// As for [`save`].
pub unsafe fn restore(from: &[u8], csrs: &VectorCsrs) {
    // SAFETY: as for `save`; `vsetvl` sets vl and vtype, whose CSRs are read-only (an illegal vtype
    // sets vill, which is what was saved).
    unsafe {
        asm!(
            ".option push", ".option arch, +v",
            "csrr {step}, vlenb", "slli {step}, {step}, 3",
            "csrw vstart, x0",
            "vl8r.v v0, ({at})", "add {at}, {at}, {step}",
            "vl8r.v v8, ({at})", "add {at}, {at}, {step}",
            "vl8r.v v16, ({at})", "add {at}, {at}, {step}",
            "vl8r.v v24, ({at})",
            "vsetvl x0, {vl}, {vtype}",
            "csrw vcsr, {vcsr}",
            "csrw vstart, {vstart}",
            ".option pop",
            at = inout(reg) from.as_ptr() => _, step = out(reg) _,
            vl = in(reg) csrs.vl, vtype = in(reg) csrs.vtype, vcsr = in(reg) csrs.vcsr,
            vstart = in(reg) csrs.vstart, options(nostack)
        );
    }
}
