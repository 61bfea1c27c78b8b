//! A swap file on a file system that gets full while a VM needs a page: that VM ends, and another one goes on.

mod roomless;
mod says;

use roomless::roomless;
use rustix::process::{Pid, Signal, kill_process};
use says::says;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A guest that stores to 5120 pages, one after another.
const STORES: [u32; 11] = [
    0x0000_0417, // auipc s0, 0
    0x0040_02b7, // lui t0, 0x400
    0x0054_0433, // add s0, s0, t0: 4 MiB from here
    0x0000_12b7, // lui t0, 1
    0x0000_1337, // lui t1, 1
    0x4003_0313, // addi t1, t1, 1024
    0x0084_3023, // sd s0, 0(s0)
    0x0054_0433, // add s0, s0, t0
    0xfff3_0313, // addi t1, t1, -1
    0xfe03_1ae3, // bnez t1, -12
    0x0000_006f, // j .
];

/// After `beat\n` and some time, a guest that says so begins anew.
const AGAIN: [u32; 4] = [
    0x0200_02b7, // lui t0, 0x2000
    0xfff2_8293, // addi t0, t0, -1
    0xfe02_9ee3, // bnez t0, -4
    0xfc1f_f06f, // j -64
];

/// A command that is to run where `dir` has room for 2 MiB: a file system of that size, or, if this user can mount none, with a QEMU that
/// reports the same.
fn with_little_room(dir: &Path) -> Command {
    let mount = "mount -t tmpfs -o size=2M tmpfs \"$0\" && exec \"$@\"";
    let in_space = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", mount]).arg(dir).arg(program);
        command
    };
    if in_space(Path::new("true")).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return in_space(Path::new(env!("CARGO_BIN_EXE_gnomon")));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    command.env("GNOMON_QEMU", roomless(dir, "swap"));
    command
}

fn vm(dir: &Path, name: &str, kernel: &[u8], more: &str) -> PathBuf {
    let (file, description) = (dir.join(name), dir.join(name).with_extension("toml"));
    std::fs::write(&file, kernel).expect("a file");
    std::fs::write(&description, format!("kernel = {file:?}\n{more}")).expect("a file");
    description
}

#[test]
fn a_full_file_system_ends_the_vm_that_needs_the_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let small = dir.path().join("small");
    std::fs::create_dir(&small).expect("a directory");
    let thrash = vm(dir.path(), "thrash", &STORES.map(u32::to_le_bytes).concat(), "memory = '32M'\nlimit = '8M'\n");
    let calm = vm(dir.path(), "calm", &says("beat\n", &AGAIN), "memory = '16M'\n");
    let mut command = with_little_room(&small);
    command.env("GNOMON_CACHE", dir.path().join("cache")).arg("run").args([&thrash, &calm]);
    command.arg("--swap").arg(format!("{}:32M", small.join("swap").display())).args(["--timeout", "120"]);
    let mut run = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("gnomon");
    let mut lines = BufReader::new(run.stdout.take().expect("its output")).lines().map(|line| line.expect("text"));
    let mut before = Vec::new();
    let end = lines.by_ref().inspect(|line| before.push(line.clone())).find(|line| line.contains("gnomon: thrash "));
    let end = end.unwrap_or_else(|| panic!("the VM that needs pages goes on: {before:?}"));
    assert!(end.contains("no memory"), "{end}");
    // The other one does not end, and is not kept from anything.
    for _ in 0..3 {
        assert!(lines.by_ref().any(|line| line == "calm| beat"), "it has ended, too: {before:?}");
    }
    kill_process(Pid::from_child(&run), Signal::TERM).expect("it runs");
    let mut said = String::new();
    run.stderr.take().expect("its errors").read_to_string(&mut said).expect("text");
    run.wait().expect("its status");
    assert!(said.contains(" could not be written: the file system at /"), "{said}");
    assert!(said.contains(" is full; the page stays in memory, and a VM that finds no memory will end\n"), "{said}");
    assert_eq!(said.matches("could not be written").count(), 1, "{said}");
    assert!(said.ends_with("gnomon: ended by SIGTERM\n"), "{said}");
}
