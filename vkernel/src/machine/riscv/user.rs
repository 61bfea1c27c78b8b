//! Accesses to the memory of the program whose space the hart translates by, with its rights.
//!
//! A fault in these instructions ends the access: `access_fault` is behind them, and the trap vector goes on there.

use core::arch::global_asm;

global_asm!(
    ".section .text",
    ".option push",
    ".option arch, +a",
    ".balign 4",
    ".global access_first",
    "access_first:",
    // a0 = to, a1 = from, a2 = bytes. Returns in a0 the bytes that are left, and in a1 the address that cannot be accessed.
    ".global access_copy",
    "access_copy:",
    "li t2, 1 << 18",
    "csrs sstatus, t2",
    "or t0, a0, a1",
    "andi t0, t0, 7",
    "bnez t0, 3f",
    "li t1, 64",
    "1: bltu a2, t1, 2f",
    "ld t3, 0(a1)",
    "ld t4, 8(a1)",
    "ld t5, 16(a1)",
    "ld t6, 24(a1)",
    "sd t3, 0(a0)",
    "sd t4, 8(a0)",
    "sd t5, 16(a0)",
    "sd t6, 24(a0)",
    "addi a2, a2, -32",
    "addi a0, a0, 32",
    "addi a1, a1, 32",
    "j 1b",
    "2: li t1, 8",
    "4: bltu a2, t1, 3f",
    "ld t3, 0(a1)",
    "sd t3, 0(a0)",
    "addi a2, a2, -8",
    "addi a0, a0, 8",
    "addi a1, a1, 8",
    "j 4b",
    "3: beqz a2, access_done",
    "lbu t3, 0(a1)",
    "sb t3, 0(a0)",
    "addi a2, a2, -1",
    "addi a0, a0, 1",
    "addi a1, a1, 1",
    "j 3b",
    // a0 = at. The word is in a1; a2 = 0 says that it was reached.
    ".global access_load",
    "access_load:",
    "li a2, 1",
    "li t2, 1 << 18",
    "csrs sstatus, t2",
    "lw a1, 0(a0)",
    "li a2, 0",
    "j access_done",
    // a0 = at, a1 = the expected word, a3 = the new word. The word before is in a1.
    ".global access_exchange",
    "access_exchange:",
    "li a2, 1",
    "li t2, 1 << 18",
    "csrs sstatus, t2",
    "7: lr.w.aqrl t3, (a0)",
    "bne t3, a1, 8f",
    "sc.w.aqrl t4, a3, (a0)",
    "bnez t4, 7b",
    "8: mv a1, t3",
    "li a2, 0",
    "access_done:",
    "li t2, 1 << 18",
    "csrc sstatus, t2",
    "mv a0, a2",
    "ret",
    ".global access_fault",
    "access_fault:",
    "csrr a1, stval",
    "j access_done",
    ".option pop",
);

/// The bytes that are left, and a word.
#[repr(C)]
struct Pair {
    left: u64,
    word: u64,
}

unsafe extern "C" {
    pub(super) fn access_first();
    pub(super) fn access_fault();
    fn access_copy(to: u64, from: u64, bytes: u64) -> Pair;
    fn access_load(at: u64) -> Pair;
    fn access_exchange(at: u64, old: u64, unused: u64, new: u64) -> Pair;
}

/// Copies bytes from or to a program's memory. If it meets an address that the program cannot access, returns how many are left, and the
/// address: it lies at most a few bytes behind what was copied.
///
/// # Errors
/// See above.
///
/// # Safety
/// One of both is the kernel's own memory, which the caller may access; the other one lies in the lower half of addresses.
pub unsafe fn copy(to: u64, from: u64, bytes: usize) -> Result<(), (usize, u64)> {
    // SAFETY: by the caller's promise; a fault ends the copy.
    let Pair { left, word } = unsafe { access_copy(to, from, bytes as u64) };
    if left == 0 { Ok(()) } else { Err((left as usize, word)) }
}

/// Loads an aligned word of a program's memory, if it can be read.
///
/// # Safety
/// It lies in the lower half of addresses.
#[must_use]
pub unsafe fn load_word(at: u64) -> Option<u32> {
    // SAFETY: by the caller's promise; a fault ends it.
    let Pair { left, word } = unsafe { access_load(at) };
    (left == 0).then_some(word as u32)
}

/// Replaces an aligned word of a program's memory if it is the expected one. Returns the word before, if the program can write it.
///
/// # Safety
/// It lies in the lower half of addresses.
#[must_use]
pub unsafe fn compare_exchange(at: u64, old: u32, new: u32) -> Option<u32> {
    // SAFETY: by the caller's promise; a fault ends it.
    let Pair { left, word } = unsafe { access_exchange(at, i64::from(old as i32) as u64, 0, u64::from(new)) };
    (left == 0).then_some(word as u32)
}
