//! A Linux program: prints the `time` CSR as a figure. The boot benchmark runs it as soon as there
//! is a shell; the kernel's own clocks start some time after the kernel does.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "system calls, and no runtime")]

use core::arch::asm;

const STDOUT: usize = 1;
const SYS_WRITE: usize = 64;
const SYS_EXIT: usize = 93;

/// The entry of the program. It needs nothing of what Linux puts on the stack.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    let now: u64;
    // SAFETY: reading a counter; Linux lets programs do so.
    unsafe { asm!("rdtime {}", out(reg) now, options(nomem, nostack)) };
    let mut line = *b"gnomon-figure: shell 00000000000000000000\n";
    let mut rest = now;
    for digit in line[21..41].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    call(SYS_WRITE, [STDOUT, (&raw const line).expose_provenance(), line.len()]);
    call(SYS_EXIT, [0, 0, 0]);
    loop {
        core::hint::spin_loop();
    }
}

fn call(number: usize, args: [usize; 3]) {
    // SAFETY: the two calls made read this program's own line, and end it.
    unsafe {
        asm!("ecall", inlateout("a0") args[0] => _, in("a1") args[1], in("a2") args[2], in("a7") number, options(nostack));
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
