//! Shutdown, reboot and reset of VMs, and runs in the background. The guests are a few instructions each, so that nothing is fetched.

#[expect(dead_code, reason = "not all of it has a use here")]
mod background;
mod listens;
mod says;

use assert_cmd::assert::Assert;
use background::{Run, command};
use listens::LISTEN;
use rexpect::session::{PtySession, spawn_command};
use rustix::process::{Pid, Signal, kill_process};
use says::says;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The code of a guest that waits.
const WAIT: [u32; 1] = [0x0000_006f]; // j .

/// Words of the command lines of a run in the background, and of its machine.
const RUN: &str = "--supervised";
const QEMU: &str = "qemu-system";

/// A directory for sockets, logs and VM files.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        // Prints "x\n" for ever.
        let flood = [0x0780_0513, 0x0000_0073, 0x00a0_0513, 0x0000_0073, 0xff1f_f06f];
        let guests: [(&str, Vec<u8>); 4] = [
            ("waiter", says("hello\n", &WAIT)),
            ("listener", says("hello\n", &LISTEN)),
            ("ender", says("hello\n", &LISTEN[6..])),
            ("flooder", says("hello\n", &flood)),
        ];
        for (name, code) in guests {
            fs::write(dir.path().join(name), code).expect("a file");
        }
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn vm(&self, name: &str, kernel: &str) -> PathBuf {
        let path = self.path(name).with_extension("toml");
        fs::write(&path, format!("name = '{name}'\nkernel = {:?}\nmemory = '16M'\n", self.path(kernel)))
            .expect("a file");
        path
    }

    fn command(&self, line: &str) -> Assert {
        let mut command = command(self.0.path());
        command.env("XDG_STATE_HOME", self.path("state")).args(line.split_whitespace());
        command.assert()
    }

    fn output(&self, line: &str) -> String {
        String::from_utf8(self.command(line).success().get_output().stdout.clone()).expect("text")
    }

    fn refused(&self, line: &str, parts: &[&str]) {
        background::refused(self.command(line), line, parts);
    }

    /// Starts a run in the background.
    fn start(&self, name: &str, vms: &[&Path]) {
        let vms: Vec<_> = vms.iter().map(|vm| vm.to_str().expect("text")).collect();
        assert_eq!(self.output(&format!("run -d --as {name} {}", vms.join(" "))), format!("{name}\n"));
    }

    /// The process of the run in the background, and all that it has started, those too that are theirs.
    fn family(&self) -> Vec<i32> {
        let place = format!("XDG_RUNTIME_DIR={}", self.0.path().display());
        let all = fs::read_dir("/proc").expect("Linux has it").flatten();
        let all: Vec<i32> = all.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).collect();
        let is_run = |id: &i32| has(*id, "environ", &place) && has(*id, "cmdline", RUN);
        let mut family: Vec<i32> = all.iter().copied().filter(is_run).collect();
        let mut at = 0;
        while let Some(parent) = family.get(at) {
            let parent = format!("PPid:\t{parent}\n");
            let children: Vec<i32> = all.iter().copied().filter(|id| has(*id, "status", &parent)).collect();
            family.extend(children);
            at += 1;
        }
        family
    }

    /// Waits until nothing of a run is left but its record.
    fn is_gone(&self, family: &[i32]) {
        until("processes of a dead run", || !family.iter().any(|id| has(*id, "cmdline", "")));
        self.command("ps").success();
        let left: Vec<_> = fs::read_dir(self.path("gnomon")).expect("it is there").flatten().collect();
        assert_eq!(left.len(), 1, "the lock only: {left:?}");
    }

    fn plain(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
        command.env("XDG_RUNTIME_DIR", self.0.path()).env("XDG_STATE_HOME", self.path("state"));
        command.args(line.split_whitespace());
        command
    }

    fn terminal(&self, line: &str) -> PtySession {
        spawn_command(self.plain(line), Some(30_000)).expect("a terminal")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.family().into_iter().filter_map(Pid::from_raw).for_each(|process| _ = kill_process(process, Signal::KILL));
    }
}

/// Returns whether a process lives, and its file in /proc has a word.
fn has(process: i32, file: &str, word: &str) -> bool {
    let text = fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
    !text.is_empty() && (word.is_empty() || text.windows(word.len()).any(|window| window == word.as_bytes()))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn guests_are_asked_and_those_that_do_not_listen_are_named() {
    let scratch = Scratch::new();
    let vms = [scratch.vm("deaf", "waiter"), scratch.vm("hears", "listener")];
    let run = Run::start(scratch.0.path(), &vms, ("hello", 2));
    scratch.refused("shutdown", &["several VMs"]);
    scratch.refused("shutdown nobody", &["no VM `nobody`"]);
    scratch.refused(
        "shutdown deaf --timeout 1",
        &["`deaf` has not shut down within 1 s", "does not listen", "gnomon destroy deaf"],
    );
    scratch.refused("reboot deaf --timeout 0", &["has not rebooted"]);
    scratch.command("pause hears").success();
    scratch.refused("shutdown hears", &["it is paused", "gnomon resume"]);
    scratch.refused("reboot hears", &["it is paused"]);
    scratch.command("resume hears").success();
    scratch.command("reboot hears").success();
    scratch.command("reset deaf").success();
    until("the next lives", || scratch.output("ps").matches("running").count() == 2);
    // Two at once.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| scratch.command("shutdown hears").success());
        }
    });
    assert!(!scratch.output("ps").contains("hears"));
    scratch.refused("shutdown hears", &["no VM `hears`"]);
    scratch.command("stop deaf").success();
    drop(run);
    scratch.refused("shutdown", &["no VM is running"]);
}

#[test]
fn a_run_in_the_background_goes_on_is_attached_to_and_tells_its_end() {
    let scratch = Scratch::new();
    scratch.refused("wait", &["no run was started in the background"]);
    let vms = [scratch.vm("deaf", "waiter"), scratch.vm("hears", "listener")];
    scratch.start("work", &[&vms[0], &vms[1]]);
    let family = scratch.family();
    assert!([RUN, QEMU].iter().all(|word| family.iter().any(|id| has(*id, "cmdline", word))), "{family:?}");
    scratch.refused("run -d --as work", &["already active"]);
    scratch.refused("run -d --control off", &["must be reachable"]);
    scratch.refused("logs", &["several VMs"]);
    scratch.refused("logs nobody", &["nobody"]);
    scratch.refused("wait --run other", &["no run called `other`", "known: work"]);
    scratch.refused("rm work", &["is active"]);
    until("their logs", || ["deaf", "hears"].iter().all(|vm| scratch.output(&format!("logs {vm}")) == "hello\n"));
    let mut terminal = scratch.terminal("attach");
    terminal.exp_string("console of deaf").expect("the first VM");
    terminal.send("\x01n").and_then(|_| terminal.flush()).expect("it reads");
    terminal.exp_string("console of hears").expect("the next VM");
    terminal.send("\x01d").and_then(|_| terminal.flush()).expect("it reads");
    terminal.exp_eof().expect("it leaves");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| scratch.command("wait hears").success());
        scratch.command("shutdown hears").success();
        waits.join().expect("it ended");
    });
    let mut terminal = scratch.terminal("attach work");
    terminal.exp_string("console of deaf").expect("the first VM");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| scratch.command("wait").success());
        terminal.send("\x01x").and_then(|_| terminal.flush()).expect("it reads");
        waits.join().expect("it ended");
    });
    terminal.exp_string("run work has ended").expect("its last words");
    scratch.is_gone(&family);
    assert_eq!(scratch.output("logs hears"), "hello\n");
    assert!(scratch.output("logs --messages").contains("hears powered off"));
    scratch.command("wait deaf").success();
    // The next run of that name begins a new record; a VM that cannot have started is the run's error.
    scratch.command("rm work").success();
    scratch.refused("logs --run work", &["no run called `work`"]);
    scratch.start("work", &[&scratch.vm("short", "ender")]);
    scratch.command("wait --run work").success();
    scratch.command("wait short").success();
    scratch.is_gone(&[]);
    scratch.refused("run -d /nowhere.toml", &["/nowhere.toml"]);
}

#[test]
fn nothing_is_left_of_a_run_in_the_background_that_is_killed() {
    let scratch = Scratch::new();
    let vm = scratch.vm("flood", "flooder");
    for victim in [RUN, QEMU] {
        scratch.start("work", &[&vm]);
        let family = scratch.family();
        let process = family.iter().copied().find(|id| has(*id, "cmdline", victim)).and_then(Pid::from_raw);
        let log = scratch.path("state/gnomon/work/vms/flood");
        until("output", || fs::metadata(log.join("log")).is_ok_and(|file| file.len() > 1000));
        // An attached terminal, and a follower of the log, whose ends disturb nothing.
        for line in ["attach work", "logs -f flood", "wait flood"] {
            let mut command = scratch.plain(line);
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("gnomon");
            sleep(Duration::from_millis(200));
            child.kill().and_then(|()| child.wait()).expect("it is there");
        }
        assert!(scratch.output("ps").contains("running"));
        process.map(|process| kill_process(process, Signal::KILL)).expect("there is one").expect("it lives");
        // QEMU's end is the run's failure; a run that is killed itself says nothing.
        scratch.command("wait").code(4);
        scratch.is_gone(&family);
        let bytes: u64 = fs::read_dir(&log)
            .expect("it is there")
            .flatten()
            .map(|file| file.metadata().map_or(0, |file| file.len()))
            .sum();
        assert!(bytes <= 2 << 20, "{bytes}");
        assert!(scratch.output("logs").contains("x\r\nx\r\n"));
    }
}

/// Linux with Gnomon's own initramfs: its serial line is hung up, or its power key is pressed.
#[test]
fn linux_shuts_down_and_reboots() {
    let scratch = Scratch::new();
    let vm = |name: &str, more: &str| {
        let path = scratch.path(name).with_extension("toml");
        fs::write(&path, format!("name = '{name}'\nmemory = '192M'\n{more}")).expect("a file");
        path
    };
    let (line, key) = (vm("line", ""), vm("key", "console = 'virtio'\npowerkey = true\n"));
    scratch.start("work", &[&line, &key]);
    let shells = |vm: &str| scratch.output(&format!("logs {vm}")).matches("exit or Ctrl-D powers off").count();
    // It may not listen yet.
    scratch.command("reboot line --timeout 60").success();
    scratch.command("shutdown key --timeout 60").success();
    until("the shell after the reboot", || shells("line") == 2);
    scratch.command("shutdown line").success();
    scratch.command("wait --run work").success();
    let messages = scratch.output("logs --messages");
    for what in ["line starts over", "key powered off", "line powered off"] {
        assert!(messages.contains(what), "{what}: {messages}");
    }
}
