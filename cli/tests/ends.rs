//! Ends of runs, from outside and by a guest that does not end: their status, their last line, and that nothing is left
//! behind. The guests are a few instructions each, so that nothing is fetched.

mod says;
mod servers;

use rexpect::session::spawn_command;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use says::says;
use servers::{children_of, has_gone, servers_of};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use tempfile::TempDir;

const PATIENCE_MS: u64 = 120_000;

/// A cache of its own, and a kernel that prints a text and then does nothing for ever.
struct Scratch {
    dir: TempDir,
    kernel: PathBuf,
}

impl Scratch {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let kernel = dir.path().join("talker");
        std::fs::write(&kernel, talker(text)).expect("a file");
        Self { dir, kernel }
    }

    /// `gnomon run` of the kernel.
    fn run(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
        command.env("GNOMON_CACHE", self.cache()).args(["run", "--memory", "16M", "--kernel"]).arg(&self.kernel);
        command.args(args);
        command
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// A program in place of QEMU that starts it as a child.
    fn script(&self) -> PathBuf {
        let script = self.dir.path().join("qemu");
        std::fs::write(&script, "#!/bin/sh\nqemu-system-riscv64 \"$@\"\nexit $?\n").expect("a file");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("its rights");
        script
    }

    fn left(&self) -> Vec<PathBuf> {
        let run = std::fs::read_dir(self.cache().join("run")).expect("a place for bundles");
        run.map(|entry| entry.expect("an entry").path()).collect()
    }
}

/// Each byte by the SBI's debug console, then a loop.
fn talker(text: &str) -> Vec<u8> {
    says(text, &[0x0000_006f]) // j .
}

/// A kernel that prints from 'a' to 'z' and anew, in s0; no line ends.
const ALPHABET: [u32; 10] = [
    0x4442_48b7, // lui a7, 0x44424
    0x34e8_8893, // addi a7, a7, 0x34e: "DBCN"
    0x0020_0813, // li a6, 2: write a byte
    0x0610_0413, // li s0, 'a'
    0x07b0_0493, // li s1, 'z' + 1
    0x0004_0513, // mv a0, s0
    0x0000_0073, // ecall
    0x0014_0413, // addi s0, s0, 1
    0xfe94_1ae3, // bne s0, s1, -12
    0xfe9f_f06f, // j -24
];

/// Starts it, and waits until the guest has said a line.
fn start(command: &mut Command, line: &str) -> (Child, BufReader<impl Read + use<>>) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("gnomon");
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    let mut said = String::new();
    while !said.contains(line) {
        said.clear();
        assert_ne!(output.read_line(&mut said).expect("text"), 0, "it ended without `{line}`");
    }
    (child, output)
}

fn end_of(mut child: Child) -> (ExitStatus, String) {
    let mut said = String::new();
    child.stderr.take().expect("its errors").read_to_string(&mut said).expect("text");
    (child.wait().expect("its status"), said)
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it lives");
}

#[test]
fn signals_end_a_run_and_leave_nothing() {
    let scratch = Scratch::new("hello\n");
    for (signal, name) in
        [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT"), (Signal::HUP, "SIGHUP"), (Signal::QUIT, "SIGQUIT")]
    {
        let (child, _output) = start(scratch.run(&[]).env("GNOMON_QEMU", scratch.script()), "hello");
        let children = children_of(child.id());
        let qemus = children.iter().flat_map(|child| children_of(child.as_raw_nonzero().get().unsigned_abs()));
        let [qemu] = qemus.collect::<Vec<_>>()[..] else { panic!("one QEMU") };
        send(&child, signal);
        let (status, said) = end_of(child);
        assert!(has_gone(qemu), "QEMU");
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{said}");
        assert!(said.ends_with(&format!("\ngnomon: ended by {name}\n")), "{said}");
        assert!(scratch.left().is_empty(), "{:?}", scratch.left());
    }
}

#[test]
fn a_run_that_is_killed_leaves_nothing_either() {
    let scratch = Scratch::new("hello\n");
    let share = scratch.dir.path().to_str().expect("text");
    let (disk, temporary) = (format!("{share}/disk:1M"), scratch.dir.path().join("tmp"));
    std::fs::create_dir(&temporary).expect("a directory");
    let args = ["--share", share, "--share", "/:ro", "--disk", &disk];
    // The disk is made by a run without --snapshot.
    let (child, _output) = start(&mut scratch.run(&args), "hello");
    send(&child, Signal::TERM);
    end_of(child);
    let args = [&args[..], &["--snapshot"]].concat();
    let (child, mut output) = start(scratch.run(&args).env("TMPDIR", &temporary), "hello");
    let servers = servers_of(child.id());
    assert_eq!(servers.len(), 2);
    send(&child, Signal::KILL);
    let (status, _) = end_of(child);
    assert!(servers.into_iter().all(has_gone), "a share's server");
    assert_eq!(status.code(), None, "{status}");
    // QEMU holds the other end until it has gone, too.
    let _ = output.read_to_string(&mut String::new());
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
    // But for a directory, which is the next run's to remove.
    let names =
        || std::fs::read_dir(&temporary).expect("a directory").map(|entry| entry.expect("an entry").file_name());
    let temporary_ones = || names().filter(|name| name.to_string_lossy().starts_with("gnomon-scratch-")).count();
    assert_eq!(temporary_ones(), 1);
    let (child, _output) = start(scratch.run(&args).env("TMPDIR", &temporary), "hello");
    send(&child, Signal::TERM);
    end_of(child);
    assert_eq!(temporary_ones(), 0);
}

#[test]
fn a_run_that_is_killed_leaves_no_qemu_of_a_script() {
    let scratch = Scratch::new("hello\n");
    let (child, mut output) = start(scratch.run(&[]).env("GNOMON_QEMU", scratch.script()), "hello");
    let is_script = |pid: &Pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "qemu\n");
    let (scripts, helpers): (Vec<Pid>, Vec<Pid>) = children_of(child.id()).into_iter().partition(is_script);
    let ([script], [helper]) = (&scripts[..], &helpers[..]) else {
        panic!("a script and a helper: {scripts:?}, {helpers:?}")
    };
    let [qemu] = children_of(script.as_raw_nonzero().get().unsigned_abs())[..] else { panic!("one QEMU") };
    send(&child, Signal::KILL);
    end_of(child);
    assert!([qemu, *script, *helper].map(has_gone) == [true; 3], "QEMU, the script, or the helper");
    let _ = output.read_to_string(&mut String::new());
}

#[test]
fn a_reader_that_is_late_has_all() {
    let scratch = Scratch::new("");
    std::fs::write(&scratch.kernel, ALPHABET.map(u32::to_le_bytes).concat()).expect("a file");
    let mut child = scratch.run(&[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gnomon");
    std::thread::sleep(std::time::Duration::from_secs(3));
    // Four times what a pipe holds: in three seconds the guest has filled that, and waits.
    let mut said = vec![0; 1 << 18];
    child.stdout.as_mut().expect("its output").read_exact(&mut said).expect("a text without end");
    // Behind the messages of the start.
    let from = said.windows(3).position(|text| text == b"abc").expect("the alphabet");
    let wrong = said[from..].iter().zip((b'a'..=b'z').cycle()).position(|(is, wanted)| *is != wanted);
    assert_eq!(wrong, None, "{:?}", wrong.map(|at| String::from_utf8_lossy(&said[from + at..][..80]).into_owned()));
    send(&child, Signal::TERM);
    drop(child.stdout.take());
    child.wait().expect("its status");
}

#[test]
fn a_share_whose_server_ends_is_reported_and_the_run_goes_on() {
    let scratch = Scratch::new("hello\n");
    let share = scratch.dir.path().to_str().expect("text");
    let (mut child, _output) = start(&mut scratch.run(&["--share", share, "--no-sandbox"]), "hello");
    let [server] = servers_of(child.id())[..] else { panic!("one server") };
    kill_process(server, Signal::KILL).expect("it lives");
    let mut lines = BufReader::new(child.stderr.take().expect("its errors")).lines().map(|line| line.expect("text"));
    let warnings = [
        "gnomon: WARNING: --no-sandbox: QEMU and the servers of shares may open all that you may",
        "gnomon: warning: VM talker: the server of its share",
        "gnomon: remedy: save the guest's work",
    ];
    for warning in warnings {
        assert!(lines.by_ref().any(|line| line.contains(warning)), "{warning}");
    }
    assert!(child.try_wait().expect("its status").is_none(), "it goes on");
    send(&child, Signal::TERM);
    let rest: Vec<String> = lines.collect();
    assert_eq!(rest.last().map(String::as_str), Some("gnomon: ended by SIGTERM"), "{rest:?}");
    assert_eq!(child.wait().expect("its status").code(), Some(128 + 15));
}

const PANIC: &str = "[    0.000000] Kernel panic - not syncing: no init\n";

#[test]
fn a_panic_ends_a_run() {
    let scratch = Scratch::new(PANIC);
    let output = scratch.run(&["--timeout", "60"]).stdin(Stdio::null()).output().expect("gnomon");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("gnomon: the kernel of VM talker panicked: no init\n"), "{said}");
}

#[test]
fn a_panic_is_one_vms() {
    let scratch = Scratch::new(PANIC);
    let calm = Scratch::new("calm\n");
    let file = |name: &str, kernel: &Path| {
        let path = scratch.dir.path().join(name).with_extension("toml");
        std::fs::write(&path, format!("kernel = {kernel:?}\nmemory = '16M'\n")).expect("a file");
        path
    };
    let mut run = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    run.env("GNOMON_CACHE", scratch.cache()).args(["run", "--timeout", "5"]).stdin(Stdio::null());
    run.arg(file("loud", &scratch.kernel)).arg(file("calm", &calm.kernel));
    let output = run.output().expect("gnomon");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("gnomon: the kernel of VM loud panicked: no init\n"), "{said}");
    // The other ran on.
    assert!(said.ends_with("gnomon: the time limit ended the run after 5 s\n"), "{said}");
}

#[test]
fn a_compressed_kernel_runs() {
    let scratch = Scratch::new("unpacked\n");
    let plain = std::fs::read(&scratch.kernel).expect("a kernel");
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(&plain).expect("in memory");
    std::fs::write(&scratch.kernel, packer.finish().expect("in memory")).expect("a file");
    let (child, _output) = start(&mut scratch.run(&[]), "unpacked");
    send(&child, Signal::TERM);
    end_of(child);
}

#[test]
fn a_run_may_have_a_time() {
    let scratch = Scratch::new("hello\n");
    let ends = || {
        let output = scratch.run(&["--timeout", "1"]).stdin(Stdio::null()).output().expect("gnomon");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(3), "{said}");
        // On a busy machine it is a second more.
        assert!(said.contains("gnomon: the time limit ended the run after "), "{said}");
    };
    ends();
    std::fs::write(&scratch.kernel, ALPHABET.map(u32::to_le_bytes).concat()).expect("a file");
    ends();
}

#[test]
fn a_bundle_is_kept_where_it_is_asked_for() {
    let scratch = Scratch::new("hello\n");
    let output = scratch.run(&["--dry-run"]).output().expect("gnomon");
    assert!(output.status.success(), "{output:?}");
    let (line, left) = (String::from_utf8(output.stdout).expect("text"), scratch.left());
    assert_eq!(left.len(), 1);
    assert!(line.trim_end().ends_with(left[0].to_str().expect("UTF-8")), "{line}");
    assert!(std::fs::metadata(&left[0]).expect("a file").len() > 4096);
}

#[test]
fn a_benchmark_that_is_interrupted_says_what_is_kept_and_leaves_no_copies() {
    let dir = tempfile::tempdir().expect("a directory");
    let temporary = dir.path().join("tmp");
    std::fs::create_dir(&temporary).expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    command.env("GNOMON_CACHE", dir.path().join("cache")).env("TMPDIR", &temporary);
    command.args(["bench", "lane", "--subject", "native,firmware/two-stage"]);
    let mut bench = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("gnomon");
    let lines = BufReader::new(bench.stderr.take().expect("its messages")).lines();
    let mut lines = lines.map(|line| line.expect("text"));
    assert!(lines.any(|line| line == "gnomon: measuring lane"));
    kill_process(Pid::from_child(&bench), Signal::INT).expect("it lives");
    assert!(lines.any(|line| line.starts_with("gnomon: interrupted: the runs that have ended are kept")));
    assert_eq!(bench.wait().expect("its status").code(), Some(128 + 2));
    let left: Vec<_> = std::fs::read_dir(&temporary).expect("a directory").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A script may have nothing to do. The guest is Debian's kernel.
#[test]
fn no_commands_are_done_at_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    let done = command.args(["run", "--memory", "128M", "--exec", ""]).output().expect("gnomon");
    assert_eq!(
        (done.status.code(), &done.stdout[..]),
        (Some(0), &b""[..]),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn what_follows_a_run_starts_a_line() {
    let scratch = Scratch::new("prompt# ");
    let run = words(&scratch.run(&[]));
    let mut shell = Command::new("/bin/sh");
    shell.env("GNOMON_CACHE", scratch.cache());
    shell.args(["-c", &format!("sh -c 'echo pid $$.; exec {run}'; printf %s=== after")]);
    let mut session = spawn_command(shell, Some(PATIENCE_MS)).expect("a terminal");
    let (_, pid) = session.exp_regex(r"pid [0-9]+\.").expect("the process");
    let pid = pid.trim_start_matches("pid ").trim_end_matches('.').parse().expect("a number");
    session.exp_string("prompt# ").expect("the guest");
    kill_process(Pid::from_raw(pid).expect("a process"), Signal::TERM).expect("it lives");
    session.exp_string("\r\ngnomon: ended by SIGTERM\r\nafter===").expect("lines of their own");
    session.exp_eof().expect("the shell's end");
}

fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_str().expect("UTF-8")).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_terminal_that_closes_ends_a_run() {
    let scratch = Scratch::new("hello\n");
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("a terminal");
    let name = ptsname(&ours, Vec::new()).expect("a terminal").into_string().expect("UTF-8");
    let theirs = || File::options().read(true).write(true).open(&name).expect("a terminal");
    let run = scratch.run(&[]);
    // A session of its own, with that terminal: a shell's, as it were.
    let mut session = Command::new("setsid");
    session.arg("--ctty").arg(run.get_program()).args(run.get_args()).env("GNOMON_CACHE", scratch.cache());
    let mut child = session.stdin(theirs()).stdout(theirs()).stderr(theirs()).spawn().expect("gnomon");
    drop(session);
    let mut output = BufReader::new(File::from(ours));
    let mut said = String::new();
    while !said.contains("hello") {
        output.read_line(&mut said).expect("text");
    }
    drop(output);
    assert_eq!(child.wait().expect("its status").code(), Some(128 + Signal::HUP.as_raw()));
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

#[test]
fn a_hart_whose_pmp_cannot_keep_guests_out_is_refused() {
    let scratch = Scratch::new("hello");
    let without = ["--seat", "firmware", "--qemu-arg=-cpu", "--qemu-arg=rv64,pmp=off"];
    let output = scratch.run(&without).stdin(Stdio::null()).output().expect("gnomon");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("the hart has no PMP, of which the firmware seat needs 4 entries: use the payload seat"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(4));
}
