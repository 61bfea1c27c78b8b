//! Runs that are kept by name: created, listed, started, shut down, started again, and removed, with nothing left.

#[expect(dead_code, reason = "not all of it has a use here")]
mod background;
mod listens;
mod says;

use assert_cmd::assert::Assert;
use listens::LISTEN;
use predicates::prelude::*;
use says::says;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A directory for sockets, logs and VM files.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        let scratch = Self(tempfile::tempdir().expect("a directory"));
        fs::create_dir(scratch.path("vms")).expect("a directory");
        fs::write(scratch.path("vms/a b.bin"), says("hello\n", &LISTEN)).expect("a file");
        scratch.vm("kernel = 'a b.bin'");
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the VM file.
    fn vm(&self, kernel: &str) {
        fs::write(self.path("vms/a b.toml"), format!("name = 'a'\n{kernel}\nmemory = '16M'\n")).expect("a file");
    }

    /// `gnomon` in a directory.
    fn at(&self, dir: &str, args: &[&str]) -> Assert {
        let mut command = background::command(self.0.path());
        command.env("XDG_STATE_HOME", self.path("state")).current_dir(self.path(dir)).args(args).assert()
    }

    fn gnomon(&self, line: &str) -> Assert {
        self.at(".", &line.split_whitespace().collect::<Vec<_>>())
    }

    fn list(&self) -> Value {
        let assert = self.gnomon("list --json").success();
        serde_json::from_slice(&assert.get_output().stdout).expect("JSON")
    }

    /// Checks the state and status of the only run that is kept.
    fn is(&self, state: &str, status: Value) {
        let list = self.list();
        assert_eq!((&list[0]["state"], &list[0]["status"]), (&json!(state), &status), "{list}");
    }
}

#[test]
fn a_run_is_kept_by_its_name() {
    let scratch = Scratch::new();
    scratch.at("vms", &["create", "a b.toml", "--as", "work", "--set", "read-ahead=0"]).success().stdout("work\n");
    scratch.is("created", Value::Null);
    assert_eq!(scratch.list()[0]["args"], json!(["a b.toml", "--as", "work", "--set", "read-ahead=0"]));
    let listed = scratch.gnomon("list").success().stdout(predicate::str::contains("'a b.toml' --as work"));
    listed.stdout(predicate::str::contains("created"));
    // Not a run yet.
    for line in ["wait --run work", "logs --run work", "destroy --run work"] {
        scratch.gnomon(line).code(1).stderr(predicate::str::contains("gnomon: remedy: "));
    }
    for _ in 0..2 {
        // From elsewhere: paths are those of the directory in which it was created.
        scratch.gnomon("start work").success().stdout("work\n");
        scratch.is("active", Value::Null);
        scratch.gnomon("get read-ahead").success().stdout("0\n");
        for (line, says) in [
            ("start work", "run `work` is active"),
            ("rm work", "run `work` is active"),
            ("create --as work", "run `work` is active"),
        ] {
            scratch.gnomon(line).code(1).stderr(predicate::str::contains(says));
        }
        scratch.gnomon("shutdown a --timeout 60").success();
        scratch.gnomon("wait --run work").success();
        scratch.is("ended", json!(0));
        scratch.gnomon("logs a").success().stdout(predicate::str::contains("hello"));
    }
    // A VM file that was changed counts at the next start.
    scratch.vm("kernel = 'gone.bin'");
    scratch.gnomon("start work").code(1).stderr(predicate::str::contains("gone.bin"));
    scratch.gnomon("rm work").success();
    assert_eq!(scratch.list(), json!([]));
    assert_eq!(fs::read_dir(scratch.path("state/gnomon")).expect("it is there").count(), 0);
    let left: Vec<_> = fs::read_dir(scratch.path("gnomon")).expect("it is there").flatten().collect();
    assert_eq!(left.len(), 1, "the lock only: {left:?}");
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let scratch = Scratch::new();
    for (line, says) in [
        ("create nowhere.toml", "nowhere.toml"),
        ("create --vcpus 99", "99 vCPUs"),
        ("create --dry-run", "--dry-run"),
        ("create --control off", "--control off"),
        ("create --incoming unix:x", "--incoming"),
        ("create --as ../x", "../x"),
        ("start nowhere", "no run called `nowhere` is kept"),
        ("rm nowhere", "nowhere"),
    ] {
        scratch.gnomon(line).code(1).stderr(predicate::str::contains(says).and(predicate::str::contains("remedy")));
    }
    assert_eq!(scratch.list(), json!([]));
    scratch.at("vms", &["create", "a b.toml"]).success().stdout("a\n");
    scratch.at("vms", &["create", "a b.toml"]).code(1).stderr(predicate::str::contains("is kept already"));
    // A file that another program has damaged hides no other run, and can be removed.
    scratch.gnomon("create --as other").success();
    fs::write(scratch.path("state/gnomon/a/definition"), "{ \u{1b}[2J").expect("a file");
    assert_eq!((&scratch.list()[0]["state"], &scratch.list()[1]["state"]), (&json!("unreadable"), &json!("created")));
    scratch.gnomon("start a").code(1).stderr(predicate::str::contains("definition"));
    scratch.gnomon("rm a other").success();
    // Its directory has gone.
    scratch.at("vms", &["create", "a b.toml"]).success();
    fs::rename(scratch.path("vms"), scratch.path("away")).expect("renamed");
    scratch.gnomon("start a").code(1).stderr(predicate::str::contains("no directory now"));
}
