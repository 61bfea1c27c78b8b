//! A start that needs no network: what was downloaded once is kept, with the drivers of all devices.

use assert_cmd::Command;
use predicates::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Programs that download, or that look what there is to download.
const PROGRAMS: [&str; 6] = ["apt-get", "apt-cache", "apt-config", "apt", "curl", "wget"];

/// `gnomon run --dry-run` of a VM with each device that takes a driver.
fn devices(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    command.args(["run", "--dry-run", "--net", "--rng", "--console", "virtio", "--exec", "true", "--disk"]);
    command.arg(dir.join("disk.img")).arg("--share").arg(dir.join("share"));
    command
}

/// Checks that a machine is prepared, and removes its bundle, which the last word of the command line names.
fn prepared(command: &mut Command) {
    let assert = command.assert().success();
    let line = String::from_utf8_lossy(&assert.get_output().stdout);
    let bundle = line.split(['\'', ' ', '\n']).find(|word| word.contains("bundle")).expect("the bundle");
    fs::remove_file(bundle).expect("it is ours");
}

/// A `PATH` in front of which each of [`PROGRAMS`] says that there is no network.
fn without_network(dir: &Path) -> PathBuf {
    let bin = dir.join("bin");
    fs::create_dir(&bin).expect("a directory");
    for program in PROGRAMS {
        let path = bin.join(program);
        fs::write(&path, "#!/bin/sh\necho \"$0: no network\" >&2\nexit 100\n").expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    let rest = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&rest))).expect("a PATH").into()
}

#[test]
fn a_second_start_needs_no_network_whatever_devices_it_has() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("share")).expect("a directory");
    fs::File::create(dir.path().join("disk.img")).and_then(|file| file.set_len(1 << 20)).expect("a disk");
    let offline = without_network(dir.path());

    // The first start may download. It has no devices, so the drivers are those that come with any kernel.
    let mut first = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    prepared(first.args(["run", "--dry-run", "--exec", "true"]));
    prepared(devices(dir.path()).env("PATH", &offline));

    // The stand-ins are what a start without a cache meets.
    let empty = dir.path().join("empty");
    let refused = devices(dir.path()).env("PATH", &offline).env("GNOMON_CACHE", empty).assert().code(1);
    refused.stderr(predicate::str::contains("gnomon: remedy: "));
}
