//! A mixed load for running beside another VM. `/chosen/bootargs`: milliseconds (3000 if missing) and
//! a number (1) that its memory, its registers and its lines carry, so that whatever leaks from
//! another VM shows.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "sscratch")]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use guests::console::{UART, line};
use guests::trap::{disable, enable, on_interrupt, with_interrupts};
use guests::{Check, access, board, ensure, ensure_eq, hart, run, sbi};
use metal::csr;
use rv::Interrupt::{SSoft, STimer};

guests::entry_point!(main);

const PAGE: u64 = 4096;

/// The PLIC's threshold register for the boot hart's S mode. (OpenSBI resets those of harts it starts.)
fn threshold() -> u64 {
    0x0c20_0000 + 0x1000 * (2 * board().boot_hart + 1)
}

/// Wrong things seen by each hart: in memory, in registers, in devices.
static WRONG: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static ROUNDS: [AtomicU64; hart::MAX] = [const { AtomicU64::new(0) }; hart::MAX];
static END: AtomicU64 = AtomicU64::new(0);

fn argument(index: usize, otherwise: u64) -> u64 {
    board().bootargs.split_whitespace().nth(index).and_then(|word| word.parse().ok()).unwrap_or(otherwise)
}

fn number() -> u64 {
    argument(1, 1)
}

fn main() {
    let duration = argument(0, 3000);
    line(format_args!("guest: noise {} starts, {} harts, {duration} ms", number(), board().hart_count));
    END.store(metal::time() + board().ticks(duration), Relaxed);
    access::out8(UART + 7, number() as u8);
    access::out32(threshold(), number() as u32 % 8);
    on_interrupt(Some(interrupt));
    run("noise/work", || {
        board().other_harts().try_for_each(|other| hart::start(other, work, 0))?;
        work(0);
        board().other_harts().try_for_each(hart::join)
    });
    for (index, name) in ["noise/memory", "noise/registers", "noise/devices"].into_iter().enumerate() {
        run(name, || {
            ensure_eq!(WRONG[index].load(Relaxed), 0, "wrong values");
            Ok(())
        });
    }
    run("noise/everybody-ran", everybody_ran);
}

fn everybody_ran() -> Check {
    for id in board().harts() {
        let block = hart::of(*id);
        let found = (ROUNDS[*id as usize].load(Relaxed), block.count(STimer), block.count(SSoft));
        line(format_args!("guest: noise {} hart {id}: rounds, ticks, IPIs {found:?}", number()));
        ensure!(found.0 > 0 && found.1 > 0, "hart {id}: rounds, ticks, IPIs {found:?}");
    }
    Ok(())
}

/// Ticks every two milliseconds, and clears IPIs.
fn interrupt(code: u64) {
    if code == STimer as u64 {
        sbi::set_timer(metal::time() + board().ticks(2));
    } else {
        // SAFETY: a pending bit.
        unsafe { csr::sip::clear(SSoft.bit()) };
    }
}

/// A hart's share of free RAM, at most 16 MiB.
fn share() -> (u64, u64) {
    let (from, to) = board().largest_free();
    let each = ((to - from) / hart::MAX as u64).min(16 << 20) & !(PAGE - 1);
    (from + hart::id() * each, from + (hart::id() + 1) * each)
}

fn work(_: u64) {
    let (from, to) = share();
    let pattern = |at: u64, round: u64| (at ^ number() << 56 ^ round << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let wrong = |what: usize, is_wrong: bool| _ = WRONG[what].fetch_add(u64::from(is_wrong), Relaxed);
    let mark = number() << 8 | hart::id();
    // SAFETY: no other code uses it.
    unsafe { csr::sscratch::write(mark) };
    sbi::set_timer(0);
    enable(STimer.bit() | SSoft.bit());
    let mut round = 0;
    with_interrupts(|| {
        while metal::time() < END.load(Relaxed) || round < 2 {
            for at in (from..to).step_by(PAGE as usize) {
                let expected = if round == 0 { 0 } else { pattern(at, round - 1) };
                wrong(0, access::peek(at) != expected);
                access::poke(at, pattern(at, round));
            }
            wrong(1, csr::sscratch::read() != mark);
            wrong(2, u64::from(access::in8(UART + 7)) != number() & 0xff);
            wrong(2, u64::from(access::in32(threshold())) != number() % 8);
            if let Some(other) = board().other_harts().nth(round as usize % board().hart_count.max(2).saturating_sub(1))
            {
                wrong(1, sbi::send_ipi(1, other) != 0);
            }
            round += 1;
            ROUNDS[hart::id() as usize].store(round, Relaxed);
        }
    });
    disable(STimer.bit() | SSoft.bit());
    sbi::set_timer(u64::MAX);
}
