//! Trouble on the host's side of VMs' devices, in words.

use super::prepare::Prepared;
use crate::host::place::mount_point;
use crate::machine::disk::{self, Use};
use crate::machine::monitor::{FileError, Operation};
use crate::machine::qemu::MachineSpec;
use crate::machine::relay::UplinkEnd;
use crate::machine::scratch;
use crate::machine::servers::LostShare;
use crate::machine::stream::Trouble;
use crate::machine::swap;
use std::path::{Path, PathBuf};

/// The message about it, and its remedy.
pub(super) fn lines(prepared: &Prepared, trouble: &Trouble) -> [String; 2] {
    match trouble {
        Trouble::File(error) => of_file(prepared, error),
        Trouble::Share(lost) => of_share(prepared, lost),
        Trouble::Uplink(end) => of_uplink(end),
    }
}

/// The VM and the device that it has lost for the rest of the run, if that is what happened.
pub(super) fn lost<'a>(prepared: &'a Prepared, trouble: &'a Trouble) -> Option<(&'a str, String)> {
    match trouble {
        Trouble::File(_) => None,
        Trouble::Share(LostShare { number, .. }) => {
            Some((&prepared.share_owners[*number], format!("share {}", prepared.machine.shares[*number].name)))
        }
        Trouble::Uplink(end) => Some((&end.vm, "network".into())),
    }
}

fn of_share(prepared: &Prepared, lost: &LostShare) -> [String; 2] {
    let (share, vm) = (&prepared.machine.shares[lost.number], &prepared.share_owners[lost.number]);
    [
        format!(
            "gnomon: warning: VM {vm}: the server of its share {} ({}) has ended: {}; the guest gets I/O errors there, and nothing \
             else is affected",
            share.name, share.dir, lost.reason
        ),
        format!(
            "gnomon: remedy: save the guest's work elsewhere, unmount /mnt/{}, and start the run again to have it back",
            share.name
        ),
    ]
}

fn of_uplink(UplinkEnd { vm, why }: &UplinkEnd) -> [String; 2] {
    [
        format!("gnomon: warning: VM {vm} has no network to the world any more: {why}"),
        format!("gnomon: remedy: VM {vm} still reaches other VMs; for the world, end the run and start it again"),
    ]
}

fn of_file(prepared: &Prepared, error: &FileError) -> [String; 2] {
    let number = (0..prepared.disk_owners.len()).find(|number| disk::name(*number) == error.drive);
    let (file, what, effect, other) = match number {
        Some(number) => {
            let (disk, vm) = (&prepared.machine.disks[number], &prepared.disk_owners[number]);
            let (file, on) = match disk.use_ {
                Use::Snapshot if error.operation == Operation::Write => {
                    (scratch::directory(), "the scratch file of its disk")
                }
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
            (
                file,
                what,
                effect,
                "or name a swap file on another one, before the next run: after eight errors this one writes nothing more to it",
            )
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

/// The warning about a run whose processes do not confine themselves.
pub(super) fn unconfined(machine: &MachineSpec) -> Option<&'static str> {
    (!machine.sandbox).then_some(
        "gnomon: WARNING: --no-sandbox: QEMU and the servers of shares may open all that you may. A guest that finds a fault in them has \
         your rights",
    )
}
