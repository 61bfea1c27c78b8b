//! Says when it was entered: the `time` CSR at the first instruction of a payload. The boot benchmark
//! subtracts it from the time at the shell. It uses nothing of the runtime, whose start would count.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "it is its own runtime")]

use core::arch::global_asm;
use sbi_spec::{dbcn, srst};

global_asm!(
    ".section .text.entry, \"ax\"",
    ".global _start",
    "_start:",
    "rdtime a0",
    "la sp, _start", // the RAM below is free, on the bare machine too
    "tail {main}",
    main = sym main,
);

/// Prints `stamp` as a figure, and powers off.
extern "C" fn main(stamp: u64) -> ! {
    let mut digits = [b'0'; 20];
    let mut rest = stamp;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    "gnomon-figure: entry ".bytes().chain(digits).chain("\r\ngnomon-test: DONE 0\r\n".bytes()).for_each(put);
    // SAFETY: writes no memory.
    let _ = unsafe { metal::sbi::call(srst::EID_SRST, srst::SYSTEM_RESET, [0, 0, 0]) };
    loop {
        metal::wait_for_interrupt();
    }
}

fn put(byte: u8) {
    // SAFETY: writes no memory.
    let _ = unsafe { metal::sbi::call(dbcn::EID_DBCN, dbcn::CONSOLE_WRITE_BYTE, [byte.into(), 0, 0]) };
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        metal::wait_for_interrupt();
    }
}
