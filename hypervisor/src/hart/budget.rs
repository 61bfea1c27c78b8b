//! The time that a hart spends on VMs that it does not run.

/// A bound of the time that a hart spends on other VMs while it has a guest of its own: their devices' interrupts, their output, their
/// pages. After each piece of such work the guest gets [`Budget::SHARE`] times as long, so that many small pieces are bounded like a
/// long one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Budget {
    /// The host time from which on the next piece may begin.
    next: u64,
}

impl Budget {
    /// The guest's time for each piece of work, as a multiple of the piece.
    pub const SHARE: u64 = 47;

    /// Returns whether a piece of work may begin at host time `now`.
    #[must_use]
    pub const fn allows(&self, now: u64) -> bool {
        now >= self.next
    }

    /// Returns the host time from which on the next piece may begin.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Charges a piece of work from host time `from` to `now`.
    pub const fn charge(&mut self, from: u64, now: u64) {
        let rest = now.saturating_sub(from).saturating_mul(Self::SHARE);
        let begins = if self.next > now { self.next } else { now };
        self.next = begins.saturating_add(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_keeps_its_share_whatever_the_pieces_are() {
        for piece in [1, 7, 1000] {
            let (mut budget, mut now, mut worked) = (Budget::default(), 0, 0);
            while now < 1_000_000 {
                if budget.allows(now) {
                    budget.charge(now, now + piece);
                    (now, worked) = (now + piece, worked + piece);
                } else {
                    now += 1;
                }
            }
            assert!(worked <= 1_000_000 / (Budget::SHARE + 1) + piece, "pieces of {piece}: {worked}");
            assert!(worked >= 1_000_000 / (Budget::SHARE + 1) - piece, "pieces of {piece}: {worked}");
        }
    }

    #[test]
    fn pieces_that_are_done_all_the_same_are_paid_for_later() {
        let mut budget = Budget::default();
        budget.charge(100, 110);
        budget.charge(110, 120);
        assert_eq!((budget.next(), budget.allows(1049), budget.allows(1050)), (1050, false, true));
        budget.charge(u64::MAX - 1, u64::MAX);
        assert_eq!(budget.next(), u64::MAX);
    }
}
