//! Operations on files, each by a descriptor and at most a name of one of its entries.
//!
//! Descriptors of files that are not open are of the kind `O_PATH`. What such a descriptor cannot do itself goes by its
//! entry in `/proc/self/fd`, which is a link to the file and not to a path.

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid};
use rustix::fs::{UTIME_NOW, UTIME_OMIT, XattrFlags};
use rustix::io::{self, Errno};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A name is resolved in one directory: neither links nor `..` lead out of it.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Extended attributes that the client reaches have names that begin with this. Others belong to the host's kernel.
const USER: &[u8] = b"user.";
/// The longest extended attribute and the longest list of them that Linux has, in bytes.
pub const MOST_ATTRIBUTE: usize = 64 << 10;

/// The owner that new files are to have, as far as the user may give files away.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The user's number; `u32::MAX`: the server's own.
    pub user: u32,
    /// The group's number; `u32::MAX`: the server's own.
    pub group: u32,
}

/// The times that are to be set; `None` leaves one as it is.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Of the last access.
    pub accessed: Option<Time>,
    /// Of the last change of the content.
    pub modified: Option<Time>,
}

/// A time that a file is to have.
#[derive(Clone, Copy, Debug)]
pub enum Time {
    /// The present time.
    Now,
    /// Seconds since 1970, and nanoseconds.
    At(u64, u64),
}

/// The directory `/proc/self/fd`.
#[derive(Debug)]
pub struct Descriptors(OwnedFd);

impl Descriptors {
    /// Opens it.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open("/proc/self/fd", flags, Mode::empty()).map(Self)
    }

    /// Opens a file anew. The caller has checked that it is a regular file or a directory.
    pub(crate) fn reopen(&self, file: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(&self.0, entry(file.as_fd()), flags, Mode::empty())
    }

    /// Sets the rights of a file.
    pub(crate) fn set_mode(&self, file: impl AsFd, mode: u32) -> io::Result<()> {
        rustix::fs::chmodat(&self.0, entry(file.as_fd()), Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())
    }

    /// Sets the owner, the group, or both. With neither, only the time of the last change is set.
    pub(crate) fn set_owner(&self, file: impl AsFd, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        let (user, group) = (user.and_then(user_of), group.and_then(group_of));
        rustix::fs::chownat(&self.0, entry(file.as_fd()), user, group, AtFlags::empty())
    }

    /// Sets times.
    pub(crate) fn set_times(&self, file: impl AsFd, times: Times) -> io::Result<()> {
        let time = |time: Option<Time>| match time {
            None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            Some(Time::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            Some(Time::At(seconds, nanoseconds)) => Timespec {
                tv_sec: seconds as i64,
                // Larger numbers would be the two above.
                tv_nsec: nanoseconds.min(999_999_999) as _,
            },
        };
        let times = Timestamps { last_access: time(times.accessed), last_modification: time(times.modified) };
        rustix::fs::utimensat(&self.0, entry(file.as_fd()), &times, AtFlags::empty())
    }

    /// Makes a further name for a file.
    pub(crate) fn link(&self, file: impl AsFd, dir: impl AsFd, name: &[u8]) -> io::Result<()> {
        rustix::fs::linkat(&self.0, entry(file.as_fd()), dir, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// Reads the target of a symbolic link.
    pub(crate) fn target(&self, link: impl AsFd) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(link, c"", Vec::new())?.into_bytes())
    }

    /// Reads an extended attribute.
    pub(crate) fn attribute(&self, file: impl AsFd, name: &[u8]) -> io::Result<Vec<u8>> {
        check_attribute(name)?;
        let mut value = vec![0; MOST_ATTRIBUTE];
        let length = rustix::fs::getxattr(path(file.as_fd()), name, &mut value[..])?;
        Ok(fit(value, length))
    }

    /// Reads the names of extended attributes, each with a NUL behind it.
    pub(crate) fn attributes(&self, file: impl AsFd) -> io::Result<Vec<u8>> {
        let mut names = vec![0; MOST_ATTRIBUTE];
        let length = rustix::fs::listxattr(path(file.as_fd()), &mut names[..])?;
        let names = names[..length].split_inclusive(|byte| *byte == 0).filter(|name| name.starts_with(USER));
        Ok(names.flatten().copied().collect())
    }

    /// Sets an extended attribute, by the flags of `setxattr`. One that is replaced by nothing is removed: Linux asks so for it.
    pub(crate) fn set_attribute(&self, file: impl AsFd, name: &[u8], value: &[u8], flags: u32) -> io::Result<()> {
        check_attribute(name)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        if value.is_empty() && flags == XattrFlags::REPLACE {
            return rustix::fs::removexattr(path(file.as_fd()), name);
        }
        rustix::fs::setxattr(path(file.as_fd()), name, value, flags)
    }
}

/// A descriptor's entry in `/proc/self/fd`.
fn entry(file: BorrowedFd<'_>) -> String {
    file.as_raw_fd().to_string()
}

/// The calls for extended attributes take no directory.
fn path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn fit(mut bytes: Vec<u8>, length: usize) -> Vec<u8> {
    bytes.truncate(length);
    bytes.shrink_to_fit();
    bytes
}

fn check_attribute(name: &[u8]) -> io::Result<()> {
    if name.starts_with(USER) { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

fn user_of(user: u32) -> Option<Uid> {
    (user != u32::MAX).then(|| Uid::from_raw(user))
}

fn group_of(group: u32) -> Option<Gid> {
    (group != u32::MAX).then(|| Gid::from_raw(group))
}

/// Returns the type of a file.
pub(crate) fn type_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Finds the entry `name` of a directory. A symbolic link is found itself.
pub(crate) fn find(dir: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    rustix::fs::openat2(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), BENEATH)
}

/// Makes a regular file that is not there yet, and opens it.
pub(crate) fn create(dir: impl AsFd, name: &[u8], flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::openat2(dir, name, flags, Mode::from_raw_mode(mode & 0o7777), BENEATH)
}

/// Gives a new file its owner and its rights: those of the client, as far as the user of the server may.
pub(crate) fn adopt(descriptors: &Descriptors, file: impl AsFd, owner: Owner, mode: u32) -> io::Result<Stat> {
    let file = file.as_fd();
    let stat = rustix::fs::fstat(file)?;
    let (user, group) = (owner.user, owner.group);
    let differs = user != u32::MAX && user != stat.st_uid || group != u32::MAX && group != stat.st_gid;
    // Only root may give files away. For others they stay their own, whatever the guest asks for.
    let is_given = differs && descriptors.set_owner(file, Some(user), Some(group)).is_ok();
    let is_link = type_of(&stat) == FileType::Symlink;
    // A directory in one with the set-group-ID bit has it too. A change of the owner clears such bits.
    let kept = if type_of(&stat) == FileType::Directory { stat.st_mode & 0o2000 } else { 0 };
    let wanted = mode & 0o7777 | kept;
    if !is_link && (is_given || stat.st_mode & 0o7777 != wanted) {
        descriptors.set_mode(file, wanted)?;
    }
    rustix::fs::fstat(file)
}
