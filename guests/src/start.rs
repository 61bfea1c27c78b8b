//! From the first instruction to the guest's `main`, and how a guest ends when it panics.
#![expect(unsafe_code, reason = "entry assembly, the image's symbols, the global allocator")]

use crate::{board, hart, report, sbi, trap};
use core::alloc::{GlobalAlloc, Layout};
use core::arch::global_asm;
use core::mem::offset_of;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU64};

/// What the boot hart held at the first instruction.
#[repr(C)]
#[derive(Debug)]
pub struct Boot {
    /// x0 to x31; x5 (t0) is lost.
    pub x: [AtomicU64; 32],
    /// `sstatus`.
    pub sstatus: AtomicU64,
    /// `satp`.
    pub satp: AtomicU64,
    /// `sie`.
    pub sie: AtomicU64,
    /// `sip`.
    pub sip: AtomicU64,
    /// `sscratch`.
    pub sscratch: AtomicU64,
    /// `sepc`.
    pub sepc: AtomicU64,
    /// `scause`.
    pub scause: AtomicU64,
    /// `stval`.
    pub stval: AtomicU64,
}

// In .data: the entry code writes it before it clears .bss.
#[unsafe(link_section = ".data")]
static BOOT: Boot = Boot {
    x: [const { AtomicU64::new(1) }; 32],
    sstatus: AtomicU64::new(1),
    satp: AtomicU64::new(1),
    sie: AtomicU64::new(1),
    sip: AtomicU64::new(1),
    sscratch: AtomicU64::new(1),
    sepc: AtomicU64::new(1),
    scause: AtomicU64::new(1),
    stval: AtomicU64::new(1),
};

/// What the boot hart held at the first instruction.
#[must_use]
pub fn at_boot() -> &'static Boot {
    &BOOT
}

const STACK_BYTES: usize = 32 * 1024;

#[repr(C, align(4096))]
struct Stacks([[u8; STACK_BYTES]; hart::MAX]);

// Only assembly touches it, through the symbol.
#[unsafe(no_mangle)]
static mut GUEST_STACKS: Stacks = Stacks([[0; STACK_BYTES]; hart::MAX]);

global_asm!(
    ".section .text.entry, \"ax\"",
    ".global _start",
    "_start:",
    "la t0, {boot}",
    "sd x1, 8(t0)", "sd x2, 16(t0)", "sd x3, 24(t0)", "sd x4, 32(t0)", "sd x6, 48(t0)", "sd x7, 56(t0)",
    "sd x8, 64(t0)", "sd x9, 72(t0)", "sd x10, 80(t0)", "sd x11, 88(t0)", "sd x12, 96(t0)", "sd x13, 104(t0)",
    "sd x14, 112(t0)", "sd x15, 120(t0)", "sd x16, 128(t0)", "sd x17, 136(t0)", "sd x18, 144(t0)",
    "sd x19, 152(t0)", "sd x20, 160(t0)", "sd x21, 168(t0)", "sd x22, 176(t0)", "sd x23, 184(t0)",
    "sd x24, 192(t0)", "sd x25, 200(t0)", "sd x26, 208(t0)", "sd x27, 216(t0)", "sd x28, 224(t0)",
    "sd x29, 232(t0)", "sd x30, 240(t0)", "sd x31, 248(t0)", "sd x0, 0(t0)",
    "csrr t1, sstatus", "sd t1, {sstatus}(t0)",
    "csrr t1, satp", "sd t1, {satp}(t0)",
    "csrr t1, sie", "sd t1, {sie}(t0)",
    "csrr t1, sip", "sd t1, {sip}(t0)",
    "csrr t1, sscratch", "sd t1, {sscratch}(t0)",
    "csrr t1, sepc", "sd t1, {sepc}(t0)",
    "csrr t1, scause", "sd t1, {scause}(t0)",
    "csrr t1, stval", "sd t1, {stval}(t0)",
    "la t0, __bss_start",
    "la t1, __bss_end",
    "1: bgeu t0, t1, 2f",
    "sd x0, 0(t0)",
    "addi t0, t0, 8",
    "j 1b",
    "2: la t2, {main}",
    "j 3f",
    // A hart started by HSM: a0 = hart id, a1 = the opaque value.
    ".balign 4",
    ".global guest_secondary",
    "guest_secondary:",
    "la t2, {secondary}",
    "csrr a2, sstatus",
    "csrr a3, satp",
    "3: li t1, {max}",
    "4: bgeu a0, t1, 4b", // no stack for such a hart
    "mv tp, a0",
    "la sp, GUEST_STACKS",
    "addi t0, a0, 1",
    "slli t0, t0, {stack_shift}",
    "add sp, sp, t0",
    "csrw sie, x0",
    "la t0, {vector}",
    "csrw stvec, t0",
    "jr t2",
    boot = sym BOOT,
    sstatus = const offset_of!(Boot, sstatus),
    satp = const offset_of!(Boot, satp),
    sie = const offset_of!(Boot, sie),
    sip = const offset_of!(Boot, sip),
    sscratch = const offset_of!(Boot, sscratch),
    sepc = const offset_of!(Boot, sepc),
    scause = const offset_of!(Boot, scause),
    stval = const offset_of!(Boot, stval),
    main = sym boot_hart,
    secondary = sym hart::secondary,
    vector = sym trap::guest_vector,
    max = const hart::MAX,
    stack_shift = const STACK_BYTES.trailing_zeros(),
);

unsafe extern "Rust" {
    fn guest_main();
}

unsafe extern "C" {
    static __image_end: u8;
}

/// The address of the first byte that does not belong to the image, its BSS and its stacks.
#[must_use]
pub fn image_end() -> u64 {
    (&raw const __image_end).expose_provenance() as u64
}

extern "C" fn boot_hart(hart: u64, device_tree: u64) -> ! {
    board::read(hart, device_tree);
    // SAFETY: each guest defines it with `entry_point!`.
    unsafe { guest_main() };
    report::finish()
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    report::failed(format_args!("panic: hart {}: {info}", hart::id()));
    sbi::shutdown(true)
}

/// `abi` uses `alloc`; nothing here allocates.
struct NoHeap;

// SAFETY: it never hands out memory.
unsafe impl GlobalAlloc for NoHeap {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static HEAP: NoHeap = NoHeap;
