//! First touches of 2 MiB, of which idle harts have made some ready, and what they find. Between markers, in this order: six of them;
//! a time in which nothing happens. The rest of RAM is touched after that, with time in between. The first word of the command line is
//! the time before the first touch, in milliseconds: 50 if there is none.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "markers, and stores between them")]

use core::arch::asm;
use guests::{Check, access, board, ensure, ensure_eq, run};

guests::entry_point!(main);

const BLOCK: u64 = 2 << 20;
/// The number of blocks that are touched between markers.
const FEW: u64 = 6;

fn main() {
    run("zeroes/few", few);
    run("zeroes/idle", idle);
    run("zeroes/all", all);
}

/// The 2 MiB that nothing is in, and their number.
fn blocks() -> (u64, u64) {
    let (from, to) = board().largest_free();
    let first = from.next_multiple_of(BLOCK);
    (first, (to & !(BLOCK - 1)).saturating_sub(first) / BLOCK)
}

/// Waits for so many milliseconds, without leaving the hart.
fn wait(milliseconds: u64) {
    let end = metal::time() + milliseconds * board().timebase / 1000;
    while metal::time() < end {}
}

fn few() -> Check {
    let (first, count) = blocks();
    ensure!(count > FEW, "only {count} blocks are free");
    wait(board().bootargs.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(50));
    // SAFETY: stores to RAM that nothing is in.
    unsafe {
        asm!(
            "slti zero, zero, 1",
            "2: sd {at}, 0({at})",
            "add {at}, {at}, {step}",
            "bne {at}, {end}, 2b",
            "slti zero, zero, 2",
            at = inout(reg) first => _,
            end = in(reg) first + FEW * BLOCK,
            step = in(reg) BLOCK,
            options(nostack),
        );
    }
    (0..FEW).try_for_each(|n| is_zero_behind(first + n * BLOCK, first + n * BLOCK))
}

/// The block's first word is `value`, and the others are zero.
fn is_zero_behind(block: u64, value: u64) -> Check {
    ensure_eq!(access::peek(block), value, "at {block:#x}");
    for at in (block + 8..block + BLOCK).step_by(8) {
        // SAFETY: RAM that nothing is in.
        let found = unsafe { core::ptr::with_exposed_provenance::<u64>(at as usize).read_volatile() };
        ensure_eq!(found, 0, "at {at:#x}");
    }
    Ok(())
}

fn idle() -> Check {
    wait(50);
    // SAFETY: a marker.
    unsafe { asm!("slti zero, zero, 3", options(nostack)) }
    wait(200);
    // SAFETY: a marker.
    unsafe { asm!("slti zero, zero, 4", options(nostack)) }
    Ok(())
}

fn all() -> Check {
    let (first, count) = blocks();
    for block in (FEW..count).map(|n| first + n * BLOCK) {
        access::poke(block, block);
        is_zero_behind(block, block)?;
    }
    Ok(())
}
