//! Files and directories: the cache, scratch space, locks.

use crate::host::home::home;
use crate::host::tty;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The action of an error with a directory for downloads.
const CREATE_CACHE: &str = "create the directory for downloads,";

/// The first part of its remedy.
const CHOOSE_CACHE: &str = "set GNOMON_CACHE to a directory that you may write; or ";

/// Something could not be read or written.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("cannot {action} {path}: {source}")]
#[diagnostic(help("{}{}", if *action == CREATE_CACHE { CHOOSE_CACHE } else { "" }, remedy(path, source)))]
pub struct IoError {
    /// The verb: `read`, `write`, `create`.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The operating system's error.
    pub source: std::io::Error,
}

/// Returns what to do about an error of the operating system's with a file.
#[must_use]
pub fn remedy(path: &Path, source: &std::io::Error) -> String {
    let missing = path.ancestors().skip(1).find(|dir| !dir.as_os_str().is_empty() && !dir.exists());
    match source.kind() {
        ErrorKind::NotFound => match missing {
            Some(_) => {
                let first = path.ancestors().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists()).last();
                format!("check the path: {} does not exist", first.unwrap_or(path).display())
            }
            None => "check the path".into(),
        },
        ErrorKind::PermissionDenied => "check that you may access the file and its directory".into(),
        ErrorKind::ReadOnlyFilesystem => "choose a path on a file system that can be written".into(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded if path == Path::new("/dev/stdout") => {
            "make room where standard output goes".into()
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("make room on the file system at {}", mount_point(path).display())
        }
        ErrorKind::IsADirectory => "name a file, not a directory".into(),
        ErrorKind::NotADirectory => "check the path: a part of it is a file".into(),
        _ => "check the path, and that you may access it".into(),
    }
}

impl IoError {
    /// For `map_err`: names the path in the error.
    pub fn at(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self { action, path, source }
    }
}

/// The other end of a pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The program that writes to it.
    Writer,
    /// The program that reads it.
    Reader,
}

/// Says that a named pipe is waited for, if the path names one: it cannot be opened before the other end is.
pub fn announce(path: &Path, end: End) {
    if let Some(line) = waiting(path, end) {
        tty::say(&line);
    }
}

fn waiting(path: &Path, end: End) -> Option<String> {
    fs::metadata(path).ok().filter(|there| there.file_type().is_fifo())?;
    let does = if end == End::Writer { "write to" } else { "read" };
    Some(format!("gnomon: waiting for a program to {does} the pipe {}", path.display()))
}

/// Reads a file that the user names. If it is a pipe, says that it is waited for.
///
/// # Errors
/// If it cannot be read.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    announce(path, End::Writer);
    fs::read(path)
}

/// The file of a program of that name, or with that path, as a shell finds it.
#[must_use]
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // A name with a slash is a path from here.
    let dirs = if name.as_encoded_bytes().contains(&b'/') {
        vec![PathBuf::new()]
    } else {
        std::env::split_paths(&path).collect()
    };
    dirs.into_iter().map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// A directory in the cache, made if needed.
///
/// # Errors
/// If it cannot be made.
pub fn cache(name: &str) -> Result<PathBuf, IoError> {
    let no_home = || std::io::Error::new(ErrorKind::NotFound, "this user has no home directory");
    let base = home().cache().ok_or_else(no_home).map_err(IoError::at(CREATE_CACHE, "gnomon"))?;
    let dir = base.join(name);
    fs::create_dir_all(&dir).map_err(IoError::at(CREATE_CACHE, &dir))?;
    Ok(dir)
}

/// Locks a file for this process alone. If another process has the lock, says what that does, and waits.
///
/// # Errors
/// If the file cannot be locked.
pub fn lock(file: &File, other_does: &str) -> std::io::Result<()> {
    lock_or(file, || tty::say(&format!("gnomon: waiting for another gnomon: {other_does}")))
}

fn lock_or(file: &File, wait: impl FnOnce()) -> std::io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            wait();
            Ok(flock(file, FlockOperation::LockExclusive)?)
        }
        locked => Ok(locked?),
    }
}

/// Keeps other `gnomon` processes out of the cache for as long as it lives.
#[derive(Debug)]
pub struct CacheLock(File);

impl CacheLock {
    /// Waits until the lock is free, and takes it.
    ///
    /// # Errors
    /// If the lock file cannot be made or locked.
    pub fn take() -> Result<Self, IoError> {
        let path = cache("")?.join("lock");
        let file = File::create(&path).map_err(IoError::at("create", &path))?;
        lock(&file, "it downloads").map_err(IoError::at("lock", &path))?;
        Ok(Self(file))
    }
}

impl Drop for CacheLock {
    fn drop(&mut self) {
        // Closing the file would release it too; there is nothing to do about a failure.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// A file without a name. The system removes it when this process ends, however that dies; other processes open it by
/// its path in `/proc` meanwhile.
#[derive(Debug)]
pub struct Unnamed {
    file: File,
    path: PathBuf,
}

impl Unnamed {
    /// Makes one, on the disk that a directory is on.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn new_in(dir: &Path) -> Result<Self, IoError> {
        let file = tempfile::tempfile_in(dir).map_err(IoError::at("create a file in", dir))?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
        Ok(Self { file, path })
    }

    /// Makes one on the disk for scratch files.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn new() -> Result<Self, IoError> {
        Self::new_in(&std::env::temp_dir())
    }

    /// Returns the path by which other processes open the file as long as this value lives.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// To write it.
    pub fn as_file_mut(&mut self) -> &mut File {
        &mut self.file
    }
}

/// Removes files that have lain in a directory for longer than `age`: kept for a look, or left by a process that was
/// killed.
pub fn prune(dir: &Path, age: Duration) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let modified = entry.metadata().and_then(|file| file.modified()).ok();
        if modified.and_then(|time| time.elapsed().ok()).is_some_and(|elapsed| elapsed > age) {
            // What cannot be removed now may be the next time.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A file by its device and inode, whatever it is called; `None` if it is not there.
#[must_use]
pub fn identity(file: &Path) -> Option<(u64, u64)> {
    fs::metadata(file).map(|there| (there.dev(), there.ino())).ok()
}

/// The directory that the file system with a file is mounted at. A file that is not there counts as its directory.
#[must_use]
pub fn mount_point(file: &Path) -> PathBuf {
    let file = file.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let device = |path: &Path| fs::metadata(path).map(|there| there.dev()).ok();
    let path = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let own = device(&path);
    let inside = path.ancestors().skip(1).take_while(|dir| device(dir) == own);
    inside.last().unwrap_or(&path).to_owned()
}

/// Writes a file whole or not at all, with the rights that the user's mask leaves. What is no regular file, such as a
/// terminal, is written as it is.
///
/// # Errors
/// If the directory, or what is there, cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), IoError> {
    let written = Place::of(path, 0o666).and_then(|place| place.write(bytes));
    written.map_err(IoError::at("write", path))
}

/// The place that a file is written to.
#[derive(Debug)]
pub(super) enum Place {
    /// Beside the file that it will be, whose path follows.
    Beside(tempfile::NamedTempFile, PathBuf),
    /// The file itself: a device or a pipe cannot be replaced.
    Itself(File),
}

impl Place {
    /// Finds the place for a file with that mode, less what the user's mask takes away. What is there stays as it is.
    pub(super) fn of(path: &Path, mode: u32) -> std::io::Result<Self> {
        // What is open already, as /dev/stdout is: another file in its place would not be where it leads.
        if ["/dev", "/proc"].iter().any(|open| path.starts_with(open)) {
            return Ok(Self::Itself(File::options().append(true).open(path)?));
        }
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match fs::metadata(&target) {
            Ok(there) if there.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Ok(there) if !there.is_file() => {
                announce(&target, End::Reader);
                return Ok(Self::Itself(File::options().write(true).open(target)?));
            }
            _ => {}
        }
        let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().permissions(fs::Permissions::from_mode(mode)).tempfile_in(dir)?;
        Ok(Self::Beside(file, target))
    }

    /// The file, to be written.
    pub(super) fn file(&self) -> &File {
        match self {
            Self::Beside(file, _) => file.as_file(),
            Self::Itself(file) => file,
        }
    }

    /// Gives what was written its name.
    pub(super) fn keep(self) -> std::io::Result<()> {
        match self {
            Self::Beside(file, target) => Ok(file.persist(target).map(drop)?),
            Self::Itself(_) => Ok(()),
        }
    }

    pub(super) fn write(self, bytes: &[u8]) -> std::io::Result<()> {
        self.file().write_all(bytes)?;
        self.keep()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_or_absent_and_have_the_masks_rights() {
        let dir = tempfile::tempdir().expect("a directory");
        let names = || fs::read_dir(dir.path()).expect("a directory").count();
        let path = dir.path().join("report");
        let look = || Place::of(&path, 0o666).map(drop);
        look().expect("it can be written");
        assert_eq!(names(), 0, "looking leaves nothing");
        write_whole(&path, b"one").expect("it can be written");
        look().expect("it can be written again");
        assert_eq!(fs::read(&path).expect("a file"), b"one", "looking changes nothing");
        // As any file that is made the usual way.
        let usual = dir.path().join("usual");
        File::create(&usual).expect("a file");
        let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode();
        assert_eq!(mode(&path), mode(&usual));
        // Through a link, which stays one.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("report", &link).expect("a link");
        write_whole(&link, b"two").expect("it can be written");
        assert_eq!(fs::read(&path).expect("a file"), b"two");
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
    }

    #[test]
    fn waiting_for_a_pipe_is_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let (pipe, file) = (dir.path().join("pipe"), dir.path().join("file"));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .expect("a pipe");
        fs::write(&file, "").expect("a file");
        let said = waiting(&pipe, End::Writer).expect("it is a pipe");
        assert!(
            said.starts_with("gnomon: waiting for a program to write to the pipe /") && said.ends_with("/pipe"),
            "{said}"
        );
        assert!(waiting(&pipe, End::Reader).is_some_and(|said| said.contains("to read the pipe")));
        assert_eq!([waiting(&file, End::Writer), waiting(dir.path(), End::Writer)], [None, None]);
    }

    #[test]
    fn a_lock_that_another_has_is_waited_for_with_a_word() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("lock");
        let [one, other] = [(); 2].map(|()| File::create(&path).expect("a file"));
        lock_or(&one, || panic!("it is free")).expect("locked");
        let mut has_waited = false;
        lock_or(&other, || {
            has_waited = true;
            drop(one);
        })
        .expect("locked");
        assert!(has_waited);
    }

    #[test]
    fn remedies_fit_the_error() {
        let of = |path: &str, kind: ErrorKind| remedy(Path::new(path), &kind.into());
        assert_eq!(of("/nowhere/at/all", ErrorKind::NotFound), "check the path: /nowhere does not exist");
        assert_eq!(of("missing", ErrorKind::NotFound), "check the path");
        assert_eq!(of("/proc/x", ErrorKind::StorageFull), "make room on the file system at /proc");
        assert_eq!(of("/dev/stdout", ErrorKind::StorageFull), "make room where standard output goes");
        assert!(of("/root/x", ErrorKind::PermissionDenied).contains("may access"));
        assert!(!of("missing", ErrorKind::NotFound).contains("room"));
    }

    #[test]
    fn a_file_is_on_a_file_system() {
        assert_eq!(mount_point(Path::new("/proc/self/status")), Path::new("/proc"));
        assert!(
            std::env::current_exe()
                .expect("a path")
                .starts_with(mount_point(&std::env::current_exe().expect("a path")))
        );
    }

    #[test]
    fn what_is_no_file_is_written_or_refused() {
        write_whole(Path::new("/dev/null"), b"gone").expect("it can be written");
        assert!(!fs::metadata("/dev/null").expect("a device").is_file());
        for path in ["/nowhere/at/all", "/tmp", "/dev/null/x"] {
            assert!(
                Place::of(Path::new(path), 0o666).is_err() && write_whole(Path::new(path), b"x").is_err(),
                "{path}"
            );
        }
    }
}
