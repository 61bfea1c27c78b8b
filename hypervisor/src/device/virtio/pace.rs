//! The pace of a device on a hart that runs another guest.

use super::backend::Progress;
use super::portion::{self, Budget, Stop};
use super::queue::Trouble;
use crate::device::interface::Outside;

/// The pace of a device: on a hart that runs another guest, it does the work of one portion in a millisecond, and asks
/// for a moment later for what is left. On a hart that runs the device's own guest, or no guest, it has no limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Ticks in which a portion may be done.
    each: u64,
    /// The time at which the work so far would be done at that pace.
    until: u64,
}

impl Pace {
    /// Makes the pace of a device on a machine with `timebase` ticks in a second.
    pub(super) const fn new(timebase: u64) -> Self {
        Self { each: timebase / 1000, until: 0 }
    }

    /// Does a portion by steps, if one may be done now.
    pub(super) fn go_on(
        &mut self,
        portion: usize,
        outside: &mut dyn Outside,
        mut step: impl FnMut(&mut Budget, &mut dyn Outside) -> Result<(), Stop>,
    ) -> Result<Progress, Trouble> {
        if !self.may_go_on(outside) {
            return Ok(Progress::Idle);
        }
        let mut budget = Budget::new(portion);
        let progress = portion::go_on_with(&mut budget, |budget| step(budget, outside));
        self.has_done(portion - budget.left(), portion, outside);
        progress
    }

    /// Returns whether a portion may be done now. If not, asks for a moment when it may.
    fn may_go_on(&self, outside: &mut dyn Outside) -> bool {
        let from = self.until.saturating_sub(self.each);
        let may = outside.is_own() || outside.now() >= from;
        if !may {
            outside.at(from);
        }
        may
    }

    /// Notes that `spent` of a portion was done.
    fn has_done(&mut self, spent: usize, portion: usize, outside: &dyn Outside) {
        if !outside.is_own() {
            self.until = self.until.max(outside.now()) + self.each * spent as u64 / portion as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::interface::tests::World;

    #[test]
    fn where_another_guest_runs_a_portion_is_done_in_a_millisecond() {
        let (mut pace, mut world) = (Pace::new(10_000_000), World { is_foreign: true, now: 5, ..World::default() });
        // A whole one, and half of another: the next has to wait for that half.
        for spent in [100, 50] {
            assert!(pace.may_go_on(&mut world));
            pace.has_done(spent, 100, &world);
        }
        assert!(!pace.may_go_on(&mut world) && world.at == Some(5_005));
        world.now = 5_005;
        assert!(pace.may_go_on(&mut world));
        // On its own guest's hart, or on one without a guest, the device goes on, and that is not counted.
        world.is_foreign = false;
        (0..10).for_each(|_| pace.has_done(100, 100, &world));
        world.is_foreign = true;
        assert!(pace.may_go_on(&mut world));
    }
}
