//! The longest exit of each subject, in all runs of an experiment: how long a guest keeps its hart from everything else.

use super::counts::Counts;
use super::subject::Subject;
use crate::bench::output::report::{Block, Report};
use crate::bench::output::table::Table;
use serde::{Deserialize, Serialize};

/// The bound of a Gnomon guest's exit, in instructions (BOUNDED, docs/invariants.md).
const BOUND: u64 = 200_000;

/// An exit that took longer than others.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Longest {
    /// Instructions until the guest ran again.
    pub instructions: u64,
    /// Its cause, in words.
    pub cause: String,
}

impl Longest {
    /// The longest exit of a whole run; of zero length if there was none.
    #[must_use]
    pub fn of(counts: &Counts, subject: Subject) -> Self {
        let exits = counts.traps.iter().filter(|trap| subject.is_guest(&trap.from) && !subject.is_guest(&trap.to));
        let longest = exits.max_by_key(|trap| trap.longest_handling);
        longest
            .map_or_else(Self::default, |trap| Self { instructions: trap.longest_handling, cause: trap.cause.clone() })
    }
}

/// The longest of each subject, in the order in which they were first met.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Longests(Vec<(Subject, Longest)>);

impl Longests {
    /// One more run of a subject.
    pub fn add(&mut self, subject: Subject, longest: &Longest) {
        match self.0.iter_mut().find(|(known, _)| *known == subject) {
            Some((_, known)) if known.instructions >= longest.instructions => {}
            Some((_, known)) => known.clone_from(longest),
            None => self.0.push((subject, longest.clone())),
        }
    }

    /// Adds them to an experiment's report. Where Gnomon exceeds its bound, that is a failure of the experiment.
    pub fn report(mut self, report: &mut Report) {
        // Runs end in any order.
        self.0.sort_by_key(|(subject, _)| subject.to_string());
        let mut table = Table::new(["", "instructions", "cause"]);
        for (subject, Longest { instructions, cause }) in &self.0 {
            table.row([subject.to_string(), instructions.to_string(), cause.clone()]);
            if matches!(subject, Subject::Gnomon(_)) && *instructions > BOUND {
                let what = format!("an exit took {instructions} instructions ({cause}), {BOUND} are allowed");
                report.failures.push(format!("{} on {subject}: {what}", report.name));
            }
        }
        let title = format!("The longest exit, from the start to the end; Gnomon's may take {BOUND}");
        report.blocks.push(Block::Table(title, table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::counts::tests::{counts, subject};
    use serde_json::json;

    fn longest(instructions: u64) -> Longest {
        let mut all = counts(100, 30, 5, 4, 60);
        all["traps"][0]["longest_handling"] = json!(instructions);
        Longest::of(&Counts::read(&all).expect("counts"), subject("firmware/two-stage"))
    }

    #[test]
    fn the_longest_of_all_runs_is_shown_and_judged() {
        let mut longests = Longests::default();
        for (name, instructions) in [
            ("native", 900_000),
            ("firmware/two-stage", 7),
            ("firmware/lazy", BOUND),
            ("firmware/two-stage", BOUND + 1),
            ("firmware/two-stage", 5),
        ] {
            longests.add(subject(name), &longest(instructions));
        }
        let mut report = Report {
            name: "figure",
            title: String::new(),
            lead: vec![],
            blocks: vec![],
            misleads: String::new(),
            json: serde_json::Value::Null,
            failures: vec![],
        };
        longests.report(&mut report);
        let rows: Vec<_> = report
            .to_string()
            .lines()
            .filter(|line| line.contains("load guest-page fault"))
            .map(str::to_owned)
            .collect();
        assert!(rows.len() == 3 && rows[0].starts_with("firmware/lazy ") && rows[1].contains("200001"), "{rows:?}");
        assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
        assert!(report.failures[0].starts_with("figure on firmware/two-stage: an exit took 200001 instructions"));
    }
}
