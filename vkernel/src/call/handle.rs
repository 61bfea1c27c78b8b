//! Calls about other processes: by open files that stand for them, and their memory.

use super::signal::may_signal;
use super::{Args, transfer};
use crate::errno::{Errno, Result};
use crate::fs::descriptors::OpenFile;
use crate::fs::handle::Handle;
use crate::task::Task;
use crate::task::process::{self, Process};
use crate::task::signal::{self, Info, LAST};
use alloc::sync::Arc;
use linux_raw_sys::general as linux;

/// Gives the program a descriptor that stands for a process.
pub(super) fn add(task: &Task, process: &Arc<Process>, flags: u32) -> Result<u64> {
    task.add_file(OpenFile::of(Handle::new(process), linux::O_RDWR | flags), true)
}

/// The process that a descriptor stands for.
pub(super) fn process_of(task: &Task, fd: u64) -> Result<Arc<Process>> {
    let file = task.file(fd)?;
    file.stream().and_then(|stream| stream.as_process()).cloned().ok_or(Errno::BADF)
}

pub(super) fn open(task: &Task, [pid, flags, ..]: Args) -> Result<u64> {
    if flags & !u64::from(linux::O_NONBLOCK) != 0 || pid as i32 <= 0 {
        return Err(Errno::INVAL);
    }
    match process::find(pid as u32) {
        Some(process) => add(task, &process, flags as u32),
        // A thread that is not the first one stands for no process.
        None if process::find_thread(pid as u32).is_some() => Err(Errno::NOENT),
        None => Err(Errno::SRCH),
    }
}

pub(super) fn send_signal(task: &Task, [fd, number, info, flags, ..]: Args) -> Result<u64> {
    if flags != 0 {
        return Err(Errno::INVAL);
    }
    let process = process_of(task, fd)?;
    let own = &task.thread.process;
    let sent = if info == 0 {
        Info::from(own, number as u32)
    } else {
        let sent = super::signal::read_info(task, info, number as u32)?;
        if sent.signal != task.space.get::<u32>(info)? {
            return Err(Errno::INVAL);
        }
        if (sent.code >= 0 || sent.code == linux::SI_TKILL) && process.pid != own.pid {
            return Err(Errno::PERM);
        }
        sent
    };
    if number as u32 > LAST {
        return Err(Errno::INVAL);
    }
    if process.is_dead() {
        return Err(Errno::SRCH);
    }
    if !may_signal(own, &process, number as u32) {
        return Err(Errno::PERM);
    }
    if number as u32 != 0 && process.pid != process::KERNEL {
        signal::send(&process, sent);
    }
    Ok(0)
}

/// Checks that the caller may look into a process, as a debugger may.
fn check_inspection(task: &Task, process: &Process) -> Result<()> {
    let (own, other) = (task.credentials(), process.credentials());
    let is_same = own.owns_all_ids_of(&other);
    let is_less = other.permitted & !own.permitted == 0;
    if process.pid == task.thread.process.pid || is_same && is_less {
        Ok(())
    } else {
        own.need(crate::task::credentials::Capability::SysPtrace)
    }
}

pub(super) fn take_file(task: &Task, [fd, other, flags, ..]: Args) -> Result<u64> {
    if flags != 0 {
        return Err(Errno::INVAL);
    }
    let process = process_of(task, fd)?;
    check_inspection(task, &process)?;
    let thread = process.threads.lock().values().next().cloned().ok_or(Errno::SRCH)?;
    let files = Arc::clone(&thread.files.lock());
    let file = files.lock().get(other as u32)?;
    task.add_file(file, true)
}

/// Copies between the caller's memory and another process's.
pub(super) fn copy(task: &Task, [pid, own, own_count, other, other_count, flags]: Args, writes: bool) -> Result<u64> {
    const CHUNK: u64 = 16 << 10;
    if flags != 0 {
        return Err(Errno::INVAL);
    }
    let own = transfer::vectors(task, [0, own, own_count, 0, 0, 0])?;
    let other = transfer::vectors(task, [0, other, other_count, 0, 0, 0])?;
    let process = process::find(pid as u32).ok_or(Errno::SRCH)?;
    check_inspection(task, &process)?;
    let space = process.space.lock().clone().ok_or(Errno::SRCH)?;
    let (mut own, mut other) = (own.into_iter(), other.into_iter());
    let (mut here, mut there) = ((0, 0), (0, 0));
    let mut done = 0;
    loop {
        while here.1 == 0 {
            let Some(next) = own.next() else { return Ok(done) };
            here = next;
        }
        while there.1 == 0 {
            let Some(next) = other.next() else { return Ok(done) };
            there = next;
        }
        // Not beyond a page of the other side, so that as much is copied as is there.
        let count = here.1.min(there.1).min(CHUNK).min(4096 - there.0 % 4096);
        let mut buffer = alloc::vec![0; count as usize];
        let copied = if writes {
            task.space.get_bytes(here.0, &mut buffer).and_then(|()| space.write(there.0, &buffer))
        } else {
            space.read(there.0, &mut buffer).and_then(|()| task.space.put_bytes(here.0, &buffer))
        };
        match copied {
            Err(_) if done > 0 => return Ok(done),
            Err(why) => return Err(why),
            Ok(()) => {}
        }
        here = (here.0 + count, here.1 - count);
        there = (there.0 + count, there.1 - count);
        done += count;
        if task.thread.is_ending() {
            return Ok(done);
        }
    }
}
