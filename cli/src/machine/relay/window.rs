//! The window of a VM's card: [`abi::credit`].

use abi::credit::{Counts, WINDOW};
use std::time::{Duration, Instant};

/// The time without a report after which frames that have not come to Gnomon are taken for lost ones.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The frames for a card that are on their way. All numbers are modulo 2^32.
#[derive(Debug)]
pub(super) struct Window {
    /// Frames that were sent since the start.
    sent: u32,
    /// The last report.
    reported: Counts,
    /// Frames that were lost before they came to Gnomon.
    lost: u32,
    /// The time of the last report, or of the first frame on its way.
    since: Instant,
}

/// Returns the distance from one number to another, or 0 if it is behind.
fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from).cast_signed().max(0).cast_unsigned()
}

impl Window {
    pub(super) fn new(now: Instant) -> Self {
        Self { sent: 0, reported: Counts::default(), lost: 0, since: now }
    }

    fn in_flight(&self) -> u32 {
        distance(self.reported.done.wrapping_add(self.lost), self.sent)
    }

    /// Returns whether a frame may be sent.
    pub(super) fn is_open(&mut self, now: Instant) -> bool {
        if self.in_flight() >= WINDOW && now.saturating_duration_since(self.since) >= PATIENCE {
            self.lost = distance(self.reported.come, self.sent);
        }
        self.in_flight() < WINDOW
    }

    /// Notes that a frame was sent.
    pub(super) fn note_sent(&mut self, now: Instant) {
        if self.in_flight() == 0 {
            self.since = now;
        }
        self.sent = self.sent.wrapping_add(1);
    }

    /// Takes a report in.
    pub(super) fn apply(&mut self, report: Counts, now: Instant) {
        self.reported = report;
        // Some may have been late only.
        self.lost = self.lost.min(distance(report.come, self.sent));
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as many frames as it lets pass.
    fn fill(window: &mut Window, now: Instant) -> u32 {
        (0..1000).take_while(|_| window.is_open(now).then(|| window.note_sent(now)).is_some()).count() as u32
    }

    #[test]
    fn it_has_so_many_on_their_way() {
        let now = Instant::now();
        for start in [0, u32::MAX - 40] {
            let at = |n: u32| start.wrapping_add(n);
            let mut window = Window { sent: start, reported: Counts { come: start, done: start }, ..Window::new(now) };
            assert_eq!(fill(&mut window, now), WINDOW);
            window.apply(Counts { come: at(32), done: at(16) }, now);
            assert_eq!(fill(&mut window, now), 16);
            window.apply(Counts { come: at(48), done: at(48) }, now);
            assert_eq!(fill(&mut window, now), WINDOW);
            // One that is told of more than was sent waits for none.
            window.apply(Counts { come: at(2000), done: at(2000) }, now);
            assert!(fill(&mut window, now) >= WINDOW);
        }
    }

    #[test]
    fn a_vm_that_takes_none_is_sent_no_more() {
        let start = Instant::now();
        let mut window = Window::new(start);
        assert_eq!(fill(&mut window, start), WINDOW);
        window.apply(Counts { come: WINDOW, done: 0 }, start);
        assert!(!window.is_open(start + 100 * PATIENCE));
        window.apply(Counts { come: WINDOW, done: WINDOW }, start);
        assert_eq!(fill(&mut window, start), WINDOW);
    }

    /// Gnomon's side: it reports when 16 more are done with, or have come.
    #[test]
    fn lost_frames_cost_one_wait_and_no_more() {
        for missing in [0, 1, 5, 15, 16, 17, 24, 31, 32, 64, 1000] {
            let start = Instant::now();
            let (mut window, mut now) = (Window::new(start), start);
            let (mut sent, mut come, mut told) = (0, 0, 0);
            while now < start + 40 * PATIENCE && sent < 100_000 {
                let count = fill(&mut window, now);
                for _ in 0..count {
                    sent += 1;
                    come += u32::from(sent > missing);
                }
                if come - told >= WINDOW / 2 {
                    told = come;
                    window.apply(Counts { come, done: come }, now);
                }
                now += if count == 0 { PATIENCE / 10 } else { Duration::from_micros(10) };
            }
            assert!(sent >= 100_000 && window.lost <= missing, "{missing} were lost: {sent} sent, {}", window.lost);
        }
    }
}
