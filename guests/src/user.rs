//! User mode: run some code there until its next trap.
#![expect(unsafe_code, reason = "sret and the vector for traps from U")]

use crate::trap::{self, Trap};
use core::arch::global_asm;
use core::mem::offset_of;
use metal::csr;
use rv::csr::status;

/// A user program's registers, and where the kernel's are kept meanwhile.
#[repr(C)]
#[derive(Debug, Default)]
pub struct User {
    /// x0 to x31 (x0 unused).
    pub x: [u64; 32],
    /// The program counter.
    pub pc: u64,
    kernel: [u64; 16],
}

global_asm!(
    ".section .text.user_switch, \"ax\"",
    // a0: the User. Returns at the program's next trap.
    ".global guest_enter_user",
    "guest_enter_user:",
    "sd ra, {kernel}(a0)", "sd sp, {kernel} + 8(a0)", "sd gp, {kernel} + 16(a0)", "sd tp, {kernel} + 24(a0)",
    "sd s0, {kernel} + 32(a0)", "sd s1, {kernel} + 40(a0)", "sd s2, {kernel} + 48(a0)", "sd s3, {kernel} + 56(a0)",
    "sd s4, {kernel} + 64(a0)", "sd s5, {kernel} + 72(a0)", "sd s6, {kernel} + 80(a0)", "sd s7, {kernel} + 88(a0)",
    "sd s8, {kernel} + 96(a0)", "sd s9, {kernel} + 104(a0)", "sd s10, {kernel} + 112(a0)",
    "sd s11, {kernel} + 120(a0)",
    "csrw sscratch, a0",
    "ld t0, {pc}(a0)",
    "csrw sepc, t0",
    "la t0, guest_user_vector",
    "csrw stvec, t0",
    "ld x1, 8(a0)", "ld x2, 16(a0)", "ld x3, 24(a0)", "ld x4, 32(a0)", "ld x5, 40(a0)", "ld x6, 48(a0)",
    "ld x7, 56(a0)", "ld x8, 64(a0)", "ld x9, 72(a0)", "ld x11, 88(a0)", "ld x12, 96(a0)", "ld x13, 104(a0)",
    "ld x14, 112(a0)", "ld x15, 120(a0)", "ld x16, 128(a0)", "ld x17, 136(a0)", "ld x18, 144(a0)",
    "ld x19, 152(a0)", "ld x20, 160(a0)", "ld x21, 168(a0)", "ld x22, 176(a0)", "ld x23, 184(a0)",
    "ld x24, 192(a0)", "ld x25, 200(a0)", "ld x26, 208(a0)", "ld x27, 216(a0)", "ld x28, 224(a0)",
    "ld x29, 232(a0)", "ld x30, 240(a0)", "ld x31, 248(a0)", "ld x10, 80(a0)",
    "sret",
    ".balign 4",
    "guest_user_vector:",
    "csrrw a0, sscratch, a0",
    "sd x1, 8(a0)", "sd x2, 16(a0)", "sd x3, 24(a0)", "sd x4, 32(a0)", "sd x5, 40(a0)", "sd x6, 48(a0)",
    "sd x7, 56(a0)", "sd x8, 64(a0)", "sd x9, 72(a0)", "sd x11, 88(a0)", "sd x12, 96(a0)", "sd x13, 104(a0)",
    "sd x14, 112(a0)", "sd x15, 120(a0)", "sd x16, 128(a0)", "sd x17, 136(a0)", "sd x18, 144(a0)",
    "sd x19, 152(a0)", "sd x20, 160(a0)", "sd x21, 168(a0)", "sd x22, 176(a0)", "sd x23, 184(a0)",
    "sd x24, 192(a0)", "sd x25, 200(a0)", "sd x26, 208(a0)", "sd x27, 216(a0)", "sd x28, 224(a0)",
    "sd x29, 232(a0)", "sd x30, 240(a0)", "sd x31, 248(a0)",
    "csrr t0, sscratch",
    "sd t0, 80(a0)",
    "ld ra, {kernel}(a0)", "ld sp, {kernel} + 8(a0)", "ld gp, {kernel} + 16(a0)", "ld tp, {kernel} + 24(a0)",
    "ld s0, {kernel} + 32(a0)", "ld s1, {kernel} + 40(a0)", "ld s2, {kernel} + 48(a0)", "ld s3, {kernel} + 56(a0)",
    "ld s4, {kernel} + 64(a0)", "ld s5, {kernel} + 72(a0)", "ld s6, {kernel} + 80(a0)", "ld s7, {kernel} + 88(a0)",
    "ld s8, {kernel} + 96(a0)", "ld s9, {kernel} + 104(a0)", "ld s10, {kernel} + 112(a0)",
    "ld s11, {kernel} + 120(a0)",
    "ret",
    kernel = const offset_of!(User, kernel),
    pc = const offset_of!(User, pc),
);

unsafe extern "C" {
    fn guest_enter_user(user: *mut User);
}

impl User {
    /// A program that starts at `pc`.
    #[must_use]
    pub fn at(pc: u64) -> Self {
        Self { pc, ..Self::default() }
    }

    /// Runs the program until its next trap, an interrupt included, and leaves `pc` at the trapped
    /// instruction.
    pub fn run(&mut self) -> Trap {
        // SAFETY: SPP=U and SPIE only matter to the sret that follows; the assembly keeps every
        // register that Rust needs, and restores the vector by the write below.
        unsafe {
            csr::sstatus::clear(status::SPP);
            csr::sstatus::set(status::SPIE);
            guest_enter_user(self);
        }
        let found = Trap {
            cause: csr::scause::read(),
            tval: csr::stval::read(),
            epc: csr::sepc::read(),
            status: csr::sstatus::read(),
        };
        // SAFETY: the runtime's own vector.
        unsafe { csr::stvec::write(trap::vector()) };
        self.pc = found.epc;
        found
    }
}
