//! From the first instruction to the kernel's `main`.

use super::{DIRECT, Hart, IDS, trap};
use alloc::boxed::Box;
use core::arch::global_asm;
use core::sync::atomic::Ordering;
use metal::csr;

/// Facts about the machine that the boot hart knows at its start.
#[derive(Clone, Copy, Debug)]
pub struct Boot {
    /// Firmware's number of the boot hart.
    pub hart: u64,
    /// The physical address of the device tree.
    pub device_tree: u64,
    /// The first physical address of the kernel's image.
    pub image_start: u64,
    /// The first physical address behind it.
    pub image_end: u64,
}

/// A table of the kernel's own: 1 GiB leaves from the direct map's addresses to all physical ones.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Root(pub [u64; 512]);

/// V, R, W, X, G, A, D.
const KERNEL_LEAF: u64 = 0xef;

pub static KERNEL_ROOT: Root = {
    let mut root = [0; 512];
    let mut gib = 0;
    while gib < 256 {
        root[256 + gib] = (gib as u64) << 28 | KERNEL_LEAF;
        gib += 1;
    }
    Root(root)
};

const STACK_BYTES: usize = 32 << 10;

#[repr(C, align(16))]
struct Stack([u8; STACK_BYTES]);

/// The boot hart's stack. Only assembly touches it.
static mut BOOT_STACK: Stack = Stack([0; STACK_BYTES]);
static mut BOOT_HART: Hart = Hart { stack: 0, context: 0, scratch: [0; 2], id: 0, index: 0, thread: 0 };

global_asm!(
    ".section .text.entry, \"ax\"",
    ".global _start",
    "_start:",
    "la s1, {root}",
    "la t0, __bss_start",
    "la t1, __bss_end",
    "1: bgeu t0, t1, 2f",
    "sd x0, 0(t0)",
    "addi t0, t0, 8",
    "j 1b",
    "2: la sp, {stack}",
    "li t0, {stack_bytes}",
    "add sp, sp, t0",
    "la s2, {main}",
    "la s3, {hart}",
    "j 3f",
    // A hart that firmware has started: a0 is its number, a1 the address of its `Hart`, in the direct map.
    ".balign 4",
    ".global vkernel_secondary",
    "vkernel_secondary:",
    "la s1, {root}",
    "la s2, {secondary}",
    "mv s3, a1",
    "li t0, {direct}",
    "sub t1, a1, t0",
    "ld sp, 0(t1)", // `stack`
    "sub sp, sp, t0",
    "sub s3, s3, t0",
    // The kernel's addresses are those of the direct map. Translation begins with a page fault at this code's physical address,
    // behind which the trap vector goes on.
    "3: li t0, {direct}",
    "add sp, sp, t0",
    "add s2, s2, t0",
    "add tp, s3, t0",
    "la t1, 4f",
    "add t1, t1, t0",
    "csrw stvec, t1",
    "srli s1, s1, 12",
    "li t1, 8 << 60",
    "or s1, s1, t1",
    "sfence.vma",
    "csrw satp, s1",
    ".balign 4",
    "4: csrw sie, x0",
    "la t1, {vector}",
    "csrw stvec, t1",
    "csrw sscratch, x0",
    "jr s2",
    root = sym KERNEL_ROOT,
    stack = sym BOOT_STACK,
    hart = sym BOOT_HART,
    stack_bytes = const STACK_BYTES,
    direct = const DIRECT,
    main = sym boot_hart,
    secondary = sym secondary_hart,
    vector = sym trap::vkernel_vector,
);

unsafe extern "C" {
    static __image_end: u8;
    fn _start();
    fn vkernel_secondary();
}

/// Lets programs read `time`, `cycle` and `instret`, with the floating-point unit on, and interrupts of the timer and other harts
/// enabled: they come while a program runs.
fn set_up() {
    // SAFETY: nothing of the kernel depends on these registers.
    unsafe {
        csr::scounteren::write(7);
        csr::sstatus::clear(1 << 8 | 3 << 13 | 1 << 18);
        csr::sstatus::set(1 << 5 | 1 << 13);
        csr::sie::write(1 << 5 | 1 << 1 | 1 << 9);
    }
}

extern "C" fn boot_hart(hart: u64, device_tree: u64) -> ! {
    IDS[0].store(hart, Ordering::Relaxed);
    set_up();
    let image_end = super::physical(&raw const __image_end);
    let image_start = super::physical(_start as *const ());
    crate::boot::main(Boot { hart, device_tree, image_start, image_end })
}

extern "C" fn secondary_hart() -> ! {
    set_up();
    crate::boot::secondary()
}

/// Makes a hart's stack and its `Hart`; returns the latter's address.
pub fn prepare(id: u64, index: usize) -> u64 {
    let stack = Box::leak(Box::new(Stack([0; STACK_BYTES])));
    let top = (&raw const *stack).expose_provenance() + STACK_BYTES;
    let hart = Hart { stack: top as u64, context: 0, scratch: [0; 2], id, index: index as u64, thread: 0 };
    (&raw const *Box::leak(Box::new(hart))).expose_provenance() as u64
}

/// Returns the physical address at which further harts start.
pub fn secondary_address() -> u64 {
    super::physical(vkernel_secondary as *const ())
}
