//! Files that cannot be disks.

use super::node::{PLACES, Use};
use super::spec::Format;
use crate::host::size::Size;
use crate::host::words::quoted_path;
use abi::bundle::MAX_DISKS;
use miette::Diagnostic;
use std::path::{Path, PathBuf};

/// A file beside an image in format qcow2, which the image's header names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    /// The backing file.
    Backing,
    /// The external data file.
    Data,
}

impl Beside {
    /// Its key in a VM file.
    const fn key(self) -> &'static str {
        match self {
            Self::Backing => "backing",
            Self::Data => "data",
        }
    }
}

impl std::fmt::Display for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Backing => "a backing file",
            Self::Data => "an external data file",
        })
    }
}

/// A file that cannot be a disk.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum DiskError {
    /// The file does not exist.
    #[error("the disk {0} does not exist")]
    #[diagnostic(help("check the path; or give a size, and the disk is created: --disk {file}:1G, or `size` in the VM file", file = quoted_path(.0)))]
    Missing(PathBuf),
    /// The file cannot be used.
    #[error("cannot use {file} as a disk: {source}")]
    #[diagnostic(help(
        "name a file that you may read and write; for a read-only disk, add `:ro` (in a VM file `readonly = true`), or give --snapshot"
    ))]
    Unusable {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The path does not name a regular file.
    #[error("{0} is not a regular file, so it cannot be a disk")]
    #[diagnostic(help("name a raw disk image, or an image in format qcow2"))]
    NoFile(PathBuf),
    /// The name cannot be passed to QEMU.
    #[error("cannot use {0} as a disk: its path is not UTF-8")]
    #[diagnostic(help("rename the file or its directory"))]
    NotText(PathBuf),
    /// The file exists, and has another size than was asked for.
    #[error("the disk {file} already exists and has {have}, not {want}")]
    #[diagnostic(help("leave out the size to use the disk as it is"))]
    OtherSize {
        /// The file.
        file: PathBuf,
        /// Its size.
        have: Size,
        /// The request.
        want: Size,
    },
    /// There are no whole sectors in it.
    #[error("the disk {file} has {bytes} bytes, and a disk has a positive multiple of 512")]
    #[diagnostic(help("make it longer, such as by `truncate -s 1G {file}`", file = quoted_path(file)))]
    NoSectors {
        /// The file.
        file: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// Only files with the disk's sectors are made.
    #[error("{0} does not exist, and Gnomon cannot create images in format qcow2")]
    #[diagnostic(help("create it: `qemu-img create -f qcow2 {file} 1G`", file = quoted_path(.0)))]
    NoImage(PathBuf),
    /// The content does not match the format.
    #[error("the content of the disk {file} is in format {found}, and its name does not say so", found = .taken.other().name())]
    #[diagnostic(help("a guest may have written this content: if you know the format, append :{taken} or :{found} to the name (`format` in a VM file)", taken = .taken.name(), found = .taken.other().name()))]
    OtherFormat {
        /// The file.
        file: PathBuf,
        /// The format by its name.
        taken: Format,
    },
    /// The file is described as an image in format qcow2, and is not one.
    #[error("{0} is not an image in format qcow2")]
    #[diagnostic(help("leave out the format, or give `raw`"))]
    NotQcow2(PathBuf),
    /// The image's header names another file, and the user does not.
    #[error("the header of {file} names {beside}, `{name}`, which no VM file names")]
    #[diagnostic(help(
        "the guest would reach that file: if it is meant to, name it in the VM file, such as disks = [{{ file = \"IMAGE\", {key} = \"FILE\" }}]; or make \
         an image without it: `qemu-img convert -O qcow2 {file} NEW.qcow2`",
        key = .beside.key(), file = quoted_path(file)
    ))]
    Beside {
        /// The image.
        file: PathBuf,
        /// The kind of the other file.
        beside: Beside,
        /// Its name in the header.
        name: String,
    },
    /// The user names another file than the image's header.
    #[error("the header of {file} names {beside}, `{name}`, and the VM file another one, {given}")]
    #[diagnostic(help(
        "correct `{key}` in the VM file, or the image's header: `qemu-img rebase -u -b BACKING -F FORMAT IMAGE`, or `qemu-img amend -o data_file=DATA IMAGE`",
        key = .beside.key()
    ))]
    OtherBeside {
        /// The image.
        file: PathBuf,
        /// The kind of the other file.
        beside: Beside,
        /// Its name in the header.
        name: String,
        /// The file that the user names.
        given: PathBuf,
    },
    /// The user names another file, and the image has none.
    #[error("the VM file gives {file} {beside}, and its header names none")]
    #[diagnostic(help("leave out `{key}` in the VM file", key = .beside.key()))]
    NoneBeside {
        /// The disk's file.
        file: PathBuf,
        /// The kind of the other file.
        beside: Beside,
    },
    /// One file is two disks.
    #[error("{0} is used twice, and not only read")]
    #[diagnostic(help(
        "give each VM a disk of its own; VMs can share a disk that all of them only read: `:ro` (`readonly = true`), or --snapshot"
    ))]
    Twice(PathBuf),
    /// Another run has the disk.
    #[error("{file} is in use by {by}{}", if *.use_ == Use::Write { "" } else { ", which can write to it: it was started without --snapshot" })]
    #[diagnostic(help("{}", if *.use_ == Use::Write {
        "wait until it has ended, or give this VM another disk; several runs can use one disk if all of them have --snapshot, or only read it (`:ro`)"
    } else {
        "end it (gnomon shutdown), or start it again with --snapshot: several runs can use one disk if all of them have --snapshot, or only read it (`:ro`)"
    }))]
    Busy {
        /// The file.
        file: PathBuf,
        /// The use that was to be made of it.
        use_: Use,
        /// The other run.
        by: String,
    },
    /// The VM that arrives has another disk.
    #[error("{} is not a disk of the VM that arrives", .0.display())]
    #[diagnostic(help("give it the disks that it has in the other run, in their order (--disk)"))]
    NotTheSame(PathBuf),
    /// A VM has too many.
    #[error("VM `{vm}` has {count} disks: the limit is {MAX_DISKS}")]
    #[diagnostic(help("give it fewer: `disks` in the VM file, or --disk"))]
    TooMany {
        /// The VM.
        vm: String,
        /// The number of its disks.
        count: usize,
    },
    /// The machine has too many.
    #[error(
        "the VMs need {0} virtio devices (one for each disk and share, and one each for --swap, the network and random bytes), and the board has {PLACES}"
    )]
    #[diagnostic(help("give the VMs fewer disks and shares: combine several into one"))]
    NoPlaces(usize),
}

impl DiskError {
    /// Names the run that has the disk, if another one has it and `holder` knows its name.
    #[must_use]
    pub fn held_by(self, holder: impl FnOnce(&Path) -> Option<String>) -> Self {
        match self {
            Self::Busy { file, use_, by } => {
                let by = holder(&file).map_or(by, |run| format!("run `{run}`"));
                Self::Busy { file, use_, by }
            }
            other => other,
        }
    }
}
