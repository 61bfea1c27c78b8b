//! Instructions that are attempted and do not retire, among others that do: loads and stores that fault, and calls of
//! the firmware.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "instructions that are counted one by one")]

use core::arch::asm;
use guests::expect::{LOAD_PAGE, STORE_PAGE};
use guests::paging::{self, RO, Space, TEST_VA, page};
use guests::{Check, access, console, ensure, run, sbi};
use rv::format::SV39;

guests::entry_point!(main);

/// Rounds of each trap.
const ROUNDS: u64 = 50;
/// Loads and stores that fault in each.
const FAULTS: u64 = 2;

fn main() {
    run("attempts/counted", || {
        let space = Space::new(&SV39, 1);
        space.map(TEST_VA, page().address(), RO);
        space.enter();
        let before = begin();
        let outcome = traps();
        let after = end();
        paging::leave();
        // From the first read of the counter to the second, which are both in the region.
        console::figure("attempted", after - before + 1 + FAULTS * ROUNDS);
        outcome
    });
}

fn traps() -> Check {
    ensure!(access::ld(TEST_VA) == Ok(0), "the constant");
    for round in 0..ROUNDS {
        let missing = TEST_VA + (1 + round) * rv::PAGE_BYTES;
        ensure!(access::ld(missing).is_err_and(|trap| trap.cause == LOAD_PAGE), "a load of nothing");
        ensure!(access::sd(TEST_VA, 0).is_err_and(|trap| trap.cause == STORE_PAGE), "a store to a constant");
        // A call of the firmware.
        let _ = sbi::base(0);
    }
    Ok(())
}

/// The marker, and at once the counter.
#[inline(never)]
fn begin() -> u64 {
    let count;
    // SAFETY: a hint, and a counter.
    unsafe { asm!("slti zero, zero, 1", "csrr {}, instret", out(reg) count, options(nostack)) };
    count
}

/// The counter, and at once the marker.
#[inline(never)]
fn end() -> u64 {
    let count;
    // SAFETY: as above.
    unsafe { asm!("csrr {}, instret", "slti zero, zero, 2", out(reg) count, options(nostack)) };
    count
}
