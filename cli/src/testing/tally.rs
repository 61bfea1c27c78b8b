//! Counts and shows results, and what they took.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;
use std::time::Duration;

/// How many of the slowest are named.
const SLOWEST: usize = 10;

/// How one test came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The test's name.
    pub name: String,
    /// `Err` says why it failed.
    pub result: Result<(), String>,
    /// Output that may explain a failure.
    pub output: Vec<String>,
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
        println!("FAIL {}{spent}: {why}", self.name);
        self.output.iter().for_each(|line| println!("     | {line}"));
    }
}

/// What a run took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    /// By the clock on the wall.
    pub wall: Duration,
    /// Of processors: QEMU's, or cargo's and its children's.
    pub cpu: Duration,
    /// How many machines were started.
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
    /// What it took; nothing if that is in another run's.
    pub spent: Spent,
}

/// All results so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    runs: Vec<Run>,
}

impl Tally {
    /// Counts a run, and shows each of its results; with the last, what it took.
    pub fn add(&mut self, run: Run) {
        let last = run.verdicts.len().saturating_sub(1);
        for (at, verdict) in run.verdicts.iter().enumerate() {
            let spent = if at == last { format!(" ({})", run.spent) } else { String::new() };
            match &verdict.result {
                Ok(()) => println!("ok   {}{spent}", verdict.name),
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
            passed => println!("ok   {name}: {passed} tests"),
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

    fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.verdicts().filter_map(|verdict| Some((verdict.name.as_str(), verdict.result.as_ref().err()?.as_str())))
    }

    /// Whether all passed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.failed().next().is_none()
    }

    /// What the whole took, given the time by the clock, and the slowest: a line each.
    #[must_use]
    pub fn times(&self, wall: Duration) -> Vec<String> {
        let Spent { cpu, machines, .. } = self.runs.iter().map(|run| run.spent).sum();
        let total = Spent { wall, cpu, machines };
        let mut slowest: Vec<_> = self.runs.iter().filter(|run| !run.spent.wall.is_zero()).collect();
        slowest.sort_by_key(|run| std::cmp::Reverse(run.spent.wall));
        let slowest = slowest.into_iter().take(SLOWEST).map(|run| format!("slow: {}: {}", run.name, run.spent));
        slowest.chain([format!("took {total}; {machines} starts of QEMU")]).collect()
    }

    /// The last line of all.
    #[must_use]
    pub fn summary(&self) -> String {
        let failed = self.failed().count();
        format!("{} passed, {failed} failed", self.verdicts().count() - failed)
    }

    /// What failed, a line each.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        self.failed().map(|(name, why)| format!("failed: {name}: {}", why.lines().next().unwrap_or_default()))
    }
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
    }

    #[test]
    fn the_slowest_are_named() {
        let mut tally = Tally::default();
        let seconds = Duration::from_secs;
        for second in 1..=12 {
            let spent = Spent { wall: seconds(second), cpu: seconds(1), machines: 2 };
            let name = format!("t{second}");
            let verdicts = vec![Verdict::passed(format!("{name}/a")), Verdict::passed(name.clone())];
            tally.add(Run { name, verdicts, spent });
        }
        let times = tally.times(seconds(40));
        assert_eq!((times.len(), times[0].as_str()), (11, "slow: t12: 12.0 s, 1.0 s of processors"));
        assert_eq!(times[9], "slow: t3: 3.0 s, 1.0 s of processors");
        assert_eq!(times[10], "took 40.0 s, 12.0 s of processors; 24 starts of QEMU");
        assert_eq!(tally.summary(), "24 passed, 0 failed");
    }
}
