//! `gnomon exec`: programs on the vkernel do what they do on Linux, and their input, output, signals and status are the command's.

use rexpect::session::{PtySession, spawn_command};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE_MS: u64 = 400_000;
const PATIENCE: Duration = Duration::from_millis(PATIENCE_MS);
/// Programs whose output is the same on every kernel.
const PROGRAMS: &str = include_str!("exec/programs.sh");
/// Operations on files of shares.
const SHARE: &str = include_str!("exec/share.sh");

/// `gnomon exec`, with options before the program.
fn exec(options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    command.args(["exec", "--timeout", "400"]).args(options).args(program).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command to its end, with input.
fn run_with(mut command: Command, input: &[u8]) -> Output {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the command");
    let mut stdin = child.stdin.take().expect("its input");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A program need not read all of it.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("its end");
    writer.join().expect("written");
    output
}

/// Returns what commands print on Debian's kernel: `commands` in its shell, with further options.
fn on_linux(options: &[&str], commands: &str) -> String {
    let linux = Command::new(env!("CARGO_BIN_EXE_gnomon"))
        .args(["run", "--control", "off", "--timeout", "200"])
        .args(options)
        .args(["--exec", commands])
        .stdin(Stdio::null())
        .output()
        .expect("the command");
    assert!(linux.status.success(), "{}", said(&linux));
    String::from_utf8_lossy(&linux.stdout).into_owned()
}

/// Checks that a program prints that on the vkernel.
fn prints(expected: &str, options: &[&str], program: &[&str]) {
    let output = exec(options, program).output().expect("the command");
    let found = String::from_utf8_lossy(&output.stdout);
    let differs: Vec<_> = expected.lines().zip(found.lines()).filter(|(one, other)| one != other).take(9).collect();
    assert!(found == expected, "{options:?}: {differs:?}\n{}", said(&output));
    assert!(output.status.success(), "{options:?}: {}", said(&output));
}

#[test]
fn programs_do_the_same_as_on_linux_in_every_way() {
    let dir = tempfile::tempdir().expect("a directory");
    let shares = ["files", "fixed"].map(|name| dir.path().join(name));
    for share in &shares {
        fs::create_dir(share).expect("made");
    }
    fs::write(shares[0].join("given"), "by the host\n").expect("written");
    fs::write(shares[1].join("f"), "fixed\n").expect("written");
    fs::write(shares[1].join("program"), "#!/bin/sh\necho run\n").expect("written");
    fs::set_permissions(shares[1].join("program"), fs::Permissions::from_mode(0o755)).expect("set");
    let [files, fixed] = shares.map(|share| share.to_str().expect("a name").to_owned());
    let fixed = format!("{fixed}:ro");
    let shares = ["--share", &files, "--share", &fixed];
    let script = format!("{PROGRAMS}\n{SHARE}");
    let expected = on_linux(&shares, &script);
    assert!(expected.lines().count() > 130, "{expected}");
    for options in [
        &["--vcpus", "2"][..],
        &["--vmspace", "nested", "--vcpus", "2"],
        &["--vmspace", "soft", "--vcpus", "2"],
        &["--mmu", "lazy"],
        &["--no-h", "--vmspace", "soft"],
    ] {
        prints(&expected, &[options, &shares].concat(), &["busybox", "sh", "-c", &script]);
    }
}

/// Runs `programs/src/bin/calls/main.rs`, whose lines are results of system calls about users, locks and sockets.
#[test]
fn calls_have_the_results_that_they_have_on_linux() {
    let calls = gnomon::host::parts::program("calls").expect("the program");
    let calls = calls.to_str().expect("a name");
    let expected = on_linux(&["--add", calls], "/root/calls");
    assert!(expected.lines().count() > 200, "{expected}");
    for options in [&["--vcpus", "2"][..], &["--vmspace", "soft"]] {
        prints(&expected, options, &[calls]);
    }
}

#[test]
fn input_output_and_status_are_the_commands() {
    let input: Vec<u8> = (0..600_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    let script = "cat; echo problem >&2; exit 9";
    let output = run_with(exec(&[], &["busybox", "sh", "-c", script]), &input);
    assert_eq!(output.status.code(), Some(9), "{}", said(&output));
    assert!(output.stdout == input, "{} bytes", output.stdout.len());
    // The command may have had to build something first.
    let errors = said(&output);
    let own: Vec<_> = errors.lines().filter(|line| !line.starts_with("gnomon: ")).collect();
    assert_eq!(own, ["problem"]);
    // A program that reads nothing ends nevertheless, and one that a signal ends has its status.
    let output = run_with(
        exec(&["--env", "A=b c"], &["busybox", "sh", "-c", "echo $A $0 $1; kill -SEGV $$", "x y", "z"]),
        &input,
    );
    assert_eq!((output.status.code(), &*output.stdout), (Some(139), &b"b c x y z\n"[..]), "{}", said(&output));
    let output = exec(&["--directory", "/proc"], &["busybox", "pwd"]).output().expect("the command");
    assert_eq!(output.stdout, b"/proc\n", "{}", said(&output));
}

/// Waits for a line of a child's output.
fn wait_for(child: &mut Child, line: &str) {
    let (mut seen, mut byte) = (String::new(), [0]);
    let stdout = child.stdout.as_mut().expect("its output");
    while !seen.ends_with(line) {
        assert_eq!(stdout.read(&mut byte).expect("output"), 1, "{seen}");
        seen.push(byte[0] as char);
    }
}

fn kill(child: &Child, signal: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
    assert!(status.expect("kill").success());
}

fn end_of(mut child: Child) -> Option<i32> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("its status") {
            return status.code();
        }
        assert!(started.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn signals_reach_the_program_and_a_closed_output_ends_it() {
    let script = "trap 'echo got; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
    let spawn = |script: &str| {
        let mut command = exec(&[], &["busybox", "sh", "-c", script]);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the command")
    };
    let mut child = spawn(script);
    wait_for(&mut child, "ready\n");
    kill(&child, "TERM");
    wait_for(&mut child, "got\n");
    assert_eq!(end_of(child), Some(3));
    let mut child = spawn("echo ready; sleep 100");
    wait_for(&mut child, "ready\n");
    kill(&child, "INT");
    assert_eq!(end_of(child), Some(130));
    let mut child = spawn("yes");
    wait_for(&mut child, "y\n");
    drop(child.stdout.take());
    assert_eq!(end_of(child), Some(141), "SIGPIPE");
}

fn terminal() -> PtySession {
    let mut command = exec(&[], &["busybox", "sh"]);
    command.env("TERM", "dumb");
    let command = {
        // The terminal is the session's.
        let mut plain = Command::new(command.get_program());
        plain.args(command.get_args()).env("TERM", "dumb");
        plain
    };
    spawn_command(command, Some(PATIENCE_MS)).expect("a terminal")
}

#[test]
fn a_shell_has_a_terminal_with_jobs() {
    let mut shell = terminal();
    shell.exp_string("/ # ").expect("a prompt");
    shell.send_line("echo on$((1 + 1)) $(tty) $TERM").expect("typed");
    shell.exp_string("on2 /dev/console dumb").expect("output");
    shell.send_line("sleep 100").expect("typed");
    std::thread::sleep(Duration::from_millis(500));
    shell.send_control('c').expect("typed");
    shell.send_line("echo status $?").expect("typed");
    shell.exp_string("status 130").expect("the signal");
    shell.send_line("sleep 100").expect("typed");
    std::thread::sleep(Duration::from_millis(500));
    shell.send_control('z').expect("typed");
    shell.exp_string("Stopped").expect("the job");
    shell.send_line("kill -KILL %1; wait; echo x | cat; exit 4").expect("typed");
    shell.exp_regex("\nx\r\n").expect("output");
    shell.exp_eof().expect("its end");
    let status = shell.process().wait().expect("its status");
    assert!(format!("{status:?}").contains("4"), "{status:?}");
}

#[test]
fn what_cannot_run_is_refused_with_a_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a name").to_owned();
    fs::write(path("script"), "#!/bin/sh\n").expect("written");
    fs::create_dir_all(path("root/bin")).expect("made");
    fs::write(path("root/bin/text"), "no program").expect("written");
    fs::set_permissions(path("root/bin/text"), fs::Permissions::from_mode(0o755)).expect("set");
    let refused = |options: &[&str], program: &str| {
        let output = exec(options, &[program]).output().expect("the command");
        (output.status.code(), said(&output))
    };
    for (program, why) in [
        (path("script"), "is a script"),
        (path("none"), "cannot read"),
        ("/proc/self/exe".into(), "is not a program for 64-bit RISC-V"),
    ] {
        let (status, said) = refused(&[], &program);
        assert!(status == Some(1) && said.contains(why) && said.contains("remedy"), "{said}");
    }
    let root = path("root");
    let (status, said) = refused(&["--root", &root], "absent");
    assert!(status == Some(1) && said.contains("has no program absent"), "{said}");
    let (status, said) = refused(&["--root", &root], "text");
    assert!(status == Some(127) && said.contains("cannot be started: /bin/text is not a program"), "{said}");
    let (status, said) = refused(&["--env", "A"], "busybox");
    assert!(status == Some(2) && said.contains("NAME=VALUE"), "{said}");
}

/// Accepts a connection, receives bytes, and answers. No side ends its half before it has received all: older versions of passt lose bytes
/// then, also with Linux.
fn serve(listener: &TcpListener, bytes: usize, answer: &[u8]) {
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.read_exact(&mut vec![0; bytes]).expect("received");
    stream.write_all(answer).expect("sent");
    stream.shutdown(Shutdown::Write).expect("shut");
    assert_eq!(stream.read(&mut [0]).expect("its end"), 0);
}

#[test]
fn programs_reach_the_world_and_are_reached() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let udp = datagrams.local_addr().expect("bound").port();
    let forward = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let answer: Vec<u8> = (0..300_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    let sent = answer.clone();
    let server = std::thread::spawn(move || serve(&listener, 200_000, &sent));
    let answering = std::thread::spawn(move || {
        let mut buffer = [0; 600];
        datagrams.set_read_timeout(Some(PATIENCE)).expect("set");
        let (_, from) = datagrams.recv_from(&mut buffer).expect("a request");
        // The first and last block of a file.
        datagrams.send_to(b"\0\x03\0\x01by a datagram\n", from).expect("sent");
        // The receipt.
        let _ = datagrams.recv_from(&mut buffer);
    });
    let script = format!(
        "cat /etc/resolv.conf; (head -c 200000 /dev/zero; sleep 3) | nc 10.0.2.2 {port} > /tmp/x; wc -c < /tmp/x; md5sum < /tmp/x
         tftp -g -r f -l - 10.0.2.2 {udp}; nc 10.0.2.2 1 < /dev/null; echo $?; echo ready; (cat /tmp/x; sleep 3) | nc -l -p 80 | wc -c"
    );
    let options = ["--forward", &format!("{forward}:80")];
    let mut child = exec(&options, &["busybox", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    wait_for(&mut child, "10.0.2.3\n300000\n");
    server.join().expect("served");
    wait_for(&mut child, "by a datagram\n1\nready\n");
    answering.join().expect("answered");
    // The program may not listen yet: then the connection ends without a byte.
    let received = loop {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", forward)) else { continue };
        let mut all = vec![0; answer.len()];
        if stream.read_exact(&mut all).is_ok() {
            stream.write_all(&[7; 100_000]).expect("sent");
            stream.shutdown(Shutdown::Write).expect("shut");
            assert_eq!(stream.read(&mut [0]).expect("its end"), 0);
            break all;
        }
    };
    assert!(received == answer, "{}", received.len());
    wait_for(&mut child, "100000\n");
    assert_eq!(end_of(child), Some(0));
}

#[test]
fn a_vm_file_names_the_vkernel() {
    /// Files, three times what may be in memory, with sums that are looked at twice.
    const LIMITED: &str = r#"kernel = "vkernel"
memory = "80M"
limit = "20M"
vmspace = "soft"
init = ["busybox", "sh", "-c", """
for i in $(seq 30); do
    dd if=/dev/urandom of=/tmp/f$i bs=1M count=2 2>/dev/null
    md5sum /tmp/f$i >>/tmp/sums
done
echo right: $(md5sum -c /tmp/sums | grep -c OK) $(md5sum -c /tmp/sums | grep -c OK)"""]
"#;
    /// Two lives of one VM, the second by `reboot`; its name is on the command line.
    const TWICE: &str = r#"kernel = "vkernel"
vcpus = 2
after = "limited"
init = ["busybox", "sh", "-c", '''
grep -q hostname=twice /proc/cmdline && [ $(ls /tmp | wc -l) = 0 ] && echo begins $hostname
read line
echo got $line >/tmp/line
cat /tmp/line
[ "$line" != again ] || reboot -f
cat''']
"#;
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in [("limited.toml", LIMITED), ("twice.toml", TWICE)] {
        fs::write(dir.path().join(name), text).expect("written");
    }
    let mut run = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    run.args(["run", "limited.toml", "twice.toml", "--swap", "swap.img:128M", "--timeout", "200"]).current_dir(&dir);
    let mut run = spawn_command(run, Some(PATIENCE_MS)).expect("the command");
    for line in ["right: 30 30", "begins twice"] {
        run.exp_string(line).unwrap_or_else(|why| panic!("{line}: {why}"));
    }
    run.send_line("again").expect("sent");
    for line in ["got again", "twice starts over", "begins twice"] {
        run.exp_string(line).unwrap_or_else(|why| panic!("{line}: {why}"));
    }
    // More than waits at most, while nothing reads.
    run.send_line("then").expect("sent");
    run.exp_string("got then").expect("the line");
    for n in 0..120 {
        run.send_line(&format!("line {n} of {:60}", "many")).expect("sent");
    }
    run.send_line("the last").expect("sent");
    run.exp_string("line 119 of many").expect("all lines");
    run.exp_string("the last").expect("the last");
    run.send_control('d').expect("sent");
    run.exp_string("twice powered off").expect("its end");
    run.exp_eof().expect("the end");
}
