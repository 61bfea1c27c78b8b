//! Commands for runs that go on, and a machine behind them. The guests are a few instructions each, so that nothing is fetched.

mod background;
mod says;

use abi::control::frame::{Reader, decode, encode};
use abi::control::{Answer, MOST_ANSWER_BYTES, Request};
use background::{PATIENCE, Run, counter};
use rexpect::session::{PtySession, spawn_command};
use says::says;
use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Prints a line, and makes SBI calls for ever.
fn caller() -> Vec<u8> {
    let end = [
        0x0100_0893, // li a7, 0x10: "base"
        0x0000_0813, // li a6, 0: the version
        0x0001_0437, // loop: lui s0, 16
        0xfff4_0413, // wait: addi s0, s0, -1
        0xfe04_1ee3, // bnez s0, wait
        0x0000_0073, // ecall
        0xff1f_f06f, // j loop
    ];
    says("hello\n", &end)
}

/// An image in format qcow2 (version 2) of a disk with two sectors, all of them in a backing file of that name.
fn overlay(backing: &str) -> Vec<u8> {
    const CLUSTER: usize = 4096;
    let mut bytes = vec![0; 4 * CLUSTER];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"QFI\xfb\0\0\0\x02");
    for (at, value) in [(8, 1024), (24, 1024), (40, 3 * CLUSTER), (48, CLUSTER), (CLUSTER, 2 * CLUSTER)] {
        put(at, &(value as u64).to_be_bytes());
    }
    for (at, value) in [(16, backing.len()), (20, 12), (36, 1), (56, 1)] {
        put(at, &(value as u32).to_be_bytes());
    }
    put(1024, backing.as_bytes());
    // Each of the four clusters is used once.
    put(2 * CLUSTER, &[0, 1, 0, 1, 0, 1, 0, 1]);
    bytes
}

/// A place for sockets of its own, and VM files.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("caller"), caller()).expect("a file");
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn vm(&self, name: &str, more: &str) -> PathBuf {
        let path = self.path(name).with_extension("toml");
        let text = format!("kernel = {:?}\nmemory = '16M'\n{more}", self.path("caller"));
        std::fs::write(&path, text).expect("a VM file");
        path
    }

    /// Starts a run, and waits until so many VMs have said hello.
    fn run(&self, vms: &[&Path], args: &[&str], count: usize) -> Run {
        let args = vms.iter().map(|vm| vm.as_os_str()).chain(args.iter().map(OsStr::new));
        Run::start(self.0.path(), args, ("hello", count))
    }

    fn command(&self, line: &str) -> assert_cmd::assert::Assert {
        background::command(self.0.path()).args(line.split_whitespace()).assert()
    }

    fn output(&self, line: &str) -> String {
        String::from_utf8(self.command(line).success().get_output().stdout.clone()).expect("text")
    }

    /// Runs a command that is refused, and checks that its message contains these parts.
    fn refused(&self, line: &str, parts: &[&str]) {
        background::refused(self.command(line), line, parts);
    }

    fn exits(&self, vm: &str) -> u64 {
        counter(self.0.path(), vm, "exits.ecall")
    }
}

/// Waits for the end of a run. Returns its status, and its output until then.
fn end(mut run: Run) -> (Option<i32>, String) {
    let mut text = String::new();
    run.output.take().expect("it is taken once").read_to_string(&mut text).expect("text");
    (run.child.wait().expect("its status").code(), text)
}

/// A command says that its output is lost, and fails.
fn cannot_be_written(scratch: &Scratch, words: &[&str]) {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gnomon"));
    command.env("XDG_RUNTIME_DIR", scratch.0.path()).args(words);
    let done = command.stdout(full).stderr(Stdio::piped()).output().expect("gnomon");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("cannot write /dev/stdout: No space left"), "{words:?}: {said}");
    assert_eq!(done.status.code(), Some(1), "{words:?}");
}

#[test]
fn commands_reach_runs_and_their_vms() {
    let scratch = Scratch::new();
    assert_eq!(scratch.output("ps").lines().count(), 1, "the heads only");
    scratch.refused("stop", &["no VM is running", "gnomon run"]);
    let (a, b) = (scratch.vm("a", ""), scratch.vm("b", "mmu = 'lazy'\nports = ['agent', 'log']\n"));
    // Names that mean something to QEMU where it takes them apart, relative to the directory.
    let disks = "disks = ['10:30,x.img', { file = 'nbd:127.0.0.1:10809', readonly = true }, \
                 { file = 'over.qcow2', backing = 'base' }]\n";
    for name in ["10:30,x.img", "nbd:127.0.0.1:10809", "base"] {
        std::fs::write(scratch.path(name), [0; 1024]).expect("a disk");
    }
    std::fs::write(scratch.path("over.qcow2"), overlay("base")).expect("an image");
    scratch.vm("disks", &format!("name = 'b'\nmmu = 'lazy'\nports = ['agent', 'log']\n{disks}"));
    let options = ["--harts", "2", "--swap", "json:{}.swap:1M"];
    let run = scratch.run(&[&a, Path::new("disks.toml")], &options, 2);
    let told = scratch.output("ps");
    for words in [&["ps"][..], &["--help"], &["--version"], &["test", "--list"], &["bench"]] {
        cannot_be_written(&scratch, words);
    }
    let rows: Vec<Vec<&str>> = told.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 2, "{told}");
    assert_eq!(rows[0][..5], ["a", "a", "running", "two-stage", "1"]);
    assert_eq!(rows[1][..5], ["a", "b", "running", "lazy", "1"]);
    assert_eq!(rows.iter().map(|row| row[row.len() - 1]).collect::<Vec<_>>(), ["-", "agent,log"]);
    // A client at a port that its guest does not use.
    let listed: serde_json::Value = serde_json::from_str(&scratch.output("ps --json")).expect("JSON");
    assert_eq!(listed[1]["ports"]["log"], scratch.path("gnomon/a.ports/b/log").to_str().expect("text"));
    scratch.refused("port b agnet", &["no port `agnet`", "did you mean `agent`?", "agent, log"]);
    scratch.refused("port a agent", &["VM `a`", "no port `agent`"]);
    let mut port = std::process::Command::new(env!("CARGO_BIN_EXE_gnomon"));
    port.env("XDG_RUNTIME_DIR", scratch.0.path()).args(["port", "b", "log", "--listen"]);
    let mut port = port.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("gnomon");
    // Tunables.
    scratch.command("set read-ahead=3 promote=off").success();
    assert_eq!(scratch.output("get read-ahead"), "3\n");
    assert!(scratch.output("get").contains("\npromote=off\n"));
    scratch.refused("set read-ahead=16", &["read-ahead", "0 to 15"]);
    scratch.refused("set colour=blue", &["colour", "superpages"]);
    scratch.refused("set read-ahead=5 promot=on", &["no tunable `promot`: did you mean `promote`?"]);
    scratch.refused("get colour", &["colour", "superpages"]);
    scratch.refused("get read_ahed", &["did you mean `read-ahead`?"]);
    // Counters.
    let before = scratch.exits("a");
    assert!(before > 0);
    let text = scratch.output("stats --prometheus");
    assert!(text.contains("gnomon_vm_exits_ecall_total{run=\"a\",vm=\"b\"} "), "{text}");
    assert!(scratch.output("stats").contains("the host:\n") && !scratch.output("stats b").contains("a:\n"));
    // Files that it has, and files that are not a run's to take.
    let kernel = scratch.path("caller");
    let other = |option: &str| format!("run --kernel {} --memory 16M {option}", kernel.display());
    let in_use = ["10:30,x.img is in use by run `a`", "started without --snapshot"];
    scratch.refused(&other("--disk 10:30,x.img --snapshot"), &in_use);
    scratch.refused(&other("--disk 10:30,x.img"), &in_use[..1]);
    scratch.refused(&other("--disk nbd:127.0.0.1:10809"), &["is in use by run `a`"]);
    scratch.refused(&other("--disk base"), &["is in use by run `a`"]);
    scratch.refused(&other("--disk over.qcow2:ro"), &["over.qcow2 names a backing file, `base`", "backing ="]);
    scratch.refused(&other("--swap json:{}.swap"), &["is in use by run `a`"]);
    for option in ["--swap", "--stats", "--meter"] {
        scratch.refused(&other(&format!("{option} 10:30,x.img")), &["10:30,x.img", "not"]);
    }
    scratch.refused("snapshot a -o 10:30,x.img", &["exists and is not a snapshot"]);
    scratch.refused("trace a -o 10:30,x.img", &["exists and is not a trace"]);
    assert_eq!(std::fs::read(scratch.path("10:30,x.img")).expect("a disk"), [0; 1024]);
    // Nothing of a VM file's means anything to a terminal.
    for text in [
        r#"name = "\u001b[2J""#,
        r#"kernel = "\u001b[2J""#,
        r#"disks = ["\u001b[2J"]"#,
        r#"shares = ["\u001b[2J"]"#,
        r#"ports = ["\u001b[2J"]"#,
        "vcpus = '\u{1b}[2J'",
    ] {
        std::fs::write(scratch.path("odd.toml"), text).expect("a VM file");
        scratch.refused("run odd.toml", &["\\u{1b}[2J"]);
    }
    let wrong = scratch.command("run --harts \u{1b}[2J").code(2);
    let wrong = String::from_utf8_lossy(&wrong.get_output().stderr).into_owned();
    assert!(wrong.contains("for '--harts <COUNT>'") && !wrong.contains('\x1b'), "{wrong}");
    // Whom.
    scratch.refused("pause", &["several VMs", "a, b"]);
    scratch.refused("pause c", &["`c`", "a, b"]);
    scratch.refused("pause --run z a", &["`z`"]);
    // A pause is for one VM, and a paused VM makes no exits.
    scratch.command("pause a").success();
    scratch.refused("pause a", &["paused already"]);
    let (paused, other) = (scratch.exits("a"), scratch.exits("b"));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(scratch.exits("a"), paused);
    assert!(scratch.exits("b") > other && paused > before);
    assert!(scratch.output("ps").contains("paused"));
    scratch.command("resume a").success();
    scratch.refused("resume a", &["not paused"]);
    std::thread::sleep(Duration::from_millis(100));
    assert!(scratch.exits("a") > paused);
    // Another run, which dies.
    for (name, part) in [("a", "a run called `a` is already active"), ("a/b", "cannot be called `a/b`")] {
        scratch.refused(&format!("run --as {name} --memory 16M --kernel {}", kernel.display()), &[part, "name"]);
    }
    let mut other = scratch.run(&[&b], &["--as", "other", "--harts", "1"], 1);
    // A name that several runs have, one that only one of them has, and one that none has.
    scratch.refused("stop b", &["several runs have a VM `b`", "a, other", "--run"]);
    scratch.refused("stop", &["several runs are active", "a, other"]);
    scratch.refused("stop c", &["no run has a VM `c`", "a, other"]);
    assert!(scratch.output("stats a").starts_with("a:\n"));
    scratch.command("pause a").success();
    scratch.command("resume a").success();
    assert_eq!(scratch.output("ps").lines().count(), 4);
    other.child.kill().expect("it lives");
    other.child.wait().expect("it has died");
    scratch.refused("stop --run other", &["no run called `other`", "known: a"]);
    assert!(!scratch.path("gnomon/other.sock").exists(), "what it has left is removed");
    // Ends: of one that is paused, and of the last.
    scratch.command("pause b").success();
    scratch.command("stop b").success();
    assert!(port.wait().expect("its end").success(), "it ends with the VM");
    let started = Instant::now();
    while scratch.output("ps").contains(" b ") {
        assert!(started.elapsed() < PATIENCE);
    }
    scratch.refused("stop b", &["no VM `b`"]);
    scratch.command("stop").success();
    let (status, text) = end(run);
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("gnomon: b was stopped by request") && text.contains("gnomon: a was stopped by request"),
        "{text}"
    );
    assert_eq!(scratch.output("ps --json"), "[]\n");
    let left: Vec<_> =
        std::fs::read_dir(scratch.path("gnomon")).expect("it").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["lock"]);
}

/// A terminal of 24 lines of 80 characters, on which a command runs; then it is looked at.
fn on_a_terminal(scratch: &Scratch, line: &str) -> PtySession {
    let mut shell = std::process::Command::new("/bin/sh");
    shell.env("GNOMON", env!("CARGO_BIN_EXE_gnomon")).env("XDG_RUNTIME_DIR", scratch.0.path());
    let look = "[ \"$before\" = \"$(stty -g)\" ] && echo restor''ed";
    shell.args(["-c", &format!("stty rows 24 cols 80; before=$(stty -g); $GNOMON {line}; echo status $?; {look}")]);
    spawn_command(shell, Some(PATIENCE.as_millis() as u64)).expect("a terminal")
}

#[test]
fn a_run_is_watched_on_a_terminal_and_traced() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.vm("a", ""), scratch.vm("b", "mmu = 'lazy'\n"));
    // Without H: guests in S mode, whose exits are others.
    let run = scratch.run(&[&a, &b], &["--harts", "2", "--no-h"], 2);
    scratch.refused("top", &["needs a terminal", "--once"]);
    // Its first screens, and a key that is none of its.
    let mut top = on_a_terminal(&scratch, "top");
    top.exp_string("gnomon top: run a").expect("a screen");
    for (key, shows) in [("?", "VMs with most memory first"), ("e", "EXITS/s BY CAUSE")] {
        top.send(key).expect("typing");
        top.flush().expect("typing");
        top.exp_string(shows).expect(shows);
    }
    for _ in 0..2 {
        for part in
            ["\u{1b}[H", "gnomon top: run a, up ", "memory ", "harts: guest ", "EXITS/s", "SBI calls", "\u{1b}[J"]
        {
            let before = top.exp_string(part).unwrap_or_else(|why| panic!("`{part}`: {why}"));
            let is_fit = |line: &str| line.replace("\u{1b}[K", "").trim_end().chars().count() <= 80;
            assert!(before.lines().all(is_fit) && before.lines().count() <= 24, "{before}");
        }
        top.send("x").expect("typing");
        top.flush().expect("typing");
    }
    // Others are answered meanwhile.
    let before = scratch.exits("b");
    scratch.command("pause b").success();
    top.exp_string("paused").expect("what it does now");
    scratch.command("resume b").success();
    top.send("q").expect("typing");
    top.flush().expect("typing");
    top.exp_string("\u{1b}[?1049l").expect("the screen that was there before");
    top.exp_string("status 0").expect("its end");
    top.exp_string("restored").expect("the terminal as it was");
    // For scripts: rates, and where the harts are.
    let once = scratch.output("top --once");
    let calls = once.lines().find(|line| line.starts_with("SBI calls")).expect("exits by cause");
    let rates: Vec<f64> = calls
        .split_whitespace()
        .skip(2)
        .map(|rate| rate.trim_end_matches(['k', 'M']).parse().expect("a rate"))
        .collect();
    assert!(rates.len() == 2 && rates.iter().all(|rate| *rate > 0.0), "{once}");
    assert!(once.lines().any(|line| line.starts_with("harts: guest ") && line.contains(" %, Gnomon ")), "{once}");
    // Both guests do nothing but call.
    let cpu = |name: &str| -> Option<f64> {
        let row = once.lines().find(|line| line.starts_with(&format!("{name} ")))?;
        row.split_whitespace().nth(3)?.parse().ok()
    };
    assert!(["a", "b"].iter().all(|name| cpu(name).is_some_and(|cpu| (30.0..=100.0).contains(&cpu))), "{once}");
    // A trace of all, and one of a VM that is paused, goes on, and is stopped meanwhile.
    let (file, one) = (scratch.path("all.json"), scratch.path("one.json"));
    scratch.command(&format!("trace --seconds 9 --most 2000 -o {}", file.display())).success();
    let trace = |path: &Path| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
    };
    let all = trace(&file);
    let slices = all["traceEvents"].as_array().expect("a list");
    let of = |name: &str| slices.iter().filter(|slice| slice["name"] == name).count();
    let counts = ["SBI base", "a/0", "b/0"].map(of);
    assert!(counts.iter().all(|count| *count > 100), "{counts:?} of {} slices", slices.len());
    assert!(slices.iter().all(|slice| slice["ph"] == "M" || slice["dur"].as_f64() >= Some(0.0)));
    let mut tracer = std::process::Command::new(env!("CARGO_BIN_EXE_gnomon"))
        .env("XDG_RUNTIME_DIR", scratch.0.path())
        .args(["trace", "b", "--seconds", "2", "-o"])
        .arg(&one)
        // What it says would be among the lines of the tests.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("gnomon");
    std::thread::sleep(Duration::from_millis(300));
    for command in ["pause b", "resume b", "pause b", "stop b"] {
        scratch.command(command).success();
    }
    assert!(tracer.wait().expect("its status").success());
    let vms = |slice: &serde_json::Value| slice["args"]["vcpu"].as_str().map(String::from);
    let all: Vec<String> = trace(&one)["traceEvents"].as_array().expect("a list").iter().filter_map(vms).collect();
    assert!(!all.is_empty() && all.iter().all(|vcpu| vcpu == "b/0"), "one VM's only");
    scratch.refused("trace nobody", &["`nobody`", "known: a"]);
    scratch.refused("trace -o /nowhere/t.json", &["/nowhere/t.json"]);
    assert!(before > 0);
    // The run ends under a screen.
    let mut top = on_a_terminal(&scratch, "top");
    top.exp_string("SBI calls").expect("a screen");
    scratch.command("stop a").success();
    top.exp_string("run `a` has ended").expect("its end is said");
    top.exp_string("restored").expect("the terminal as it was");
    assert_eq!(end(run).0, Some(0));
}

/// Sends a request over the machine's own line, without the bridge, and returns the answer.
fn ask(line: &mut UnixStream, number: u32, request: &Request) -> Answer {
    line.write_all(&encode(number, request)).expect("it listens");
    answer(line, number)
}

fn answer(line: &mut UnixStream, number: u32) -> Answer {
    let (mut reader, mut buffer) = (Reader::new(MOST_ANSWER_BYTES), [0; 4096]);
    loop {
        let count = line.read(&mut buffer).expect("an answer");
        assert_ne!(count, 0, "the machine is gone");
        let mut bytes = &buffer[..count];
        while let Some(frame) = reader.next(&mut bytes) {
            // An answer may be cut off, because it was not read.
            match frame.and_then(|frame| decode(&frame)) {
                Ok((found, answer)) if found == number => return answer,
                _ => {}
            }
        }
    }
}

#[test]
fn the_machine_bears_whoever_speaks_to_it() {
    let scratch = Scratch::new();
    let (a, socket) = (scratch.vm("a", "vcpus = 2\n"), scratch.path("line"));
    let chardev = format!("--qemu-arg=socket,id=line,path={},server=on,wait=off", socket.display());
    let args = [
        // In it QEMU makes no sockets.
        "--no-sandbox",
        "--seat",
        "payload",
        "--control",
        "off",
        "--qemu-arg=-device",
        "--qemu-arg=virtio-serial-device",
        "--qemu-arg=-chardev",
    ];
    let rest = [chardev.as_str(), "--qemu-arg=-device", "--qemu-arg=virtconsole,chardev=line"];
    let run = scratch.run(&[&a], &[args.as_slice(), &rest].concat(), 1);
    let connect = || {
        let line = UnixStream::connect(&socket).expect("QEMU listens");
        line.set_read_timeout(Some(PATIENCE)).expect("a socket");
        line.set_write_timeout(Some(PATIENCE)).expect("a socket");
        line
    };
    let mut line = connect();
    let is_well =
        |line: &mut UnixStream, number| assert!(matches!(ask(line, number, &Request::Hello), Answer::Hello(_)));
    is_well(&mut line, 1);
    // Bytes that are nothing.
    let mut state = 7_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(40_000)
    .collect();
    line.write_all(&noise).expect("it listens");
    is_well(&mut line, 2);
    // Requests that end in the middle, each followed by whole ones; and clients that disconnect in the middle of one.
    let pause = encode(3, &Request::Pause(0));
    for end in 1..pause.len() - 1 {
        line.write_all(&pause[..end]).expect("it listens");
        is_well(&mut line, 100 + end as u32);
        if end % 4 == 0 {
            line.write_all(&pause[..end]).expect("it listens");
            drop(line);
            line = connect();
        }
    }
    // So many that there is no room for their answers, which are not read.
    let flood = encode(5, &Request::Counters(abi::control::Whose::Host)).repeat(1000);
    line.write_all(&flood).expect("it listens");
    is_well(&mut line, 6);
    // Pauses and their ends in any order, and one that is not there.
    for number in 0..200 {
        let request = [Request::Pause(0), Request::Resume(0), Request::Vms, Request::Resume(9)]
            [(noise[number] % 4) as usize]
            .clone();
        line.write_all(&encode(1000 + number as u32, &request)).expect("it listens");
    }
    let Answer::Vms(vms) = ask(&mut line, 2000, &Request::Vms) else { panic!("VMs") };
    assert_eq!(vms.vms.len(), 1);
    let _ = ask(&mut line, 2001, &Request::Resume(0));
    assert_eq!(ask(&mut line, 2002, &Request::Stop(0)), Answer::Done);
    let (status, text) = end(run);
    assert_eq!(status, Some(0), "{text}");
    assert!(matches!(line.read(&mut [0; 100]), Ok(_) | Err(_)));
    assert!(matches!(UnixStream::connect(&socket), Err(why) if why.kind() != ErrorKind::PermissionDenied));
}
