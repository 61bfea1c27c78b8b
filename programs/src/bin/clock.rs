//! Prints the `time` CSR as a figure: of the name that is its argument, else `shell`. The boot benchmark runs it as soon as there is
//! a shell; the kernel's own clocks start some time after the kernel does.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "reads a counter")]

use core::arch::asm;
use programs::linux::{self, Args, Failure};

programs::entry_point!(main);

fn main(args: Args) -> Result<(), Failure> {
    let now: u64;
    // SAFETY: reading a counter; Linux lets programs do so.
    unsafe { asm!("rdtime {}", out(reg) now, options(nomem, nostack)) };
    linux::figure(args.get(1).unwrap_or("shell"), now);
    Ok(())
}
