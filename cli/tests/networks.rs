//! Networks of VMs, from outside: each has a process of its own, whose end is one VM's, and which leaves nothing behind. The guests are a
//! few instructions each, so that nothing is fetched.

mod says;

use rustix::process::{Pid, Signal, kill_process};
use says::says;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// The processes of that name, or with that in their arguments, that a process has started, with their command lines.
fn children(parent: u32, name: &str) -> Vec<(Pid, String)> {
    let read = |pid: i32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let pids = std::fs::read_dir("/proc").expect("processes").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let stat = read(*pid, "stat");
        // PID (NAME) STATE PARENT ...; a name may have anything in it.
        let Some((front, rest)) = stat.rsplit_once(')') else { return false };
        let mut fields = rest.split_whitespace();
        let is_dead = fields.next() == Some("Z");
        (front.contains(name) || read(*pid, "cmdline").contains(name))
            && !is_dead
            && fields.next().is_some_and(|of| of == parent.to_string())
    };
    let child = |pid: i32| Some((Pid::from_raw(pid)?, read(pid, "cmdline").replace('\0', " ")));
    pids.filter(is_child).filter_map(child).collect()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A VM file, of a guest that says its name and then does nothing for ever.
fn vm(dir: &Path, name: &str) -> std::path::PathBuf {
    let (kernel, path) = (dir.join(name), dir.join(name).with_extension("toml"));
    std::fs::write(&kernel, says(&format!("{name} is here\n"), &[0x0000_006f])).expect("a kernel"); // j .
    std::fs::write(&path, format!("kernel = {kernel:?}\nmemory = '16M'\nnet = true\n")).expect("a file");
    path
}

#[test]
fn a_killed_network_is_one_vms_and_a_killed_run_leaves_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut run = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    run.env("GNOMON_CACHE", dir.path().join("cache")).env("XDG_RUNTIME_DIR", dir.path());
    run.args(["run", "--forward", "b=20999:80"]);
    run.args([vm(dir.path(), "a"), vm(dir.path(), "b")]);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().expect("gnomon");
    let mut output = BufReader::new(run.stdout.take().expect("its output")).lines();
    for name in ["a", "b"] {
        let said = output.by_ref().map_while(Result::ok).find(|line| line.contains("is here"));
        assert!(said.is_some(), "VM {name} is not the only one");
    }
    let id = run.id();
    let passts = || children(id, concat!("--fd", "\0", "3", "\0"));
    let all = passts();
    assert_eq!(all.len(), 2, "{all:?}");
    // Each is confined: it has no privileges, sees no files, and may have so many sockets and no more.
    for (pid, _) in &all {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", pid.as_raw_nonzero())).expect(file);
        let status = read("status");
        assert!(status.contains("CapEff:\t0000000000000000") && status.contains("Seccomp:\t2"), "{status}");
        let limits = read("limits");
        let bound = limits.lines().find(|line| line.starts_with("Max open files")).expect("its bound");
        let most = bound.split_whitespace().nth(4).and_then(|number| number.parse::<u32>().ok()).expect("a number");
        assert!(most <= 4096, "{bound}");
    }
    let (first, _) = all.iter().find(|(_, line)| line.contains("--address 10.0.2.15 ")).expect("the first VM's");
    kill_process(*first, Signal::KILL).expect("it lives");
    let mut said = BufReader::new(run.stderr.take().expect("its messages")).lines().map_while(Result::ok);
    let end = "gnomon: warning: VM a has no network to the world any more: passt was ended by signal 9";
    assert!(said.any(|line| line == end));
    assert!(said.next().is_some_and(|line| line.starts_with("gnomon: remedy: ")));
    let mut ps = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    let listed = ps.env("XDG_RUNTIME_DIR", dir.path()).arg("ps").output().expect("gnomon ps");
    let listed = String::from_utf8(listed.stdout).expect("text");
    assert_eq!(listed.matches("running, lost: network").count(), 1, "{listed}");
    let rest = passts();
    assert!(rest.len() == 1 && rest[0].1.contains("--address 10.0.2.16 "), "{rest:?}");
    assert!(std::net::TcpStream::connect(("127.0.0.1", 20999)).is_ok(), "the other's port leads there still");
    let qemu = children(id, "(qemu-system");
    assert_eq!(qemu.len(), 1);
    run.kill().expect("it lives");
    run.wait().expect("its status");
    let is_there = |pid: Pid| Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists();
    for (pid, line) in rest.into_iter().chain(qemu) {
        until(&line, || !is_there(pid));
    }
}

#[test]
fn a_system_without_user_namespaces_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    // In a user namespace of its own, in which there may be no further ones.
    let forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let mut run = Command::new("unshare");
    run.args([
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        forbid,
        "sh",
        env!("CARGO_BIN_EXE_gnomon"),
        "run",
        "--timeout",
        "60",
    ]);
    run.env("GNOMON_CACHE", dir.path().join("cache")).arg(vm(dir.path(), "a")).stdin(Stdio::null());
    let output = run.output().expect("gnomon");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("gnomon: error: the network of VM `a` did not start: passt has ended with status 1"),
        "{said}"
    );
    assert!(said.contains("user.max_user_namespaces"), "{said}");
}
