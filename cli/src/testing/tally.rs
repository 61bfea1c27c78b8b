//! Counts and shows results, and what they took.

use std::fmt;
use std::io::{Write, stdout};
use std::iter::Sum;
use std::ops::AddAssign;
use std::time::Duration;

/// The number of dearest runs that are named.
const DEAREST: usize = 10;

/// The number of failures whose output is shown again at the end, and most lines of each: enough for a reader who has only the end.
const SHOWN_AGAIN: (usize, usize) = (4, 60);

/// The prefix of the names of cargo's commands.
const HOST: &str = "host/";

/// The result of one test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The test's name.
    pub name: String,
    /// `Err` says why it failed.
    pub result: Result<(), String>,
    /// Output that may explain a failure.
    pub output: Vec<String>,
}

/// Prints a line of what has happened so far. Output that is lost is an error of the summary's.
fn show(line: &str) {
    // Of a unit test nothing is shown: this is not captured.
    if !cfg!(test) {
        let _ = writeln!(stdout(), "{line}");
    }
}

impl Verdict {
    /// One that passed.
    pub fn passed(name: impl Into<String>) -> Self {
        Self { name: name.into(), result: Ok(()), output: Vec::new() }
    }

    /// One that failed.
    pub fn failed(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), result: Err(why.into()), output: Vec::new() }
    }

    fn show_failure(&self, spent: &str, why: &str) {
        show(&format!("FAIL {}{spent}: {why}", self.name));
        self.quoted().for_each(|line| show(&line));
    }

    fn quoted(&self) -> impl Iterator<Item = String> {
        self.output.iter().map(|line| format!("     | {line}"))
    }
}

/// The cost of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    /// By the clock on the wall.
    pub wall: Duration,
    /// Of processors: QEMU's, or cargo's and its children's.
    pub cpu: Duration,
    /// The number of machines that were started.
    pub machines: usize,
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.wall += other.wall;
        self.cpu += other.cpu;
        self.machines += other.machines;
    }
}

impl Sum for Spent {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        let mut all = Self::default();
        parts.for_each(|part| all += part);
        all
    }
}

/// For people: `3.1 s, 2.9 s of processors`.
impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s, {:.1} s of processors", self.wall.as_secs_f64(), self.cpu.as_secs_f64())
    }
}

/// Something that was run by itself, and the results that it gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// The results.
    pub verdicts: Vec<Verdict>,
    /// Its cost; zero if another run's cost includes it.
    pub spent: Spent,
}

impl Run {
    /// Returns whether it is a command of cargo's.
    fn is_of_host(&self) -> bool {
        self.name.starts_with(HOST)
    }
}

/// All results so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    runs: Vec<Run>,
}

impl Tally {
    /// Counts a run, and shows each of its results; with the last, or where programs have told them all before, what it took.
    pub fn add(&mut self, run: Run) {
        if run.verdicts.is_empty() {
            show(&format!("     {} took {}", run.name, run.spent));
        }
        let last = run.verdicts.len().saturating_sub(1);
        for (at, verdict) in run.verdicts.iter().enumerate() {
            let spent = if at == last { format!(" ({})", run.spent) } else { String::new() };
            match &verdict.result {
                Ok(()) => show(&format!("ok   {}{spent}", verdict.name)),
                Err(why) => verdict.show_failure(&spent, why),
            }
        }
        self.runs.push(run);
    }

    /// Counts a run that is one program with many tests, part of another run, and shows those that passed by their number.
    pub fn add_program(&mut self, name: String, verdicts: Vec<Verdict>) {
        let failures = verdicts.iter().filter_map(|verdict| Some((verdict, verdict.result.as_ref().err()?)));
        failures.clone().for_each(|(verdict, why)| verdict.show_failure("", why));
        match verdicts.len() - failures.count() {
            0 => {}
            passed => show(&format!("ok   {name}: {passed} tests")),
        }
        self.runs.push(Run { name, verdicts, spent: Spent::default() });
    }

    /// All runs, in the order in which they ended.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.runs.iter().flat_map(|run| &run.verdicts)
    }

    fn failed(&self) -> impl Iterator<Item = (&Verdict, &str)> {
        self.verdicts().filter_map(|verdict| Some((verdict, verdict.result.as_ref().err()?.as_str())))
    }

    /// Returns whether all tests have passed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.failed().next().is_none()
    }

    /// The cost of the whole, given that by the clock and of processors, and the runs that took most of these: a line each. By the
    /// clock they are no measure: runs are in each other's way.
    #[must_use]
    pub fn times(&self, wall: Duration, cpu: Duration) -> Vec<String> {
        let mut dearest: Vec<_> = self.runs.iter().filter(|run| !run.spent.cpu.is_zero()).collect();
        dearest.sort_by_key(|run| std::cmp::Reverse(run.spent.cpu));
        let dearest = dearest.into_iter().take(DEAREST).map(|run| format!("dear: {}: {}", run.name, run.spent));
        let sum = |wanted: fn(&Run) -> bool| self.runs.iter().filter(|run| wanted(run)).map(|run| run.spent).sum();
        let (host, boot): (Spent, Spent) = (sum(Run::is_of_host), sum(|run| !run.is_of_host()));
        let rest = cpu.saturating_sub(host.cpu + boot.cpu);
        let kinds =
            [("host tests", host.cpu), ("boot tests", boot.cpu), ("what they run is built, and all else", rest)];
        let kinds = kinds.map(|(kind, cpu)| format!("{kind}: {:.1} s of processors", cpu.as_secs_f64()));
        let total = Spent { wall, cpu, machines: boot.machines };
        dearest.chain(kinds).chain([format!("took {total}; {} starts of QEMU", total.machines)]).collect()
    }

    /// The last line of all.
    #[must_use]
    pub fn summary(&self) -> String {
        let failed = self.failed().count();
        format!("{} passed, {failed} failed", self.verdicts().count() - failed)
    }

    /// The failures, a line each.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        self.failed().map(|(verdict, why)| failure(verdict, why))
    }

    /// The failures; the first ones with their output once more.
    pub fn explained(&self) -> impl Iterator<Item = String> {
        let (failures, lines) = SHOWN_AGAIN;
        self.failed().enumerate().flat_map(move |(place, (verdict, why))| {
            let output = verdict.quoted().take(if place < failures { lines } else { 0 });
            std::iter::once(failure(verdict, why)).chain(output)
        })
    }
}

fn failure(verdict: &Verdict, why: &str) -> String {
    format!("failed: {}: {}", verdict.name, why.lines().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let mut tally = Tally::default();
        assert_eq!((tally.is_good(), tally.summary().as_str()), (true, "0 passed, 0 failed"));
        let run = |verdicts| Run { name: "r".into(), verdicts, spent: Spent::default() };
        tally.add_program("p".into(), vec![Verdict::passed("c"); 3]);
        assert_eq!((tally.is_good(), tally.summary().as_str()), (true, "3 passed, 0 failed"));
        tally.add(run(vec![Verdict::passed("a"), Verdict::failed("b", "no\nmore")]));
        assert_eq!((tally.is_good(), tally.summary().as_str()), (false, "4 passed, 1 failed"));
        assert_eq!(tally.failures().collect::<Vec<_>>(), ["failed: b: no"]);
        let loud = Verdict { output: vec!["panicked".into(); 100], ..Verdict::failed("l", "no") };
        tally.add(run(vec![loud; 9]));
        let lines: Vec<_> = tally.explained().collect();
        assert_eq!((lines.len(), lines[2].as_str()), (1 + 9 + 3 * 60, "     | panicked"), "the end alone says why");
    }

    #[test]
    fn the_dearest_are_named() {
        let mut tally = Tally::default();
        let seconds = Duration::from_secs;
        for second in 1..=12 {
            let spent = Spent { wall: seconds(20 - second), cpu: seconds(second), machines: 2 };
            let name = format!("{}t{second}", if second == 12 { "host/" } else { "" });
            let verdicts = vec![Verdict::passed(format!("{name}/a")), Verdict::passed(name.clone())];
            tally.add(Run { name, verdicts, spent });
        }
        let times = tally.times(seconds(40), seconds(100));
        assert_eq!(times[0], "dear: host/t12: 8.0 s, 12.0 s of processors");
        assert_eq!(times[9], "dear: t3: 17.0 s, 3.0 s of processors");
        let expected = [
            "host tests: 12.0 s of processors",
            "boot tests: 66.0 s of processors",
            "what they run is built, and all else: 22.0 s of processors",
            "took 40.0 s, 100.0 s of processors; 22 starts of QEMU",
        ];
        assert_eq!(times[10..], expected);
        assert_eq!(tally.summary(), "24 passed, 0 failed");
    }
}
