//! Progress on the terminal: a moving line for people, one plain line each for logs.

use crate::host::tty;
use crate::host::words::shown;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// One step of work that may take a while.
#[derive(Debug)]
pub struct Step {
    bar: ProgressBar,
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
        Self::start(what, "{spinner} {prefix} [{bar:30}] {pos}/{len} {wide_msg}", Some(steps as u64))
    }

    /// One of them is done. The rest may take so long.
    pub fn done(&self, what: &str, left: Option<Duration>) {
        self.bar.inc(1);
        let left = left.map(about).unwrap_or_default();
        self.note(format!("{what}{left}"));
        if self.bar.is_hidden() {
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
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
            return Self { bar };
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
        Self { bar }
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

/// Returns the words for the remaining time.
fn about(left: Duration) -> String {
    match left.as_secs() {
        0 => String::new(),
        seconds @ ..60 => format!(", about {seconds} s left"),
        seconds => format!(", about {} min left", seconds.div_ceil(60)),
    }
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
    fn the_rest_is_said_in_seconds_or_minutes() {
        let said = [0, 1, 59, 60, 61, 7200].map(|seconds| about(Duration::from_secs(seconds)));
        let minutes = [", about 1 min left", ", about 2 min left", ", about 120 min left"];
        assert_eq!(said[..3], ["", ", about 1 s left", ", about 59 s left"]);
        assert_eq!(said[3..], minutes);
    }
}
