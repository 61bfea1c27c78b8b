//! Entry to programs, and traps.
//!
//! `sscratch` is the hart's `Hart` while it is in a program, and 0 in the kernel. The kernel keeps interrupts off, so it traps only
//! where it accesses a program's memory ([`super::user`]), or by a fault of its own.

use super::Hart;
use crate::machine::{Context, Trap};
use crate::task::Thread;
use core::arch::{global_asm, naked_asm};
use core::mem::offset_of;
use linux_raw_sys::general as linux;

/// Runs a program until it traps.
pub fn enter_user(context: &mut Context) -> Trap {
    // SAFETY: the table that the hart translates by keeps the kernel's memory from programs, and all traps come to `vector`.
    unsafe { enter(context) }
}

#[unsafe(naked)]
unsafe extern "C" fn enter(context: &mut Context) -> Trap {
    naked_asm!(
        "addi sp, sp, -112",
        "sd ra, 0(sp)",
        "sd s0, 8(sp)",
        "sd s1, 16(sp)",
        "sd s2, 24(sp)",
        "sd s3, 32(sp)",
        "sd s4, 40(sp)",
        "sd s5, 48(sp)",
        "sd s6, 56(sp)",
        "sd s7, 64(sp)",
        "sd s8, 72(sp)",
        "sd s9, 80(sp)",
        "sd s10, 88(sp)",
        "sd s11, 96(sp)",
        "sd sp, {stack}(tp)",
        "sd a0, {context}(tp)",
        "csrw sscratch, tp",
        "ld t0, {pc}(a0)",
        "csrw sepc, t0",
        ".irp n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "ld x\\n, 8*\\n(a0)",
        ".endr",
        "ld a0, 80(a0)",
        "sret",
        stack = const offset_of!(Hart, stack),
        context = const offset_of!(Hart, context),
        pc = const offset_of!(Context, pc),
    )
}

global_asm!(
    ".section .text",
    ".balign 4",
    ".global vkernel_vector",
    "vkernel_vector:",
    "csrrw tp, sscratch, tp",
    "beqz tp, 1f",
    "sd t0, {scratch}(tp)",
    "csrr t0, scause",
    "addi t0, t0, -8",
    "bnez t0, 3f",
    "addi t0, a7, -{light_first}",
    "sltiu t0, t0, {lights}",
    "bnez t0, 4f",
    "3: ld t0, {scratch}(tp)",
    "sd a0, {scratch}(tp)",
    "ld a0, {context}(tp)",
    ".irp n, 1,2,3,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "sd x\\n, 8*\\n(a0)",
    ".endr",
    "ld t0, {scratch}(tp)",
    "csrrw t1, sscratch, x0",
    "csrr t2, sepc",
    "sd t0, 80(a0)",
    "sd t1, 32(a0)",
    "sd t2, {pc}(a0)",
    "csrr a0, scause",
    "csrr a1, stval",
    "ld sp, {stack}(tp)",
    "ld ra, 0(sp)",
    "ld s0, 8(sp)",
    "ld s1, 16(sp)",
    "ld s2, 24(sp)",
    "ld s3, 32(sp)",
    "ld s4, 40(sp)",
    "ld s5, 48(sp)",
    "ld s6, 56(sp)",
    "ld s7, 64(sp)",
    "ld s8, 72(sp)",
    "ld s9, 80(sp)",
    "ld s10, 88(sp)",
    "ld s11, 96(sp)",
    "addi sp, sp, 112",
    "ret",
    // A call that needs little is handled without the rest of the registers. Those that a function may change are kept on the stack.
    "4: sd t1, {scratch} + 8(tp)",
    "ld t0, {stack}(tp)",
    "addi t0, t0, -128",
    "sd sp, 0(t0)",
    "mv sp, t0",
    "sd ra, 8(sp)",
    "sd t2, 16(sp)",
    "sd t3, 24(sp)",
    "sd t4, 32(sp)",
    "sd t5, 40(sp)",
    "sd t6, 48(sp)",
    "sd a0, 56(sp)",
    "sd a1, 64(sp)",
    "sd a2, 72(sp)",
    "sd a3, 80(sp)",
    "sd a4, 88(sp)",
    "sd a5, 96(sp)",
    "sd a6, 104(sp)",
    "sd a7, 112(sp)",
    // The kernel's: a trap meanwhile is a fault of its own.
    "csrrw t1, sscratch, x0",
    "sd t1, 120(sp)",
    "ld a0, {thread}(tp)",
    "mv a1, a7",
    "call {light}",
    "ld t1, 120(sp)",
    "csrw sscratch, t1",
    "ld ra, 8(sp)",
    "ld t2, 16(sp)",
    "ld t3, 24(sp)",
    "ld t4, 32(sp)",
    "ld t5, 40(sp)",
    "ld t6, 48(sp)",
    "ld a2, 72(sp)",
    "ld a3, 80(sp)",
    "ld a4, 88(sp)",
    "ld a5, 96(sp)",
    "ld a6, 104(sp)",
    "ld a7, 112(sp)",
    "beqz a0, 5f",
    "mv a0, a1",
    "csrr t0, sepc",
    "addi t0, t0, 4",
    "csrw sepc, t0",
    "ld a1, 64(sp)",
    "ld sp, 0(sp)",
    "ld t0, {scratch}(tp)",
    "ld t1, {scratch} + 8(tp)",
    "csrrw tp, sscratch, tp",
    "sret",
    "5: ld a0, 56(sp)",
    "ld a1, 64(sp)",
    "ld sp, 0(sp)",
    "ld t1, {scratch} + 8(tp)",
    "j 3b",
    // From the kernel: an access to a program's memory ends early, anything else is a fault of the kernel's.
    "1: csrrw tp, sscratch, tp",
    "sd t0, {scratch}(tp)",
    "sd t1, {scratch} + 8(tp)",
    "csrr t0, sepc",
    "la t1, {first}",
    "bltu t0, t1, 2f",
    "la t1, {behind}",
    "bgeu t0, t1, 2f",
    "csrw sepc, t1",
    "ld t0, {scratch}(tp)",
    "ld t1, {scratch} + 8(tp)",
    "sret",
    "2: csrr a0, scause",
    "csrr a1, sepc",
    "csrr a2, stval",
    "mv a3, ra",
    "j {bug}",
    scratch = const offset_of!(Hart, scratch),
    stack = const offset_of!(Hart, stack),
    context = const offset_of!(Hart, context),
    pc = const offset_of!(Context, pc),
    first = sym super::user::access_first,
    behind = sym super::user::access_fault,
    bug = sym bug,
    thread = const offset_of!(Hart, thread),
    light = sym light,
    light_first = const LIGHT_FIRST,
    lights = const linux::__NR_gettid - LIGHT_FIRST + 1,
);

unsafe extern "C" {
    /// The trap vector.
    pub(super) fn vkernel_vector();
}

/// Numbers of light calls are among those from here to `gettid`'s.
const LIGHT_FIRST: u32 = linux::__NR_getpid;

/// The answer to a light call: whether it is one, and a0.
#[repr(C)]
struct Answer {
    is_handled: u64,
    value: u64,
}

/// Handles a call for the vector, if it is a light one.
extern "C" fn light(thread: &Thread, number: u64) -> Answer {
    let value = crate::call::light(thread, number);
    Answer { is_handled: value.is_some().into(), value: value.unwrap_or(0) }
}

extern "C" fn bug(cause: u64, at: u64, value: u64, from: u64) -> ! {
    panic!("trap in the kernel: cause {cause:#x} at {at:#x}, value {value:#x}, called from {from:#x}")
}
