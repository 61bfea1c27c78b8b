//! Counts and shows results.

use std::time::Duration;

/// How one test came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The test's name.
    pub name: String,
    /// `Err` says why it failed.
    pub result: Result<(), String>,
    /// How long the run took that it was part of; `None` if that is told with another test.
    pub took: Option<Duration>,
    /// Output that may explain a failure.
    pub output: Vec<String>,
}

impl Verdict {
    /// One that passed.
    pub fn passed(name: impl Into<String>) -> Self {
        Self { name: name.into(), result: Ok(()), took: None, output: Vec::new() }
    }

    /// One that failed.
    pub fn failed(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), result: Err(why.into()), took: None, output: Vec::new() }
    }
}

/// All results so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    passed: usize,
    failed: Vec<(String, String)>,
}

impl Tally {
    /// Counts a result and shows it.
    pub fn add(&mut self, verdict: Verdict) {
        let took = verdict.took.map_or_else(String::new, |took| format!(" ({})", super::seconds(took)));
        match verdict.result {
            Ok(()) => {
                self.passed += 1;
                println!("ok   {}{took}", verdict.name);
            }
            Err(why) => {
                println!("FAIL {}{took}: {why}", verdict.name);
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
}
