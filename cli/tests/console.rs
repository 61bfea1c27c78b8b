//! `gnomon console`: a VM's console on another terminal. The guests are a few instructions each, so that nothing is fetched.

#[expect(dead_code, reason = "not all of it has a use here")]
mod background;
#[expect(dead_code, reason = "not all of it has a use here")]
mod pty;

use assert_cmd::Command;
use background::{Run, counter};
use pty::Shell;
use std::ffi::OsStr;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// More bytes than a pipe has room for, and than are kept of what was printed.
const ENOUGH: u64 = 120_000;

fn code(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Prints each byte that is typed.
fn echo() -> Vec<u8> {
    code(&[
        0x1000_02b7, // lui t0, 0x10000: the UART
        0x0052_c303, // loop: lbu t1, 5(t0)
        0x0013_7313, // andi t1, t1, 1
        0xfe03_0ce3, // beqz t1, loop
        0x0002_c303, // lbu t1, 0(t0)
        0x0062_8023, // sb t1, 0(t0)
        0xfedf_f06f, // j loop
    ])
}

/// Prints letters, and from time to time the end of a line, for ever.
fn flood() -> Vec<u8> {
    code(&[
        0x1000_02b7, // lui t0, 0x10000
        0x0410_0313, // line: li t1, 'A'
        0x05b0_0393, // li t2, 'Z' + 1
        0x0062_8023, // loop: sb t1, 0(t0)
        0x0013_0313, // addi t1, t1, 1
        0xfe73_1ce3, // bne t1, t2, loop
        0x00a0_0313, // li t1, '\n'
        0x0062_8023, // sb t1, 0(t0)
        0xfe5f_f06f, // j line
    ])
}

/// A run with both, as `echo` and `flood`.
struct Both {
    dir: TempDir,
    _run: Run,
}

impl Both {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let vm = |name: &str, code: &[u8]| {
            std::fs::write(dir.path().join(name), code).expect("a file");
            let path = dir.path().join(name).with_extension("toml");
            std::fs::write(&path, format!("kernel = {name:?}\nmemory = '16M'\n")).expect("a VM file");
            path
        };
        let files = [vm("echo", &echo()), vm("flood", &flood())];
        let args = files.iter().map(|file| file.as_os_str()).chain(["--harts", "2"].map(OsStr::new));
        let mut run = Run::start(dir.path(), args, ("flood| ABC", 1));
        // The output has to be read, or the guests wait.
        let output = run.output.take().expect("it is taken once");
        std::thread::spawn(move || drain(output));
        Self { dir, _run: run }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, line: &str) -> Command {
        let mut command = background::command(self.path());
        command.args(line.split_whitespace());
        command
    }

    /// A shell at a terminal, in which `gnomon console` goes on.
    fn attach(&self, vm: &str) -> Shell {
        let mut command = std::process::Command::new("/bin/sh");
        command.env("XDG_RUNTIME_DIR", self.path());
        Shell::start(command, &format!("console {vm}"))
    }
}

fn drain(mut output: BufReader<ChildStdout>) {
    let mut buffer = [0; 4096];
    while output.read(&mut buffer).is_ok_and(|count| count != 0) {}
}

#[test]
fn a_console_is_on_several_terminals_and_they_come_back() {
    let run = Both::start();
    let (mut one, mut two) = (run.attach("echo"), run.attach("echo"));
    for shell in [&mut one, &mut two] {
        shell.exp_string("console of echo in run echo; Ctrl-A d leaves").expect("how to leave");
    }
    // What either types both see; a key that would be a signal is the guest's; and a line feed begins at the left.
    one.type_in("first\x03\n");
    for shell in [&mut one, &mut two] {
        shell.exp_string("first\x03\r\n").expect("what was typed");
    }
    two.type_in("second\x01\x01.");
    for shell in [&mut one, &mut two] {
        shell.exp_string("second\x01.").expect("what was typed");
    }
    one.type_in("\x01h\x01q");
    one.exp_string("Ctrl-A d leaves while the VM keeps running").expect("help");
    one.exp_string("no such command").expect("a word");
    one.type_in("\x01d");
    one.exp_string("left the console of echo").expect("a word");
    one.expect_restored("0");
    // A shell that attaches later sees the earlier output.
    let mut three = run.attach("echo");
    three.exp_string("second\x01.").expect("the end of what was printed");
    run.command("stop echo").assert().success();
    for shell in [&mut two, &mut three] {
        shell.exp_string("gnomon: echo has ended").expect("a word");
        shell.expect_restored("0");
    }
    // The run's.
    let mut last = run.attach("flood");
    last.exp_string("console of flood in run echo").expect("it is there");
    last.exp_string("XYZ\r\nABC").expect("lines");
    drop(run);
    last.exp_string("has ended").expect("a word");
    last.expect_restored("0");
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let run = Both::start();
    let mut shell = run.attach("flood");
    shell.exp_string("XYZ\r\nABC").expect("lines");
    shell.kill();
    shell.expect_restored("143");
}

#[test]
fn who_does_not_read_keeps_nobody_and_hears_what_was_lost() {
    let run = Both::start();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gnomon"));
    command.env("XDG_RUNTIME_DIR", run.path()).args(["console", "flood"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut sleeper = command.spawn().expect("gnomon");
    let mut output = BufReader::with_capacity(1, sleeper.stdout.take().expect("its output"));
    output.read_exact(&mut [0]).expect("it has begun");
    // Each byte is an exit.
    let exits = |run: &Both| counter(run.path(), "flood", "exits.total");
    let (start, since) = (exits(&run), Instant::now());
    while exits(&run) < start + ENOUGH {
        assert!(since.elapsed() < Duration::from_secs(60), "the VM waits for who does not read");
        sleep(Duration::from_millis(50));
    }
    // Meanwhile the VM and all others go on: `echo` gets all input and returns it, and `flood` makes more exits.
    let before = exits(&run);
    let typed: String = (0..2000).map(|n| format!("{n} ")).collect();
    let mut echo = std::process::Command::new(env!("CARGO_BIN_EXE_gnomon"))
        .env("XDG_RUNTIME_DIR", run.path())
        .args(["console", "echo"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("gnomon");
    let mut input = echo.stdin.take().expect("its input");
    let text = typed.clone();
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, text.as_bytes()));
    let mut seen = vec![0; typed.len()];
    echo.stdout.take().expect("its output").read_exact(&mut seen).expect("all of it");
    assert_eq!(String::from_utf8_lossy(&seen), typed);
    writer.join().expect("no panic").expect("written");
    echo.kill().expect("it is there");
    echo.wait().expect("its status");
    assert!(exits(&run) > before, "the VM goes on");
    // Now it reads.
    let mut lines = vec![0; 1 << 17];
    output.read_exact(&mut lines).expect("more than there was in the pipe");
    run.command("stop flood").assert().success();
    std::thread::spawn(move || drain(output));
    let mut said = String::new();
    sleeper.stderr.take().expect("its errors").read_to_string(&mut said).expect("text");
    assert_eq!(sleeper.wait().expect("its status").code(), Some(0), "{said}");
    assert!(said.contains("bytes of its output are lost") && said.contains("flood has ended"), "{said}");
}

#[test]
fn what_is_no_console_is_said() {
    let run = Both::start();
    let refused = |line: &str, what: &str| {
        let said = run.command(line).assert().code(1).get_output().stderr.clone();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.contains(what) && said.contains("gnomon: remedy: "), "`{line}`: {said}");
    };
    refused("console", "several VMs: echo, flood");
    refused("console other", "no VM `other`");
    refused("console --run other echo", "no run called `other`");
}
