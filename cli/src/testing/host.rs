//! Tests that run on the host: cargo's.

use super::tally::{Tally, Verdict};
use crate::build::{self, TARGET};
use std::io::{BufRead, BufReader};
use std::process::ExitStatus;

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

impl Group {
    /// Runs it and counts.
    pub fn run(&self, tally: &mut Tally) {
        let (lines, status) = match self.output() {
            Ok(output) => output,
            Err(why) => {
                tally.add(Verdict::failed(self.name, format!("cannot run cargo: {why}")));
                return;
            }
        };
        if self.kind == Kind::EachTest {
            count_tests(&lines, tally);
        }
        let is_told = self.kind == Kind::EachTest && has_test_failures(&lines);
        if self.kind == Kind::Whole && status.success() {
            tally.add(Verdict::passed(self.name));
        } else if !status.success() {
            let output = lines[lines.len().saturating_sub(SHOWN_LINES)..].to_vec();
            if is_told {
                // The failures are counted; what they printed is still to be shown.
                output.iter().for_each(|line| println!("     | {line}"));
            } else {
                let why = format!("cargo {} failed ({status})", self.args.join(" "));
                tally.add(Verdict { output, ..Verdict::failed(self.name, why) });
            }
        }
    }

    /// Both outputs in the order in which they came.
    fn output(&self) -> std::io::Result<(Vec<String>, ExitStatus)> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = build::cargo();
        command.args(self.args).env("CARGO_TERM_COLOR", "never").stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn()?;
        // The command holds the writing ends; while it lives, the pipe does not end.
        drop(command);
        let lines = BufReader::new(reader).lines().map_while(Result::ok).collect();
        Ok((lines, child.wait()?))
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
