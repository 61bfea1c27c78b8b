//! What a fence or another trap costs: ticks of `time` for many of them, less those for the same loop
//! without. Under QEMU's `-icount` every instruction advances `time`, whatever mode it is executed in,
//! and a trapping instruction does not count itself: so the difference is what is executed on the guest's
//! behalf from the trap to the return; 1 if there is no trap.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "loops of known instructions")]

use core::arch::asm;
use guests::window::{ASID, PAGES, Window, address};
use guests::{Check, console, ensure, paging, run};
use metal::csr;
use rv::PAGE_BYTES;
use sbi_spec::base;

guests::entry_point!(main);

/// How often all pages are gone through.
const ROUNDS: u64 = 16;

/// A function that executes an instruction for each page of the window, at its address in `{at}`, and
/// returns the ticks that took.
macro_rules! for_each_page {
    ($(#[$about:meta])* $name:ident, $instruction:literal) => {
        $(#[$about])*
        fn $name() -> u64 {
            let start = metal::time();
            // SAFETY: fences and a call of SBI's base extension, which leave memory alone, and a write of
            // `satp` as it is.
            unsafe {
                asm!(
                    "2:",
                    $instruction,
                    "add {at}, {at}, {step}",
                    "addi {left}, {left}, -1",
                    "bnez {left}, 2b",
                    "// {asid} {satp}", // not all instructions name them
                    at = inout(reg) address(0) => _,
                    step = in(reg) PAGE_BYTES,
                    left = inout(reg) PAGES => _,
                    asid = in(reg) ASID,
                    satp = in(reg) csr::satp::read(),
                    inout("a0") 0 => _,
                    inout("a1") 0 => _,
                    in("a6") base::GET_SBI_SPEC_VERSION,
                    in("a7") base::EID_BASE,
                    options(nostack),
                );
            }
            metal::time() - start
        }
    };
}

for_each_page!(nothing, "");
for_each_page!(fence_page_asid, "sfence.vma {at}, {asid}");
for_each_page!(fence_page, "sfence.vma {at}, x0");
for_each_page!(write_satp, "csrw satp, {satp}");
for_each_page!(ecall, "ecall");

fn main() {
    run("lane/measured", measure);
}

fn measure() -> Check {
    let window = Window::enter(1);
    // Each fence meets an entry that translates, because all pages are read before.
    let measure = |name, ticks: fn() -> u64, again: &str| {
        let (mut first, mut second, mut floor) = (0, 0, 0);
        for _ in 0..ROUNDS {
            window.read_all();
            floor += nothing();
            first += ticks();
            second += ticks();
        }
        ensure!(first >= floor, "{name}: the loop took {first} ticks, and {floor} without it");
        console::figure(name, first - floor);
        if !again.is_empty() {
            console::figure(again, second.saturating_sub(floor));
        }
        Ok(())
    };
    console::figure("count", ROUNDS * PAGES);
    measure("fence_page_asid", fence_page_asid, "fence_page_asid_again")?;
    measure("fence_page", fence_page, "fence_page_again")?;
    measure("write_satp", write_satp, "")?;
    measure("ecall", ecall, "")?;
    paging::leave();
    Ok(())
}
