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

/// All results so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    passed: usize,
    failed: Vec<(String, String)>,
    spent: Vec<(String, Spent)>,
}

impl Tally {
    /// Counts the results of a run, and shows them with what it took.
    pub fn add_run(&mut self, name: String, verdicts: Vec<Verdict>, spent: Spent) {
        let last = verdicts.len().saturating_sub(1);
        for (at, verdict) in verdicts.into_iter().enumerate() {
            self.show(verdict, (at == last).then_some(spent));
        }
        self.spent.push((name, spent));
    }

    /// Counts a result and shows it.
    pub fn add(&mut self, verdict: Verdict) {
        self.show(verdict, None);
    }

    fn show(&mut self, verdict: Verdict, spent: Option<Spent>) {
        let spent = spent.map_or_else(String::new, |spent| format!(" ({spent})"));
        match verdict.result {
            Ok(()) => {
                self.passed += 1;
                println!("ok   {}{spent}", verdict.name);
            }
            Err(why) => {
                println!("FAIL {}{spent}: {why}", verdict.name);
                for line in &verdict.output {
                    println!("     | {line}");
                }
                self.failed.push((verdict.name, why));
            }
        }
    }

    /// Counts tests that passed and are shown as a whole.
    pub fn add_passed(&mut self, count: usize) {
        self.passed += count;
    }

    /// Whether all passed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.failed.is_empty()
    }

    /// What each run took, in the order in which they ended.
    pub fn spent(&self) -> impl Iterator<Item = (&str, Spent)> {
        self.spent.iter().map(|(name, spent)| (name.as_str(), *spent))
    }

    /// What the whole took, given the time by the clock, and the slowest: a line each.
    #[must_use]
    pub fn times(&self, wall: Duration) -> Vec<String> {
        let Spent { cpu, machines, .. } = self.spent().map(|(_, spent)| spent).sum();
        let total = Spent { wall, cpu, machines };
        let mut slowest: Vec<_> = self.spent().collect();
        slowest.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.wall));
        let slowest = slowest.into_iter().take(SLOWEST).map(|(name, spent)| format!("slow: {name}: {spent}"));
        slowest.chain([format!("took {total}; {machines} starts of QEMU")]).collect()
    }

    /// The last line of all.
    #[must_use]
    pub fn summary(&self) -> String {
        format!("{} passed, {} failed", self.passed, self.failed.len())
    }

    /// What failed, a line each.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        self.failed.iter().map(|(name, why)| format!("failed: {name}: {}", why.lines().next().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let mut tally = Tally::default();
        assert_eq!((tally.is_good(), tally.summary().as_str()), (true, "0 passed, 0 failed"));
        tally.add(Verdict::passed("a"));
        tally.add(Verdict::failed("b", "no\nmore"));
        tally.add_passed(3);
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
            tally.add_run(name.clone(), vec![Verdict::passed(format!("{name}/a")), Verdict::passed(name)], spent);
        }
        let times = tally.times(seconds(40));
        assert_eq!((times.len(), times[0].as_str()), (11, "slow: t12: 12.0 s, 1.0 s of processors"));
        assert_eq!(times[9], "slow: t3: 3.0 s, 1.0 s of processors");
        assert_eq!(times[10], "took 40.0 s, 12.0 s of processors; 24 starts of QEMU");
        assert_eq!(tally.summary(), "24 passed, 0 failed");
    }
}
