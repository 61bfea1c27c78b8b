//! Tests that run on the host: cargo's.

use super::tally::{Run, Spent, Tally, Verdict};
use crate::host::build::{self, TARGET};
use crate::host::home::checkout;
use crate::host::processors;
use std::io::Read;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Lines of output shown for a failure.
const SHOWN_LINES: usize = 80;
/// The time after which a command that has not ended has failed: many times what it takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(25 * 60);
/// The time after a command's end for which the programs that it started may keep its output open.
const LEFTOVERS: Duration = Duration::from_secs(5);

/// A cargo command that is a test, or many.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name.
    pub name: &'static str,
    args: &'static [&'static str],
    kind: Kind,
    /// The compiler wrapper for the crates of this workspace, a path in the repository.
    wrapper: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The command as a whole passes or fails.
    Whole,
    /// Each test that it runs counts.
    EachTest,
}

/// The use of the checkout.
const TEST: &str = "run the tests";
/// Clippy, with warnings denied.
const LINT: &str = ".ci/lint";

/// All of them, quick ones first.
pub const GROUPS: &[Group] = &[
    Group { name: "host/format", args: &["fmt", "--all", "--check"], kind: Kind::Whole, wrapper: None },
    Group {
        name: "host/lint",
        // The fuzzer is no default member: its tests need coverage. Without the feature the crates are looked at for riscv64.
        args: &[
            "build",
            "--workspace",
            "--exclude",
            "metal",
            "--exclude",
            "guests",
            "--all-targets",
            "--features",
            "hypervisor/model",
        ],
        kind: Kind::Whole,
        wrapper: Some(LINT),
    },
    Group {
        name: "host/lint-riscv64",
        // As it is built, so that it has what is compiled of that build.
        args: &[
            "build",
            "--release",
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
            "-p",
            "vkernel",
            "--features",
            "hypervisor/machine,programs/machine,vkernel/machine",
        ],
        kind: Kind::Whole,
        wrapper: Some(LINT),
    },
    Group { name: "host/tests", args: &["test", "--no-fail-fast"], kind: Kind::EachTest, wrapper: None },
    Group {
        name: "host/models",
        // By itself: the feature puts a model checker in place of the atomics. Of all packages that are linted, so that what they
        // depend on is compiled once for both.
        args: &[
            "test",
            "--no-fail-fast",
            "--workspace",
            "--exclude",
            "metal",
            "--exclude",
            "guests",
            "--features",
            "mmu/model,hypervisor/model",
            "--test",
            "models",
        ],
        kind: Kind::EachTest,
        wrapper: None,
    },
    Group {
        name: "host/fuzz",
        args: &["test", "--no-fail-fast", "-p", "fuzz"],
        kind: Kind::EachTest,
        wrapper: Some("fuzz/cover"),
    },
];

/// The result of a command.
pub struct Ran {
    /// Both outputs in the order in which they came.
    lines: Vec<String>,
    /// The exit status; `None` if the command had to be ended.
    status: Option<ExitStatus>,
    cpu: Duration,
}

impl Group {
    /// Runs it, on so many processors.
    pub fn run(&self, processors: usize) -> std::io::Result<Ran> {
        let mut command = build::cargo(TEST).map_err(std::io::Error::other)?;
        command.args(self.args).env("CARGO_TERM_COLOR", "never");
        if let Some(wrapper) = self.wrapper {
            command.env("RUSTC_WORKSPACE_WRAPPER", checkout(TEST).map_err(std::io::Error::other)?.join(wrapper));
        }
        command.env("CARGO_BUILD_JOBS", processors.to_string());
        // Some tests wait for machines and for time: another runs meanwhile.
        command.env("RUST_TEST_THREADS", (processors + 1).to_string());
        follow(command, LIMIT)
    }

    /// Counts what has come of it in `wall` time.
    pub fn count(&self, ran: std::io::Result<Ran>, wall: Duration, tally: &mut Tally) {
        let (lines, failed, cpu) = match ran {
            Ok(Ran { lines, status: Some(status), cpu }) if status.success() => (lines, None, cpu),
            Ok(Ran { lines, status, cpu }) => {
                let why = status.map_or_else(
                    || format!("it did not end within {} s", LIMIT.as_secs()),
                    |status| status.to_string(),
                );
                (lines, Some(why), cpu)
            }
            Err(why) => (Vec::new(), Some(why.to_string()), Duration::ZERO),
        };
        let wrapper =
            self.wrapper.map_or_else(String::new, |wrapper| format!("RUSTC_WORKSPACE_WRAPPER=$PWD/{wrapper} "));
        let mut why = failed.map(|why| format!("{wrapper}cargo {} failed: {why}", self.args.join(" ")));
        let output = lines[lines.len().saturating_sub(SHOWN_LINES)..].to_vec();
        let mut verdicts = Vec::new();
        if self.kind == Kind::EachTest {
            let mut programs = read_programs(&lines);
            let complaint = complaint(&programs);
            let failed = programs.iter_mut().flat_map(|program| &mut program.tests).rfind(|test| test.result.is_err());
            if let (Some(last), None) = (failed, &complaint) {
                // Cargo's failure is told by its tests.
                why = None;
                if last.output.is_empty() {
                    last.output.clone_from(&output);
                }
            }
            why = complaint.or(why);
            programs.into_iter().for_each(|Program { name, tests, .. }| tally.add_program(name, tests));
        } else if why.is_none() {
            verdicts.push(Verdict::passed(self.name));
        }
        verdicts.extend(why.map(|why| Verdict { output, ..Verdict::failed(self.name, why) }));
        tally.add(Run { name: self.name.to_owned(), verdicts, spent: Spent { wall, cpu, machines: 0 } });
    }
}

/// Runs a command until it ends, but not longer than `limit`. A test that hangs must not take along what others have told.
fn follow(mut command: Command, limit: Duration) -> std::io::Result<Ran> {
    let started = Instant::now();
    let (mut reader, writer) = std::io::pipe()?;
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command holds the writing ends; while it lives, the pipe does not end.
    drop(command);
    let (sender, pieces) = channel();
    // It ends with the last that has the pipe open, which may be never: the thread is not joined.
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = reader.read(&mut piece) {
            if sender.send(piece[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    let (mut said, mut ended) = (Vec::new(), None);
    let is_late = loop {
        match pieces.recv_timeout(Duration::from_millis(100)) {
            Ok(piece) => said.extend(piece),
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if ended.is_none() && processors::has_ended(&child)? {
            ended = Some(Instant::now());
        }
        if ended.is_some_and(|ended| ended.elapsed() > LEFTOVERS) {
            break false;
        } else if ended.is_none() && started.elapsed() > limit {
            break true;
        }
    };
    if is_late {
        processors::end_with_children(&child)?;
        said.extend(pieces.try_iter().flatten());
    }
    let cpu = processors::wait(&child)?;
    let status = child.wait()?;
    let lines = String::from_utf8_lossy(&said).lines().map(str::to_owned).collect();
    Ok(Ran { lines, status: (!is_late).then_some(status), cpu })
}

/// A program with tests.
#[derive(Default)]
struct Program {
    /// Cargo's name for it.
    name: String,
    /// The number of tests that it announced.
    announced: usize,
    /// The tests with a reported result.
    tests: Vec<Verdict>,
}

/// Parses libtest's line about one test: `test NAME ... ok`.
fn test_line(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    ["ok", "FAILED", "ignored"].iter().any(|known| result.starts_with(known)).then_some((name, result))
}

/// Parses libtest's line before the tests of a program: `running 7 tests`.
fn announcement(line: &str) -> Option<usize> {
    let (count, tests) = line.strip_prefix("running ")?.split_once(' ')?;
    if tests.starts_with("test") { count.parse().ok() } else { None }
}

/// Parses cargo's line before the tests of a program.
fn program_line(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("Running ").or_else(|| line.strip_prefix("Doc-tests "))
}

/// Parses libtest's line before a failed test's output: `---- NAME stdout ----`.
fn speaker_line(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

fn read_programs(lines: &[String]) -> Vec<Program> {
    let mut programs: Vec<Program> = Vec::new();
    // Whose output the lines are.
    let mut speaker = None;
    for line in lines {
        if let Some(name) = program_line(line) {
            programs.push(Program { name: name.to_owned(), ..Program::default() });
            speaker = None;
            continue;
        }
        let Some(program) = programs.last_mut() else { continue };
        if let Some(test) = speaker_line(line) {
            let name = format!("{}: {test}", program.name);
            speaker = program.tests.iter().position(|verdict| verdict.name == name);
        } else if line == "failures:" {
            speaker = None;
        } else if let Some(speaker) = speaker {
            program.tests[speaker].output.push(line.clone());
        } else if let Some(count) = announcement(line) {
            program.announced += count;
        } else if let Some((test, result)) = test_line(line) {
            let name = format!("{}: {test}", program.name);
            program.tests.push(match result {
                "ok" => Verdict::passed(name),
                "FAILED" => Verdict::failed(name, "its output follows"),
                ignored => Verdict::failed(name, format!("it was not run: {ignored}")),
            });
        }
    }
    programs
}

/// A defect of the programs' reports, regardless of their tests' results.
fn complaint(programs: &[Program]) -> Option<String> {
    let silent = programs.iter().find(|program| program.tests.len() != program.announced);
    match silent {
        Some(Program { name, announced, tests }) => {
            Some(format!("{name} announced {announced} tests and reported {}", tests.len()))
        }
        None if programs.iter().all(|program| program.tests.is_empty()) => Some("no test was run".into()),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    /// The tally and the failures when cargo has said so, and ended with this status.
    fn counted(text: &str, status: i32) -> (String, Vec<String>) {
        let group = GROUPS.iter().find(|group| group.kind == Kind::EachTest).expect("cargo's tests");
        let lines = text.lines().map(str::to_owned).collect();
        let ran = Ran { lines, status: Some(ExitStatus::from_raw(status << 8)), cpu: Duration::ZERO };
        let mut tally = Tally::default();
        group.count(Ok(ran), Duration::ZERO, &mut tally);
        (tally.summary(), tally.failures().collect())
    }

    const GOOD: &str = "   Compiling x\n     Running unittests src/lib.rs (target/debug/deps/x-1)\n\nrunning 2 tests\n\
                        test a::b ... ok\ntest c - should panic ... ok\ntest result: ok. 2 passed\n\
                        Doc-tests y\nrunning 1 test\ntest f (line 3) ... ok\n";

    #[test]
    fn tests_are_counted() {
        assert_eq!(counted(GOOD, 0).0, "3 passed, 0 failed");
        let bad = GOOD.replace("running 2 tests", "running 3 tests\ntest e ... FAILED");
        let (summary, failures) = counted(&bad, 101);
        assert_eq!((summary.as_str(), failures.len()), ("3 passed, 1 failed", 1));
        assert!(failures[0].contains("x-1): e: its output"), "{failures:?}");
        let said = bad.replace(
            "test result: ok. 2",
            "\nfailures:\n\n---- e stdout ----\nthread e panicked\nno\n\nfailures:\n    e\n2",
        );
        let programs = read_programs(&said.lines().map(str::to_owned).collect::<Vec<_>>());
        let output: Vec<_> = programs.iter().flat_map(|program| &program.tests).map(|test| test.output.len()).collect();
        assert_eq!((output, programs[0].tests[0].output[1].as_str()), (vec![3, 0, 0, 0], "no"));
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_hangs_is_ended_with_all_that_it_started() {
        let script = "echo Running x; echo running 2 tests; echo test a ... ok; sleep 987 & echo $! >&2; wait";
        let ran = follow(shell(script), Duration::from_secs(1)).expect("a shell");
        assert_eq!((ran.status, ran.lines.len()), (None, 4), "{:?}", ran.lines);
        let sleeper = std::path::PathBuf::from(format!("/proc/{}/cmdline", ran.lines[3]));
        let is_there = || std::fs::read(&sleeper).is_ok_and(|line| line.starts_with(b"sleep"));
        let deadline = Instant::now() + Duration::from_secs(20);
        while is_there() {
            assert!(Instant::now() < deadline, "{} is still there", sleeper.display());
        }
        let mut tally = Tally::default();
        GROUPS.iter().find(|group| group.kind == Kind::EachTest).expect("one").count(Ok(ran), LIMIT, &mut tally);
        let failures: Vec<_> = tally.failures().collect();
        assert!(failures.len() == 1 && failures[0].contains("reported 1"), "{failures:?}");
    }

    #[test]
    fn what_a_test_leaves_behind_holds_nobody_up() {
        let started = Instant::now();
        let ran = follow(shell("sleep 20 & echo done"), Duration::from_mins(10)).expect("a shell");
        assert!(ran.status.is_some_and(|status| status.success()) && ran.lines == ["done"], "{:?}", ran.lines);
        assert!(started.elapsed() < Duration::from_secs(19));
    }

    #[test]
    fn what_was_not_run_has_failed() {
        for (text, status, why) in [
            (GOOD.to_owned(), 101, "cargo test --no-fail-fast failed"),
            (GOOD.replace("should panic ... ok", "should panic ... ignored, slow"), 0, "it was not run: ignored, slow"),
            (GOOD.replace("test a::b ... ok", "test a::b ... \u{fffd}ok"), 0, "announced 2 tests and reported 1"),
            ("   Compiling x\n".to_owned(), 0, "no test was run"),
            ("     Running unittests x\nrunning 0 tests\n".to_owned(), 0, "no test was run"),
        ] {
            let (summary, failures) = counted(&text, status);
            assert!(failures.len() == 1 && failures[0].contains(why), "{summary}: {failures:?}");
        }
    }
}
