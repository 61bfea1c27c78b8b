//! The directory of a machine that QEMU may write in: the meter's report, and what guests write to disks that discard it.

use super::disk::Use;
use super::meter;
use super::qemu::MachineSpec;
use crate::host::output::OutputError;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The directory. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Scratch {
    dir: TempDir,
    /// The meter's report in it, and the path that its user has named.
    report: Option<(PathBuf, PathBuf)>,
}

impl Scratch {
    /// Makes one if the machine needs it. Returns the machine that uses it.
    pub fn of(spec: &MachineSpec) -> std::io::Result<(Option<Self>, Cow<'_, MachineSpec>)> {
        let discards = spec.disks.iter().any(|disk| disk.use_ == Use::Snapshot);
        if spec.meter.is_none() && !discards {
            return Ok((None, Cow::Borrowed(spec)));
        }
        let dir = tempfile::Builder::new().prefix("gnomon-").tempdir_in(directory())?;
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
        match std::fs::read(inside) {
            Ok(report) if !report.is_empty() => meter::FILE.write(named, &report),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// The directory for files of any size. QEMU's own choice is the same.
pub(crate) fn directory() -> PathBuf {
    let dir = std::env::temp_dir();
    if dir == Path::new("/tmp") { "/var/tmp".into() } else { dir }
}
