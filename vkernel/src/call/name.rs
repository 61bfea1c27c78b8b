//! Calls about names of files.

use super::file::birth;
use super::{Args, CURRENT, last};
use crate::errno::{Errno, Result};
use crate::fs::path::{self, Last, Place, Position};
use crate::fs::{Attribute, Kind, New, Node, memory::MemoryNode};
use crate::task::Task;
use crate::task::credentials::{Birth, Capability, Credentials, EXECUTE, READ, WRITE};
use crate::task::timers::{SECOND, time_of_day};
use alloc::string::String;
use alloc::sync::Arc;
use linux_raw_sys::general as linux;

/// The directory and the name of something new.
fn new_name(task: &Task, fd: u64, at: u64, is_directory: bool) -> Result<(Arc<Place>, String, Position)> {
    let path = task.path(at)?;
    let position = task.position();
    let start = task.start(fd, &position, &path)?;
    let trimmed = if is_directory && path.len() > 1 { path.trim_end_matches('/') } else { &path };
    let (directory, name) = position.absent(&start, if trimmed.is_empty() { "/" } else { trimmed })?;
    if path.ends_with('/') && !is_directory {
        return Err(Errno::NOENT);
    }
    Ok((directory, name, position))
}

/// The directory and the name of something that is there.
fn old_name(task: &Task, fd: u64, at: u64) -> Result<(Arc<Place>, String)> {
    let path = task.path(at)?;
    let position = task.position();
    position.name(&task.start(fd, &position, &path)?, &path)
}

/// Checks that a user may remove a name of a directory.
fn check_removal(user: &Credentials, directory: &Place, name: &str) -> Result<()> {
    user.check_removal(&directory.node.status(), &directory.node.lookup(name)?.status())
}

pub(super) fn make_directory(task: &Task, [fd, path, mode, ..]: Args) -> Result<u64> {
    let (directory, name, position) = new_name(task, fd, path, true)?;
    directory.node.create(&name, New::Directory, birth(&position, &directory, true, mode as u32 & 0o1777)?)?;
    Ok(0)
}

pub(super) fn make_node(task: &Task, [fd, path, mode, device, ..]: Args) -> Result<u64> {
    let new = match mode as u32 & linux::S_IFMT {
        0 | linux::S_IFREG => New::File,
        linux::S_IFIFO => New::Pipe,
        linux::S_IFCHR => New::Device(device),
        linux::S_IFSOCK => New::Socket,
        linux::S_IFDIR | linux::S_IFBLK => return Err(Errno::PERM),
        _ => return Err(Errno::INVAL),
    };
    let (directory, name, position) = new_name(task, fd, path, false)?;
    let birth = birth(&position, &directory, false, mode as u32)?;
    if matches!(new, New::Device(_)) {
        position.user.need(Capability::Mknod)?;
    }
    directory.node.create(&name, new, birth)?;
    Ok(0)
}

pub(super) fn unlink(task: &Task, [fd, path, flags, ..]: Args) -> Result<u64> {
    if flags & !u64::from(linux::AT_REMOVEDIR) != 0 {
        return Err(Errno::INVAL);
    }
    let is_directory = flags & u64::from(linux::AT_REMOVEDIR) != 0;
    let (directory, name) = old_name(task, fd, path)?;
    check_removal(&task.credentials(), &directory, &name)?;
    if task.path(path)?.ends_with('/') && !is_directory {
        return Err(Errno::NOTDIR);
    }
    directory.node.unlink(&name, is_directory)?;
    Ok(0)
}

pub(super) fn symlink(task: &Task, [target, fd, path, ..]: Args) -> Result<u64> {
    let target = task.path(target)?;
    if target.is_empty() {
        return Err(Errno::NOENT);
    }
    let (directory, name, position) = new_name(task, fd, path, false)?;
    let birth = Birth { mode: 0o777, ..birth(&position, &directory, false, 0)? };
    directory.node.create(&name, New::Link(target), birth)?;
    Ok(0)
}

pub(super) fn link(task: &Task, [old_fd, old, fd, path, flags, _]: Args) -> Result<u64> {
    if flags & !u64::from(linux::AT_SYMLINK_FOLLOW | linux::AT_EMPTY_PATH) != 0 {
        return Err(Errno::INVAL);
    }
    let follows = if flags & u64::from(linux::AT_SYMLINK_FOLLOW) != 0 { Last::Follow } else { Last::Keep };
    let place = task.place(old_fd, old, follows, flags)?;
    let (directory, name, position) = new_name(task, fd, path, false)?;
    position.user.check(&directory.node.status(), WRITE | EXECUTE)?;
    directory.node.link(&name, &place.node)?;
    Ok(0)
}

pub(super) fn rename(task: &Task, [old_fd, old, fd, path, flags, _]: Args) -> Result<u64> {
    const KEEPS: u64 = linux::RENAME_NOREPLACE as u64;
    const EXCHANGES: u64 = linux::RENAME_EXCHANGE as u64;
    if flags & !(KEEPS | EXCHANGES) != 0 || flags == KEEPS | EXCHANGES {
        return Err(Errno::INVAL);
    }
    let (from, name) = old_name(task, old_fd, old)?;
    let new_path = task.path(path)?;
    let position = task.position();
    let start = task.start(fd, &position, &new_path)?;
    let (to, new_name) = match position.name(&start, &new_path) {
        Err(Errno::NOENT) => position.absent(&start, new_path.trim_end_matches('/'))?,
        found => found?,
    };
    // A directory does not become a part of itself.
    let moved = from.node.lookup(&name)?;
    let mut above = Some(&to);
    while let Some(place) = above {
        if Arc::ptr_eq(&place.node, &moved) {
            return Err(Errno::INVAL);
        }
        above = place.parent.as_ref();
    }
    let user = &position.user;
    check_removal(user, &from, &name)?;
    let is_directory = |node: &Arc<dyn Node>| node.status().kind == Kind::Directory;
    let old = to.node.lookup(&new_name).ok();
    match &old {
        Some(_) if flags == KEEPS => return Err(Errno::EXIST),
        Some(_) => check_removal(user, &to, &new_name)?,
        None => user.check(&to.node.status(), WRITE | EXECUTE)?,
    }
    // A directory's `..` changes with its parent.
    if !Arc::ptr_eq(&from.node, &to.node) {
        let exchanged = old.filter(|_| flags == EXCHANGES);
        for node in [Some(&moved), exchanged.as_ref()].into_iter().flatten().filter(|node| is_directory(node)) {
            user.check(&node.status(), WRITE)?;
        }
    }
    from.node.rename(&name, &to.node, &new_name, flags as u32)?;
    Ok(0)
}

pub(super) fn read_link(task: &Task, [fd, path, to, bytes, ..]: Args) -> Result<u64> {
    if bytes == 0 {
        return Err(Errno::INVAL);
    }
    let place = task.place(fd, path, Last::Keep, u64::from(linux::AT_EMPTY_PATH))?;
    let target = place.node.target()?;
    let count = target.len().min(bytes as usize);
    task.space.put_bytes(to, &target.as_bytes()[..count])?;
    Ok(count as u64)
}

/// Flags of calls that take a descriptor and a path.
const AT_FLAGS: u64 = linux::AT_SYMLINK_NOFOLLOW as u64 | linux::AT_EMPTY_PATH as u64;

pub(super) fn access(task: &Task, [fd, path, mode, flags, ..]: Args) -> Result<u64> {
    if mode & !u64::from(READ | WRITE | EXECUTE) != 0 || flags & !(AT_FLAGS | u64::from(linux::AT_EACCESS)) != 0 {
        return Err(Errno::INVAL);
    }
    let mut position = task.position();
    if flags & u64::from(linux::AT_EACCESS) == 0 {
        position.user = Arc::new(position.user.of_real_ids());
    }
    let user = Arc::clone(&position.user);
    let status = task.place_from(position, fd, path, last(flags), flags)?.node.status();
    user.check(&status, mode as u32).map(|()| 0)
}

/// Changes a node's permissions.
pub(super) fn change_mode(task: &Task, node: &dyn Node, mode: u32) -> Result<u64> {
    let mode = task.credentials().mode(&node.status(), mode)?;
    node.set(Attribute::Mode(mode)).map(|()| 0)
}

pub(super) fn set_mode(task: &Task, [fd, path, mode, flags, ..]: Args) -> Result<u64> {
    if flags & !AT_FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    let place = task.place(fd, path, last(flags), flags)?;
    if place.node.status().kind == Kind::Link {
        return Err(Errno::OPNOTSUPP);
    }
    change_mode(task, &*place.node, mode as u32)
}

/// Changes a node's owner and group, as far as they are not -1.
pub(super) fn change_owner(task: &Task, node: &dyn Node, uid: u64, gid: u64) -> Result<u64> {
    let known = |id: u64| Some(id as u32).filter(|id| *id != u32::MAX);
    let status = node.status();
    let mode = task.credentials().owner(&status, known(uid), known(gid))?;
    node.set(Attribute::Owner(known(uid), known(gid)))?;
    if mode != status.mode {
        node.set(Attribute::Mode(mode))?;
    }
    Ok(0)
}

pub(super) fn set_owner(task: &Task, [fd, path, uid, gid, flags, _]: Args) -> Result<u64> {
    if flags & !AT_FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    change_owner(task, &*task.place(fd, path, last(flags), flags)?.node, uid, gid)
}

pub(super) fn set_times(task: &Task, [fd, path, times, flags, ..]: Args) -> Result<u64> {
    if flags & !AT_FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    const NOW: i64 = linux::UTIME_NOW as i64;
    const OMIT: i64 = linux::UTIME_OMIT as i64;
    let now = time_of_day();
    let mut is_now = true;
    let (access, change) = if times == 0 {
        (Some(now), Some(now))
    } else {
        let words = task.space.get::<[[i64; 2]; 2]>(times)?;
        if words.iter().all(|[_, nanoseconds]| *nanoseconds == OMIT) {
            return Ok(0);
        }
        is_now = words.iter().all(|[_, nanoseconds]| *nanoseconds == NOW);
        let [access, change] = words.map(|[seconds, nanoseconds]| match nanoseconds {
            NOW => Ok(Some(now)),
            OMIT => Ok(None),
            0..1_000_000_000 => {
                Ok(Some((seconds.max(0) as u64).saturating_mul(SECOND).saturating_add(nanoseconds as u64)))
            }
            _ => Err(Errno::INVAL),
        });
        (access?, change?)
    };
    let node = if path == 0 {
        task.file(fd)?.node()?.clone()
    } else {
        Arc::clone(&task.place(fd, path, last(flags), flags)?.node)
    };
    let (user, status) = (task.credentials(), node.status());
    match user.check_owner(&status) {
        // The present time may be set by a user who could write.
        Err(_) if is_now => user.check(&status, WRITE)?,
        checked => checked?,
    }
    node.set(Attribute::Times(access, change)).map(|()| 0)
}

pub(super) fn current_directory(task: &Task, [to, bytes, ..]: Args) -> Result<u64> {
    let position = task.position();
    let mut path = position.current.path(&position.root).into_bytes();
    path.push(0);
    if path.len() as u64 > bytes {
        return Err(Errno::RANGE);
    }
    task.space.put_bytes(to, &path)?;
    Ok(path.len() as u64)
}

fn enter(task: &Task, place: Arc<Place>) -> Result<u64> {
    let status = place.node.status();
    if status.kind != Kind::Directory {
        return Err(Errno::NOTDIR);
    }
    task.credentials().check(&status, EXECUTE)?;
    task.thread.position.lock().lock().current = place;
    Ok(0)
}

pub(super) fn change_directory(task: &Task, [path, ..]: Args) -> Result<u64> {
    enter(task, task.place(CURRENT, path, Last::Follow, 0)?)
}

pub(super) fn change_directory_open(task: &Task, [fd, ..]: Args) -> Result<u64> {
    enter(task, task.file(fd)?.place.clone().ok_or(Errno::NOTDIR)?)
}

pub(super) fn change_root(task: &Task, [path, ..]: Args) -> Result<u64> {
    let place = task.place(CURRENT, path, Last::Follow, 0)?;
    let status = place.node.status();
    if status.kind != Kind::Directory {
        return Err(Errno::NOTDIR);
    }
    let user = task.credentials();
    user.check(&status, EXECUTE)?;
    user.need(Capability::SysChroot)?;
    task.thread.position.lock().lock().root = place;
    Ok(0)
}

#[expect(clippy::unnecessary_wraps, reason = "as other calls")]
pub(super) fn set_mask(task: &Task, [mask, ..]: Args) -> Result<u64> {
    let position = task.thread.position.lock();
    let old = core::mem::replace(&mut position.lock().mask, mask as u32 & 0o777);
    Ok(u64::from(old))
}

pub(super) fn mount(task: &Task, [source, target, kind, flags, ..]: Args) -> Result<u64> {
    const CHANGES: u32 =
        linux::MS_REMOUNT | linux::MS_PRIVATE | linux::MS_SHARED | linux::MS_SLAVE | linux::MS_UNBINDABLE;
    task.need(Capability::SysAdmin)?;
    if flags & u64::from(CHANGES) != 0 {
        return Ok(0);
    }
    let place = task.place(CURRENT, target, Last::Follow, 0)?;
    let root: Arc<dyn Node> = match task.path(kind)?.as_str() {
        "tmpfs" | "ramfs" => MemoryNode::root(0o1777),
        "proc" => crate::boot::proc_root(),
        "devtmpfs" => crate::boot::dev_root(),
        "9p" => crate::share::root(&task.path(source)?)?,
        _ => return Err(Errno::NODEV),
    };
    path::mount(&place.node, root);
    Ok(0)
}

pub(super) fn unmount(task: &Task, [target, ..]: Args) -> Result<u64> {
    task.need(Capability::SysAdmin)?;
    let place = task.place(CURRENT, target, Last::Follow, 0)?;
    path::unmount(&place.node).map(|()| 0)
}
