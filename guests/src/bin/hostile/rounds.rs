//! A VM that counts what it gets done while a neighbour (`storm`) is calm, and while it storms. Its rounds are work, prints,
//! first touches of pages, and a timer that ticks. With the argument `any` the neighbour storms when it likes, and
//! the worst times are compared with the best. With `device` all storms are alike, and are compared together; so with `card`, where it has a
//! network card that is live, and with `pages`, where the schedule is longer. Needs `icount`, and a hart of its own.
#![no_std]
#![no_main]

use core::hint::black_box;
use guests::console::line;
use guests::schedule::{self, Moment, PAGES, STORMS};
use guests::trap::{enable, on_interrupt, with_interrupts};
use guests::virtio::{CARD, MAC, Rings};
use guests::{Check, access, board, ensure, ram, run, sbi};
use rv::Interrupt::STimer;

guests::entry_point!(main);

const PAGE: u64 = 4096;
/// Of the rounds in calm times, so many are to be done in a storm, in percent.
const BOUND: u64 = 95;
/// The bound for a single window in which a device of the host takes part, whose times do not follow the count of instructions.
const BOUND_OF_WINDOW: u64 = 90;
/// Windows in the mode `any`, and how long each is, in milliseconds.
const WINDOWS: usize = 40;
const WINDOW_MS: u64 = 4;

fn main() {
    on_interrupt(Some(|_| schedule::tick()));
    schedule::tick();
    enable(STimer.bit());
    if board().bootargs == "any" {
        run("rounds/whenever", whenever);
        return;
    }
    if board().bootargs == "card" {
        let rings = ram::pages(8)[0].address();
        let rings = [Rings::at(rings), Rings::at(rings + 4 * PAGE)];
        rings.iter().for_each(Rings::clear);
        run("rounds/card", || CARD.set_up(MAC, &rings));
        // The card is up from the first notification on.
        CARD.set(0x050, 0);
    }
    let are_alike = matches!(board().bootargs, "device" | "card" | PAGES);
    let (calm, storm) = with_interrupts(by_schedule);
    // Without a device, a calm time has some rounds more than others by what falls into it: then the mean is the measure.
    let mean = calm.iter().sum::<u64>() / calm.len() as u64;
    for (index, (_, name)) in STORMS.iter().enumerate() {
        let (calm, bound) = if are_alike { (calm[index], BOUND_OF_WINDOW) } else { (calm[index].min(mean), BOUND) };
        run(name, || compare(calm, storm[index], bound));
    }
    if are_alike {
        run("rounds/together", || compare(calm.iter().sum(), storm.iter().sum(), BOUND));
    }
}

fn compare(calm: u64, storm: u64, bound: u64) -> Check {
    line(format_args!("guest: rounds in calm {calm}, in the storm {storm}"));
    ensure!(calm > 200, "only {calm} rounds in calm: the bound says nothing");
    ensure!(storm * 100 >= calm * bound, "{storm} rounds of {calm}");
    Ok(())
}

/// One round, the `n`th.
fn round(n: u64) {
    black_box((0..100_u64).fold(n, |sum, step| sum.wrapping_mul(3).wrapping_add(step)));
    // There is memory for all of the schedule.
    let every = if board().bootargs == PAGES { 64 } else { 8 };
    if n.is_multiple_of(every) {
        let (from, to) = board().largest_free();
        let page = from.next_multiple_of(PAGE) + n / every * PAGE;
        if page + PAGE <= to {
            access::poke(page, n);
        }
    }
    if n.is_multiple_of(4) {
        _ = sbi::console_write(if n.is_multiple_of(256) { b"\n" } else { b"." });
    }
}

fn by_schedule() -> ([u64; STORMS.len()], [u64; STORMS.len()]) {
    let (mut calm, mut storm) = ([0; STORMS.len()], [0; STORMS.len()]);
    for n in 0.. {
        round(n);
        match schedule::at(metal::time()) {
            (Moment::Calm(index), true) => calm[index] += 1,
            (Moment::Storm(index), true) => storm[index] += 1,
            (Moment::Over, _) => break,
            (_, false) => {}
        }
    }
    (calm, storm)
}

fn whenever() -> Check {
    let window = board().ticks(WINDOW_MS);
    let start = metal::time();
    let mut rounds = [0; WINDOWS];
    with_interrupts(|| {
        for n in 0.. {
            round(n);
            match rounds.get_mut(((metal::time() - start) / window) as usize) {
                Some(rounds) => *rounds += 1,
                None => break,
            }
        }
    });
    line(format_args!("guest: {rounds:?}"));
    // The first and the last may be cut.
    let rounds = &mut rounds[1..WINDOWS - 1];
    rounds.sort_unstable();
    let (worst, best) = rounds.split_at(rounds.len() / 2);
    compare(best.iter().sum(), worst.iter().sum(), BOUND)
}
