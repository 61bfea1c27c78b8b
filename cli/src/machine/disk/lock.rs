//! Locks of disks' files. A file belongs to the run that has its lock.

use super::error::DiskError;
use super::node::Use;
use rustix::fs::{FlockOperation, flock, fstatfs};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The file systems (`f_type`) that take this lock for those of QEMU's: NFS, and the versions of SMB.
const SHARING_LOCKS: [u32; 3] = [0x6969, 0xff53_4d42, 0xfe53_4d42];
/// The time limit for another run to release a file, and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(1);

/// The lock of a file: for one run that writes to it, or for those that only read it. It is released when this is dropped.
#[derive(Debug)]
pub struct Lock {
    file: PathBuf,
    use_: Use,
    opened: File,
    is_held: AtomicBool,
}

impl Lock {
    /// Takes the lock of a file. Without locks of the file system, QEMU's own have to do.
    ///
    /// # Errors
    /// [`DiskError::Busy`], or [`DiskError::Unusable`].
    pub(crate) fn take(file: &Path, use_: Use) -> Result<Self, DiskError> {
        let lock = Self::later(file, use_)?;
        lock.retake_at_once()?;
        Ok(lock)
    }

    /// Opens a file whose lock another run has, which is going to release it.
    ///
    /// # Errors
    /// [`DiskError::Unusable`].
    pub(super) fn later(file: &Path, use_: Use) -> Result<Self, DiskError> {
        Ok(Self { file: file.into(), use_, opened: open(file, use_)?, is_held: AtomicBool::new(false) })
    }

    /// Returns whether other runs notice the lock.
    #[must_use]
    pub fn is_noticed(&self) -> bool {
        !fstatfs(&self.opened).is_ok_and(|system| SHARING_LOCKS.contains(&(system.f_type as u32)))
    }

    /// The file's device and inode.
    #[must_use]
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.opened.metadata().map(|file| (file.dev(), file.ino())).ok()
    }

    /// Gives the file to another run.
    pub fn release(&self) {
        self.is_held.store(false, SeqCst);
        // One that is not held is not released.
        let _ = flock(&self.opened, FlockOperation::Unlock);
    }

    /// Takes the lock as soon as another run releases it. Returns false if this run had it already.
    ///
    /// # Errors
    /// [`DiskError::Busy`] after three seconds.
    pub fn retake(&self) -> Result<bool, DiskError> {
        if self.is_held.load(SeqCst) {
            return Ok(false);
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match self.retake_at_once() {
                Err(DiskError::Busy { .. }) if Instant::now() < until => sleep(PAUSE),
                done => return done.map(|()| true),
            }
        }
    }

    pub(super) fn retake_at_once(&self) -> Result<(), DiskError> {
        if !self.is_noticed() {
            self.is_held.store(true, SeqCst);
            return Ok(());
        }
        let how = match self.use_ {
            Use::Write => FlockOperation::NonBlockingLockExclusive,
            Use::Snapshot | Use::Read => FlockOperation::NonBlockingLockShared,
        };
        match flock(&self.opened, how) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(DiskError::Busy { file: self.file.clone(), use_: self.use_, by: "another program".into() })
            }
            Ok(()) | Err(_) => {
                self.is_held.store(true, SeqCst);
                Ok(())
            }
        }
    }
}

/// Opens a file as it will be used.
pub(super) fn open(file: &Path, use_: Use) -> Result<File, DiskError> {
    let unusable = |source| DiskError::Unusable { file: file.into(), source };
    if !std::fs::metadata(file).map_err(unusable)?.is_file() {
        return Err(DiskError::NoFile(file.into()));
    }
    OpenOptions::new().read(true).write(use_ == Use::Write).open(file).map_err(unusable)
}
