//! A run that goes on while commands are given about it.

use assert_cmd::assert::Assert;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Run {
    pub child: Child,
    /// The run's output from now on.
    pub output: Option<BufReader<ChildStdout>>,
}

impl Run {
    /// Starts one whose socket is in `dir`, with these arguments, and waits until so many lines of its output have a word in them.
    pub fn start<A: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = A>, (word, count): (&str, usize)) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
        command.env("XDG_RUNTIME_DIR", dir).current_dir(dir).arg("run").args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("gnomon");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut seen = 0;
        while seen < count {
            let mut line = String::new();
            if output.read_line(&mut line).expect("text") == 0 {
                let mut said = String::new();
                child.stderr.take().expect("its errors").read_to_string(&mut said).expect("text");
                panic!("it ended: {said}");
            }
            seen += usize::from(line.contains(word));
        }
        Self { child, output: Some(output) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // QEMU goes with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command about runs whose sockets are in `dir`.
pub fn command(dir: &Path) -> assert_cmd::Command {
    let mut command = assert_cmd::Command::cargo_bin("gnomon").expect("gnomon");
    command.env("XDG_RUNTIME_DIR", dir).current_dir(dir).timeout(PATIENCE);
    command
}

/// A counter of a VM's, by its name.
pub fn counter(dir: &Path, vm: &str, name: &str) -> u64 {
    let done = command(dir).args(["stats", "--json", vm]).assert().success();
    let stats: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).expect("JSON");
    stats["vms"][0]["counters"][name].as_u64().expect("a count")
}

/// Checks that a command, which was `line`, was refused with a message that contains these parts, and a remedy.
pub fn refused(command: Assert, line: &str, parts: &[&str]) {
    let said = command.code(1);
    let said = String::from_utf8(said.get_output().stderr.clone()).expect("text");
    assert!(said.contains("gnomon: remedy: ") && !said.contains('\x1b'), "{said}");
    parts.iter().for_each(|part| assert!(said.contains(part), "`{line}`: no `{part}` in {said}"));
}
