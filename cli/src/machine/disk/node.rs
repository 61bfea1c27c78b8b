//! Disks of the machine, as QEMU is told of them.

use super::spec::{DiskSpec, Format};
use crate::host::words::option_value;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Places that QEMU's board has for virtio devices.
pub(crate) const PLACES: usize = 8;

/// A disk of the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// The file.
    pub file: PathBuf,
    /// The format.
    pub format: Format,
    /// The use of the file.
    pub use_: Use,
    /// True if another run's QEMU has the file open for writing as well, until the VM has arrived from there.
    pub is_shared: bool,
    /// The disk with the sectors that an image does not have.
    pub backing: Option<Box<Disk>>,
    /// The file with the sectors of an image that has none itself.
    pub data: Option<PathBuf>,
}

/// The use of a disk's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// The file is read and written.
    Write,
    /// The file is read, and the guest's writes are discarded.
    Snapshot,
    /// The file is read, and the guest cannot write.
    Read,
}

impl From<Disk> for DiskSpec {
    fn from(disk: Disk) -> Self {
        Self { file: disk.file, readonly: disk.use_ == Use::Read, format: Some(disk.format), ..Self::default() }
    }
}

impl Disk {
    /// A disk whose file has its sectors.
    #[must_use]
    pub fn raw(file: PathBuf, use_: Use) -> Self {
        Self { file, format: Format::Raw, use_, is_shared: false, backing: None, data: None }
    }

    /// All files of the disk, each with its use.
    pub(crate) fn files(&self) -> Vec<(&Path, Use)> {
        let backing = self.backing.iter().flat_map(|backing| backing.files());
        let data = self.data.iter().map(|data| (data.as_path(), self.use_));
        std::iter::once((self.file.as_path(), self.use_)).chain(data).chain(backing).collect()
    }

    /// The disk as a node of QEMU's. QEMU opens the files that it names, by their paths, and no others.
    pub(super) fn node(&self) -> Value {
        let mut node = json!({ "driver": self.format.name(), "file": file_node(&self.file) });
        if self.format == Format::Qcow2 {
            node["backing"] = self.backing.as_ref().map_or(Value::Null, |backing| backing.node());
        }
        if self.is_shared {
            // QEMU's own locks are held until its process ends.
            node["file"]["locking"] = "off".into();
        }
        if let Some(data) = &self.data {
            node["data-file"] = file_node(data);
        }
        node
    }
}

/// A file as a node of QEMU's.
pub(crate) fn file_node(file: &Path) -> Value {
    json!({ "driver": "file", "filename": file.to_string_lossy() })
}

/// The treatment of guests' writes to their disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Snapshot {
    /// Writes are discarded.
    Yes,
    /// Writes are kept.
    #[default]
    No,
}

/// QEMU's arguments for disk number `number`. The format is always given: a guest could write content that misleads a guess.
pub(crate) fn args(number: usize, disk: &Disk) -> Vec<OsString> {
    let options = match disk.use_ {
        // What the guest discards, the file need not keep.
        Use::Write => "discard=unmap",
        Use::Snapshot => "snapshot=on,discard=unmap",
        Use::Read => "readonly=on",
    };
    block_device(&name(number), &disk.node(), options, &abi::disk_serial(number as u32))
}

/// The name of disk number `number` in QEMU.
pub(crate) fn name(number: usize) -> String {
    format!("disk{number}")
}

/// QEMU's arguments for a block device with that name and serial, backed by a node. QEMU reports errors of the host's files to the guest.
/// (By default it stops the machine if a file system is full.)
pub(crate) fn block_device(id: &str, node: &Value, options: &str, serial: &str) -> Vec<OsString> {
    let mut drive = OsString::from(format!("if=none,id={id},{options},file="));
    drive.push(option_value(format!("json:{node}")));
    let device = format!("virtio-blk-device,drive={id},serial={serial},werror=report,rerror=report");
    vec!["-drive".into(), drive, "-device".into(), device.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_is_told_the_format_and_nothing_that_it_could_take_for_more() {
        let disk = |use_| {
            let args = args(3, &Disk::raw("/nbd:a,b".into(), use_));
            args.join(std::ffi::OsStr::new(" ")).into_string().expect("text")
        };
        let file = r#"file=json:{"driver":"raw",,"file":{"driver":"file",,"filename":"/nbd:a,,b"}}"#;
        let device = "-device virtio-blk-device,drive=disk3,serial=gnomon-disk-3,werror=report,rerror=report";
        assert_eq!(disk(Use::Write), format!("-drive if=none,id=disk3,discard=unmap,{file} {device}"));
        assert!(
            disk(Use::Read).contains(",readonly=on,file=")
                && disk(Use::Snapshot).contains(",snapshot=on,discard=unmap,file=")
        );
    }
}
