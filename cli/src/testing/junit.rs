//! Results in the form that continuous integration reads: JUnit's XML.

use super::{Run, Tally};
use crate::host::output::Kind;
use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};
use std::io::Write;
use std::time::Duration;

/// The files of results.
pub const FILE: Kind = Kind { what: "a file of test results (--junit)", mark: b"<testsuites name=\"gnomon\"" };

/// Writes all results: a suite for each run, with a case for each of its verdicts, and in the property `cpu` the seconds of processors
/// that it took, where they are known. `wall` is the time that all took.
///
/// # Errors
/// If `to` cannot be written.
pub fn write(tally: &Tally, wall: Duration, to: impl Write) -> Result<(), SerializeError> {
    let mut report = Report::new("gnomon");
    report.set_time(wall).add_test_suites(tally.runs().iter().map(suite));
    report.serialize(to)
}

fn suite(run: &Run) -> TestSuite {
    let mut suite = TestSuite::new(run.name.as_str());
    suite.set_time(run.spent.wall);
    if !run.spent.cpu.is_zero() {
        suite.add_property(("cpu", format!("{:.2}", run.spent.cpu.as_secs_f64()).as_str()));
    }
    for verdict in &run.verdicts {
        let status = match &verdict.result {
            Ok(()) => TestCaseStatus::success(),
            Err(why) => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_message(why.as_str());
                status
            }
        };
        let mut case = TestCase::new(verdict.name.as_str(), status);
        case.set_classname(run.name.as_str());
        if !verdict.output.is_empty() {
            case.set_system_out(verdict.output.join("\n"));
        }
        suite.add_test_case(case);
    }
    suite
}

#[cfg(test)]
mod tests {
    use super::super::tally::Spent;
    use super::super::{Run, Verdict};
    use super::*;

    #[test]
    fn results_are_written() {
        let mut tally = Tally::default();
        let failed = Verdict { output: vec!["a < b".into(), "\u{1b}[1mc".into()], ..Verdict::failed("x/b", "2 > 1") };
        let spent = Spent { wall: Duration::from_millis(1500), cpu: Duration::from_millis(700), machines: 1 };
        tally.add(Run { name: "x".into(), verdicts: vec![Verdict::passed("x/a"), failed], spent });
        let mut text = Vec::new();
        write(&tally, Duration::from_secs(2), &mut text).expect("memory takes it");
        let text = String::from_utf8(text).expect("text");
        for part in [
            r#"<testsuites name="gnomon" tests="2" skipped="0" failures="1" errors="0" time="2.000">"#,
            r#"<testsuite name="x" tests="2" skipped="0" errors="0" failures="1" time="1.500">"#,
            r#"<property name="cpu" value="0.70"/>"#,
            r#"<testcase name="x/a" classname="x"/>"#,
            r#"<failure message="2 &gt; 1"/>"#,
            "<system-out>a &lt; b\nc</system-out>",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
