//! The first instructions of every hart: they find the seat, the boot hart, and a stack.

use crate::boot;
use crate::pen::{HART_IDS, RELEASED, STACK_BYTES};
use core::arch::global_asm;
use core::sync::atomic::AtomicU32;
use hypervisor::hart::harts::MAX_HARTS;

/// Taken by the first hart to arrive. In `.data`: it must survive the clearing of `.bss`.
#[unsafe(link_section = ".data.boot")]
static LOTTERY: AtomicU32 = AtomicU32::new(0);
global_asm!(
    ".section .text.entry, \"ax\"",
    ".global __stack_bytes",
    ".equ __stack_bytes, {stacks}",
    ".global _start",
    "_start:",
    // a0: hart id, a1: device tree, a2: fw_dynamic information (firmware seat).
    // Which seat? Only M mode may read mhartid. In S mode the firmware hands the illegal instruction
    // to stvec.
    "la t0, 1f",
    "csrw stvec, t0",
    "li s0, 0",
    "csrr t1, mhartid",
    "j 2f",
    ".balign 4",
    "1: li s0, 1",
    "2:",
    "la t0, {lottery}",
    "li t1, 1",
    "amoswap.w.aqrl t1, t1, (t0)",
    "bnez t1, 4f",
    // The boot hart: index 0.
    "la t0, __bss_start",
    "la t1, __bss_end",
    "3: sd zero, 0(t0)",
    "addi t0, t0, 8",
    "bltu t0, t1, 3b",
    "la sp, __stacks",
    "li t0, {stack}",
    "add sp, sp, t0",
    "mv a3, s0",
    "tail {boot}",
    // The others, in the firmware seat: wait for an IPI, which ends the wait and is not taken, then look for their index. None
    // spins: the boot hart may share a core with them.
    "4: la t0, {released}",
    "csrci mstatus, 8", // MIE
    "li t1, 8", // MSIE
    "csrw mie, t1",
    "5: ld t1, 0(t0)",
    "bnez t1, 9f",
    "wfi",
    "j 5b",
    "9:",
    "fence",
    "la t0, {ids}",
    "li a1, 0",
    "6: ld t2, 0(t0)",
    "beq t2, a0, 7f",
    "addi t0, t0, 8",
    "addi a1, a1, 1",
    "bltu a1, t1, 6b",
    "8: wfi", // a hart that the device tree does not offer
    "j 8b",
    // A secondary hart: a0 is its id, a1 its index. The payload seat's enter here.
    ".global gnomon_secondary",
    ".balign 4",
    "gnomon_secondary:",
    "7: la sp, __stacks",
    "addi t1, a1, 1",
    "li t0, {stack}",
    "mul t1, t1, t0",
    "add sp, sp, t1",
    "tail {secondary}",
    stacks = const STACK_BYTES * MAX_HARTS,
    stack = const STACK_BYTES,
    lottery = sym LOTTERY,
    released = sym RELEASED,
    ids = sym HART_IDS,
    boot = sym boot::boot,
    secondary = sym boot::secondary,
);
