//! Files that are VMs' disks.

use crate::host::size::Size;
use crate::host::words::option_value;
use abi::bundle::MAX_DISKS;
use miette::Diagnostic;
use serde::Deserialize;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// The first bytes of an image in format qcow2.
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";
/// Places that QEMU's board has for virtio devices.
pub(crate) const PLACES: usize = 8;

/// A disk, as the user describes it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(from = "Written")]
pub struct DiskSpec {
    /// The file.
    pub file: PathBuf,
    /// Set if the guest only reads the disk.
    pub readonly: bool,
    /// The file's format; `None`: by the file's name.
    pub format: Option<Format>,
    /// The size of the file, which is created with it if it does not exist.
    pub size: Option<Size>,
}

/// The format of a disk's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The disk's sectors.
    Raw,
    /// An image of QEMU's.
    Qcow2,
}

impl Format {
    /// Its name, for QEMU as well.
    const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }

    /// The other one.
    const fn other(self) -> Self {
        match self {
            Self::Raw => Self::Qcow2,
            Self::Qcow2 => Self::Raw,
        }
    }
}

/// A disk in a VM file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "the path of a file, or a table such as { file = \"data.img\", readonly = true }")]
enum Written {
    File(PathBuf),
    Table(Table),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    file: PathBuf,
    #[serde(default)]
    readonly: bool,
    format: Option<Format>,
    size: Option<Size>,
}

impl From<Written> for DiskSpec {
    fn from(written: Written) -> Self {
        match written {
            Written::File(file) => Self { file, readonly: false, format: None, size: None },
            Written::Table(Table { file, readonly, format, size }) => Self { file, readonly, format, size },
        }
    }
}

impl FromStr for DiskSpec {
    type Err = String;

    /// `FILE`, with `:ro`, `:raw` or `:qcow2`, and `:SIZE` behind it.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = Self { file: text.into(), readonly: false, format: None, size: None };
        let mut rest = text;
        while let Some((file, word)) = rest.rsplit_once(':') {
            match word {
                "ro" => spec.readonly = true,
                "raw" => spec.format = Some(Format::Raw),
                "qcow2" => spec.format = Some(Format::Qcow2),
                _ => match word.parse() {
                    Ok(size) => spec.size = Some(size),
                    Err(_) => break,
                },
            }
            rest = file;
        }
        if rest.is_empty() {
            return Err("name a file: --disk FILE, FILE:ro, or FILE:SIZE, such as --disk data.img:2G".into());
        }
        spec.file = rest.into();
        Ok(spec)
    }
}

/// A disk of the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// The file.
    pub file: PathBuf,
    /// The format.
    pub format: Format,
    /// The use of the file.
    pub use_: Use,
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

/// A file that cannot be a disk.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum DiskError {
    /// The file does not exist.
    #[error("the disk {0} does not exist")]
    #[diagnostic(help("check the path; or give a size, and the disk is created: --disk {file}:1G, or `size` in the VM file", file = .0.display()))]
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
    #[diagnostic(help("make it longer, such as by `truncate -s 1G {file}`", file = file.display()))]
    NoSectors {
        /// The file.
        file: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// Only files with the disk's sectors are made.
    #[error("{0} does not exist, and Gnomon cannot create images in format qcow2")]
    #[diagnostic(help("create it: `qemu-img create -f qcow2 {file} 1G`", file = .0.display()))]
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
    /// One file is two disks.
    #[error("{0} is used twice, and not only read")]
    #[diagnostic(help(
        "give each VM a disk of its own; VMs can share a disk that all of them only read: `:ro` (`readonly = true`), or --snapshot"
    ))]
    Twice(PathBuf),
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

impl From<Disk> for DiskSpec {
    fn from(disk: Disk) -> Self {
        Self { file: disk.file, readonly: disk.use_ == Use::Read, format: Some(disk.format), size: None }
    }
}

impl DiskSpec {
    /// The format by the user's choice, or else by the file's name.
    fn format(&self) -> Format {
        let is_named = self.file.extension().is_some_and(|end| end.eq_ignore_ascii_case("qcow2"));
        self.format.unwrap_or(if is_named { Format::Qcow2 } else { Format::Raw })
    }

    /// Checks the file, and makes it if it is not there and its size is given: a sparse one.
    fn provide(&self, snapshot: Snapshot) -> Result<Disk, DiskError> {
        let file = self.file.clone();
        let unusable = |source| DiskError::Unusable { file: file.clone(), source };
        let use_ = match snapshot {
            _ if self.readonly => Use::Read,
            Snapshot::Yes => Use::Snapshot,
            Snapshot::No => Use::Write,
        };
        let format = self.format();
        match std::fs::metadata(&file) {
            Ok(meta) if !meta.is_file() => return Err(DiskError::NoFile(file)),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => match (self.size, format) {
                (None, _) => return Err(DiskError::Missing(file)),
                (_, Format::Qcow2) => return Err(DiskError::NoImage(file)),
                (Some(size), Format::Raw) => {
                    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
                    made.and_then(|file| file.set_len(size.0)).map_err(unusable)?;
                }
            },
            Err(error) => return Err(unusable(error)),
        }
        let opened = OpenOptions::new().read(true).write(use_ == Use::Write).open(&file).map_err(unusable)?;
        let bytes = opened.metadata().map_err(unusable)?.len();
        self.check_content(&opened, format)?;
        if format == Format::Raw {
            if bytes == 0 || !bytes.is_multiple_of(SECTOR) {
                return Err(DiskError::NoSectors { file, bytes });
            }
            if let Some(want) = self.size.filter(|size| size.0 != bytes) {
                return Err(DiskError::OtherSize { file, have: Size(bytes), want });
            }
        }
        Ok(Disk { file, format, use_ })
    }

    /// Checks that the file holds what it is taken for. What the sectors of a raw one begin with is the guest's affair: that alone is
    /// no reason to take it for anything else.
    fn check_content(&self, mut opened: &File, format: Format) -> Result<(), DiskError> {
        let mut start = Vec::new();
        let read = opened.by_ref().take(QCOW2_MAGIC.len() as u64).read_to_end(&mut start);
        read.map_err(|source| DiskError::Unusable { file: self.file.clone(), source })?;
        let is_qcow2 = start == QCOW2_MAGIC;
        match format {
            Format::Qcow2 if !is_qcow2 => Err(DiskError::NotQcow2(self.file.clone())),
            Format::Raw if is_qcow2 && self.format.is_none() => {
                Err(DiskError::OtherFormat { file: self.file.clone(), taken: format })
            }
            _ => Ok(()),
        }
    }
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

/// Provides the disks of all VMs, each given by its name and its disks. They are numbered through. `others` is how many virtio devices the
/// machine has beside them and that of `swap`.
///
/// # Errors
/// [`DiskError`].
pub fn provide<'a>(
    vms: impl Iterator<Item = (&'a str, &'a [DiskSpec])>,
    snapshot: Snapshot,
    swap: Option<&Path>,
    others: usize,
) -> Result<Vec<Disk>, DiskError> {
    let mut disks: Vec<Disk> = Vec::new();
    for (vm, specs) in vms {
        if specs.len() > MAX_DISKS {
            return Err(DiskError::TooMany { vm: vm.into(), count: specs.len() });
        }
        for spec in specs {
            disks.push(spec.provide(snapshot)?);
        }
    }
    let places = disks.len() + usize::from(swap.is_some()) + others;
    if places > PLACES {
        return Err(DiskError::NoPlaces(places));
    }
    // By what they are, and not by what they are called.
    let identity = |file: &Path| std::fs::metadata(file).map(|meta| (meta.dev(), meta.ino())).ok();
    let mut before: Vec<(_, Use)> = swap.map(|file| (identity(file), Use::Write)).into_iter().collect();
    for disk in &disks {
        let this = identity(&disk.file);
        let clashes = |(other, use_): &(_, Use)| *other == this && (*use_ == Use::Write || disk.use_ == Use::Write);
        if before.iter().any(clashes) {
            return Err(DiskError::Twice(disk.file.clone()));
        }
        before.push((this, disk.use_));
    }
    Ok(disks)
}

/// QEMU's arguments for disk number `number`. The format is always given: a guest could write content that misleads a guess.
pub(crate) fn args(number: usize, disk: &Disk) -> Vec<String> {
    let use_ = match disk.use_ {
        // What the guest discards, the file need not keep.
        Use::Write => ",discard=unmap",
        Use::Snapshot => ",snapshot=on,discard=unmap",
        Use::Read => ",readonly=on",
    };
    let options = format!("format={}{use_}", disk.format.name());
    block_device(&format!("disk{number}"), &disk.file, &options, &abi::disk_serial(number as u32))
}

/// QEMU's arguments for a block device with that name and serial, backed by the file.
pub(crate) fn block_device(id: &str, file: &Path, options: &str, serial: &str) -> Vec<String> {
    let file = option_value(&file.display().to_string());
    vec![
        "-drive".into(),
        format!("file={file},if=none,id={id},{options}"),
        "-device".into(),
        format!("virtio-blk-device,drive={id},serial={serial}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> DiskSpec {
        text.parse().expect("a disk")
    }

    #[test]
    fn a_file_and_what_is_said_of_it() {
        let plain = DiskSpec { file: "a".into(), readonly: false, format: None, size: None };
        assert_eq!(spec("a"), plain);
        assert_eq!(spec("a:ro"), DiskSpec { readonly: true, ..plain.clone() });
        let all = DiskSpec { readonly: true, format: Some(Format::Raw), size: Some(Size(2 << 30)), ..plain.clone() };
        assert_eq!((spec("a:ro:2G:raw"), spec("a:raw:2G:ro")), (all.clone(), all));
        assert_eq!(spec("a:b:ro").file, Path::new("a:b"));
        assert!("".parse::<DiskSpec>().is_err() && ":ro".parse::<DiskSpec>().is_err());
    }

    /// A directory, and a disk in it.
    fn provide_in(make: impl FnOnce(&Path), text: &str) -> Result<Disk, DiskError> {
        let dir = tempfile::tempdir().expect("a directory");
        make(dir.path());
        let mut spec = spec(text);
        spec.file = dir.path().join(&spec.file);
        spec.provide(Snapshot::No)
    }

    #[test]
    fn a_file_is_made_if_its_size_is_given() {
        let nothing = |_: &Path| {};
        let with = |bytes: &'static [u8]| move |dir: &Path| std::fs::write(dir.join("a"), bytes).expect("written");
        assert_eq!(provide_in(nothing, "a:1M").map(|disk| disk.format).ok(), Some(Format::Raw));
        assert!(matches!(provide_in(nothing, "a"), Err(DiskError::Missing(_))));
        assert!(matches!(provide_in(nothing, "a.qcow2:1M"), Err(DiskError::NoImage(_))));
        assert!(matches!(provide_in(nothing, "no/a:1M"), Err(DiskError::Unusable { .. })));
        assert!(matches!(provide_in(nothing, "."), Err(DiskError::NoFile(_))));
        assert!(matches!(provide_in(with(&[0; 512]), "a:1M"), Err(DiskError::OtherSize { .. })));
        assert!(provide_in(with(&[0; 1024]), "a:1K").is_ok());
        for bytes in [&[0; 0][..], &[0; 511]] {
            assert!(matches!(provide_in(with(bytes), "a"), Err(DiskError::NoSectors { .. })), "{}", bytes.len());
        }
    }

    #[test]
    fn the_name_says_what_a_file_holds_and_the_content_has_to_agree() {
        let image = |name: &'static str| {
            move |dir: &Path| {
                let mut bytes = vec![0; 512];
                bytes[..4].copy_from_slice(&QCOW2_MAGIC);
                std::fs::write(dir.join(name), bytes).expect("written");
            }
        };
        let format = |disk: Result<Disk, _>| disk.map(|disk| disk.format).ok();
        assert_eq!(format(provide_in(image("a.qcow2"), "a.qcow2:ro")), Some(Format::Qcow2));
        assert_eq!(format(provide_in(image("a"), "a:qcow2")), Some(Format::Qcow2));
        assert_eq!(format(provide_in(image("a"), "a:raw")), Some(Format::Raw));
        assert!(matches!(provide_in(image("a"), "a"), Err(DiskError::OtherFormat { .. })));
        let zeroes = |dir: &Path| std::fs::write(dir.join("a.qcow2"), [0; 512]).expect("written");
        assert!(matches!(provide_in(zeroes, "a.qcow2"), Err(DiskError::NotQcow2(_))));
    }

    #[test]
    fn a_file_that_is_written_is_one_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a");
        std::fs::write(&path, [0; 512]).expect("written");
        let link = dir.path().join("b");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let spec = |file: &Path, readonly| DiskSpec { file: file.into(), readonly, format: None, size: None };
        let both = |one, other, snapshot, swap| {
            let (one, other) = ([spec(&path, one)], [spec(&link, other)]);
            provide([("v", &one[..]), ("w", &other[..])].into_iter(), snapshot, swap, 0).map(|disks| disks.len())
        };
        assert!(matches!(both(false, false, Snapshot::No, None), Err(DiskError::Twice(_))));
        assert!(matches!(both(true, false, Snapshot::No, None), Err(DiskError::Twice(_))));
        assert!(matches!(both(true, true, Snapshot::No, Some(&path)), Err(DiskError::Twice(_))));
        assert_eq!(both(true, true, Snapshot::No, None).ok(), Some(2));
        assert_eq!(both(false, false, Snapshot::Yes, None).ok(), Some(2));
        let many = vec![spec(&path, true); MAX_DISKS + 1];
        let too_many = provide([("v", &many[..])].into_iter(), Snapshot::No, None, 0);
        assert!(matches!(too_many, Err(DiskError::TooMany { .. })));
        let full = vec![spec(&path, true); MAX_DISKS];
        let vms = [("v", &full[..]), ("w", &full[..])];
        assert!(matches!(provide(vms.into_iter(), Snapshot::No, None, 0), Err(DiskError::NoPlaces(14))));
    }

    #[test]
    fn qemu_is_told_the_format() {
        let disk = |use_| args(3, &Disk { file: "a,b".into(), format: Format::Raw, use_ }).join(" ");
        let whole = "-drive file=a,,b,if=none,id=disk3,format=raw,discard=unmap -device virtio-blk-device,drive=disk3,serial=gnomon-disk-3";
        assert_eq!(disk(Use::Write), whole);
        assert!(
            disk(Use::Read).contains("format=raw,readonly=on ")
                && disk(Use::Snapshot).contains(",snapshot=on,discard=unmap ")
        );
    }
}
