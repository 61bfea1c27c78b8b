//! A Linux program: `mark begin [LABEL]` and `mark end [LABEL]` tell the meter where a region begins and
//! ends (docs/meter.md). A label is a decimal number; 0 if none is given.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "system calls, hints, and no runtime")]

use core::arch::{asm, global_asm};
use core::ffi::CStr;

const STDERR: usize = 2;
const SYS_WRITE: usize = 64;
const SYS_EXIT: usize = 93;
const USAGE: &[u8] = b"mark: usage: mark begin|end [LABEL], where LABEL is a decimal number\n";

// The entry of the program: Linux has put the number of arguments on the stack, and pointers to them.
global_asm!(".global _start", "_start:", "mv a0, sp", "andi sp, sp, -16", "tail {main}", main = sym main);

extern "C" fn main(stack: *const usize) -> ! {
    let argument = |number: usize| {
        // SAFETY: `argc` pointers to strings follow `argc`.
        unsafe {
            let is_there = number < *stack;
            is_there
                .then(|| CStr::from_ptr((*stack.add(1 + number).cast::<*const core::ffi::c_char>()).cast()).to_bytes())
        }
    };
    let label = argument(2).map_or(Some(0), number);
    match (argument(1), label, argument(3)) {
        (Some(b"begin"), Some(label), None) => begin(label),
        (Some(b"end"), Some(label), None) => end(label),
        _ => {
            call(SYS_WRITE, [STDERR, USAGE.as_ptr().expose_provenance(), USAGE.len()]);
            call(SYS_EXIT, [2, 0, 0]);
        }
    }
    call(SYS_EXIT, [0, 0, 0]);
    loop {
        core::hint::spin_loop();
    }
}

fn begin(label: u64) {
    // SAFETY: a hint.
    unsafe { asm!("slti zero, {}, 1", in(reg) label, options(nostack)) };
}

fn end(label: u64) {
    // SAFETY: a hint.
    unsafe { asm!("slti zero, {}, 2", in(reg) label, options(nostack)) };
}

fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

fn call(number: usize, args: [usize; 3]) {
    // SAFETY: the two calls made read this program's own text, and end it.
    unsafe {
        asm!("ecall", inlateout("a0") args[0] => _, in("a1") args[1], in("a2") args[2], in("a7") number, options(nostack));
    }
}
