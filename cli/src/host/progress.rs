//! Progress on the terminal: a moving line for people, one plain line each for logs.

use crate::host::tty;
use crate::host::words::shown;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// One step of work that may take a while.
#[derive(Debug)]
pub struct Step {
    bar: ProgressBar,
    started: Instant,
}

impl Step {
    /// Starts a step whose length is unknown.
    #[must_use]
    pub fn spinner(what: &str) -> Self {
        Self::start(what, "{spinner} {prefix} {elapsed} {wide_msg}", None)
    }

    /// Starts a step measured in percent.
    #[must_use]
    pub fn percent(what: &str) -> Self {
        Self::start(what, "{spinner} {prefix} [{bar:30}] {percent:>3}% {elapsed} {wide_msg}", Some(100))
    }

    /// Starts so many steps of one kind.
    #[must_use]
    pub fn counted(what: &str, steps: usize) -> Self {
        Self::start(what, "{spinner} {prefix} [{bar:30}] {pos}/{len}, {eta} left {wide_msg}", Some(steps as u64))
    }

    /// One of them is done.
    pub fn done(&self, what: &str) {
        self.bar.inc(1);
        self.note(what);
        if self.bar.is_hidden() {
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let left = match left(self.started.elapsed(), done, all).as_secs() {
                0 => String::new(),
                seconds @ ..60 => format!(", about {seconds} s left"),
                seconds => format!(", about {} min left", seconds.div_ceil(60)),
            };
            tty::say(&format!("gnomon: {done}/{all}: {what}{left}"));
        }
    }

    fn start(what: &str, template: &str, length: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            tty::say(&format!("gnomon: {what}"));
            let bar = ProgressBar::hidden();
            if let Some(length) = length {
                bar.set_length(length);
            }
            return Self { bar, started: Instant::now() };
        }
        let bar = match length {
            Some(length) => ProgressBar::new(length),
            None => ProgressBar::new_spinner(),
        };
        // The templates above are constants; a broken one shows as a plain bar.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(shown(what));
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { bar, started: Instant::now() }
    }

    /// Says what is being done right now.
    pub fn note(&self, text: impl AsRef<str>) {
        self.bar.set_message(shown(text.as_ref()));
    }

    /// Like [`Step::note`], and in logs as a line of its own.
    pub fn report(&self, text: &str) {
        self.note(text);
        self.log(text);
    }

    /// Says in logs that the step goes on. On a terminal its time runs.
    pub fn log(&self, text: &str) {
        if self.bar.is_hidden() {
            tty::say(&format!("gnomon: {text}"));
        }
    }

    /// Lets something else print lines.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Moves to so many percent.
    pub fn set(&self, percent: u64) {
        self.bar.set_position(percent);
    }
}

/// Estimates the remaining time: each further step takes as long as the mean of those done.
fn left(elapsed: Duration, done: u64, all: u64) -> Duration {
    let rest = all.saturating_sub(done);
    elapsed.mul_f64(if done == 0 { 0.0 } else { rest as f64 / done as f64 })
}

impl Drop for Step {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_was() {
        let minute = Duration::from_secs(60);
        assert_eq!(
            [left(minute, 1, 4), left(minute, 4, 4), left(minute, 0, 4)],
            [3 * minute, Duration::ZERO, Duration::ZERO]
        );
    }
}
