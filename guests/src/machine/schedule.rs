//! The schedule that the guests `storm` and `rounds` share: windows of time, in each of which the one storms in a way of its
//! own, after a window in which it only spins. Each reads its own clock, so the first and last part of a window do not count.

use crate::{board, sbi};

/// The kind of a storm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Storm {
    /// Output by the debug console.
    Console,
    /// Output by the UART.
    Uart,
    /// Software interrupts, each hart to all.
    Ipi,
    /// Harts that start and stop.
    Hsm,
    /// Remote fences, each hart to all.
    Rfence,
    /// First touches of RAM, and when there is none left, accesses to where there is none.
    Faults,
}

/// All of them, in the order of the schedule.
pub const STORMS: [(Storm, &str); 6] = [
    (Storm::Console, "console"),
    (Storm::Uart, "uart"),
    (Storm::Ipi, "ipi"),
    (Storm::Hsm, "hsm"),
    (Storm::Rfence, "rfence"),
    (Storm::Faults, "faults"),
];

/// The argument of both guests by which the storm consists of accesses to pages that are out.
pub const PAGES: &str = "pages";
/// A window, in milliseconds: calm, then a storm.
const WINDOW_MS: u64 = 12;
/// A window of a storm of [`PAGES`]: within the shorter ones a VM waits for a few pages only.
const PAGING_WINDOW_MS: u64 = 40;
/// The time that does not count at both ends of a window, in milliseconds.
const EDGE_MS: u64 = 2;

/// The start of the schedule, on a clock that runs since the machine's start or since the guest's.
const START_MS: u64 = 100;
/// The timer interrupts of each hart, in times per millisecond.
const TICKS_PER_MS: u64 = 20;

/// The weather at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The calm before the storm of this index.
    Calm(usize),
    /// The storm of this index.
    Storm(usize),
    /// All is over.
    Over,
}

/// The weather at `time`, in ticks of the clock; and whether that is far enough from the window's ends to count.
#[must_use]
pub fn at(time: u64) -> (Moment, bool) {
    let Some(time) = time.checked_sub(board().ticks(START_MS)) else { return (Moment::Calm(0), false) };
    let window = board().ticks(if board().bootargs == PAGES { PAGING_WINDOW_MS } else { WINDOW_MS });
    let (index, into) = ((time / window) as usize, time % window);
    let moment = match index / 2 {
        storm if storm >= STORMS.len() => Moment::Over,
        storm if index.is_multiple_of(2) => Moment::Calm(storm),
        storm => Moment::Storm(storm),
    };
    let edge = board().ticks(EDGE_MS);
    (moment, (edge..window - edge).contains(&into))
}

/// Sets the next tick of this hart.
pub fn tick() {
    sbi::set_timer(metal::time() + board().ticks(1) / TICKS_PER_MS);
}
