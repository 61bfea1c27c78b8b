//! The numbers of events so far: those that a hart counts while a vCPU is in its guest, and those that Gnomon counts for SBI PMU only.

use sbi_spec::pmu::firmware_event;

/// A world of a vCPU, by its bit in a set of worlds: its own guest, and the guests of that.
pub(super) const OWN: u8 = 1;
pub(super) const L2: u8 = 2;

/// Values of a hart's counters at a moment, or differences of such.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// `cycle`.
    pub cycles: u64,
    /// `instret`.
    pub instructions: u64,
    /// `time`, in ticks.
    pub time: u64,
}

impl Sample {
    /// Returns the sum of two differences.
    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            cycles: self.cycles.wrapping_add(other.cycles),
            instructions: self.instructions.wrapping_add(other.instructions),
            time: self.time.wrapping_add(other.time),
        }
    }

    /// Returns the difference since an earlier moment.
    const fn since(self, earlier: Self) -> Self {
        Self {
            cycles: self.cycles.wrapping_sub(earlier.cycles),
            instructions: self.instructions.wrapping_sub(earlier.instructions),
            time: self.time.wrapping_sub(earlier.time),
        }
    }
}

/// The sums of what was counted in the guest while hardware counters ran.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guest {
    /// Of the vCPU's own guest.
    own: Sample,
    /// Of the guests of that, if it is a hypervisor.
    l2: Sample,
    /// The moment of the last entry, until the next exit.
    entered: Option<Sample>,
}

impl Guest {
    /// Notes the hart's counters at an entry.
    pub(super) const fn enter(&mut self, now: Sample) {
        self.entered = Some(now);
    }

    /// Adds the difference between an entry and the exit after it.
    pub(super) const fn leave(&mut self, now: Sample, is_l2: bool) {
        let Some(entered) = self.entered.take() else { return };
        let sum = if is_l2 { &mut self.l2 } else { &mut self.own };
        *sum = sum.plus(now.since(entered));
    }

    /// Returns the sum over some worlds.
    pub(super) const fn total(&self, worlds: u8) -> Sample {
        let none = Sample { cycles: 0, instructions: 0, time: 0 };
        let own = if worlds & OWN != 0 { self.own } else { none };
        own.plus(if worlds & L2 != 0 { self.l2 } else { none })
    }
}

/// The numbers of firmware events that are counted for this purpose only, by their codes.
#[derive(Clone, Debug, Default)]
pub(super) struct Firmware([u64; firmware_event::HFENCE_VVMA_ASID_RECEIVED + 1]);

impl Firmware {
    /// Counts `n` events of a code.
    pub(super) const fn count(&mut self, code: usize, n: u64) {
        self.0[code] += n;
    }

    /// Returns the number of events of a code.
    pub(super) fn of(&self, code: usize) -> u64 {
        self.0.get(code).copied().unwrap_or(0)
    }
}
