//! The cost of a fence or another trap: ticks of `time` for many of them, less those for the same loop without.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "loops of known instructions")]

use abi::root_cache::{VERSION, bytes};
use core::arch::asm;
use guests::paging::{self, RW, Space, page};
use guests::root_cache::RootCache;
use guests::window::{ASID, PAGES, Window, address};
use guests::{Check, access, console, ensure, run, sbi};
use metal::{csr, fence};
use rv::PAGE_BYTES;
use rv::format::SV39;
use sbi_spec::{base, spi, time};

guests::entry_point!(main);

/// Ticks that exits which come with time may take.
const TIMER: u64 = 100;
/// The number of passes over all pages.
const ROUNDS: u64 = 16;

/// A function that executes an instruction for each page of the window, at its address in `{at}`, and
/// returns the ticks that took.
macro_rules! for_each_page {
    ($name:ident, $instruction:literal) => {
        for_each_page!($name, $instruction, (base::EID_BASE, base::GET_SBI_SPEC_VERSION));
    };
    ($name:ident, $instruction:literal, $call:expr) => {
        fn $name(flip: u64) -> u64 {
            let start = metal::time();
            let (extension, function) = $call;
            // SAFETY: fences and SBI calls that leave memory alone, and writes of
            // `satp` that map this code, all it uses and the window as it is mapped now.
            unsafe {
                asm!(
                    "2:",
                    $instruction,
                    "add {at}, {at}, {step}",
                    "addi {left}, {left}, -1",
                    "bnez {left}, 2b",
                    "// {asid} {satp} {flip}", // not all instructions name them
                    at = inout(reg) address(0) => _,
                    step = in(reg) PAGE_BYTES,
                    left = inout(reg) PAGES => _,
                    asid = in(reg) ASID,
                    satp = inout(reg) csr::satp::read() => _,
                    flip = in(reg) flip,
                    inout("a0") 0 => _,
                    inout("a1") 0 => _,
                    in("a6") function,
                    in("a7") extension,
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
for_each_page!(call_of_page, "mv a0, {at}");
// The deadline is the address, which is far ahead.
for_each_page!(set_timer, "mv a0, {at}\n ecall", (time::EID_TIME, time::SET_TIMER));
for_each_page!(call_of_first, "li a0, 1\n li a1, 0");
for_each_page!(send_ipi, "li a0, 1\n li a1, 0\n ecall", (spi::EID_SPI, spi::SEND_IPI));
for_each_page!(flip, "xor {satp}, {satp}, {flip}");
for_each_page!(switch_satp, "xor {satp}, {satp}, {flip}\n csrw satp, {satp}");

fn main() {
    run("lane/measured", measure);
}

fn measure() -> Check {
    let window = Window::enter(1);
    let other = beside(&window, ASID + 1);
    // Each fence meets an entry that translates, because all pages are read before.
    let measure = |name, ticks: fn(u64) -> u64, again: &str, floor_ticks: fn(u64) -> u64, by: u64| {
        let (mut first, mut second, mut floor) = (0, 0, 0);
        for _ in 0..ROUNDS {
            window.read_all();
            floor += floor_ticks(by);
            first += ticks(by);
            second += ticks(by);
        }
        ensure!(first >= floor, "{name}: the loop took {first} ticks, and {floor} without it");
        console::figure(name, first - floor);
        if !again.is_empty() {
            console::figure(again, second.saturating_sub(floor));
        }
        Ok(())
    };
    console::figure("count", ROUNDS * PAGES);
    measure("fence_page_asid", fence_page_asid, "fence_page_asid_again", nothing, 0)?;
    measure("fence_page", fence_page, "fence_page_again", nothing, 0)?;
    measure("write_satp", write_satp, "", nothing, 0)?;
    measure("ecall", ecall, "", nothing, 0)?;
    // An even number of switches: each round ends where it began. Both roots have been used before.
    let by = csr::satp::read() ^ other.satp();
    switch_satp(by);
    measure("switch_satp", switch_satp, "", flip, by)?;
    output();
    faults(&window)?;
    measure("set_timer", set_timer, "", call_of_page, 0)?;
    // To itself, which keeps it pending.
    measure("send_ipi", send_ipi, "", call_of_first, 0)?;
    without_asids(&window);
    paging::leave();
    Ok(())
}

/// The cost of a byte of output, through the UART and by the debug console.
// Apart, for what its loops come to depends on how they are compiled.
#[inline(never)]
fn output() {
    let bytes = (ROUNDS * PAGES) as usize;
    let ticks = |work: &dyn Fn()| {
        let start = metal::time();
        work();
        metal::time() - start
    };
    let floor = ticks(&|| (0..bytes).for_each(|at| _ = core::hint::black_box(at)));
    let line = |at: usize| if at % 64 == 63 { b'\n' } else { b'.' };
    let uart = ticks(&|| (0..bytes).for_each(|at| access::out8(console::UART, line(at))));
    console::figure("uart_byte", uart.saturating_sub(floor));
    let text: [u8; 256] = core::array::from_fn(line);
    let dbcn = ticks(&|| {
        let mut left = bytes;
        while left > 0 {
            left -= (sbi::console_write(&text[..left.min(text.len())]).1 as usize).min(left);
        }
    });
    console::figure("dbcn_byte", dbcn);
}

/// Changes between two address spaces that both have ASID 0: with the fences that this takes on any hart, and as a page says that is
/// shared, with the search for the root there.
// Apart, so that the other loops are compiled as they are without.
#[inline(never)]
fn without_asids(window: &Window) {
    let roots = [(); 2].map(|()| beside(window, 0).satp());
    let ticks = |change: &dyn Fn(u64)| {
        let start = metal::time();
        roots.iter().cycle().take((ROUNDS * PAGES) as usize).for_each(|root| change(*root));
        metal::time() - start
    };
    let floor = ticks(&|root| _ = core::hint::black_box(root));
    // Twice: only then is all known that is used.
    let [_, fenced] = [(); 2].map(|()| ticks(&paging::change));
    console::figure("switch_fenced", fenced.saturating_sub(floor));
    if let Ok(shared) = RootCache::share(page(), VERSION, bytes(4) as u32) {
        let [_, shared] = [(); 2].map(|()| ticks(&|root| _ = shared.change(root)));
        console::figure("switch_shared", shared.saturating_sub(floor));
    }
}

/// Another address space with the window as it is mapped now.
fn beside(window: &Window, asid: u64) -> Space {
    let space = Space::new(&SV39, asid);
    (0..PAGES).for_each(|page| space.map(address(page), window.frame(page, 0), RW));
    space
}

/// First accesses by new tables to memory that has been used: behind a G-stage they fault nowhere, on shadow tables
/// each does once.
fn faults(window: &Window) -> Check {
    let (mut first, mut second) = (0, 0);
    for round in 0..ROUNDS {
        beside(window, ASID + 2 + round).switch();
        fence::sfence_all();
        // Tables are not what is measured.
        for page in (0..PAGES).step_by(512) {
            core::hint::black_box(access::peek(address(page)));
        }
        for sum in [&mut first, &mut second] {
            let start = metal::time();
            window.read_all();
            *sum += metal::time() - start;
        }
    }
    // A timer of the hypervisor's may fall into either.
    ensure!(first + TIMER >= second, "first accesses took {first} ticks, second ones {second}");
    console::figure("fault", first.saturating_sub(second));
    Ok(())
}
