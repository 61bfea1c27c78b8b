//! A shell at a terminal, in which a command of Gnomon's goes on.

use rexpect::session::{PtySession, spawn_command};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub const PATIENCE_MS: u64 = 120_000;

/// The shell outlives the command, so that the terminal can be looked at then.
pub struct Shell {
    session: PtySession,
    /// The process that runs the command.
    pid: String,
}

impl Deref for Shell {
    type Target = PtySession;

    fn deref(&self) -> &PtySession {
        &self.session
    }
}

impl DerefMut for Shell {
    fn deref_mut(&mut self) -> &mut PtySession {
        &mut self.session
    }
}

impl Shell {
    /// One that runs `gnomon` with these arguments, its other environment from `command`, which is /bin/sh.
    pub fn start(command: Command, arguments: &str) -> Self {
        Self::start_by(command, &format!("sh -c 'echo pid $$.; exec $GNOMON {arguments}'"))
    }

    /// One that runs a line, which starts `$GNOMON` and prints its process as `pid NUMBER.`.
    pub fn start_by(mut command: Command, line: &str) -> Self {
        command.env("PS1", "").env("GNOMON", env!("CARGO_BIN_EXE_gnomon"));
        let mut session = spawn_command(command, Some(PATIENCE_MS)).expect("a shell");
        session.send_line(&format!("before=$(stty -g); {line}")).expect("typing");
        let (_, pid) = session.exp_regex(r"pid [0-9]+\.").expect("the process");
        let pid = pid.trim_start_matches("pid ").trim_end_matches('.').to_owned();
        Self { session, pid }
    }

    /// Types keys.
    pub fn type_in(&mut self, keys: &str) {
        self.session.send(keys).expect("typing");
        self.session.flush().expect("typing");
    }

    /// Kills the command by SIGTERM.
    pub fn kill(&self) {
        self.kill_by("TERM");
    }

    /// Kills the command by a signal.
    pub fn kill_by(&self, signal: &str) {
        let killed =
            Command::new("sh").args(["-c", &format!("kill -{signal} {}", self.pid)]).status().expect("a shell");
        assert!(killed.success(), "process {}", self.pid);
    }

    /// Waits until the command and what it has started in its process group are all stopped, or all are not.
    pub fn wait_for_stop(&self, is_stopped: bool) {
        let since = Instant::now();
        loop {
            let listed = Command::new("ps").args(["-o", "stat=", "-p", &self.pid, "--ppid", &self.pid]).output();
            let states = String::from_utf8(listed.expect("ps").stdout).expect("text");
            // The server of a share and the guard of the terminal are not stopped.
            let stopped = states.lines().filter(|state| state.starts_with('T')).count();
            if stopped == if is_stopped { 2 } else { 0 } {
                return;
            }
            assert!(since.elapsed() < Duration::from_millis(PATIENCE_MS), "states {states}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the terminal's keys go through as they are.
    pub fn wait_for_raw(&self) {
        let since = Instant::now();
        let terminal = format!("/proc/{}/fd/0", self.pid);
        loop {
            let settings = Command::new("stty").args(["-a", "-F", &terminal]).output().expect("stty");
            if String::from_utf8_lossy(&settings.stdout).contains("-icanon") {
                return;
            }
            assert!(since.elapsed() < Duration::from_millis(PATIENCE_MS), "{settings:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The terminal is as it was before the command, which is stopped.
    pub fn expect_given_back(&mut self) {
        self.session.send_line("[ \"$before\" = \"$(stty -g)\" ] && echo giv''en").expect("typing");
        self.session.exp_string("given").expect("a terminal as before");
    }

    /// The command has ended, or is about to, with that status, and the terminal is as before. Returns what was printed since.
    pub fn expect_restored(&mut self, status: &str) -> String {
        // While the process lives, it takes what is typed.
        let since = Instant::now();
        while Path::new("/proc").join(&self.pid).exists() {
            assert!(since.elapsed() < Duration::from_millis(PATIENCE_MS), "process {} does not end", self.pid);
            std::thread::sleep(Duration::from_millis(20));
        }
        // A killed command cannot do it itself before it ends.
        let wait = if status == "137" { "sleep 1; " } else { "" };
        let line = format!("echo status $?; {wait}[ \"$before\" = \"$(stty -g)\" ] && echo restor''ed");
        self.session.send_line(&line).expect("typing");
        let printed = self.session.exp_string(&format!("status {status}")).expect("the status");
        self.session.exp_string("restored").expect("a terminal as before");
        self.session.send_line("exit").expect("typing");
        self.session.exp_eof().expect("the shell's end");
        printed
    }
}
