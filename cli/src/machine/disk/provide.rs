//! Provides the files of disks: checks them, makes them, and keeps other runs from them.

use super::error::{Beside, DiskError};
use super::lock::{Lock, open};
use super::node::{Disk, PLACES, Snapshot, Use};
use super::qcow2;
use super::spec::{DiskSpec, Format};
use crate::host::place::identity;
use crate::host::size::Size;
use abi::bundle::MAX_DISKS;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::iter::repeat;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a sector.
const SECTOR: u64 = 512;

/// The disks of a machine, by number, and the locks that keep other runs from their files.
#[derive(Debug, Default)]
pub struct Disks {
    /// The disks.
    pub all: Vec<Disk>,
    /// The locks of their files, each with the disk's number. They are held for as long as they live.
    pub locks: Vec<(usize, Arc<Lock>)>,
}

/// Provides the disks of all VMs, each given by its name and its disks. They are numbered through. `others` is how many virtio devices the
/// machine has beside them and that of `swap`.
/// If the VM arrives from another run, `arriving` has the device and inode of each file that it writes to: those locks are taken when that
/// run has released them.
///
/// # Errors
/// [`DiskError`].
pub fn provide<'a>(
    vms: impl Iterator<Item = (&'a str, &'a [DiskSpec])>,
    snapshot: Snapshot,
    swap: Option<&Path>,
    others: usize,
    arriving: Option<&[(u64, u64)]>,
) -> Result<Disks, DiskError> {
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
    let mut before: Vec<(_, Use)> = swap.map(|file| (identity(file), Use::Write)).into_iter().collect();
    for disk in &disks {
        let own: Vec<_> = disk.files().into_iter().map(|(file, use_)| (identity(file), use_)).collect();
        let clashes = |(this, use_): &(_, Use)| {
            before.iter().any(|(other, of)| other == this && (*of == Use::Write || *use_ == Use::Write))
        };
        if own.iter().any(clashes) {
            return Err(DiskError::Twice(disk.file.clone()));
        }
        before.extend(own);
    }
    if let Some(arriving) = arriving {
        let written = disks.iter_mut().filter(|disk| disk.use_ == Use::Write);
        for (disk, theirs) in written.zip(arriving.iter().map(Some).chain(repeat(None))) {
            if identity(&disk.file).as_ref() != theirs {
                return Err(DiskError::NotTheSame(disk.file.clone()));
            }
            disk.is_shared = true;
        }
    }
    let mut locks = Vec::new();
    for (number, disk) in disks.iter().enumerate() {
        for (file, use_) in disk.files() {
            let lock = if disk.is_shared && use_ == Use::Write { Lock::later } else { Lock::take };
            locks.push((number, Arc::new(lock(file, use_)?)));
        }
    }
    Ok(Disks { all: disks, locks })
}

impl DiskSpec {
    /// Checks the files, and makes the disk's if it is not there and its size is given: a sparse one.
    fn provide(&self, snapshot: Snapshot) -> Result<Disk, DiskError> {
        let use_ = match snapshot {
            _ if self.readonly => Use::Read,
            Snapshot::Yes => Use::Snapshot,
            Snapshot::No => Use::Write,
        };
        self.provide_for(use_)
    }

    fn provide_for(&self, use_: Use) -> Result<Disk, DiskError> {
        let file = self.file.clone();
        let unusable = |source| DiskError::Unusable { file: file.clone(), source };
        let format = self.format();
        match std::fs::metadata(&file) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => match (self.size, format) {
                (None, _) => return Err(DiskError::Missing(file)),
                (_, Format::Qcow2) => return Err(DiskError::NoImage(file)),
                (Some(size), Format::Raw) => {
                    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
                    made.and_then(|file| file.set_len(size.0)).map_err(unusable)?;
                }
            },
            Err(error) => return Err(unusable(error)),
        }
        let opened = open(&file, use_)?;
        let bytes = opened.metadata().map_err(unusable)?.len();
        let header = self.check_content(&opened, format)?;
        if format == Format::Raw {
            if bytes == 0 || !bytes.is_multiple_of(SECTOR) {
                return Err(DiskError::NoSectors { file, bytes });
            }
            if let Some(want) = self.size.filter(|size| size.0 != bytes) {
                return Err(DiskError::OtherSize { file, have: Size(bytes), want });
            }
        }
        self.check_beside(Beside::Backing, header.backing.as_deref(), self.backing.as_ref().map(|disk| &*disk.file))?;
        self.check_beside(Beside::Data, header.data.as_deref(), self.data.as_deref())?;
        let backing = self.backing.as_ref().map(|backing| backing.provide_for(Use::Read).map(Box::new)).transpose()?;
        let data = self.data.as_deref().map(|data| open(data, use_).and_then(|_| absolute(data))).transpose()?;
        Ok(Disk { file: absolute(&self.file)?, format, use_, is_shared: false, backing, data })
    }

    /// Checks that the file holds what it is taken for; returns the header of an image. What the sectors of a raw one begin with is the
    /// guest's affair: that alone is no reason to take it for anything else.
    fn check_content(&self, opened: &File, format: Format) -> Result<qcow2::Header, DiskError> {
        let file = self.file.clone();
        match (format, qcow2::read(opened)) {
            (Format::Raw, Ok(None)) => Ok(qcow2::Header::default()),
            (Format::Raw, _) if self.format.is_some() => Ok(qcow2::Header::default()),
            (Format::Raw, _) => Err(DiskError::OtherFormat { file, taken: format }),
            (Format::Qcow2, Ok(header)) => header.ok_or(DiskError::NotQcow2(file)),
            (Format::Qcow2, Err(source)) => Err(DiskError::Unusable { file, source }),
        }
    }

    /// Checks that the user names the file that the image's header names. Otherwise the image's maker would choose what the guest reaches.
    fn check_beside(&self, beside: Beside, name: Option<&str>, given: Option<&Path>) -> Result<(), DiskError> {
        let file = self.file.clone();
        match (name, given) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(DiskError::NoneBeside { file, beside }),
            (Some(name), None) => Err(DiskError::Beside { file, beside, name: name.into() }),
            (Some(name), Some(given)) => {
                let named = file.with_file_name("").join(name.strip_prefix("file:").unwrap_or(name));
                // An image with external data need not say where they are.
                if name.is_empty() || identity(&named).is_some_and(|named| Some(named) == identity(given)) {
                    return Ok(());
                }
                Err(DiskError::OtherBeside { file, beside, name: name.into(), given: given.into() })
            }
        }
    }
}

/// The path by which QEMU opens a file, whatever the name looks like.
fn absolute(file: &Path) -> Result<PathBuf, DiskError> {
    let path = std::path::absolute(file).map_err(|source| DiskError::Unusable { file: file.into(), source })?;
    if path.to_str().is_some() { Ok(path) } else { Err(DiskError::NotText(file.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(text: &str) -> DiskSpec {
        text.parse().expect("a disk")
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
                std::fs::write(dir.join(name), qcow2::tests::image(3, None, None)).expect("written");
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
        let spec = |file: &Path, readonly| DiskSpec { file: file.into(), readonly, ..DiskSpec::default() };
        let both = |one, other, snapshot, swap| {
            let (one, other) = ([spec(&path, one)], [spec(&link, other)]);
            provide([("v", &one[..]), ("w", &other[..])].into_iter(), snapshot, swap, 0, None)
                .map(|disks| disks.all.len())
        };
        assert!(matches!(both(false, false, Snapshot::No, None), Err(DiskError::Twice(_))));
        assert!(matches!(both(true, false, Snapshot::No, None), Err(DiskError::Twice(_))));
        assert!(matches!(both(true, true, Snapshot::No, Some(&path)), Err(DiskError::Twice(_))));
        assert_eq!(both(true, true, Snapshot::No, None).ok(), Some(2));
        assert_eq!(both(false, false, Snapshot::Yes, None).ok(), Some(2));
        let many = vec![spec(&path, true); MAX_DISKS + 1];
        let too_many = provide([("v", &many[..])].into_iter(), Snapshot::No, None, 0, None);
        assert!(matches!(too_many, Err(DiskError::TooMany { .. })));
        let full = vec![spec(&path, true); MAX_DISKS];
        let vms = [("v", &full[..]), ("w", &full[..])];
        assert!(matches!(provide(vms.into_iter(), Snapshot::No, None, 0, None), Err(DiskError::NoPlaces(14))));
    }

    /// Files in a directory: images whose headers name others, and those.
    fn images() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let put = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).expect("written");
        put("base", &[0; 1024]);
        put("other", &[0; 1024]);
        put("over.qcow2", &qcow2::tests::image(3, Some("base"), None));
        put("top.qcow2", &qcow2::tests::image(2, Some("over.qcow2"), None));
        put("url.qcow2", &qcow2::tests::image(3, Some("nbd:127.0.0.1:1"), None));
        put("split.qcow2", &qcow2::tests::image(3, None, Some("file:base")));
        put("alone.qcow2", &qcow2::tests::image(3, None, None));
        dir
    }

    #[test]
    fn an_image_reaches_the_files_that_the_user_names_too() {
        let dir = images();
        let provide = |text: &str| {
            let mut spec: DiskSpec = toml::from_str(text).expect("valid");
            spec.place_in(dir.path());
            spec.provide(Snapshot::No)
        };
        assert_eq!(provide("file = 'alone.qcow2'").expect("usable").node()["backing"], Value::Null);
        for (text, is_right) in [
            (
                "file = 'over.qcow2'",
                (|why| matches!(why, DiskError::Beside { beside: Beside::Backing, .. })) as fn(_) -> _,
            ),
            ("file = 'over.qcow2'\nreadonly = true", |why| matches!(why, DiskError::Beside { .. })),
            ("file = 'split.qcow2'", |why| matches!(why, DiskError::Beside { beside: Beside::Data, .. })),
            ("file = 'over.qcow2'\nbacking = 'other'", |why| matches!(why, DiskError::OtherBeside { .. })),
            ("file = 'url.qcow2'\nbacking = 'other'", |why| matches!(why, DiskError::OtherBeside { .. })),
            ("file = 'alone.qcow2'\nbacking = 'base'", |why| matches!(why, DiskError::NoneBeside { .. })),
            ("file = 'base'\ndata = 'other'", |why| matches!(why, DiskError::NoneBeside { .. })),
            ("file = 'top.qcow2'\nbacking = 'over.qcow2'", |why| matches!(why, DiskError::Beside { .. })),
        ] {
            let why = provide(text).expect_err("it is refused");
            let said = why.to_string();
            assert!(is_right(why), "{text}: {said}");
        }
        let chain = provide("file = 'top.qcow2'\nbacking = { file = 'over.qcow2', backing = 'base' }").expect("usable");
        let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
        let node = chain.node();
        let file = |name: &str| json!({ "driver": "file", "filename": path(name) });
        assert_eq!(node["backing"]["backing"], json!({ "driver": "raw", "file": file("base") }));
        assert_eq!((&node["backing"]["driver"], &node["file"]), (&json!("qcow2"), &file("top.qcow2")));
        assert_eq!(chain.files().iter().filter(|(_, use_)| *use_ == Use::Read).count(), 2, "the others are only read");
        let split = provide("file = 'split.qcow2'\ndata = 'base'").expect("usable");
        assert_eq!(split.node()["data-file"], file("base"));
        assert!(split.files().iter().all(|(_, use_)| *use_ == Use::Write), "its guest writes to both");
    }

    #[test]
    fn a_file_is_one_runs_or_those_that_read_it() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let lock = |use_| Lock::take(file.path(), use_);
        let writes = lock(Use::Write).expect("free");
        for use_ in [Use::Write, Use::Snapshot, Use::Read] {
            let busy = lock(use_).expect_err("it is in use").held_by(|_| Some("other".into()));
            assert!(busy.to_string().contains("is in use by run `other`"), "{busy}");
        }
        drop(writes);
        // What another test starts has the file as well, from when it is forked until it is another program.
        let since = std::time::Instant::now();
        let reads = loop {
            match lock(Use::Snapshot) {
                Err(DiskError::Busy { .. }) if since.elapsed().as_secs() < 10 => std::thread::yield_now(),
                reads => break reads.expect("free"),
            }
        };
        let _reads = [reads, lock(Use::Read).expect("shared")];
        assert!(matches!(lock(Use::Write), Err(DiskError::Busy { .. })));
    }

    #[test]
    fn a_disk_that_arrives_is_the_one_that_the_other_run_releases() {
        let dir = tempfile::tempdir().expect("a directory");
        let [path, copy] = ["a", "copy"].map(|name| dir.path().join(name));
        for path in [&path, &copy] {
            std::fs::write(path, [0; 512]).expect("written");
        }
        let provide = |file: &Path, theirs: &[(u64, u64)]| {
            let specs = [DiskSpec { file: file.into(), ..DiskSpec::default() }];
            super::provide([("v", &specs[..])].into_iter(), Snapshot::No, None, 0, Some(theirs))
        };
        let theirs = Lock::take(&path, Use::Write).expect("free");
        let identity = theirs.identity().expect("it is there");
        for theirs in [&[][..], &[identity][..]] {
            assert!(matches!(provide(&copy, theirs), Err(DiskError::NotTheSame(_))));
        }
        let arriving = provide(&path, &[identity]).expect("as agreed");
        assert_eq!(arriving.all[0].node()["file"]["locking"], "off");
        let (_, ours) = &arriving.locks[0];
        let since = std::time::Instant::now();
        assert!(matches!(ours.retake(), Err(DiskError::Busy { .. })), "it is the other run's");
        assert!(since.elapsed().as_secs() >= 2);
        theirs.release();
        assert!(ours.retake().expect("it is released"), "it is taken now");
        assert!(!ours.retake().expect("it is ours"), "it was taken before");
        assert!(matches!(theirs.retake_at_once(), Err(DiskError::Busy { .. })));
    }
}
