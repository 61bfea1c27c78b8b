//! Floating-point registers. Gnomon is compiled without floating point, so the registers always
//! hold a guest's state: that of the vCPU which last ran here.

use ::lane::FloatState;
use core::arch::naked_asm;

macro_rules! each_register {
    ($op:literal) => {
        concat!(
            $op,
            " f0, 0(a0)\n",
            $op,
            " f1, 8(a0)\n",
            $op,
            " f2, 16(a0)\n",
            $op,
            " f3, 24(a0)\n",
            $op,
            " f4, 32(a0)\n",
            $op,
            " f5, 40(a0)\n",
            $op,
            " f6, 48(a0)\n",
            $op,
            " f7, 56(a0)\n",
            $op,
            " f8, 64(a0)\n",
            $op,
            " f9, 72(a0)\n",
            $op,
            " f10, 80(a0)\n",
            $op,
            " f11, 88(a0)\n",
            $op,
            " f12, 96(a0)\n",
            $op,
            " f13, 104(a0)\n",
            $op,
            " f14, 112(a0)\n",
            $op,
            " f15, 120(a0)\n",
            $op,
            " f16, 128(a0)\n",
            $op,
            " f17, 136(a0)\n",
            $op,
            " f18, 144(a0)\n",
            $op,
            " f19, 152(a0)\n",
            $op,
            " f20, 160(a0)\n",
            $op,
            " f21, 168(a0)\n",
            $op,
            " f22, 176(a0)\n",
            $op,
            " f23, 184(a0)\n",
            $op,
            " f24, 192(a0)\n",
            $op,
            " f25, 200(a0)\n",
            $op,
            " f26, 208(a0)\n",
            $op,
            " f27, 216(a0)\n",
            $op,
            " f28, 224(a0)\n",
            $op,
            " f29, 232(a0)\n",
            $op,
            " f30, 240(a0)\n",
            $op,
            " f31, 248(a0)\n",
        )
    };
}

/// Stores the registers.
///
/// # Safety
/// `status.FS` must not be Off, and the hart must have D.
#[unsafe(naked)]
pub unsafe extern "C" fn save(to: &mut FloatState) {
    naked_asm!(
        ".option push",
        ".option arch, +d",
        each_register!("fsd"),
        "frcsr t0",
        "sd t0, 256(a0)",
        "ret",
        ".option pop"
    )
}

/// Loads the registers.
///
/// # Safety
/// As for [`save`].
#[unsafe(naked)]
pub unsafe extern "C" fn restore(from: &FloatState) {
    naked_asm!(
        ".option push",
        ".option arch, +d",
        each_register!("fld"),
        "ld t0, 256(a0)",
        "fscsr t0",
        "ret",
        ".option pop"
    )
}

const _: () = assert!(core::mem::offset_of!(FloatState, fcsr) == 256);
