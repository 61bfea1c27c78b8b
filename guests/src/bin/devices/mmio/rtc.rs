//! The goldfish RTC.

use super::PLIC;
use super::plic::{claim_register, enable_register, threshold_register};
use guests::access::{in32, out32};
use guests::{Check, ensure, ensure_eq, hart};

/// Its place, its PLIC source, and its registers: nanoseconds since 1970 in two halves, of which the high one is latched
/// when the low one is read; the alarm, in the same form; whether it interrupts; and what takes the interrupt back.
const START: u64 = 0x0010_1000;
const SOURCE: u32 = 11;
const TIME: u64 = START;
const ALARM: u64 = START + 8;
const IRQ_ENABLED: u64 = START + 0x10;
const CLEAR_INTERRUPT: u64 = START + 0x1c;

fn now() -> u64 {
    let low = in32(TIME);
    u64::from(low) | u64::from(in32(TIME + 4)) << 32
}

/// The time is later than when this was written, and it passes.
pub fn time_of_day() -> Check {
    const YEAR_2020: u64 = 1_577_836_800_000_000_000;
    let first = now();
    ensure!(first >= YEAR_2020, "{first} ns since 1970");
    ensure!(hart::wait_for(hart::PATIENCE_MS, || now() > first), "time stands still at {first} ns");
    Ok(())
}

/// An alarm for what is past, and one for what is to come.
pub fn alarm() -> Check {
    let is_pending = || in32(PLIC + 0x1000) >> SOURCE & 1 == 1;
    let id = hart::id();
    ensure!(!is_pending(), "the interrupt is pending before any alarm");
    out32(PLIC + 4 * u64::from(SOURCE), 1);
    out32(threshold_register(id), 0);
    out32(enable_register(id), 1 << SOURCE);
    out32(IRQ_ENABLED, 1);
    for ahead in [0, 2_000_000] {
        let at = now() + ahead;
        out32(ALARM + 4, (at >> 32) as u32);
        out32(ALARM, at as u32);
        ensure!(hart::wait_for(hart::PATIENCE_MS, is_pending), "no interrupt for an alarm {ahead} ns ahead");
        ensure!(now() >= at, "the alarm came early");
        ensure_eq!(in32(claim_register(id)), SOURCE, "claim");
        out32(CLEAR_INTERRUPT, 1);
        out32(claim_register(id), SOURCE);
        ensure!(!is_pending(), "the interrupt stays");
    }
    out32(IRQ_ENABLED, 0);
    out32(enable_register(id), 0);
    Ok(())
}
