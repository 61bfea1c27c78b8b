//! The contents of a VM's disk after the machine has lost its power in the midst of writes: everything that the guest
//! has flushed, and a file system that is whole once its journal is replayed.

#[expect(dead_code, reason = "not all of it has a use here")]
mod background;

use background::Run;
use gnomon::guest::debian::{Files, LEAN, Suite, Wanted};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system with a journal; a file that is made last, then small ones without end, of which each fifty are made last.
const WRITE: &str = "
tool() { ./ld-linux-riscv64-lp64d.so.1 --library-path . ./$@; }
tool mke2fs -q -j /dev/vda && mount -t ext4 /dev/vda /mnt || exit 1
head -c 3000000 /dev/urandom > /mnt/file; (cd /mnt; sha256sum file > sum); sync
n=0
while :; do
    echo $n > /mnt/new; mv /mnt/new /mnt/$n
    n=$((n+1))
    [ $((n % 50)) -ne 0 ] || { sync; echo written up to $n; }
done";

/// Mounts it, which replays the journal, and looks for what was made last.
const LOOK: &str = "
mount -t ext4 /dev/vda /mnt || exit 1
dmesg | grep -o 'recovery complete'
(cd /mnt; sha256sum -c sum)
n=0; while [ $n -lt 100 ] && [ \"$(cat /mnt/$n)\" = $n ]; do n=$((n+1)); done; echo there are $n
umount /mnt; ./ld-linux-riscv64-lp64d.so.1 --library-path . ./e2fsck -fn /dev/vda > /tmp/said 2>&1 && echo whole || cat /tmp/said";

/// The tools of e2fsprogs, and their libraries.
fn tools() -> BTreeSet<PathBuf> {
    let tool = |path| Files::provide(Suite::Trixie, "e2fsprogs", Wanted::Program(path)).expect("Debian's e2fsprogs");
    let files = ["usr/sbin/mke2fs", "usr/sbin/e2fsck"].map(tool).into_iter().flat_map(|tool| tool.files);
    // Each has libraries of its own, which are the same.
    let mut names = BTreeSet::new();
    files.map(|(_, file)| file).filter(|file| names.insert(file.file_name().map(ToOwned::to_owned))).collect()
}

/// The QEMU that a process has started.
fn qemu_of(parent: u32) -> Pid {
    let is_it = |stat: &str| {
        // PID (NAME) STATE PARENT ...; a name may have anything in it.
        let (name, rest) = stat.rsplit_once(')')?;
        let is_child = rest.split_whitespace().nth(1)?.parse() == Ok(parent);
        (is_child && name.contains("(qemu-system")).then_some(())
    };
    let found = fs::read_dir("/proc").expect("processes").flatten().find_map(|entry| {
        is_it(&fs::read_to_string(entry.path().join("stat")).ok()?)?;
        entry.file_name().to_str()?.parse().ok()
    });
    Pid::from_raw(found.expect("it has started QEMU")).expect("a process")
}

/// Options of a run on that disk.
fn options<'a>(disk: &'a str, tools: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["--memory", "192M", "--append", LEAN, "--timeout", "100", "--disk", disk];
    args.extend(tools.iter().flat_map(|tool| ["--add", tool]));
    args.extend(more);
    args
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn what_was_made_last_is_there_after_a_power_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = text(&dir.path().join("disk.img"));
    let tools: Vec<_> = tools().iter().map(|tool| text(tool)).collect();
    let made = format!("{disk}:24M");
    let mut run = Run::start(dir.path(), options(&made, &tools, &["--exec", WRITE]), ("written up to 100", 1));
    kill_process(qemu_of(run.child.id()), Signal::KILL).expect("QEMU is killed");
    let said = run.child.wait().expect("its end");
    assert!(!said.success(), "{said}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    let output = command.arg("run").args(options(&disk, &tools, &["--no-h", "--exec", LOOK])).output().expect("gnomon");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for wanted in ["recovery complete\n", "file: OK\n", "there are 100\n", "whole\n"] {
        assert!(said.contains(wanted), "no {wanted:?} in {said}{}", String::from_utf8_lossy(&output.stderr));
    }
}
