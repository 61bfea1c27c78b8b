//! The directory of a machine that QEMU may write in: the meter's report, and what guests write to disks that discard it.
//!
//! A command that is killed leaves its directory. The next one that makes one removes it: a directory of the user's with the mark, which no
//! process has locked.

use super::disk::Use;
use super::meter;
use super::qemu::MachineSpec;
use crate::host::output::OutputError;
use crate::host::place::IoError;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::geteuid;
use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The beginning of the directories' names.
const PREFIX: &str = "gnomon-scratch-";
/// A file in each directory, by which it is known.
const MARK: &str = "made-by-gnomon";
/// Most bytes of a report.
const MOST_REPORT: u64 = 256 << 20;

/// The directory. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Scratch {
    dir: Locked,
    /// The meter's report in it, and the path that its user has named.
    report: Option<(PathBuf, PathBuf)>,
}

impl Scratch {
    /// Makes one if the machine needs it. Returns the machine that uses it.
    pub fn of(spec: &MachineSpec) -> Result<(Option<Self>, Cow<'_, MachineSpec>), IoError> {
        let discards = spec.disks.iter().any(|disk| disk.use_ == Use::Snapshot);
        if spec.meter.is_none() && !discards {
            return Ok((None, Cow::Borrowed(spec)));
        }
        let place = directory();
        sweep(&place);
        let dir = Locked::new_in(&place).map_err(IoError::at("create a directory (TMPDIR says where) in", place))?;
        let mut spec = spec.clone();
        let report = spec.meter.as_mut().map(|meter| {
            let inside = dir.dir.path().join("report.json");
            (inside.clone(), std::mem::replace(&mut meter.spec.out, inside))
        });
        Ok((Some(Self { dir, report }), Cow::Owned(spec)))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.dir.path()
    }

    /// Gives the meter's report the path that its user has named. A machine that was killed has left none.
    pub fn publish(&self) -> Result<(), OutputError> {
        let Some((inside, named)) = &self.report else { return Ok(()) };
        match read(inside) {
            Ok(report) if !report.is_empty() && meter::FILE.has(&report) => meter::FILE.write(named, &report),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// A directory with the mark, locked as long as this lives.
#[derive(Debug)]
struct Locked {
    dir: TempDir,
    _lock: File,
}

impl Locked {
    fn new_in(place: &Path) -> std::io::Result<Self> {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        let lock = File::open(dir.path())?;
        // Without the mark no other process removes it: one that looks at it lets go of it at once.
        flock(&lock, FlockOperation::LockExclusive)?;
        File::create(dir.path().join(MARK))?;
        Ok(Self { dir, _lock: lock })
    }
}

/// Removes directories that commands have left which were killed.
fn sweep(place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Another one that looks at it removes it itself, and for the rest there is a next time.
        if let Some(_lock) = is_named.then(|| unused(&entry.path())).flatten() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Locks a directory of this user's that has the mark; `None` if there is none, or it is in use.
fn unused(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let is_ours = dir.metadata().is_ok_and(|dir| dir.uid() == geteuid().as_raw());
    flock(&dir, FlockOperation::NonBlockingLockExclusive).ok()?;
    // After the lock: a command locks its directory before it has the mark.
    let has_mark = path.join(MARK).symlink_metadata().is_ok_and(|mark| mark.is_file());
    (is_ours && has_mark).then_some(dir)
}

/// Reads a report. QEMU may have put anything in its place: a link, a pipe, a file without end.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut report = Vec::new();
    if file.metadata()?.is_file() {
        file.take(MOST_REPORT).read_to_end(&mut report)?;
    }
    Ok(report)
}

/// The directory for files of any size. QEMU's own choice is the same.
pub(crate) fn directory() -> PathBuf {
    let dir = std::env::temp_dir();
    if dir == Path::new("/tmp") { "/var/tmp".into() } else { dir }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_command_has_left_is_removed() {
        let place = tempfile::tempdir().expect("a directory");
        let named = |name: &str| place.path().join(format!("{PREFIX}{name}"));
        let used = Locked::new_in(place.path()).expect("a directory");
        let Locked { dir: left, _lock: lock } = Locked::new_in(place.path()).expect("a directory");
        let left = left.keep();
        std::fs::write(left.join("report.json"), "x").expect("a file");
        // Without the mark, by a link, not a directory: these are others'.
        std::fs::create_dir(named("other")).expect("a directory");
        std::fs::create_dir(place.path().join("elsewhere")).expect("a directory");
        std::fs::write(place.path().join("elsewhere").join(MARK), "").expect("a file");
        std::os::unix::fs::symlink("elsewhere", named("link")).expect("a link");
        std::fs::write(named("file"), "").expect("a file");
        sweep(place.path());
        assert!(left.exists(), "it is locked");
        drop(lock);
        sweep(place.path());
        assert!(!left.exists());
        let others = [used.dir.path().to_owned(), named("other"), named("link"), named("file")];
        assert!(others.iter().all(|other| other.exists()) && place.path().join("elsewhere").join(MARK).exists());
        drop(used);
        sweep(place.path());
        assert_eq!(std::fs::read_dir(place.path()).expect("a directory").count(), 4);
    }
}
