//! The directory of a machine that QEMU may write in: the meter's report, and what guests write to disks that discard it.

use super::disk::Use;
use super::meter;
use super::qemu::MachineSpec;
use crate::host::output::OutputError;
use crate::host::place::IoError;
use rustix::fs::{Mode, OFlags};
use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Most bytes of a report.
const MOST_REPORT: u64 = 256 << 20;

/// The directory. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Scratch {
    dir: TempDir,
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
        let made = tempfile::Builder::new().prefix("gnomon-").tempdir_in(&place);
        let dir = made.map_err(IoError::at("create a directory (TMPDIR says where) in", place))?;
        let mut spec = spec.clone();
        let report = spec.meter.as_mut().map(|meter| {
            let inside = dir.path().join("report.json");
            (inside.clone(), std::mem::replace(&mut meter.spec.out, inside))
        });
        Ok((Some(Self { dir, report }), Cow::Owned(spec)))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
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
