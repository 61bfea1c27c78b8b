//! From the first instruction to the guest's `main`, and how a guest ends when it panics.
#![expect(unsafe_code, reason = "entry assembly, the image's symbols, the global allocator")]

use crate::{board, hart, report, sbi, trap};
use core::alloc::{GlobalAlloc, Layout};
use core::arch::global_asm;
use core::mem::offset_of;
use core::panic::PanicInfo;
use core::sync::atomic::AtomicU64;

/// The boot hart's registers at the first instruction.
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

/// The boot hart's registers at the first instruction.
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
    ".irp n, 1,2,3,4,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "sd x\\n, 8*\\n(t0)",
    ".endr",
    "sd x0, 0(t0)",
    ".macro keep csr, offset",
    "csrr t1, \\csr",
    "sd t1, \\offset(t0)",
    ".endm",
    "keep sstatus, {sstatus}",
    "keep satp, {satp}",
    "keep sie, {sie}",
    "keep sip, {sip}",
    "keep sscratch, {sscratch}",
    "keep sepc, {sepc}",
    "keep scause, {scause}",
    "keep stval, {stval}",
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
    let (file, line) = info.location().map_or(("?", 0), |at| (at.file(), at.line()));
    report::failed(format_args!("panic: hart {}, {file}:{line}: {}", hart::id(), info.message()));
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
