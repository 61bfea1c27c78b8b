//! A VM with a whole system as its root: what the first process does, what is kept, and what is not. The system is a small one, of
//! busybox alone: `debian-root` and `debian-login` of `tests.toml` have Debian itself.

mod roomless;

use gnomon::guest::debian::LEAN;
use roomless::roomless;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Makes the system, on a VM's disk.
const MAKE: &str = r#"
mke2fs -q /dev/vda > /dev/null && mount /dev/vda /mnt && cd /mnt || exit 1
mkdir -p usr/bin usr/lib/systemd etc root run dev proc sys tmp
ln -s usr/bin bin
cp /bin/busybox usr/bin/
for name in sh env cat echo hostname ifconfig date mount ls grep; do ln -s busybox usr/bin/$name; done
# What is looked for: it is not started here.
cp /bin/busybox usr/lib/systemd/systemd
printf '#!/bin/sh\nexec /bin/sh "$@"\n' > usr/bin/bash
chmod 755 usr/bin/bash
echo 127.0.0.1 localhost > etc/hosts
cd / && umount /mnt
# The host has no room for the second disk: that is an error of this write, and ends nothing.
dd if=/dev/zero of=/dev/vdb bs=4k count=1 conv=fsync 2> /dev/null && exit 2
echo written to one disk
"#;

struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn disk(&self) -> PathBuf {
        self.0.path().join("root.img")
    }

    /// `gnomon run` with these options, and a kernel that tests nothing of itself; its messages and output.
    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        self.run_by(Command::new(env!("CARGO_BIN_EXE_gnomon")), args)
    }

    /// Like [`Scratch::run`], by a command whose environment is set.
    fn run_by(&self, mut command: Command, args: &[&str]) -> (Option<i32>, String, String) {
        command.args(["run", "--timeout", "100", "--append", LEAN]).args(args);
        let Output { status, stdout, stderr } = command.output().expect("gnomon");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (status.code(), text(stdout), text(stderr))
    }

    /// Runs commands in the root.
    fn exec(&self, commands: &str, args: &[&str]) -> String {
        let root = root(&self.disk());
        let (status, output, messages) =
            self.run(&[&[root.as_str(), "--memory", "256M", "--exec", commands], args].concat());
        assert_eq!(status, Some(0), "{output}{messages}");
        output
    }
}

fn root(disk: &Path) -> String {
    format!("--debian={}", disk.display())
}

#[test]
fn a_root_keeps_what_is_done_to_it() {
    let scratch = Scratch::new();
    let disk = format!("{}:32M", scratch.disk().display());
    let second = scratch.0.path().join("full.img");
    let full = format!("{}:1M", second.display());
    let args = ["--memory", "128M", "--disk", &disk, "--disk", &full, "--exec", MAKE];
    let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    command.env("GNOMON_QEMU", roomless(scratch.0.path(), "disk1"));
    let (status, output, messages) = scratch.run_by(command, &args);
    assert_eq!((status, output.as_str()), (Some(0), "written to one disk\n"), "{messages}");
    let said =
        format!("gnomon: warning: VM linux: its disk {} could not be written: the file system at /", second.display());
    assert_eq!(messages.matches(&said).count(), 1, "{messages}");
    assert!(messages.contains(" is full; the guest got an I/O error\ngnomon: remedy: free some space"), "{messages}");
    let added = scratch.0.path().join("added");
    std::fs::write(&added, "from the host").expect("a file");
    let commands = "pwd; cat added /etc/hostname; echo; cat /run/gnomon/authorized_keys /run/gnomon/resolv.conf; ifconfig eth0; \
                    date +%Y; ls /dev/shm /dev/pts > /dev/null && echo kept > /kept; (while :; do :; done) & true";
    let output = scratch.exec(commands, &["--name", "box", "--add", added.to_str().expect("UTF-8")]);
    for wanted in ["/root\n", "from the host", "box\n", "nameserver 10.0.2.3\n", "inet addr:10.0.2.15 "] {
        assert!(output.contains(wanted), "{wanted}: {output}");
    }
    // Where there is no ssh-keygen, there is no ssh either.
    let key = gnomon::host::place::cache("debian").expect("a cache").join("id_ed25519.pub");
    assert!(!key.exists() || output.contains(&std::fs::read_to_string(key).expect("a key")), "{output}");
    // Guests have no clock; none of them is to believe that it is 1970.
    let year = output.lines().find_map(|line| line.parse::<u32>().ok()).expect("a year");
    assert!(year >= 2025, "{output}");
    // Under another name it keeps the first one: that is its own affair from then on.
    let output = scratch.exec(
        "cat /kept /etc/hostname; ls added; echo gone > /kept",
        &["--snapshot", "--name", "other", "--net", "off"],
    );
    assert_eq!(output, "kept\nbox\nadded\n");
    let status = scratch.run(&[&root(&scratch.disk()), "--memory", "256M", "--exec", "cat /kept; exit 7"]);
    assert_eq!((status.0, status.1.as_str()), (Some(7), "kept\n"), "{}", status.2);
}

#[test]
fn what_is_no_root_is_told() {
    let scratch = Scratch::new();
    File::create(scratch.disk()).and_then(|file| file.set_len(8 << 20)).expect("a file");
    let run = || {
        let (status, _, messages) = scratch.run(&[&root(&scratch.disk()), "--exec", "true"]);
        (status, messages)
    };
    let (status, messages) = run();
    assert_eq!(status, Some(1), "{messages}");
    assert!(messages.contains("there is no Debian on") && messages.contains("no ext4 file system"), "{messages}");
    // A file system without a Debian: the guest looks, and does not panic.
    let made = std::process::Command::new("/usr/sbin/mke2fs").args(["-q", "-t", "ext4"]).arg(scratch.disk()).status();
    assert!(made.is_ok_and(|status| status.success()), "a file system");
    let (status, messages) = run();
    assert_eq!(status, Some(3), "{messages}");
    assert!(messages.contains("cannot start: the first disk has no Debian on it"), "{messages}");
}
