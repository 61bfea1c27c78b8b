//! The choice between serving requests one by one, and serving several at once, a moment later
//! ([`Outside::soon`](crate::device::interface::Outside::soon)).
//!
//! A request may be a disk's, or a frame that a network card is to send. Its cost beside its data are exits: a
//! notification, the host's interrupt, and five for the guest's interrupt (it asks the interrupt controller which one
//! that is, and once more whether there is another; it asks the device, and answers both). Several requests at once
//! share them. But a guest that waits for each request before it makes the next one waits a moment more for each. A
//! guest's way cannot be seen: a fast device has answered each request before the next one comes, whether the guest
//! waits or not. So both ways are tried, and the one is taken that carries more requests in the same time:
//!
//! ```text
//!            one by one, SPAN requests: their time ────► several at once, SPAN requests ──── took less ──┐
//!                  ▲                                        │             ▲                              │
//!                  └────── took as long: not for a while ───┘             └──────────────────────────────┘
//! ```
//!
//! Either may take long by chance, since the machine has something else to do: the shortest of some spans one by one
//! counts, and two spans in a row of several at once.

/// Requests whose time is taken.
const SPAN: u32 = 64;
/// After how many spans one by one the other way is tried, at least: one of them may have taken long by chance, and the shortest counts.
const LEAST_PATIENCE: u32 = 3;
/// At most; and after as many of the other way the first one is tried again.
const MOST_PATIENCE: u32 = 64;

/// Which way is taken now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// One by one; so many spans more.
    Single(u32),
    /// Several at once; so many spans more.
    Several(u32),
}

/// The measurements of a driver's requests.
#[derive(Clone, Debug)]
pub(super) struct Gathering {
    way: Way,
    /// The time when the present span began, in the host's ticks; `None` before the first request.
    since: Option<u64>,
    /// Requests in it.
    count: u32,
    /// The least that a span took since requests are single, or were last, in ticks.
    single: u64,
    /// The number of spans for which requests are single after the next failure.
    patience: u32,
    /// Set if the last span of several at once took as long. That may be by chance; two of them are not.
    is_doubtful: bool,
}

impl Default for Gathering {
    fn default() -> Self {
        let (way, single) = Self::SINGLE;
        Self { way, since: None, count: 0, single, patience: LEAST_PATIENCE, is_doubtful: false }
    }
}

impl Gathering {
    /// For as short as may be; nothing is known of what they take.
    const SINGLE: (Way, u64) = (Way::Single(LEAST_PATIENCE - 1), u64::MAX);

    /// Returns whether several requests are to be served at once.
    pub(super) const fn is_on(&self) -> bool {
        matches!(self.way, Way::Several(_))
    }

    /// Notes that a request was taken, at `now` in ticks.
    pub(super) fn took(&mut self, now: u64) {
        let took = now.saturating_sub(*self.since.get_or_insert(now));
        self.count += 1;
        let is_over = self.count > SPAN;
        // A sixteenth is none.
        let is_no_gain = took >= self.single - self.single / 16;
        match self.way {
            // A span that takes half as long again is not continued to its end.
            Way::Several(_) if took / 3 >= self.single / 2 || is_over && is_no_gain && self.is_doubtful => {
                (self.way, self.single) = (Way::Single(self.patience - 1), u64::MAX);
                self.patience = (2 * self.patience).min(MOST_PATIENCE);
                self.is_doubtful = false;
            }
            Way::Several(left) if is_over => {
                self.is_doubtful = is_no_gain;
                if !is_no_gain {
                    self.patience = LEAST_PATIENCE;
                }
                match left.checked_sub(1) {
                    Some(left) => self.way = Way::Several(left),
                    None => (self.way, self.single) = Self::SINGLE,
                }
            }
            Way::Single(left) if is_over => {
                self.single = self.single.min(took);
                self.way = left.checked_sub(1).map_or(Way::Several(MOST_PATIENCE - 1), Way::Single);
            }
            Way::Single(_) | Way::Several(_) => return,
        }
        (self.since, self.count) = (Some(now), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The delay after which several requests are served, in ticks.
    const MOMENT: u64 = 1000;

    /// Runs a driver that makes so many requests at once, each of which costs its guest `work` ticks, and `exits` more
    /// if it is served by itself. Returns the time that `count` requests took.
    fn drive(gathering: &mut Gathering, (depth, work, exits): (u64, u64, u64), now: &mut u64, count: u64) -> u64 {
        let start = *now;
        let mut done = 0;
        while done < count {
            if gathering.is_on() {
                // What comes within a moment is begun at its end, and answered at the end of the next one.
                let many = depth.min(MOMENT / work).max(1);
                for _ in 0..many {
                    *now += work;
                    gathering.took(*now);
                }
                *now += (2 * MOMENT).saturating_sub(work * many * if depth > many { 2 } else { 1 });
                done += many;
            } else {
                *now += work + exits;
                gathering.took(*now);
                done += 1;
            }
        }
        *now - start
    }

    #[test]
    fn many_requests_at_once_are_gathered() {
        let (mut gathering, mut now) = (Gathering::default(), 0);
        drive(&mut gathering, (32, 130, 120), &mut now, 1000);
        assert!(gathering.is_on());
        let took = drive(&mut gathering, (32, 130, 120), &mut now, 10_000);
        assert!(took < 10_000 * 170, "{took}, where one by one it is 2_500_000");
    }

    #[test]
    fn who_waits_for_each_request_waits_no_longer() {
        for work in [10, 130, 1000] {
            let (mut gathering, mut now) = (Gathering::default(), 0);
            drive(&mut gathering, (1, work, 120), &mut now, 1000);
            let took = drive(&mut gathering, (1, work, 120), &mut now, 100_000);
            assert!(took <= 100_000 * (work + 120) * 103 / 100, "{work}: {took}");
        }
    }

    #[test]
    fn a_driver_may_begin_to_wait() {
        let (mut gathering, mut now) = (Gathering::default(), 0);
        drive(&mut gathering, (32, 130, 120), &mut now, 1000);
        assert!(gathering.is_on());
        let took = drive(&mut gathering, (1, 130, 120), &mut now, 64);
        assert!(!gathering.is_on() && took < 64 * 250 * 5 / 2, "{took}");
        drive(&mut gathering, (1, 130, 120), &mut now, 1000);
        drive(&mut gathering, (32, 130, 120), &mut now, 5000);
        assert!(gathering.is_on(), "and cease to");
    }

    #[test]
    fn a_span_that_took_long_by_chance_decides_nothing() {
        let (mut gathering, mut now) = (Gathering::default(), 0);
        for round in 0..1000 {
            drive(&mut gathering, (1, 130, 120), &mut now, 64);
            // Every third span or so something else keeps the machine busy for a while.
            now += if round % 3 == 0 { 100_000 } else { 0 };
        }
        let mut gathered = 0;
        for _ in 0..10_000 {
            drive(&mut gathering, (1, 130, 120), &mut now, 1);
            gathered += u32::from(gathering.is_on());
        }
        assert!(gathered < 200, "{gathered}");
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_harms_nobody() {
        let mut gathering = Gathering::default();
        for now in [5, 5, 0, u64::MAX, 0] {
            (0..1000).for_each(|_| gathering.took(now));
        }
    }
}
