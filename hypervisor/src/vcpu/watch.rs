//! What looks at a vCPU know of each other ([`crate::exit::watch`]).

use super::csrs::VsTrapRegs;

/// When a vCPU is looked at next, and what the last look found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Watch {
    look: u64,
    /// When the VM's shadow tables are to be looked at; 0: they are not.
    relax: u64,
    /// When what its root costs is to be looked at; 0: it is not.
    choose: u64,
    /// When it is to be looked at whether its pages can be coalesced; 0: it is not.
    gather: u64,
    /// The soonest of the four.
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
    /// Host time of the next look.
    #[must_use]
    pub const fn due(&self) -> u64 {
        self.due
    }

    const fn reckon(&mut self) {
        self.due = if self.relax != 0 && self.relax < self.look { self.relax } else { self.look };
        if self.choose != 0 && self.choose < self.due {
            self.due = self.choose;
        }
        if self.gather != 0 && self.gather < self.due {
            self.due = self.gather;
        }
    }

    /// The VM's shadow tables are to be looked at, at host time `due`, if nobody has said so before.
    pub const fn relax_at(&mut self, due: u64) {
        if self.relax == 0 {
            self.relax = due;
            self.reckon();
        }
    }

    /// Whether they are to be looked at now. It is up to the caller to do it.
    pub const fn takes_relax(&mut self, now: u64) -> bool {
        let is_due = self.relax != 0 && self.relax <= now;
        if is_due {
            self.relax = 0;
            self.reckon();
        }
        is_due
    }

    /// What its root costs is to be looked at, at host time `due`, if nobody has said so before.
    pub const fn choose_at(&mut self, due: u64) {
        if self.choose == 0 {
            self.choose_again(due);
        }
    }

    /// The same, whatever was said before.
    pub const fn choose_again(&mut self, due: u64) {
        self.choose = due;
        self.reckon();
    }

    /// Whether that is to be looked at now. Whoever does says when it is next.
    #[must_use]
    pub const fn is_to_choose(&self, now: u64) -> bool {
        self.choose != 0 && self.choose <= now
    }

    /// Whether its pages can be coalesced is to be looked at, at host time `due`, if nobody has said so before.
    pub const fn gather_at(&mut self, due: u64) {
        if self.gather == 0 {
            self.gather_again(due);
        }
    }

    /// The same, whatever was said before.
    pub const fn gather_again(&mut self, due: u64) {
        self.gather = due;
        self.reckon();
    }

    /// Whether that is to be looked at now. Whoever does says when it is next.
    #[must_use]
    pub const fn is_to_gather(&self, now: u64) -> bool {
        self.gather != 0 && self.gather <= now
    }

    /// The vCPU comes to a hart, at host time `now`: for the first time, to be looked at in `interval` ticks; else no sooner
    /// than in `least` ticks, so that it runs between two looks.
    pub fn load(&mut self, now: u64, interval: u64, least: u64) {
        self.look =
            if self.look == 0 { now.saturating_add(interval) } else { self.look.max(now.saturating_add(least)) };
        self.reckon();
    }

    /// A look has found that, and the next comes at host time `due`. Says whether the look before found the same.
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
        watch.choose_at(1200);
        watch.choose_at(1100);
        assert!(watch.due() == 1200 && !watch.is_to_choose(1199) && watch.is_to_choose(1200));
        watch.relax_at(1150);
        assert_eq!(watch.due(), 1150);
        assert!(watch.takes_relax(1150) && watch.due() == 1200);
        watch.choose_again(1600);
        assert!(watch.due() == 1500 && !watch.is_to_choose(1500));
    }

    #[test]
    fn shadow_tables_are_looked_at_between_two_looks() {
        let mut watch = Watch::default();
        watch.load(1000, 500, 2);
        assert!(watch.due() == 1500 && !watch.takes_relax(1499));
        watch.relax_at(1100);
        watch.relax_at(1050);
        assert_eq!(watch.due(), 1100, "who has said so first");
        assert!(!watch.takes_relax(1099) && watch.takes_relax(1100) && !watch.takes_relax(1101));
        assert_eq!(watch.due(), 1500);
        watch.relax_at(1600);
        assert_eq!(watch.due(), 1500);
    }
}
