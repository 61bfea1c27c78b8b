//! Tests that run on the host: cargo's.

use super::tally::{Spent, Tally, Verdict};
use crate::build::{self, TARGET};
use crate::processors;
use std::io::{BufRead, BufReader};
use std::process::ExitStatus;
use std::time::Duration;

/// Lines of output shown for a failure.
const SHOWN_LINES: usize = 80;

/// A cargo command that is a test, or many.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name.
    pub name: &'static str,
    args: &'static [&'static str],
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The command as a whole passes or fails.
    Whole,
    /// Each test that it runs counts.
    EachTest,
}

/// All of them, quick ones first.
pub const GROUPS: &[Group] = &[
    Group { name: "host/format", args: &["fmt", "--all", "--check"], kind: Kind::Whole },
    Group { name: "host/lint", args: &["clippy", "--all-targets", "--", "-D", "warnings"], kind: Kind::Whole },
    Group {
        name: "host/lint-riscv64",
        args: &[
            "clippy",
            "--target",
            TARGET,
            "-p",
            "metal",
            "-p",
            "hypervisor",
            "-p",
            "guests",
            "-p",
            "programs",
            "--features",
            "hypervisor/machine,programs/machine",
            "--",
            "-D",
            "warnings",
        ],
        kind: Kind::Whole,
    },
    Group { name: "host/tests", args: &["test", "--no-fail-fast"], kind: Kind::EachTest },
];

/// What a command has come to.
pub struct Ran {
    /// Both outputs in the order in which they came.
    lines: Vec<String>,
    status: ExitStatus,
    cpu: Duration,
}

impl Group {
    /// Runs it, on so many processors.
    pub fn run(&self, processors: usize) -> std::io::Result<Ran> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = build::cargo();
        command.args(self.args).env("CARGO_TERM_COLOR", "never").stdout(writer.try_clone()?).stderr(writer);
        let processors = processors.to_string();
        command.env("CARGO_BUILD_JOBS", &processors).env("RUST_TEST_THREADS", &processors);
        let mut child = command.spawn()?;
        // The command holds the writing ends; while it lives, the pipe does not end.
        drop(command);
        let lines = BufReader::new(reader).lines().map_while(Result::ok).collect();
        let cpu = processors::wait(&child)?;
        Ok(Ran { lines, status: child.wait()?, cpu })
    }

    /// Counts what has come of it in `wall` time.
    pub fn count(&self, ran: std::io::Result<Ran>, wall: Duration, tally: &mut Tally) {
        let (lines, status, cpu) = match ran {
            Ok(Ran { lines, status, cpu }) => (lines, status, cpu),
            Err(why) => {
                tally.add(Verdict::failed(self.name, format!("cannot run cargo: {why}")));
                return;
            }
        };
        let mut verdicts = Vec::new();
        if self.kind == Kind::EachTest {
            count_tests(&lines, tally);
        } else if status.success() {
            verdicts.push(Verdict::passed(self.name));
        }
        if !status.success() {
            let output = lines[lines.len().saturating_sub(SHOWN_LINES)..].to_vec();
            if self.kind == Kind::EachTest && has_test_failures(&lines) {
                // The failures are counted; what they printed is still to be shown.
                output.iter().for_each(|line| println!("     | {line}"));
            } else {
                let why = format!("cargo {} failed ({status})", self.args.join(" "));
                verdicts.push(Verdict { output, ..Verdict::failed(self.name, why) });
            }
        }
        tally.add_run(self.name.to_owned(), verdicts, Spent { wall, cpu, machines: 0 });
    }
}

/// What libtest says of one test: `test NAME ... ok`.
fn test_line(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.rsplit_once(" ... ").filter(|(_, result)| ["ok", "FAILED"].contains(result))
}

/// What cargo says before the tests of one program: the program.
fn program_line(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("Running ").or_else(|| line.strip_prefix("Doc-tests "))
}

fn has_test_failures(lines: &[String]) -> bool {
    lines.iter().filter_map(|line| test_line(line)).any(|(_, result)| result == "FAILED")
}

fn count_tests(lines: &[String], tally: &mut Tally) {
    let mut program = "tests";
    let mut passed = 0;
    let finish = |program: &str, passed: &mut usize, tally: &mut Tally| {
        if *passed > 0 {
            println!("ok   {program}: {passed} tests");
            tally.add_passed(std::mem::take(passed));
        }
    };
    for line in lines {
        if let Some(next) = program_line(line) {
            finish(program, &mut passed, tally);
            program = next;
        } else if let Some((name, result)) = test_line(line) {
            match result {
                "ok" => passed += 1,
                _ => tally.add(Verdict::failed(format!("{program}: {name}"), "see the output below")),
            }
        }
    }
    finish(program, &mut passed, tally);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted() {
        let text = "   Compiling x\n     Running unittests src/lib.rs (target/debug/deps/x-1)\n\ntest a::b ... ok\n\
                    test c - should panic ... ok\ntest d ... ignored\ntest e ... FAILED\n\
                    test result: FAILED. 2 passed\n   Doc-tests y\ntest f (line 3) ... ok\n";
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut tally = Tally::default();
        count_tests(&lines, &mut tally);
        assert_eq!(tally.summary(), "3 passed, 1 failed");
        assert!(has_test_failures(&lines));
    }
}
