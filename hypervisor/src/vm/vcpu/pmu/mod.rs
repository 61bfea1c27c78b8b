//! The counters of a vCPU that its kernel controls by SBI PMU (SBI 2.0, chapter 11).
//!
//! A hardware counter counts what the hart's own `cycle`, `instret` and `time` count while the vCPU is in its guest. The hart takes a
//! [`Sample`] of these at each exit and entry, as long as one such counter runs. A firmware counter counts what Gnomon does for the vCPU.
//! Neither kind costs anything when its event happens: a counter that runs knows the total at its start, and the difference is its value.

mod events;
#[cfg(test)]
mod tests;
mod totals;

pub use events::{Event, EventsOffered};
pub use totals::Sample;

use crate::measure::counters::VcpuCounters;
use crate::vm::sbi_error::Error;
use abi::snapshot::CounterState;
use alloc::boxed::Box;
use alloc::vec::Vec;
use sbi_spec::pmu::flags::{CounterCfgFlags, CounterStartFlags, CounterStopFlags};
use totals::{Firmware, Guest, L2, OWN};

/// The number of hardware counters: the first ones.
pub const HARDWARE: usize = 6;
/// The number of firmware counters, which follow.
const FIRMWARE: usize = 10;
/// The number of all counters.
pub const COUNTERS: usize = HARDWARE + FIRMWARE;
/// The CSR by which the first hardware counter is read: `hpmcounter3`. The others follow.
pub const FIRST_CSR: u16 = 0xc03;

/// One counter.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    /// The event that it is configured for.
    event: Option<Event>,
    /// The worlds in which it counts, if it is a hardware counter.
    worlds: u8,
    /// Its value when it stopped.
    value: u64,
    /// The total of its event minus the counter's value, while it runs.
    behind: Option<u64>,
}

/// The counters of a vCPU.
#[derive(Clone, Debug, Default)]
pub struct Pmu {
    counters: [Counter; COUNTERS],
    guest: Guest,
    firmware: Firmware,
}

/// Returns the counters that a base and a mask name, as a set.
///
/// # Errors
/// [`Error::InvalidParam`], if one of them does not exist.
fn named(base: u64, mask: u64) -> Result<u32, Error> {
    const { assert!(COUNTERS <= 32, "a set of counters is a word") };
    const ALL: u64 = (1 << COUNTERS) - 1;
    match base {
        _ if mask == 0 => Ok(0),
        0..64 if mask & !(ALL >> base) == 0 => Ok((mask << base) as u32),
        _ => Err(Error::InvalidParam),
    }
}

/// Returns the counters of a set.
fn each(set: u32) -> impl Iterator<Item = usize> {
    (0..COUNTERS).filter(move |n| set & 1 << n != 0)
}

/// Returns the flags that a register has; none of them may be reserved.
fn flags<T>(register: u64, from_bits: fn(usize) -> Option<T>) -> Result<T, Error> {
    from_bits(register as usize).ok_or(Error::InvalidParam)
}

impl Pmu {
    /// Returns `counter_info` of a counter: its CSR, its width less one, and in bit 63 its kind.
    ///
    /// # Errors
    /// [`Error::InvalidParam`], if there is no such counter.
    pub fn info(counter: u64) -> Result<u64, Error> {
        const WIDTH: u64 = 63 << 12;
        const IS_FIRMWARE: u64 = 1 << 63;
        match counter as usize {
            n @ 0..HARDWARE => Ok(WIDTH | (u64::from(FIRST_CSR) + n as u64)),
            // Kernels look at this width, too.
            HARDWARE..COUNTERS => Ok(IS_FIRMWARE | WIDTH),
            _ => Err(Error::InvalidParam),
        }
    }

    /// Configures a counter of the set for an event, and returns its number. It is one without an event, so that none is taken from a
    /// kernel that is about to start it; with SKIP_MATCH it is the first one of the set, unless that runs. Hints which modes not to
    /// count are followed if they name both modes of a world.
    ///
    /// # Errors
    /// [`Error::InvalidParam`], if a counter does not exist or a flag is reserved. [`Error::NotSupported`], if no counter of the set
    /// can count the event now.
    pub fn configure(
        &mut self,
        (base, mask): (u64, u64),
        register: u64,
        event: (u64, u64),
        offered: EventsOffered,
        totals: &VcpuCounters,
    ) -> Result<u64, Error> {
        type Flags = CounterCfgFlags;
        let set = named(base, mask)?;
        let flags = flags(register, Flags::from_bits)?;
        let event = Event::offered(event.0, event.1, offered).ok_or(Error::NotSupported)?;
        let suits = |n: &usize| (*n >= HARDWARE) == event.is_firmware();
        let found = if flags.contains(Flags::SKIP_MATCH) {
            each(set).next().filter(|n| suits(n) && self.counters[*n].behind.is_none())
        } else {
            each(set).find(|n| suits(n) && self.counters[*n].event.is_none())
        };
        let found = found.ok_or(Error::NotSupported)?;
        let inhibits = |modes, world| if flags.contains(modes) { world } else { 0 };
        let counter = &mut self.counters[found];
        counter.event = Some(event);
        counter.worlds = (OWN | L2)
            & !inhibits(Flags::SET_UINH | Flags::SET_SINH, OWN)
            & !inhibits(Flags::SET_VUINH | Flags::SET_VSINH, L2);
        if flags.contains(Flags::CLEAR_VALUE) {
            counter.value = 0;
        }
        if flags.contains(Flags::AUTO_START) {
            self.run(found, None, totals);
        }
        Ok(found as u64)
    }

    /// Starts the counters of the set, at that value if a flag says so.
    ///
    /// # Errors
    /// [`Error::InvalidParam`], if a counter does not exist or has no event, or a flag is reserved; [`Error::NoShmem`], if a flag
    /// wants values from shared memory; nothing has happened then. [`Error::AlreadyStarted`], if a counter runs: it goes on, and the
    /// others are started.
    pub fn start(
        &mut self,
        (base, mask): (u64, u64),
        register: u64,
        initial: u64,
        totals: &VcpuCounters,
    ) -> Result<u64, Error> {
        let set = named(base, mask)?;
        let flags = flags(register, CounterStartFlags::from_bits)?;
        if flags.contains(CounterStartFlags::INIT_SNAPSHOT) {
            return Err(Error::NoShmem);
        }
        if each(set).any(|n| self.counters[n].event.is_none()) {
            return Err(Error::InvalidParam);
        }
        let value = flags.contains(CounterStartFlags::INIT_VALUE).then_some(initial);
        let mut result = Ok(0);
        for n in each(set) {
            if self.counters[n].behind.is_some() {
                result = Err(Error::AlreadyStarted);
            } else {
                self.run(n, value, totals);
            }
        }
        result
    }

    /// Stops the counters of the set. With RESET they lose their events, those that had stopped already, too.
    ///
    /// # Errors
    /// [`Error::InvalidParam`], if a counter does not exist or a flag is reserved; [`Error::NoShmem`], if a flag wants values in
    /// shared memory; nothing has happened then. [`Error::AlreadyStopped`], if a counter has stopped; the others are stopped.
    pub fn stop(&mut self, (base, mask): (u64, u64), register: u64, totals: &VcpuCounters) -> Result<u64, Error> {
        let set = named(base, mask)?;
        let flags = flags(register, CounterStopFlags::from_bits)?;
        if flags.contains(CounterStopFlags::TAKE_SNAPSHOT) {
            return Err(Error::NoShmem);
        }
        let mut result = Ok(0);
        for n in each(set) {
            let value = self.value(n, totals);
            let counter = &mut self.counters[n];
            counter.value = value;
            if counter.behind.take().is_none() {
                result = Err(Error::AlreadyStopped);
            }
            if flags.contains(CounterStopFlags::RESET) {
                counter.event = None;
            }
        }
        result
    }

    /// Returns the value of a firmware counter.
    ///
    /// # Errors
    /// [`Error::InvalidParam`], if there is no such counter, or it is a hardware counter.
    pub fn firmware(&self, counter: u64, totals: &VcpuCounters) -> Result<u64, Error> {
        match counter as usize {
            n @ HARDWARE..COUNTERS => Ok(self.value(n, totals)),
            _ => Err(Error::InvalidParam),
        }
    }

    /// Returns the value of the hardware counter of that number, below [`HARDWARE`], in the midst of an exit.
    #[must_use]
    pub fn hardware(&self, counter: usize, totals: &VcpuCounters) -> u64 {
        self.value(counter, totals)
    }

    /// Returns whether samples are to be taken, and no exit is to be brief: if a hardware counter runs, or one of received IPIs. A brief
    /// exit that sends one to the vCPU itself does not count it.
    #[must_use]
    pub fn samples(&self) -> bool {
        let by_exits = |event: Event| !event.is_firmware() || event.is_of_received_ipis();
        self.counters.iter().any(|counter| counter.behind.is_some() && counter.event.is_some_and(by_exits))
    }

    /// Notes the hart's counters at an entry into the guest, or the guest's guest.
    pub const fn enter(&mut self, now: Sample) {
        self.guest.enter(now);
    }

    /// Notes the hart's counters at the exit that follows, from the world that `is_l2` says.
    pub const fn leave(&mut self, now: Sample, is_l2: bool) {
        self.guest.leave(now, is_l2);
    }

    /// Counts `n` firmware events of a code of `sbi_spec::pmu::firmware_event` below the reserved ones.
    pub const fn count(&mut self, code: usize, n: u64) {
        self.firmware.count(code, n);
    }

    /// Returns the value of a counter.
    fn value(&self, counter: usize, totals: &VcpuCounters) -> u64 {
        let it = &self.counters[counter];
        match (it.behind, it.event) {
            (Some(behind), Some(event)) => {
                event.total(it.worlds, &self.guest, &self.firmware, totals).wrapping_sub(behind)
            }
            _ => it.value,
        }
    }

    /// Makes a counter that has an event run, from that value or the one that it has.
    fn run(&mut self, counter: usize, value: Option<u64>, totals: &VcpuCounters) {
        let it = &self.counters[counter];
        let Some(event) = it.event else { return };
        let total = event.total(it.worlds, &self.guest, &self.firmware, totals);
        self.counters[counter].behind = Some(total.wrapping_sub(value.unwrap_or(it.value)));
    }

    /// Saves the counters that have an event or a value.
    pub(super) fn save(&self, totals: &VcpuCounters) -> Vec<CounterState> {
        let state = |(n, counter): (usize, &Counter)| CounterState {
            number: n as u8,
            event: counter.event.map(|event| event.index),
            data: counter.event.map_or(0, |event| event.data),
            worlds: counter.worlds,
            value: self.value(n, totals),
            is_running: counter.behind.is_some(),
        };
        let all = self.counters.iter().enumerate().map(state);
        all.filter(|state| state.event.is_some() || state.value != 0).collect()
    }

    /// Restores counters. Those that cannot be are left out: one that does not exist, or counts an event that is not offered.
    pub(super) fn restore(saved: &[CounterState], offered: EventsOffered, totals: &VcpuCounters) -> Option<Box<Self>> {
        let mut pmu = Box::<Self>::default();
        for state in saved {
            let n = usize::from(state.number);
            let event = state.event.and_then(|index| Event::offered(index.into(), state.data, offered));
            if n >= COUNTERS || event.is_some_and(|event| (n >= HARDWARE) != event.is_firmware()) {
                continue;
            }
            pmu.counters[n] = Counter { event, worlds: state.worlds, value: state.value, behind: None };
            if state.is_running {
                pmu.run(n, None, totals);
            }
        }
        (!saved.is_empty()).then_some(pmu)
    }
}
