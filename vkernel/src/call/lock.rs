//! Calls that lock files.

use super::Args;
use crate::errno::{Errno, Result};
use crate::fs::descriptors::OpenFile;
use crate::fs::lock::{Kind, Lock, Owner, Request};
use crate::task::Task;
use crate::task::wait::interruptible;
use linux_raw_sys::general as linux;

/// `struct flock`, as far as it is read and written.
struct Record {
    kind: u32,
    whence: u32,
    start: i64,
    bytes: i64,
    pid: u32,
}

const BYTES: usize = 32;

fn read(task: &Task, at: u64) -> Result<Record> {
    let bytes = task.space.get::<[u8; BYTES]>(at)?;
    let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|n| bytes[at + n]));
    let half = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    Ok(Record { kind: half(0), whence: half(2), start: word(8), bytes: word(16), pid: word(24) as u32 })
}

/// The range of a record, from the place in the file on that it names.
fn range(file: &OpenFile, record: &Record) -> Result<(u64, u64)> {
    let from = match record.whence {
        linux::SEEK_SET => 0,
        linux::SEEK_CUR => *file.offset.lock() as i64,
        linux::SEEK_END => file.status().bytes as i64,
        _ => return Err(Errno::INVAL),
    };
    let start = from.checked_add(record.start).ok_or(Errno::OVERFLOW)?;
    let (first, last) = match record.bytes {
        0 => (start, i64::MAX),
        bytes if bytes > 0 => (start, start.checked_add(bytes - 1).ok_or(Errno::OVERFLOW)?),
        bytes => (start.checked_add(bytes).ok_or(Errno::INVAL)?, start - 1),
    };
    if first < 0 { Err(Errno::INVAL) } else { Ok((first as u64, last as u64)) }
}

/// Handles `F_GETLK`, `F_SETLK`, `F_SETLKW` and those of open files.
pub(super) async fn range_lock(task: &mut Task, [fd, command, at, ..]: Args) -> Result<u64> {
    let file = task.file_not_path(fd)?;
    let command = command as u32;
    let record = read(task, at)?;
    let is_of_file = matches!(command, linux::F_OFD_GETLK | linux::F_OFD_SETLK | linux::F_OFD_SETLKW);
    let (first, last) = range(&file, &record)?;
    if is_of_file && record.pid != 0 {
        return Err(Errno::INVAL);
    }
    let owner = if is_of_file { Owner::of(&file) } else { Owner::Process(task.thread.process.pid) };
    let lock = Lock { owner, first, last, is_exclusive: record.kind == linux::F_WRLCK };
    let request = Request::new(&file.status(), Kind::Range, lock);
    if matches!(command, linux::F_GETLK | linux::F_OFD_GETLK) {
        if !matches!(record.kind, linux::F_RDLCK | linux::F_WRLCK) {
            return Err(Errno::INVAL);
        }
        return report(task, at, request.conflict());
    }
    match record.kind {
        linux::F_RDLCK if !file.is_readable() => return Err(Errno::BADF),
        linux::F_WRLCK if !file.is_writable() => return Err(Errno::BADF),
        linux::F_RDLCK | linux::F_WRLCK => {}
        linux::F_UNLCK => return request.release().map(|()| 0),
        _ => return Err(Errno::INVAL),
    }
    file.set_locked();
    if matches!(command, linux::F_SETLK | linux::F_OFD_SETLK) {
        return request.take().map(|()| 0);
    }
    interruptible(&task.thread, request.wait(task.thread.tid)).await??;
    forget_if_closed(task, fd, &file, &request)
}

/// Gives a lock up if the descriptor was closed while its thread waited.
fn forget_if_closed(task: &Task, fd: u64, file: &OpenFile, request: &Request) -> Result<u64> {
    match task.file(fd) {
        Ok(now) if core::ptr::eq(&raw const *now, file) => Ok(0),
        _ => {
            request.release()?;
            Err(Errno::BADF)
        }
    }
}

/// Writes the lock that excludes the wanted one, or that there is none.
fn report(task: &Task, at: u64, found: Option<Lock>) -> Result<u64> {
    let Some(lock) = found else { return task.space.put(at, &(linux::F_UNLCK as u16)).map(|()| 0) };
    let kind = if lock.is_exclusive { linux::F_WRLCK } else { linux::F_RDLCK };
    let bytes = if lock.last == Lock::END { 0 } else { lock.last - lock.first + 1 };
    let pid = match lock.owner {
        Owner::Process(pid) => pid,
        Owner::File(_) => u32::MAX,
    };
    task.space.put(at, &[kind as u16, linux::SEEK_SET as u16])?;
    task.space.put(at + 8, &[lock.first, bytes])?;
    task.space.put(at + 24, &pid).map(|()| 0)
}

/// Handles `flock`.
pub(super) async fn whole_lock(task: &mut Task, [fd, operation, ..]: Args) -> Result<u64> {
    let operation = operation as u32;
    let kind = operation & !linux::LOCK_NB;
    if !matches!(kind, linux::LOCK_SH | linux::LOCK_EX | linux::LOCK_UN) {
        return Err(Errno::INVAL);
    }
    let file = task.file_not_path(fd)?;
    let lock = Lock::whole(Owner::of(&file), kind == linux::LOCK_EX);
    let request = Request::new(&file.status(), Kind::Whole, lock);
    if kind == linux::LOCK_UN {
        return request.release().map(|()| 0);
    }
    file.set_locked();
    if operation & linux::LOCK_NB != 0 {
        return request.take().map(|()| 0);
    }
    interruptible(&task.thread, request.wait(task.thread.tid)).await??;
    Ok(0)
}

/// Returns whether a command of `fcntl` is about locks.
pub(super) const fn is_lock(command: u32) -> bool {
    matches!(
        command,
        linux::F_GETLK
            | linux::F_SETLK
            | linux::F_SETLKW
            | linux::F_OFD_GETLK
            | linux::F_OFD_SETLK
            | linux::F_OFD_SETLKW
    )
}
