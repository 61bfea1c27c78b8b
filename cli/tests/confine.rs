//! The sandbox of QEMU, from inside: programs that try what a guest could that has taken QEMU over.

mod says;

use predicates::prelude::*;
use rustix::process::{Pid, getpriority_process};
use says::says;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A program that goes on for longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory as a user's home, with what the sandbox lets through and what it does not.
struct Home {
    dir: TempDir,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for file in ["secret", "read", "write"] {
            fs::write(dir.path().join(file), file).expect("a file");
        }
        fs::create_dir(dir.path().join("scratch")).expect("a directory");
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program in the sandbox of a machine with one file to read, one to write, and a scratch directory.
    fn confined(&self, options: &[&str], program: &[&str]) -> assert_cmd::assert::Assert {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_gnomon"));
        command.arg("confine").arg(format!("--parent={}", std::process::id())).args(options);
        command.arg("--read").arg(self.path("read")).arg("--read").arg(self.path("gone"));
        command
            .arg("--write")
            .arg(self.path("write"))
            .arg("--write")
            .arg(self.path("scratch"))
            .arg("--write=/dev/null");
        // For QEMU's monitor.
        command.write_stdin("quit\n").timeout(PATIENCE);
        command.current_dir(self.dir.path()).arg("--").args(program).assert()
    }

    /// A line of the shell's.
    fn shell(&self, line: &str) -> assert_cmd::assert::Assert {
        self.confined(&[], &["/bin/bash", "-c", line])
    }
}

#[test]
fn files_of_the_machine_are_all_that_opens() {
    let home = Home::new();
    home.shell("cat read write && echo new > write && echo a > scratch/a && mv scratch/a scratch/b")
        .success()
        .stdout("readwrite");
    assert_eq!(fs::read_to_string(home.path("write")).expect("a file"), "new\n");
    let denied = predicate::str::contains("Permission denied");
    let secret = home.path("secret").display().to_string();
    fs::write(home.path("link"), "").expect("a file");
    for line in [
        "cat secret".to_owned(),
        "ls .".into(),
        "echo x >> read".into(),
        "echo x > new".into(),
        "mv scratch/b .".into(),
        // By a link of its own making, by another process, and by its own.
        format!("ln -s {secret} scratch/link && cat scratch/link"),
        "cat /proc/$PPID/environ".into(),
        "ls /proc/self/root/root/".into(),
        "cat /etc/passwd".into(),
        // No device of the host's.
        "head -c 1 /dev/zero".into(),
        // A program of its own making.
        "cp /bin/true scratch/true && scratch/true".into(),
    ] {
        home.shell(&line).failure().stderr(denied.clone());
    }
    assert_eq!(fs::read_to_string(home.path("secret")).expect("a file"), "secret");
    assert!(!home.path("new").exists());
    home.shell("ln secret scratch/name; cat scratch/name").failure();
}

#[test]
fn neither_networks_nor_processes_are_within_reach() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    home.shell(&connect).failure().stderr(predicate::str::contains("not permitted"));
    // No socket of any kind: by one with a name, programs would do for it what it may not.
    for kind in ["1, 1", "1, 2", "2, 1", "2, 2", "16, 3"] {
        let program = format!("socket(my $s, {kind}, 0) or die $!");
        home.confined(&[], &["perl", "-e", &program]).failure().stderr(predicate::str::contains("not permitted"));
        home.confined(&["--sockets"], &["perl", "-e", &program]).success();
    }
    // Further arguments for QEMU may name sockets: a debugger's, for one.
    home.confined(&["--sockets"], &["/bin/bash", "-c", &connect]).success();
    let id = std::process::id();
    home.shell(&format!("kill -0 {id}")).failure().stderr(predicate::str::contains("not permitted"));
    home.shell("ulimit -c; ulimit -n").success().stdout("0\n1024\n");
    let large = ["/bin/bash", "-c", "printf -v large %200000000s x"];
    home.confined(&[], &large).success();
    home.confined(&["--memory=100000000"], &large).failure().stderr(predicate::str::contains("cannot allocate"));
}

#[test]
fn files_keep_their_rights_and_times() {
    let home = Home::new();
    for file in ["secret", "write"] {
        for act in ["chmod 0666, $f", "chown 1, 1, $f", "utime 0, 0, $f", "truncate $f, 0"] {
            let program = format!("my $f = '{file}'; {act} or die $!");
            home.confined(&[], &["perl", "-e", &program]).failure();
        }
        assert_eq!(fs::read_to_string(home.path(file)).expect("a file"), file);
    }
}

#[test]
fn neither_descriptors_nor_secrets_are_inherited() {
    let home = Home::new();
    let gnomon = env!("CARGO_BIN_EXE_gnomon");
    let line =
        |keep: &str| format!("exec 7<>secret; exec {gnomon} confine --parent=$PPID {keep} -- /bin/sh -c 'cat <&7'");
    let run = |keep: &str| {
        let mut command = assert_cmd::Command::new("/bin/bash");
        command.current_dir(home.dir.path()).args(["-c", &line(keep)]).assert()
    };
    run("").failure().stderr(predicate::str::contains("Bad file descriptor").or(predicate::str::contains("bad fd")));
    run("--keep=7").success().stdout("secret");
}

#[test]
fn qemu_opens_no_other_disks() {
    let home = Home::new();
    let qemu = |file: &str| {
        let drive = format!("if=none,id=d,format=raw,file={}", home.path(file).display());
        let machine = ["-machine", "none", "-display", "none", "-S", "-drive", &drive, "-monitor", "stdio"];
        let sandbox = ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"];
        home.confined(&[], &[&["qemu-system-riscv64"][..], &sandbox, &machine].concat())
    };
    qemu("secret").failure().stderr(predicate::str::contains("Permission denied"));
    qemu("write").success();
}

#[test]
fn what_cannot_start_is_said() {
    let home = Home::new();
    home.confined(&[], &["no-such-program"])
        .code(126)
        .stderr("no-such-program: No such file or directory (os error 2)\n");
    let orphan = ["confine", "--parent=1", "--", "/bin/true"];
    let orphan = assert_cmd::Command::new(env!("CARGO_BIN_EXE_gnomon")).args(orphan).assert();
    orphan.code(126).stderr(predicate::str::contains("No such process"));
}

/// A line of `/proc/PID/status`.
fn status_of(pid: &str, key: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_default().trim().to_owned()
}

/// A process of that name, found by its parent, a run.
fn child_of(run: u32, name: &str) -> Option<String> {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let pids = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found = pids
        .filter(|pid| pid.parse::<u32>().is_ok())
        .filter(|pid| status_of(pid, "PPid:") == run.to_string() && status_of(pid, "Name:").starts_with(name));
    found.next()
}

#[test]
fn a_run_confines_its_qemu() {
    let dir = tempfile::tempdir().expect("a directory");
    let kernel = dir.path().join("kernel");
    fs::write(&kernel, says("hello\n", &[0x0000_006f])).expect("a file");
    let seen = |args: &[&str]| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_gnomon"));
        run.env("TOKEN", "x")
            .env("GNOMON_CACHE", dir.path().join("cache"))
            .args(["run", "--memory", "16M", "--share"])
            .arg(dir.path())
            .arg("--kernel")
            .arg(&kernel);
        let mut run = run.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("gnomon");
        let mut lines = BufReader::new(run.stdout.take().expect("its output")).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains("hello"))));
        let qemu = child_of(run.id(), "qemu-system").expect("its QEMU");
        // The program is called so after the file that it was started from.
        let server = child_of(run.id(), "exe").expect("the server of its share");
        let environment = fs::read(format!("/proc/{qemu}/environ")).expect("its environment");
        assert!(!String::from_utf8_lossy(&environment).contains("TOKEN"), "no secret of the user's");
        let state = (status_of(&qemu, "Seccomp:"), status_of(&qemu, "NoNewPrivs:"));
        // Root's, if it is root that runs this: of files alone (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH).
        let privileges = |pid: &str, set: &str| u64::from_str_radix(&status_of(pid, set), 16).expect("a set of bits");
        assert!(privileges(&qemu, "CapEff:") & !0b110 == 0 || state.0 == "0");
        // And CAP_CHOWN, CAP_FOWNER, CAP_FSETID.
        for set in ["CapEff:", "CapPrm:", "CapInh:"] {
            let privileges = privileges(&server, set);
            assert!(privileges & !0b11011 == 0 || state.0 == "0", "{set} {privileges:#x}");
        }
        // A guest chooses how much a server has to do.
        let niceness =
            |pid: &str| getpriority_process(Pid::from_raw(pid.parse().expect("a number"))).expect("a process");
        assert_eq!(niceness(&server), (niceness(&qemu) + 10).min(19));
        run.kill().and_then(|()| run.wait()).expect("its end");
        state
    };
    assert_eq!(seen(&[]), ("2".into(), "1".into()));
    assert_eq!(seen(&["--no-sandbox"]), ("0".into(), "0".into()));
}
