//! The progress of an experiment. How long the rest takes is estimated by the runs so far, and at first by those of earlier
//! experiments of that name.

use crate::bench::WORKERS;
use crate::host::place::{cache, write_whole};
use crate::host::progress::Step;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A run that takes less was looked up: no machine comes to its end so soon.
const LOOKED_UP: Duration = Duration::from_millis(500);

thread_local! {
    /// The time at which this thread ended a run.
    static ENDED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// An experiment that makes so many runs.
#[derive(Debug)]
pub(in crate::bench) struct Progress {
    step: Step,
    began: Instant,
    /// The file with the mean time of a run in seconds; `None` if the cache cannot be used.
    file: Option<PathBuf>,
    spent: Mutex<Spent>,
}

/// The time that runs have taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Spent {
    /// The runs that are still to be made or looked up.
    left: usize,
    /// The number of runs that were made, and their time.
    made: (u32, Duration),
    /// The mean time of a run in an earlier experiment.
    before: Option<Duration>,
}

impl Spent {
    fn add(&mut self, took: Duration) {
        self.left = self.left.saturating_sub(1);
        if took >= LOOKED_UP {
            self.made = (self.made.0 + 1, self.made.1 + took);
        }
    }

    /// Returns the mean time of a run. The earlier mean counts as one run.
    fn mean(&self) -> Option<Duration> {
        let (count, time) =
            (self.made.0 + u32::from(self.before.is_some()), self.made.1 + self.before.unwrap_or_default());
        (count > 0).then(|| time / count)
    }

    /// Returns the time that the rest takes, if all of it has to be made.
    fn rest(&self) -> Option<Duration> {
        self.mean().map(|mean| mean.mul_f64(self.left as f64 / WORKERS as f64))
    }
}

impl Progress {
    /// Begins an experiment of that name.
    pub(in crate::bench) fn begin(name: &str, runs: usize) -> Self {
        let file = cache("bench").ok().map(|dir| dir.join(format!("{name}.seconds")));
        let before = file.as_deref().and_then(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
        let before = before.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let step = Step::counted(&format!("measuring {name}"), runs);
        let spent = Mutex::new(Spent { left: runs, before, ..Spent::default() });
        Self { step, began: Instant::now(), file, spent }
    }

    /// This thread has ended a run.
    pub(in crate::bench) fn done(&self, what: &str) {
        let now = Instant::now();
        let since = ENDED.replace(Some(now)).map_or(self.began, |ended| ended.max(self.began));
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.add(now - since);
        self.step.done(what, spent.rest());
        if let (Some(file), Some(mean), true) = (&self.file, spent.mean(), spent.made.0 > 0) {
            // The next estimate is worse without it, and that is all.
            let _ = write_whole(file, mean.as_secs_f64().to_string().as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_runs_did_that_were_made() {
        let minute = Duration::from_secs(60);
        let mut spent = Spent { left: 10, ..Spent::default() };
        assert_eq!(spent.rest(), None);
        // What is looked up says nothing about the rest.
        (0..4).for_each(|_| spent.add(Duration::from_millis(3)));
        assert_eq!((spent.left, spent.rest()), (6, None));
        spent.before = Some(2 * minute);
        assert_eq!(spent.rest(), Some(6 * minute));
        spent.add(4 * minute);
        assert_eq!((spent.mean(), spent.rest()), (Some(3 * minute), Some(minute.mul_f64(7.5))));
        (0..9).for_each(|_| spent.add(minute));
        assert_eq!(spent.rest(), Some(Duration::ZERO));
    }
}
