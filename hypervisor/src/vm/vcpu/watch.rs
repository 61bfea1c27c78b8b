//! The state that looks at a vCPU share ([`crate::exit::watch`]).

use super::csrs::VsTrapRegs;

/// A reason for looks at a vCPU, beside whether it is stuck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Concern {
    /// The VM's shadow tables: whether wide fences are still many.
    Fences,
    /// The cost of its root.
    Root,
    /// The coalescing of its pages.
    Pages,
}

const CONCERNS: usize = 3;

/// The time of the next look at a vCPU, and the findings of the last one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Watch {
    look: u64,
    /// The host time of the next look for each concern; 0 if there is none.
    concerns: [u64; CONCERNS],
    /// No look comes before.
    least: u64,
    /// The soonest of all.
    due: u64,
    last: Option<Stuck>,
}

/// The state of a vCPU that seems to be stuck: all of it that a kernel's progress would change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// The integer registers.
    pub registers: [u64; 32],
    /// The trap registers.
    pub trap: VsTrapRegs,
}

impl Watch {
    /// Returns the host time of the next look.
    #[must_use]
    pub const fn due(&self) -> u64 {
        self.due
    }

    const fn reckon(&mut self) {
        let (mut due, mut n) = (self.look, 0);
        while n < CONCERNS {
            if self.concerns[n] != 0 && self.concerns[n] < due {
                due = self.concerns[n];
            }
            n += 1;
        }
        self.due = if due < self.least { self.least } else { due };
    }

    /// Schedules a look for a concern at host time `due`, unless one is scheduled already.
    #[inline(always)]
    pub const fn begin(&mut self, what: Concern, due: u64) {
        if self.concerns[what as usize] == 0 {
            self.again(what, due);
        }
    }

    /// Schedules a look for a concern, and replaces the one that was scheduled.
    pub const fn again(&mut self, what: Concern, due: u64) {
        self.concerns[what as usize] = due;
        self.reckon();
    }

    /// Returns whether a look for a concern is due. The caller schedules the next one.
    #[must_use]
    pub const fn is_for(&self, what: Concern, now: u64) -> bool {
        let due = self.concerns[what as usize];
        due != 0 && due <= now
    }

    /// Returns whether a look for a concern is due, and unschedules it.
    pub const fn takes(&mut self, what: Concern, now: u64) -> bool {
        let is_due = self.is_for(what, now);
        if is_due {
            self.again(what, 0);
        }
        is_due
    }

    /// Lets the vCPU run until then: while one look was done, another may have fallen due.
    pub const fn lets_run(&mut self, until: u64) {
        self.least = until;
        self.reckon();
    }

    /// Schedules looks for a vCPU that comes to a hart, at host time `now`: for the first time, to be looked at in
    /// `interval` ticks; else no sooner than in `least` ticks, so that it runs between two looks.
    pub fn load(&mut self, now: u64, interval: u64, least: u64) {
        self.look =
            if self.look == 0 { now.saturating_add(interval) } else { self.look.max(now.saturating_add(least)) };
        self.reckon();
    }

    /// Records the finding of a look; the next look comes at host time `due`. Returns whether the look before found the
    /// same.
    pub fn looked(&mut self, found: Option<Stuck>, due: u64) -> bool {
        self.look = due;
        self.reckon();
        let is_proof = found.is_some() && found == self.last;
        // All but never is there anything to write down.
        if found.is_some() || self.last.is_some() {
            self.last = found;
        }
        is_proof
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_root_costs_is_looked_at_again_and_again() {
        let mut watch = Watch::default();
        watch.load(1000, 500, 2);
        watch.begin(Concern::Root, 1200);
        watch.begin(Concern::Root, 1100);
        assert!(watch.due() == 1200 && !watch.is_for(Concern::Root, 1199) && watch.is_for(Concern::Root, 1200));
        watch.begin(Concern::Fences, 1150);
        assert_eq!(watch.due(), 1150);
        assert!(watch.takes(Concern::Fences, 1150) && watch.due() == 1200);
        watch.again(Concern::Root, 1600);
        assert!(watch.due() == 1500 && !watch.is_for(Concern::Root, 1500));
    }

    #[test]
    fn shadow_tables_are_looked_at_between_two_looks() {
        let mut watch = Watch::default();
        watch.load(1000, 500, 2);
        assert!(watch.due() == 1500 && !watch.takes(Concern::Fences, 1499));
        watch.begin(Concern::Fences, 1100);
        watch.begin(Concern::Fences, 1050);
        assert_eq!(watch.due(), 1100, "who has said so first");
        assert!(!watch.takes(Concern::Fences, 1099) && watch.takes(Concern::Fences, 1100));
        assert!(!watch.takes(Concern::Fences, 1101));
        assert_eq!(watch.due(), 1500);
        watch.begin(Concern::Fences, 1600);
        assert_eq!(watch.due(), 1500);
    }

    #[test]
    fn a_vcpu_runs_between_two_looks() {
        let mut watch = Watch::default();
        watch.load(1000, 500, 2);
        watch.begin(Concern::Root, 1100);
        watch.begin(Concern::Pages, 1120);
        watch.again(Concern::Root, 1300);
        watch.lets_run(1150);
        assert!(watch.due() == 1150 && watch.is_for(Concern::Pages, 1150));
        watch.again(Concern::Pages, 1400);
        assert_eq!(watch.due(), 1300);
    }
}
