//! Known counts for the meter: a loop, and loads from pages that no TLB has. The regions are, in this order: the loop;
//! then the loads, by each format that `satp` takes.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "instructions that are counted one by one")]

use core::arch::asm;
use guests::paging::{self, RW, Space, TEST_VA, page};
use guests::{Check, Text, console, ensure_eq, run};
use metal::fence;

guests::entry_point!(main);

/// Rounds of the loop: 2 instructions each, after one.
const ROUNDS: u64 = 1000;
/// Pages that are loaded from, once each.
const PAGES: u64 = 64;

fn main() {
    run("walks/loop", || {
        // SAFETY: counts down in a register.
        unsafe {
            asm!(
                ".balign 64",
                "slti zero, zero, 1",
                "li {count}, {ROUNDS}",
                "2: addi {count}, {count}, -1",
                "bnez {count}, 2b",
                "slti zero, zero, 2",
                count = out(reg) _,
                ROUNDS = const ROUNDS,
                options(nostack),
            );
        }
        Ok(())
    });
    for format in Space::formats() {
        run(Text::of(format_args!("walks/{}", format.name)).as_str(), || loads(format));
    }
}

fn loads(format: &'static rv::Format) -> Check {
    let space = Space::new(format, 1);
    for number in 0..PAGES {
        let frame = page();
        frame.fill(&number.to_le_bytes());
        space.map(TEST_VA + number * rv::PAGE_BYTES, frame.address(), RW);
    }
    space.enter();
    // Once before: whatever has to be made ready for the pages is ready then.
    let before = sum();
    fence::sfence_all();
    let counted = sum();
    paging::leave();
    console::figure("pages", PAGES);
    ensure_eq!((before, counted), (PAGES * (PAGES - 1) / 2, before), "sums");
    Ok(())
}

/// The sum of what the pages hold, which is loaded between two markers, by code that is in one page.
#[inline(never)]
fn sum() -> u64 {
    let mut sum = 0_u64;
    // SAFETY: loads from pages that are mapped.
    unsafe {
        asm!(
            ".balign 64",
            "slti zero, {pages}, 1",
            "2: ld {value}, 0({at})",
            "add {sum}, {sum}, {value}",
            "add {at}, {at}, {step}",
            "addi {pages}, {pages}, -1",
            "bnez {pages}, 2b",
            "slti zero, zero, 2",
            at = inout(reg) TEST_VA => _,
            pages = inout(reg) PAGES => _,
            step = in(reg) rv::PAGE_BYTES,
            value = out(reg) _,
            sum = inout(reg) sum,
            options(nostack),
        );
    }
    sum
}
