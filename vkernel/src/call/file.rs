//! Calls about open files.

use super::{Args, CURRENT, last, name};
use crate::errno::{Errno, Result};
use crate::fs;
use crate::fs::descriptors::{Content, OpenFile, is_directory};
use crate::fs::memory::MemoryNode;
use crate::fs::path::{Last, Place, Position, Target};
use crate::fs::{Attribute, Kind, New, Node, Status, System, pipe};
use crate::memory::user::{bytes_of, zeroed};
use crate::task::Task;
use crate::task::credentials::{Birth, Credentials, EXECUTE, READ, WRITE};
use crate::task::timers::SECOND;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::{general as linux, ioctl};

/// Handles `openat2`, without the flags that restrict how a path is resolved.
pub(super) async fn open_extended(task: &mut Task, [fd, path, how, bytes, ..]: Args) -> Result<u64> {
    const LEAST: u64 = 24;
    const KNOWN: u64 = 0x7fff_ffff;
    if bytes < LEAST {
        return Err(Errno::INVAL);
    }
    if bytes > 4096 {
        return Err(Errno::TOOBIG);
    }
    let [flags, mode, resolve] = task.space.get::<[u64; 3]>(how)?;
    let mut rest = alloc::vec![0; (bytes - LEAST) as usize];
    task.space.get_bytes(how + LEAST, &mut rest)?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Errno::TOOBIG);
    }
    let makes = flags as u32 & linux::O_CREAT != 0 || flags as u32 & TEMPORARY == TEMPORARY;
    if flags & !KNOWN != 0 || mode & !0o7777 != 0 || mode != 0 && !makes || resolve != 0 {
        return Err(Errno::INVAL);
    }
    open(task, [fd, path, flags, mode, 0, 0]).await
}

pub(super) async fn open(task: &mut Task, [fd, path, flags, mode, ..]: Args) -> Result<u64> {
    let path = task.path(path)?;
    let flags = flags as u32;
    if flags & TEMPORARY == TEMPORARY {
        return open_temporary(task, fd, &path, flags, mode as u32);
    }
    if flags & (linux::O_CREAT | linux::O_DIRECTORY) == linux::O_CREAT | linux::O_DIRECTORY {
        return Err(Errno::INVAL);
    }
    let position = task.position();
    let start = task.start(fd, &position, &path)?;
    let mut is_new = false;
    let keeps_link =
        flags & linux::O_NOFOLLOW != 0 || flags & (linux::O_CREAT | linux::O_EXCL) == linux::O_CREAT | linux::O_EXCL;
    let place = match position.find(&start, &path, if keeps_link { Last::Keep } else { Last::Follow })? {
        Target::Present(_) if flags & linux::O_CREAT != 0 && flags & linux::O_EXCL != 0 => return Err(Errno::EXIST),
        Target::Present(place) => place,
        Target::Absent(..) if flags & linux::O_CREAT == 0 => return Err(Errno::NOENT),
        Target::Absent(_, _) if path.ends_with('/') => return Err(Errno::ISDIR),
        Target::Absent(directory, name) => {
            let birth = birth(&position, &directory, false, mode as u32)?;
            match directory.node.create(&name, New::File, birth) {
                Ok(_) => {
                    is_new = true;
                    directory.child(&name)?
                }
                // Another process was faster.
                Err(Errno::EXIST) if flags & linux::O_EXCL == 0 => directory.child(&name)?,
                Err(why) => return Err(why),
            }
        }
    };
    let user = if is_new { None } else { Some(&*position.user) };
    let file = open_place(place, flags, user)?;
    if let Some(pipe) = file.stream().and_then(|stream| stream.as_pipe()) {
        let is_nonblocking = file.is_nonblocking();
        crate::task::wait::interruptible(&task.thread, pipe.opened(is_nonblocking)).await??;
    }
    task.add_file(file, flags & linux::O_CLOEXEC != 0)
}

/// `O_TMPFILE`.
const TEMPORARY: u32 = linux::__O_TMPFILE | linux::O_DIRECTORY;

/// Opens a new file without a name, in the file system of a directory.
fn open_temporary(task: &Task, fd: u64, path: &str, flags: u32, mode: u32) -> Result<u64> {
    if flags & linux::O_ACCMODE == linux::O_RDONLY || flags & linux::O_CREAT != 0 {
        return Err(Errno::INVAL);
    }
    let position = task.position();
    let directory = position.present(&task.start(fd, &position, path)?, path, Last::Follow)?;
    if directory.node.status().kind != Kind::Directory {
        return Err(Errno::NOTDIR);
    }
    let birth = birth(&position, &directory, false, mode)?;
    let node = MemoryNode::unnamed(Some(directory.node.as_memory().ok_or(Errno::OPNOTSUPP)?), birth);
    let name = alloc::format!("#{} (deleted)", node.status().id.1);
    let place = Arc::new(Place { parent: Some(directory), name, node: Arc::clone(&node) });
    let file = OpenFile::new(Content::Node(node), Some(place), flags & !TEMPORARY);
    task.add_file(file, flags & linux::O_CLOEXEC != 0)
}

/// Returns the mode and the owner of a new node, if the directory lets the user make one.
pub(super) fn birth(position: &Position, directory: &Place, is_directory: bool, mode: u32) -> Result<Birth> {
    let status = directory.node.status();
    position.user.check(&status, WRITE | EXECUTE)?;
    Ok(position.user.birth(&status, is_directory, mode & 0o7777 & !position.mask))
}

/// Checks that a user may open a node.
fn check_open(user: &Credentials, status: &Status, flags: u32) -> Result<()> {
    let access = match flags & linux::O_ACCMODE {
        linux::O_RDONLY => READ,
        linux::O_WRONLY => WRITE,
        _ => READ | WRITE,
    };
    let truncates = if flags & linux::O_TRUNC != 0 { WRITE } else { 0 };
    user.check(status, access | truncates)?;
    if flags & linux::O_NOATIME != 0 { user.check_owner(status) } else { Ok(()) }
}

/// Opens the node at a place, with the rights of a user if it is not a new one.
fn open_place(place: Arc<Place>, flags: u32, user: Option<&Credentials>) -> Result<Arc<OpenFile>> {
    let status = place.node.status();
    let writes = flags & linux::O_ACCMODE != linux::O_RDONLY;
    let is_path = flags & linux::O_PATH != 0;
    match status.kind {
        Kind::Link if !is_path => return Err(Errno::LOOP),
        Kind::Directory if (writes || flags & linux::O_CREAT != 0) && !is_path => return Err(Errno::ISDIR),
        Kind::Directory => {}
        _ if flags & linux::O_DIRECTORY != 0 => return Err(Errno::NOTDIR),
        Kind::Socket if !is_path => return Err(Errno::NXIO),
        _ => {}
    }
    if let Some(user) = user.filter(|_| !is_path) {
        check_open(user, &status, flags)?;
    }
    let stream = if is_path { None } else { place.node.open(flags)? };
    let content = match stream {
        Some(stream) => Content::Stream(stream),
        None => {
            if flags & linux::O_TRUNC != 0 && status.kind == Kind::File && !is_path {
                place.node.set(Attribute::Bytes(0))?;
            }
            Content::Node(Arc::clone(&place.node))
        }
    };
    Ok(OpenFile::new(content, Some(place), flags))
}

/// Does what goes with a descriptor's end: the process has no lock of the file any more.
pub(super) fn closed(task: &Task, file: Arc<OpenFile>) {
    fs::lock::process_closes(task.thread.process.pid, &file);
    let is_socket = file.is_socket();
    drop(file);
    if is_socket {
        fs::socket::flight::collect();
    }
}

pub(super) fn close(task: &Task, [fd, ..]: Args) -> Result<u64> {
    // The file may go with it, and wakes others then.
    let file = task.files().lock().close(fd as u32)?;
    closed(task, file);
    Ok(0)
}

/// `CLOSE_RANGE_UNSHARE`.
const UNSHARES: u32 = 1 << 1;
/// `CLOSE_RANGE_CLOEXEC`.
const CLOSES_AT_EXEC: u32 = 1 << 2;

pub(super) fn close_range(task: &Task, [first, last, flags, ..]: Args) -> Result<u64> {
    let (first, last) = (u64::from(first as u32), u64::from(last as u32));
    if flags & !u64::from(CLOSES_AT_EXEC | UNSHARES) != 0 || first > last {
        return Err(Errno::INVAL);
    }
    if flags & u64::from(UNSHARES) != 0 {
        let own = Arc::new(crate::sync::Mutex::new(task.files().lock().clone()));
        *task.thread.files.lock() = own;
    }
    let files = task.files();
    let numbers = files.lock().numbers();
    for fd in numbers.into_iter().filter(|fd| (first..=last).contains(&u64::from(*fd))) {
        if flags & u64::from(CLOSES_AT_EXEC) != 0 {
            files.lock().set_closes_at_exec(fd, true)?;
        } else {
            let file = files.lock().close(fd)?;
            closed(task, file);
        }
    }
    Ok(0)
}

pub(super) fn seek(task: &Task, [fd, offset, whence, ..]: Args) -> Result<u64> {
    let file = task.file(fd)?;
    let node = file.node()?;
    if whence as u32 != linux::SEEK_SET && whence as u32 != linux::SEEK_CUR {
        node.refresh()?;
    }
    let mut at = file.offset.lock();
    let bytes = || node.status().bytes;
    let from = match whence as u32 {
        linux::SEEK_SET => 0,
        linux::SEEK_CUR => *at,
        linux::SEEK_END => bytes(),
        // All of a file is data.
        linux::SEEK_DATA if offset < bytes() => 0,
        linux::SEEK_HOLE if offset < bytes() => {
            *at = bytes();
            return Ok(*at);
        }
        linux::SEEK_DATA | linux::SEEK_HOLE => return Err(Errno::NXIO),
        _ => return Err(Errno::INVAL),
    };
    let new = from.checked_add_signed(offset as i64).filter(|new| *new <= i64::MAX as u64).ok_or(Errno::INVAL)?;
    *at = new;
    Ok(new)
}

/// Returns a description as programs get it.
fn encode(status: &Status) -> linux::stat {
    let mut stat = zeroed::<linux::stat>();
    stat.st_dev = status.id.0 as _;
    stat.st_ino = status.id.1 as _;
    stat.st_mode = status.kind.mode() | status.mode;
    stat.st_nlink = status.links as _;
    (stat.st_uid, stat.st_gid) = (status.uid, status.gid);
    stat.st_rdev = status.device as _;
    stat.st_size = status.bytes as _;
    stat.st_blksize = 4096;
    stat.st_blocks = (status.used / 512) as _;
    let [access, change, status_change] = status.times;
    (stat.st_atime, stat.st_atime_nsec) = ((access / SECOND) as _, (access % SECOND) as _);
    (stat.st_mtime, stat.st_mtime_nsec) = ((change / SECOND) as _, (change % SECOND) as _);
    (stat.st_ctime, stat.st_ctime_nsec) = ((status_change / SECOND) as _, (status_change % SECOND) as _);
    stat
}

pub(super) fn status(task: &Task, [fd, to, ..]: Args) -> Result<u64> {
    let status = fresh_status(&*task.file(fd)?)?;
    task.space.put(to, &encode(&status)).map(|()| 0)
}

/// The present description of an open file.
fn fresh_status(file: &OpenFile) -> Result<Status> {
    match (&file.content, &file.place) {
        (Content::Node(node), _) => node.refresh()?,
        (Content::Stream(_), Some(place)) => place.node.refresh()?,
        (Content::Stream(_), None) => {}
    }
    Ok(file.status())
}

pub(super) fn flush(task: &Task, [fd, ..]: Args, only_data: bool) -> Result<u64> {
    match task.file(fd)?.node() {
        Ok(node) => node.flush(only_data).map(|()| 0),
        Err(_) => Ok(0),
    }
}

/// The description that a descriptor and a path name.
fn status_of(task: &Task, fd: u64, path: u64, flags: u64) -> Result<Status> {
    let is_empty = flags & u64::from(linux::AT_EMPTY_PATH) != 0 && (path == 0 || task.path(path)?.is_empty());
    if is_empty && fd as i32 != linux::AT_FDCWD {
        return fresh_status(&*task.file(fd)?);
    }
    Ok(task.place(fd, path, last(flags), flags)?.node.status())
}

pub(super) fn status_at(task: &Task, [fd, path, to, flags, ..]: Args) -> Result<u64> {
    let status = status_of(task, fd, path, flags)?;
    task.space.put(to, &encode(&status)).map(|()| 0)
}

pub(super) fn status_extended(task: &Task, [fd, path, flags, mask, to, _]: Args) -> Result<u64> {
    const KNOWN: u32 =
        linux::AT_SYMLINK_NOFOLLOW | linux::AT_NO_AUTOMOUNT | linux::AT_EMPTY_PATH | linux::AT_STATX_SYNC_TYPE;
    let is_unknown = flags & !u64::from(KNOWN) != 0 || mask & u64::from(linux::STATX__RESERVED) != 0;
    if is_unknown || flags as u32 & linux::AT_STATX_SYNC_TYPE == linux::AT_STATX_SYNC_TYPE {
        return Err(Errno::INVAL);
    }
    let status = status_of(task, fd, path, flags)?;
    let mut statx = zeroed::<linux::statx>();
    statx.stx_mask = linux::STATX_BASIC_STATS;
    statx.stx_blksize = 4096;
    statx.stx_nlink = status.links;
    (statx.stx_uid, statx.stx_gid) = (status.uid, status.gid);
    statx.stx_mode = (status.kind.mode() | status.mode) as _;
    statx.stx_ino = status.id.1;
    statx.stx_size = status.bytes;
    statx.stx_blocks = status.used / 512;
    let time = |at: u64| {
        let mut time = zeroed::<linux::statx>().stx_atime;
        time.tv_sec = (at / SECOND) as _;
        time.tv_nsec = (at % SECOND) as _;
        time
    };
    statx.stx_atime = time(status.times[0]);
    statx.stx_mtime = time(status.times[1]);
    statx.stx_ctime = time(status.times[2]);
    (statx.stx_rdev_major, statx.stx_rdev_minor) = ((status.device >> 8 & 0xfff) as u32, (status.device & 0xff) as u32);
    statx.stx_dev_minor = status.id.0 as u32;
    task.space.put(to, &statx).map(|()| 0)
}

/// Describes a file system in memory.
fn in_memory() -> System {
    const TMPFS: u64 = 0x0102_1994;
    const NODES: u64 = 1 << 20;
    let (free, all) = crate::memory::frames::free_and_all();
    let (free, blocks) = (free as u64, all as u64);
    let name = crate::fs::MOST_NAME as u64;
    System { kind: TMPFS, block: 4096, blocks, free, available: free, files: NODES, free_files: NODES, name }
}

pub(super) fn system_status(task: &Task, path: Option<u64>, fd: u32, to: u64) -> Result<u64> {
    let node = match path {
        Some(path) => Some(Arc::clone(&task.place(CURRENT, path, Last::Follow, 0)?.node)),
        None => task.file(u64::from(fd))?.node().ok().cloned(),
    };
    let system = node.map_or(Ok(None), |node| node.system())?.unwrap_or_else(in_memory);
    let mut statfs = zeroed::<linux::statfs64>();
    statfs.f_type = system.kind as _;
    statfs.f_bsize = system.block as _;
    statfs.f_frsize = system.block as _;
    statfs.f_blocks = system.blocks as _;
    statfs.f_bfree = system.free as _;
    statfs.f_bavail = system.available as _;
    statfs.f_files = system.files as _;
    statfs.f_ffree = system.free_files as _;
    statfs.f_namelen = system.name as _;
    task.space.put(to, &statfs).map(|()| 0)
}

pub(super) fn entries(task: &Task, [fd, to, bytes, ..]: Args) -> Result<u64> {
    const HEADER: usize = 19;
    let file = task.file(fd)?;
    if !is_directory(&file) {
        return Err(Errno::NOTDIR);
    }
    let node = file.node()?;
    let own = node.status().id.1;
    let parent =
        file.place.as_ref().and_then(|place| place.parent.as_ref()).map_or(own, |parent| parent.node.status().id.1);
    let directories = [(".", own), ("..", parent)].map(|(name, node)| (name.into(), node, Kind::Directory));
    // The entries that are read at the beginning stay as they are until the next beginning: names may go meanwhile.
    let mut listing = file.listing.lock().clone();
    if *file.offset.lock() == 0 || listing.is_none() {
        let names = node.entries()?.into_iter().map(|entry| (entry.name, entry.node, entry.kind));
        listing = Some(Arc::new(directories.into_iter().chain(names).collect()));
        let before = core::mem::replace(&mut *file.listing.lock(), listing.clone());
        drop(before);
    }
    let all = listing.unwrap_or_default();
    let mut offset = file.offset.lock();
    let mut done = Vec::new();
    for (n, (name, node, kind)) in all.iter().enumerate().skip(*offset as usize) {
        let size = (HEADER + name.len() + 1).next_multiple_of(8);
        if done.len() + size > bytes as usize {
            if done.is_empty() {
                return Err(Errno::INVAL);
            }
            break;
        }
        let start = done.len();
        done.extend(bytes_of(node));
        done.extend(bytes_of(&(n as u64 + 1)));
        done.extend(bytes_of(&(size as u16)));
        done.push(kind.entry());
        done.extend(name.as_bytes());
        done.resize(start + size, 0);
        *offset = n as u64 + 1;
    }
    task.space.put_bytes(to, &done)?;
    Ok(done.len() as u64)
}

pub(super) fn duplicate(task: &Task, [fd, ..]: Args) -> Result<u64> {
    let file = task.file(fd)?;
    task.add_file(file, false)
}

pub(super) fn duplicate_to(task: &Task, [from, to, flags, ..]: Args) -> Result<u64> {
    if from == to || flags & !u64::from(linux::O_CLOEXEC) != 0 {
        return Err(Errno::INVAL);
    }
    let file = task.file(from)?;
    if to >= task.thread.process.limit(linux::RLIMIT_NOFILE) {
        return Err(Errno::BADF);
    }
    let old = task.files().lock().set(to as u32, file, flags != 0);
    if let Some(old) = old {
        closed(task, old);
    }
    Ok(to)
}

pub(super) fn control(task: &Task, [fd, command, argument, ..]: Args) -> Result<u64> {
    let file = task.file(fd)?;
    let files = task.files();
    match command as u32 {
        linux::F_DUPFD | linux::F_DUPFD_CLOEXEC => {
            let limit = task.thread.process.limit(linux::RLIMIT_NOFILE);
            if argument >= limit {
                return Err(Errno::INVAL);
            }
            let closes = command as u32 == linux::F_DUPFD_CLOEXEC;
            files.lock().add(file, closes, argument as u32, limit).map(u64::from)
        }
        linux::F_GETFD => files.lock().closes_at_exec(fd as u32).map(u64::from),
        linux::F_SETFD => {
            files.lock().set_closes_at_exec(fd as u32, argument & u64::from(linux::FD_CLOEXEC) != 0)?;
            Ok(0)
        }
        linux::F_GETFL => Ok(u64::from(file.flags())),
        linux::F_SETFL => {
            file.set_flags(argument as u32);
            Ok(0)
        }
        linux::F_SETOWN | linux::F_SETSIG | linux::F_GETOWN => Ok(0),
        linux::F_SETPIPE_SZ | linux::F_GETPIPE_SZ => Ok(64 << 10),
        linux::F_ADD_SEALS => Ok(0),
        _ => Err(Errno::INVAL),
    }
}

pub(super) fn device_control(task: &mut Task, [fd, request, argument, ..]: Args) -> Result<u64> {
    let file = task.file(fd)?;
    match request as u32 {
        ioctl::FIOCLEX => task.files().lock().set_closes_at_exec(fd as u32, true).map(|()| 0),
        ioctl::FIONCLEX => task.files().lock().set_closes_at_exec(fd as u32, false).map(|()| 0),
        ioctl::FIONBIO => {
            let is_on = task.space.get::<u32>(argument)? != 0;
            file.set_flags(if is_on { file.flags() | linux::O_NONBLOCK } else { file.flags() & !linux::O_NONBLOCK });
            Ok(0)
        }
        request => match file.stream() {
            Some(stream) => stream.ioctl(task, request, argument),
            None => Err(Errno::NOTTY),
        },
    }
}

pub(super) fn pipe(task: &Task, [to, flags, ..]: Args) -> Result<u64> {
    const KNOWN: u32 = linux::O_CLOEXEC | linux::O_NONBLOCK | linux::O_DIRECT;
    let flags = flags as u32;
    if flags & !KNOWN != 0 {
        return Err(Errno::INVAL);
    }
    let (reader, writer) = pipe::Pipe::pair();
    let closes = flags & linux::O_CLOEXEC != 0;
    let kept = flags & linux::O_NONBLOCK;
    let reads = task.add_file(OpenFile::of(reader, linux::O_RDONLY | kept), closes)?;
    let writes = task.add_file(OpenFile::of(writer, linux::O_WRONLY | kept), closes);
    let put = writes.and_then(|writes| {
        task.space.put(to, &[reads as u32, writes as u32]).inspect_err(|_| {
            let _ = close(task, [writes, 0, 0, 0, 0, 0]);
        })
    });
    if let Err(why) = put {
        let _ = close(task, [reads, 0, 0, 0, 0, 0]);
        return Err(why);
    }
    Ok(0)
}

fn resize(node: &dyn Node, bytes: u64) -> Result<u64> {
    if bytes > i64::MAX as u64 {
        return Err(Errno::INVAL);
    }
    node.set(Attribute::Bytes(bytes)).map(|()| 0)
}

pub(super) fn truncate_open(task: &Task, [fd, bytes, ..]: Args) -> Result<u64> {
    let file = task.file(fd)?;
    if !file.is_writable() {
        return Err(Errno::INVAL);
    }
    resize(&**file.node().map_err(|_| Errno::INVAL)?, bytes)
}

pub(super) fn truncate(task: &Task, [path, bytes, ..]: Args) -> Result<u64> {
    let place = task.place(CURRENT, path, Last::Follow, 0)?;
    let status = place.node.status();
    if status.kind == Kind::Directory {
        return Err(Errno::ISDIR);
    }
    task.credentials().check(&status, WRITE)?;
    resize(&*place.node, bytes)
}

pub(super) fn allocate(task: &Task, [fd, mode, offset, bytes, ..]: Args) -> Result<u64> {
    let file = task.file(fd)?;
    let node = file.node()?;
    let end = offset.checked_add(bytes).filter(|end| *end <= i64::MAX as u64 && bytes > 0).ok_or(Errno::INVAL)?;
    if !file.is_writable() {
        return Err(Errno::BADF);
    }
    match mode as u32 {
        0 => {
            node.refresh()?;
            if end > node.status().bytes { resize(&**node, end) } else { Ok(0) }
        }
        linux::FALLOC_FL_KEEP_SIZE => Ok(0),
        _ => Err(Errno::OPNOTSUPP),
    }
}

pub(super) fn memory_file(task: &Task, [_, flags, ..]: Args) -> Result<u64> {
    let content = Content::Node(MemoryNode::unnamed(None, Birth::root(0o777)));
    task.add_file(OpenFile::new(content, None, linux::O_RDWR), flags & u64::from(linux::MFD_CLOEXEC) != 0)
}

pub(super) fn set_mode(task: &Task, [fd, mode, ..]: Args) -> Result<u64> {
    match &task.file_not_path(fd)?.place {
        Some(place) => name::change_mode(task, &*place.node, mode as u32),
        None => Ok(0),
    }
}

pub(super) fn set_owner(task: &Task, [fd, uid, gid, ..]: Args) -> Result<u64> {
    match &task.file_not_path(fd)?.place {
        Some(place) => name::change_owner(task, &*place.node, uid, gid),
        None => Ok(0),
    }
}
