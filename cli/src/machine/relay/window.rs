//! The window of a VM's card: [`abi::credit`].

use abi::credit::WINDOW;
use std::time::{Duration, Instant};

/// The time without a report after which frames that are on their way are taken for lost ones: a VM that does not run takes none.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The frames for a card that are on their way. All numbers are modulo 2^32.
#[derive(Debug)]
pub(super) struct Window {
    /// Frames that were sent since the start.
    sent: u32,
    /// Of those, frames that are done with, as was reported.
    done: u32,
    /// Frames that were not reported, and are not waited for.
    missing: u32,
    /// The time of the last report, or of the first frame on its way.
    since: Instant,
}

/// Returns the distance from one number to another, or 0 if it is behind.
fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from).cast_signed().max(0).cast_unsigned()
}

impl Window {
    pub(super) fn new(now: Instant) -> Self {
        Self { sent: 0, done: 0, missing: 0, since: now }
    }

    fn in_flight(&self) -> u32 {
        distance(self.done.wrapping_add(self.missing), self.sent)
    }

    /// Returns whether a frame may be sent.
    pub(super) fn is_open(&mut self, now: Instant) -> bool {
        if self.in_flight() >= WINDOW && now.saturating_duration_since(self.since) >= PATIENCE {
            self.missing = distance(self.done, self.sent);
        }
        self.in_flight() < WINDOW
    }

    /// Notes that a frame was sent.
    pub(super) fn send(&mut self, now: Instant) {
        if self.in_flight() == 0 {
            self.since = now;
        }
        self.sent = self.sent.wrapping_add(1);
    }

    /// Takes a report in.
    pub(super) fn report(&mut self, done: u32, now: Instant) {
        // What was missing may have been late only.
        let came = distance(self.done, done);
        self.missing = self.missing.saturating_sub(came).min(distance(done, self.sent));
        self.done = done;
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as many frames as it lets pass.
    fn fill(window: &mut Window, now: Instant) -> u32 {
        (0..1000).take_while(|_| window.is_open(now).then(|| window.send(now)).is_some()).count() as u32
    }

    #[test]
    fn it_has_so_many_on_their_way() {
        let now = Instant::now();
        for start in [0, u32::MAX - 40] {
            let mut window = Window { sent: start, done: start, ..Window::new(now) };
            assert_eq!(fill(&mut window, now), WINDOW);
            window.report(start.wrapping_add(16), now);
            assert_eq!(fill(&mut window, now), 16);
            window.report(start.wrapping_add(48), now);
            assert_eq!(fill(&mut window, now), WINDOW);
            // One that is told of more than was sent waits for none.
            window.report(start.wrapping_add(2000), now);
            assert!(fill(&mut window, now) >= WINDOW);
        }
    }

    #[test]
    fn what_is_not_reported_closes_it_for_a_while_only() {
        let start = Instant::now();
        let mut window = Window::new(start);
        assert_eq!(fill(&mut window, start), WINDOW);
        assert!(!window.is_open(start + PATIENCE / 2));
        let later = start + PATIENCE;
        assert_eq!(fill(&mut window, later), WINDOW);
        assert!(!window.is_open(later));
        // All have come after all: no more are on their way than before.
        window.report(WINDOW, later);
        assert_eq!(fill(&mut window, later), 0);
        window.report(2 * WINDOW, later);
        assert_eq!(fill(&mut window, later), WINDOW);
        // Five never come: the others are all that it lets pass, until it gives the five up.
        window.report(3 * WINDOW - 5, later);
        assert_eq!(fill(&mut window, later), WINDOW - 5);
        assert_eq!(fill(&mut window, later + PATIENCE), WINDOW);
    }
}
