//! Unpacks an archive of a guest, which is not trusted: nothing is written outside of the target.
//!
//! Each name of the archive is walked from the target's directory on, one part at a time, without following links. So
//! neither `..` nor a link that the archive has made leads elsewhere. A file is written under a temporary name and
//! renamed when it is complete.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, mkdirat, openat, renameat};
use rustix::fs::{symlinkat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use tar::{Archive, EntryType};

/// Most bytes of a name.
const MOST_NAME: u64 = 64 << 10;
/// Most bytes behind the archive's end, with which its writer fills a block.
const MOST_FILLING: u64 = 1 << 20;
/// The rights that files and directories may have. Those that act for another user are not a guest's to give.
const RIGHTS: u32 = 0o777;

/// The reason why an archive cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The archive cannot be read, or ends early.
    #[error("the guest's archive is damaged: {0}")]
    Archive(#[from] io::Error),
    /// The archive has something that was not asked for.
    #[error("the guest's archive has `{}`, which {why}", name.escape_default())]
    Unfit {
        /// The name in the archive.
        name: String,
        /// The reason.
        why: &'static str,
    },
}

/// The directory that the target is in, and the target's name there.
struct Target {
    parent: OwnedFd,
    name: OsString,
    path: PathBuf,
    /// Counts temporary names.
    count: u32,
}

fn no_follow(more: OFlags) -> OFlags {
    more | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Opens a directory below another one, without following links.
fn enter(at: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(at, name, no_follow(OFlags::RDONLY | OFlags::DIRECTORY), Mode::empty())
}

/// The attributes of a file or directory.
#[derive(Clone, Copy)]
struct Attributes {
    mode: u32,
    seconds: i64,
}

impl Attributes {
    fn of(header: &tar::Header) -> io::Result<Self> {
        Ok(Self { mode: header.mode()? & RIGHTS, seconds: i64::try_from(header.mtime()?).unwrap_or_default() })
    }

    fn set(self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let time = Timespec { tv_sec: self.seconds, tv_nsec: 0 };
        fchmod(file, Mode::from_raw_mode(self.mode))?;
        futimens(file, &Timestamps { last_access: time, last_modification: time })
    }
}

impl Target {
    fn open(path: &Path) -> Result<Self, UnpackError> {
        let failed = |source| UnpackError::Write { path: path.into(), source };
        let name = path.file_name().ok_or_else(|| failed(io::Error::other("it has no name of its own")))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = openat(CWD, parent, flags, Mode::empty()).map_err(|why| failed(why.into()))?;
        Ok(Self { parent, name: name.into(), path: path.into(), count: 0 })
    }

    /// Returns the names that lead to an entry from the target's directory on, and how the user knows it.
    fn way(&self, inner: &[OsString]) -> (Vec<OsString>, PathBuf) {
        let names = std::iter::once(&self.name).chain(inner).cloned().collect();
        (names, inner.iter().fold(self.path.clone(), |path, name| path.join(name)))
    }

    /// Opens the directory that an entry is in. Returns the entry's name there, too.
    fn folder(&self, inner: &[OsString]) -> Result<(OwnedFd, OsString), UnpackError> {
        let (mut names, path) = self.way(inner);
        let last = names.pop().unwrap_or_default();
        let walk = || -> io::Result<OwnedFd> {
            let start = self.parent.try_clone()?;
            names.iter().try_fold(start, |at, name| Ok(enter(at, name)?))
        };
        Ok((walk().map_err(|source| UnpackError::Write { path, source })?, last))
    }

    /// Makes something under a temporary name, and renames it. What is there is replaced, unless it is a directory.
    fn replace<T>(
        &mut self,
        inner: &[OsString],
        make: impl FnOnce(BorrowedFd<'_>, &OsStr) -> Result<T, UnpackError>,
    ) -> Result<T, UnpackError> {
        let (folder, name) = self.folder(inner)?;
        self.count += 1;
        let scratch = OsString::from(format!(".gnomon-cp-{}-{}", std::process::id(), self.count));
        let made = make(folder.as_fd(), &scratch).and_then(|made| {
            let renamed = renameat(&folder, &scratch, &folder, &name);
            renamed.map(|()| made).map_err(|why| UnpackError::Write { path: self.way(inner).1, source: why.into() })
        });
        if made.is_err() {
            let _ = unlinkat(&folder, &scratch, AtFlags::empty());
        }
        made
    }

    /// Writes a file of so many bytes.
    fn file(
        &mut self,
        inner: &[OsString],
        (from, bytes): (&mut dyn Read, u64),
        attributes: Attributes,
    ) -> Result<(), UnpackError> {
        let path = self.way(inner).1;
        let failed = |source| UnpackError::Write { path: path.clone(), source };
        self.replace(inner, |folder, name| {
            let flags = no_follow(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL);
            let file = openat(folder, name, flags, Mode::RUSR | Mode::WUSR).map_err(|why| failed(why.into()))?;
            let mut file = File::from(file);
            copy_exactly(from, bytes, &mut file, failed)?;
            attributes.set(file.as_fd()).map_err(|why| failed(why.into()))
        })
    }

    /// Makes a directory. Returns whether it was not there.
    fn directory(&self, inner: &[OsString]) -> Result<bool, UnpackError> {
        let failed = |why: Errno| UnpackError::Write { path: self.way(inner).1, source: why.into() };
        let (folder, name) = self.folder(inner)?;
        match mkdirat(&folder, &name, Mode::RWXU) {
            Ok(()) => Ok(true),
            // A link to a directory is not one.
            Err(Errno::EXIST) => enter(folder, &name).map(|_| false).map_err(failed),
            Err(why) => Err(failed(why)),
        }
    }
}

/// Copies so many bytes; fewer are an error.
fn copy_exactly(
    from: &mut dyn Read,
    bytes: u64,
    to: &mut File,
    failed: impl Fn(io::Error) -> UnpackError,
) -> Result<(), UnpackError> {
    let mut buffer = vec![0; 64 << 10];
    let mut left = bytes;
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = match from.read(&mut buffer[..most]) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => count,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
            Err(why) => return Err(why.into()),
        };
        io::Write::write_all(to, &buffer[..count]).map_err(&failed)?;
        left -= count as u64;
    }
    Ok(())
}

/// Returns the parts of a name of the archive. Those of `.` are none.
fn parts(name: &[u8]) -> Result<Vec<OsString>, UnpackError> {
    let unfit =
        || UnpackError::Unfit { name: String::from_utf8_lossy(name).into(), why: "would be outside of the target" };
    let all = Path::new(OsStr::from_bytes(name)).components().filter_map(|part| match part {
        Component::CurDir => None,
        Component::Normal(name) => Some(Ok(name.to_owned())),
        Component::ParentDir | Component::RootDir | Component::Prefix(_) => Some(Err(unfit())),
    });
    all.collect()
}

/// Reads a name that has an entry of its own.
fn long_name(from: &mut dyn Read) -> Result<Vec<u8>, UnpackError> {
    let mut name = Vec::new();
    let read = from.take(MOST_NAME + 1).read_to_end(&mut name)?;
    if read as u64 > MOST_NAME {
        return Err(io::Error::other("a name is too long").into());
    }
    while name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

/// The wanted content of an archive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// One file, of any name.
    File,
    /// One file of any name, or a directory, which is called `.`, and all that is in it.
    Tree,
}

/// Entries of an archive that were left out.
#[derive(PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// The name of the first one. The others' are not kept: an archive may have any number of them.
    pub first: String,
    /// The number of entries.
    pub count: u64,
}

/// Unpacks an archive as `target`, whose directory exists. Returns the entries that are neither files, nor directories,
/// nor links, if there are any: those are left out.
///
/// # Errors
/// [`UnpackError`]. Files that were complete before stay.
pub fn unpack(archive: impl Read, target: &Path, wanted: Wanted) -> Result<Option<LeftOut>, UnpackError> {
    let mut target = Target::open(target)?;
    let mut archive = Archive::new(archive);
    let (mut long, mut long_link) = (None, None);
    let (mut directories, mut left_out) = (Vec::new(), None);
    let (mut is_tree, mut has_file) = (false, false);
    // Raw: the library would read names of any length into memory.
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName => {
                long = Some(long_name(&mut entry)?);
                continue;
            }
            EntryType::GNULongLink => {
                long_link = Some(long_name(&mut entry)?);
                continue;
            }
            EntryType::XGlobalHeader => continue,
            _ => {}
        }
        let name = long.take().unwrap_or_else(|| entry.header().path_bytes().into_owned());
        let link = long_link.take().or_else(|| entry.header().link_name_bytes().map(|link| link.into_owned()));
        let unfit = |why| UnpackError::Unfit { name: String::from_utf8_lossy(&name).into(), why };
        let mut inner = parts(&name)?;
        let attributes = Attributes::of(entry.header())?;
        if has_file || inner.is_empty() && kind != EntryType::Directory {
            return Err(unfit("was not asked for"));
        }
        if !is_tree && kind != EntryType::Directory {
            // The only one, under the name that the user gave.
            inner.clear();
            has_file = true;
        }
        match kind {
            EntryType::Directory => {
                let is_first = inner.is_empty() && !is_tree;
                if wanted == Wanted::File || !is_tree && !is_first {
                    return Err(unfit("was not asked for"));
                }
                is_tree = true;
                if target.directory(&inner)? {
                    directories.push((inner, attributes));
                }
            }
            EntryType::Regular | EntryType::Continuous => {
                let bytes = entry.header().entry_size()?;
                target.file(&inner, (&mut entry, bytes), attributes)?;
            }
            EntryType::Symlink if is_tree => {
                let link = OsString::from_vec(link.unwrap_or_default());
                let path = target.way(&inner).1;
                target.replace(&inner, |folder, name| {
                    symlinkat(&link, folder, name)
                        .map_err(|why| UnpackError::Write { path: path.clone(), source: why.into() })
                })?;
            }
            EntryType::Link if is_tree => {
                // A copy: another name for a file of the user's is nothing that a guest may make.
                let (folder, name) = target.folder(&parts(&link.unwrap_or_default())?)?;
                let first = openat(folder, &name, no_follow(OFlags::RDONLY | OFlags::NONBLOCK), Mode::empty());
                let mut first = File::from(first.map_err(|_| unfit("is another name of a file that is not there"))?);
                let about = first.metadata()?;
                if !about.is_file() {
                    return Err(unfit("is another name of something that is not a file"));
                }
                target.file(&inner, (&mut first, about.len()), attributes)?;
            }
            _ if is_tree => {
                left_out
                    .get_or_insert_with(|| LeftOut { first: String::from_utf8_lossy(&name).into(), count: 0 })
                    .count += 1;
            }
            _ => return Err(unfit("is not a file")),
        }
    }
    if !is_tree && !has_file {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    // The innermost first: a directory without the right to write, or with an old time, has all that belongs into it.
    for (inner, attributes) in directories.into_iter().rev() {
        let (folder, name) = target.folder(&inner)?;
        let set = enter(folder, &name).and_then(|directory| attributes.set(directory.as_fd()));
        set.map_err(|why| UnpackError::Write { path: target.way(&inner).1, source: why.into() })?;
    }
    // A writer that cannot write its filling would fail.
    let _ = io::copy(&mut archive.into_inner().take(MOST_FILLING), &mut io::sink());
    Ok(left_out)
}

#[cfg(test)]
mod tests;
