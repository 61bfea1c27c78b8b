//! Chooses the translation of each root where a guest may have either: by its own tables behind a G-stage (two-stage), or
//! by shadow tables (steered).
//!
//! The cost of a steered root can be counted: the traps that keep its tables synchronised. The cost of a two-stage root,
//! longer walks, cannot, since hardware need not report it. So a root is steered only if that costs next to nothing,
//! and two-stage otherwise: a wrong choice then costs no more than the limit. A root begins two-stage, because most roots
//! do not live long, and making tables costs most. It is tried after a while; each failed trial doubles the delay before
//! the next one.

/// The translation of a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// By the guest's tables, behind the G-stage.
    TwoStage,
    /// By shadow tables.
    Steered,
}

/// The measurements of a look, over the time since the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Thousandths of the time that traps took, if the root was steered.
    pub share: u64,
    /// The limit for that.
    pub limit: u64,
    /// The time now, in ticks of any clock.
    pub now: u64,
    /// The initial delay of a trial, in ticks of the same clock.
    pub interval: u64,
}

/// Returns whether the share of traps exceeds the limit by so much that one look is reason enough; both in thousandths
/// of the time.
#[must_use]
pub const fn is_far_too_much(share: u64, limit: u64) -> bool {
    share > limit.saturating_mul(4)
}

/// Roots that are remembered; most guests have few that run for long.
const ROOTS: usize = 32;
/// A trial is put off for at most 2^6 times as long.
const MOST_TIMES: u8 = 6;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    key: u64,
    /// The time of the first look at it.
    since: u64,
    choice: Choice,
    /// Not to be tried before.
    until: u64,
    /// Trials that have failed, one after another.
    failed: u8,
    /// Set if the look before found too many traps, or [`Chooser::suspect`] has announced them.
    is_suspect: bool,
}

/// The costs of a vCPU's roots, as far as they have been found. Identifies a root by the value that the guest writes to
/// `satp`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chooser {
    known: [Option<Known>; ROOTS],
    /// The entry that the next new root replaces, if all are taken.
    hand: usize,
    /// No root is tried before, and how many trials have failed: for a guest of many roots.
    until: u64,
    failed: u8,
}

impl Default for Chooser {
    fn default() -> Self {
        Self::new()
    }
}

impl Chooser {
    /// Knows no root.
    #[must_use]
    pub const fn new() -> Self {
        Self { known: [None; ROOTS], hand: 0, until: 0, failed: 0 }
    }

    fn get(&self, key: u64) -> Option<&Known> {
        self.known.iter().flatten().find(|known| known.key == key)
    }

    /// Returns the choice for a root.
    #[must_use]
    pub fn choice(&self, key: u64) -> Choice {
        self.get(key).map_or(Choice::TwoStage, |known| known.choice)
    }

    /// Returns whether any root is steered.
    #[must_use]
    pub fn steers_any(&self) -> bool {
        self.known.iter().flatten().any(|known| known.choice == Choice::Steered)
    }

    /// Returns the time since the first look at a root; 0 if the root is unknown.
    #[must_use]
    pub fn age(&self, key: u64, now: u64) -> u64 {
        self.get(key).map_or(0, |known| now.saturating_sub(known.since))
    }

    fn find(&mut self, key: u64, now: u64, until: u64) -> &mut Known {
        let at = self.known.iter().position(|known| known.is_some_and(|known| known.key == key));
        let at = at.or_else(|| self.known.iter().position(Option::is_none)).unwrap_or_else(|| {
            self.hand = (self.hand + 1) % ROOTS;
            self.hand
        });
        let fresh = Known { key, since: now, choice: Choice::TwoStage, until, failed: 0, is_suspect: false };
        let known = self.known[at].get_or_insert(fresh);
        if known.key != key {
            *known = fresh;
        }
        known
    }

    /// Records that a look found the vCPU at this root, two-stage or steered. Returns the choice for the root from now on.
    pub fn looked(&mut self, key: u64, was: Choice, found: Found) -> Choice {
        let Found { share, limit, now, interval } = found;
        let (all_until, all_failed) = (self.until, self.failed);
        let known = self.find(key, now, now.saturating_add(interval));
        match was {
            Choice::TwoStage if known.choice == Choice::Steered => {}
            Choice::TwoStage => {
                // Its tables are made first, which one look may find to be too much.
                if now >= known.until && now >= all_until {
                    (known.choice, known.is_suspect) = (Choice::Steered, false);
                }
            }
            Choice::Steered if share > limit && known.is_suspect || is_far_too_much(share, limit) => {
                known.choice = Choice::TwoStage;
                known.failed = (known.failed + 1).min(MOST_TIMES);
                known.until = now.saturating_add(interval << known.failed);
                self.failed = (all_failed + 1).min(MOST_TIMES);
                self.until = now.saturating_add(interval << self.failed >> 2);
            }
            Choice::Steered if share > limit => (known.choice, known.is_suspect) = (Choice::Steered, true),
            Choice::Steered => {
                known.choice = Choice::Steered;
                if share <= limit / 2 {
                    (known.is_suspect, known.failed, self.failed) = (false, 0, 0);
                }
            }
        }
        self.choice(key)
    }

    /// Records that a steered root seems to begin to cost much: if the next look finds too many traps, that look is
    /// enough.
    pub fn suspect(&mut self, key: u64) {
        if let Some(known) = self.known.iter_mut().flatten().find(|known| known.key == key) {
            known.is_suspect = true;
        }
    }

    /// Records that a root could not be steered now: there was no memory for it, or not at once. It is tried again at a
    /// later look.
    pub fn postpone(&mut self, key: u64, now: u64, until: u64) {
        let known = self.find(key, now, until);
        (known.choice, known.until) = (Choice::TwoStage, until);
    }

    /// Sets the choice for a root, for tests.
    pub fn force(&mut self, key: u64, choice: Choice) {
        self.find(key, 0, 0).choice = choice;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const LIMIT: u64 = 20;

    fn found(now: u64, share: u64) -> Found {
        Found { share, limit: LIMIT, now, interval: 100 }
    }

    #[test]
    fn a_root_that_costs_little_is_steered_after_a_while_and_stays_so() {
        let mut chooser = Chooser::new();
        assert_eq!(chooser.looked(1, Choice::TwoStage, found(0, 0)), Choice::TwoStage);
        assert_eq!(chooser.looked(1, Choice::TwoStage, found(99, 0)), Choice::TwoStage);
        assert_eq!(chooser.looked(1, Choice::TwoStage, found(100, 0)), Choice::Steered);
        assert!((2..50).all(|n| chooser.looked(1, Choice::Steered, found(100 * n, 5)) == Choice::Steered));
        assert!(chooser.steers_any());
        assert_eq!(chooser.choice(2), Choice::TwoStage);
    }

    #[test]
    fn a_root_is_as_old_as_the_first_look_at_it() {
        let mut chooser = Chooser::new();
        assert_eq!(chooser.age(1, 50), 0);
        let _ = chooser.looked(1, Choice::TwoStage, found(100, 0));
        let _ = chooser.looked(1, Choice::TwoStage, found(300, 0));
        assert_eq!((chooser.age(1, 350), chooser.age(1, 50), chooser.age(2, 350)), (250, 0, 0));
        // One that another has the place of begins anew.
        let others = 2..2 + ROOTS as u64;
        others.clone().for_each(|key| _ = chooser.looked(key, Choice::TwoStage, found(400, 0)));
        assert_eq!(others.filter(|key| chooser.age(*key, 500) == 0).count(), 1);
        assert_eq!((chooser.age(1, 500), chooser.age(1 + ROOTS as u64, 500)), (400, 100));
    }

    #[test]
    fn one_bad_look_is_no_reason_and_two_or_a_very_bad_one_are() {
        let steered = || {
            let mut chooser = Chooser::new();
            let _ = chooser.looked(1, Choice::TwoStage, found(0, 0));
            assert_eq!(chooser.looked(1, Choice::TwoStage, found(100, 0)), Choice::Steered);
            assert_eq!(chooser.looked(1, Choice::Steered, found(200, LIMIT / 2)), Choice::Steered);
            chooser
        };
        let mut chooser = steered();
        assert_eq!(chooser.looked(1, Choice::Steered, found(300, LIMIT + 1)), Choice::Steered);
        // Hysteresis: below the limit, but not by enough to be trusted again.
        assert_eq!(chooser.looked(1, Choice::Steered, found(400, LIMIT)), Choice::Steered);
        assert_eq!(chooser.looked(1, Choice::Steered, found(500, LIMIT + 1)), Choice::TwoStage);
        let mut chooser = steered();
        assert_eq!(chooser.looked(1, Choice::Steered, found(300, LIMIT + 1)), Choice::Steered);
        assert_eq!(chooser.looked(1, Choice::Steered, found(400, LIMIT / 2)), Choice::Steered);
        assert_eq!(chooser.looked(1, Choice::Steered, found(500, LIMIT + 1)), Choice::Steered);
        let mut chooser = steered();
        assert_eq!(chooser.looked(1, Choice::Steered, found(300, 4 * LIMIT + 1)), Choice::TwoStage);
        // Or the root was suspected before.
        for (share, choice) in [(LIMIT + 1, Choice::TwoStage), (LIMIT, Choice::Steered)] {
            let mut chooser = steered();
            [1, 2].into_iter().for_each(|key| chooser.suspect(key));
            assert_eq!(
                (chooser.looked(1, Choice::Steered, found(300, share)), chooser.choice(2)),
                (choice, Choice::TwoStage)
            );
        }
    }

    #[test]
    fn trials_that_fail_come_ever_more_rarely() {
        let (mut chooser, mut now, mut trials) = (Chooser::new(), 0, Vec::new());
        let mut choice = Choice::TwoStage;
        while trials.len() < 9 {
            let before = choice;
            choice = chooser.looked(1, choice, found(now, if choice == Choice::Steered { 100 } else { 0 }));
            if before == Choice::TwoStage && choice == Choice::Steered {
                trials.push(now);
            }
            now += 10;
        }
        let gaps: Vec<u64> = trials.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps, [210, 410, 810, 1610, 3210, 6410, 6410, 6410]);
    }

    #[test]
    fn failures_of_some_put_off_the_trials_of_others() {
        let mut chooser = Chooser::new();
        for key in 0..8 {
            let _ = chooser.looked(key, Choice::TwoStage, found(0, 0));
        }
        let mut tried = 0;
        for now in (1000..1200).step_by(10) {
            for key in 0..8 {
                if chooser.looked(key, Choice::TwoStage, found(now, 0)) == Choice::Steered {
                    tried += 1;
                    assert_eq!(chooser.looked(key, Choice::Steered, found(now, 1000)), Choice::TwoStage);
                }
            }
        }
        assert!((2..5).contains(&tried), "{tried}");
    }

    #[test]
    fn more_roots_than_are_remembered_replace_each_other() {
        let mut chooser = Chooser::new();
        for key in 0..3 * ROOTS as u64 {
            assert_eq!(chooser.looked(key, Choice::TwoStage, found(0, 0)), Choice::TwoStage);
            chooser.force(key, Choice::Steered);
            assert_eq!(chooser.choice(key), Choice::Steered);
        }
        assert_eq!((chooser.choice(0), chooser.choice(3 * ROOTS as u64 - 1)), (Choice::TwoStage, Choice::Steered));
        chooser.postpone(3 * ROOTS as u64 - 1, 100, 500);
        assert_eq!(chooser.looked(3 * ROOTS as u64 - 1, Choice::TwoStage, found(499, 0)), Choice::TwoStage);
        assert_eq!(chooser.looked(3 * ROOTS as u64 - 1, Choice::TwoStage, found(500, 0)), Choice::Steered);
    }
}
