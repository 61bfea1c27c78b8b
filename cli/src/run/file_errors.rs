//! Errors of the host's files, in words.

use super::prepare::Prepared;
use crate::host::place::mount_point;
use crate::machine::disk::{self, Use};
use crate::machine::monitor::{FileError, Operation};
use crate::machine::swap;
use std::path::{Path, PathBuf};

/// The message about an error, and its remedy.
pub(super) fn lines(prepared: &Prepared, error: &FileError) -> [String; 2] {
    let number = (0..prepared.disk_owners.len()).find(|number| disk::name(*number) == error.drive);
    let (file, what, effect, other) = match number {
        Some(number) => {
            let (disk, vm) = (&prepared.machine.disks[number], &prepared.disk_owners[number]);
            let (file, on) = match disk.use_ {
                Use::Snapshot if error.operation == Operation::Write => (scratch(), "the scratch file of its disk"),
                _ => (disk.file.clone(), "its disk"),
            };
            let what = format!("VM {vm}: {on} {}", disk.file.display());
            let effect = "the guest got an I/O error";
            (file, what, effect, "then check the guest's file systems: Linux may have made them read-only")
        }
        None if error.drive == swap::DRIVE => {
            let file = prepared.machine.swap.clone().unwrap_or_default();
            let what = format!("the swap file {}", file.display());
            let effect = match error.operation {
                Operation::Write => "the page stays in memory, and a VM that finds no memory will end",
                Operation::Read => "the VM that needs the page will end",
            };
            (file, what, effect, "or name a swap file on another file system")
        }
        None => {
            (PathBuf::new(), format!("the device {}", error.drive), "the guest got an I/O error", "and start again")
        }
    };
    let verb = match error.operation {
        Operation::Read => "read",
        Operation::Write => "written",
    };
    let remedy = if error.is_full { "free some space on that file system" } else { "see the host's messages (dmesg)" };
    [
        format!("gnomon: warning: {what} could not be {verb}: {}; {effect}", reason(error, &file)),
        format!("gnomon: remedy: {remedy}, {other}"),
    ]
}

fn reason(error: &FileError, file: &Path) -> String {
    if error.is_full {
        return format!("the file system at {} is full", mount_point(file).display());
    }
    error.reason.clone()
}

/// The directory in which QEMU keeps what guests write with `--snapshot`.
fn scratch() -> PathBuf {
    let dir = std::env::temp_dir();
    if dir == Path::new("/tmp") { "/var/tmp".into() } else { dir }
}
