//! Calls that move bytes.

use super::{Args, message};
use crate::errno::{Errno, Result};
use crate::fs::descriptors::{Content, OpenFile};
use crate::fs::{IN, OUT};
use crate::share::MOST_READ;
use crate::task::signal::{Info, number, send_to_thread};
use crate::task::{Task, executor};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

/// Bytes that are moved at once.
const CHUNK: usize = 16 << 10;
/// The most bytes of a call.
pub(super) const MOST: u64 = 0x7fff_f000;

/// Adds a part's result to what a call has done. Returns whether the call goes on: not behind a part that is shorter than wanted.
///
/// # Errors
/// The part's, if nothing was done before; else the call ends with what it has done.
fn add(done: &mut u64, wanted: u64, result: Result<u64>) -> Result<bool> {
    match result {
        Err(why) if *done == 0 => Err(why),
        Err(_) => Ok(false),
        Ok(count) => {
            *done += count;
            Ok(count == wanted)
        }
    }
}

/// Reads into the program's memory without waiting.
fn read_into(task: &Task, file: &OpenFile, at: u64, bytes: u64) -> Result<u64> {
    let bytes = bytes.min(MOST);
    if let Content::Node(node) = &file.content {
        if !file.is_readable() {
            return Err(Errno::BADF);
        }
        let mut offset = file.offset.lock();
        let count = read_node(task, &**node, *offset, at, bytes)?;
        *offset += count;
        return Ok(count);
    }
    let mut buffer = vec![0; CHUNK.min(bytes as usize)];
    let mut done = 0;
    loop {
        let most = buffer.len().min((bytes - done) as usize);
        // So that no bytes are lost to an address that cannot be written.
        let moved = task.space.check_writable(at + done, most as u64).and_then(|()| {
            let count = file.read_now(&mut buffer[..most])?;
            task.space.put_bytes(at + done, &buffer[..count]).map(|()| count as u64)
        });
        if !add(&mut done, most as u64, moved)? || done == bytes || task.thread.is_ending() {
            return Ok(done);
        }
    }
}

fn read_node(task: &Task, node: &dyn crate::fs::Node, offset: u64, at: u64, bytes: u64) -> Result<u64> {
    let bytes = bytes.min(MOST);
    let mut buffer = vec![0; CHUNK.min(bytes as usize)];
    let mut done = 0;
    loop {
        let most = buffer.len().min((bytes - done) as usize);
        let moved = node
            .read_at(offset + done, &mut buffer[..most])
            .and_then(|count| task.space.put_bytes(at + done, &buffer[..count]).map(|()| count as u64));
        if !add(&mut done, most as u64, moved)? || done == bytes || task.thread.is_ending() {
            return Ok(done);
        }
    }
}

/// Writes from the program's memory without waiting, as much as there is room for.
fn write_from(task: &Task, file: &OpenFile, at: u64, bytes: u64) -> Result<u64> {
    let bytes = bytes.min(MOST);
    let mut done = 0;
    let mut buffer = vec![0; CHUNK.min(bytes as usize)];
    loop {
        let most = buffer.len().min((bytes - done) as usize);
        let moved = task.space.get_bytes(at + done, &mut buffer[..most]).and_then(|()| file.write_now(&buffer[..most]));
        if !add(&mut done, most as u64, moved.map(|count| count as u64))? || done == bytes || task.thread.is_ending() {
            return Ok(done);
        }
    }
}

/// Ends a write to what no one reads: the program gets a signal.
fn broken(task: &Task, result: Result<u64>) -> Result<u64> {
    if result == Err(Errno::PIPE) {
        send_to_thread(&task.thread, Info::from(&task.thread.process, number::PIPE));
    }
    result
}

pub(super) fn read_now(task: &Task, a: Args) -> Option<Result<u64>> {
    let file = match task.file(a[0]) {
        Ok(file) => file,
        Err(why) => return Some(Err(why)),
    };
    if file.is_socket() || file.is_remote() {
        return None;
    }
    match read_into(task, &file, a[1], a[2]) {
        Err(Errno::AGAIN) if !file.is_nonblocking() => None,
        result => Some(result),
    }
}

pub(super) fn write_now(task: &mut Task, a: Args) -> Option<Result<u64>> {
    let file = match task.file(a[0]) {
        Ok(file) => file,
        Err(why) => return Some(Err(why)),
    };
    if file.is_socket() || file.is_remote() {
        return None;
    }
    match write_from(task, &file, a[1], a[2]) {
        Err(Errno::AGAIN) if !file.is_nonblocking() => None,
        Ok(count) if count < a[2].min(MOST) && !file.is_nonblocking() && file.stream().is_some() => {
            // The rest waits.
            task.written = count;
            None
        }
        result => Some(broken(task, result)),
    }
}

/// Reads a file that is on another computer: at the offset, or at the file's position and behind it.
async fn read_remote(task: &Task, file: &OpenFile, offset: Option<u64>, at: u64, bytes: u64) -> Result<u64> {
    if !file.is_readable() {
        return Err(Errno::BADF);
    }
    let (node, bytes) = (file.node()?, bytes.min(MOST));
    let _turn = if offset.is_none() { Some(file.turn.take(&task.thread).await?) } else { None };
    let start = offset.unwrap_or_else(|| *file.offset.lock());
    let mut buffer = vec![0; MOST_READ.min(bytes as usize)];
    let mut done = 0;
    loop {
        let most = buffer.len().min((bytes - done) as usize);
        let read = task.ask_host(|| node.read_at(start + done, &mut buffer[..most])).await;
        let moved = read.and_then(|count| task.space.put_bytes(at + done, &buffer[..count]).map(|()| count as u64));
        let goes_on = add(&mut done, most as u64, moved);
        if offset.is_none() {
            *file.offset.lock() = start + done;
        }
        if !goes_on? || done == bytes || task.thread.is_ending() {
            return Ok(done);
        }
    }
}

/// Writes a file that is on another computer, as [`read_remote`] reads.
async fn write_remote(task: &Task, file: &OpenFile, offset: Option<u64>, at: u64, bytes: u64) -> Result<u64> {
    if !file.is_writable() {
        return Err(Errno::BADF);
    }
    let (node, bytes) = (file.node()?, bytes.min(MOST));
    let _turn = if offset.is_none() { Some(file.turn.take(&task.thread).await?) } else { None };
    let start = offset.unwrap_or_else(|| *file.offset.lock());
    let appends = file.flags() & linux::O_APPEND != 0;
    let mut buffer = vec![0; MOST_READ.min(bytes as usize)];
    let mut done = 0;
    loop {
        let most = buffer.len().min((bytes - done) as usize);
        let mut end = start + done;
        let written = match task.space.get_bytes(at + done, &mut buffer[..most]) {
            Err(why) => Err(why),
            Ok(()) if appends => {
                let appended = task.ask_host(|| node.append(&buffer[..most])).await;
                appended.map(|(behind, count)| {
                    end = behind;
                    count as u64
                })
            }
            Ok(()) => task.ask_host(|| node.write_at(end, &buffer[..most])).await.map(|count| count as u64),
        };
        let goes_on = add(&mut done, most as u64, written);
        if offset.is_none() {
            *file.offset.lock() = if appends { end } else { start + done };
        }
        if !goes_on? || done == bytes || task.thread.is_ending() {
            return Ok(done);
        }
    }
}

async fn read_file(task: &mut Task, file: &Arc<OpenFile>, at: u64, bytes: u64) -> Result<u64> {
    if file.is_remote() {
        return Box::pin(read_remote(task, file, None, at, bytes)).await;
    }
    loop {
        match read_into(task, file, at, bytes) {
            Err(Errno::AGAIN) => file.wait(&task.thread, IN).await?,
            result => return result,
        }
    }
}

/// Waits until there is room for more. A file may have too little of it for what is to be written: others run before the next try.
async fn wait_for_room(task: &Task, file: &OpenFile) -> Result<()> {
    file.wait(&task.thread, OUT).await?;
    executor::yield_now().await;
    if task.thread.has_work() { Err(Errno::RESTART) } else { Ok(()) }
}

async fn write_file(task: &mut Task, file: &Arc<OpenFile>, at: u64, bytes: u64, mut done: u64) -> Result<u64> {
    if file.is_remote() {
        return Box::pin(write_remote(task, file, None, at, bytes)).await;
    }
    let bytes = bytes.min(MOST);
    loop {
        let result = match write_from(task, file, at + done, bytes - done) {
            Ok(count) => {
                done += count;
                if done >= bytes || file.is_nonblocking() || file.stream().is_none() {
                    return Ok(done);
                }
                wait_for_room(task, file).await
            }
            Err(Errno::AGAIN) => wait_for_room(task, file).await,
            Err(why) => Err(why),
        };
        match result {
            Ok(()) => {}
            Err(_) if done > 0 => return Ok(done),
            Err(why) => return broken(task, Err(why)),
        }
    }
}

/// Reads what [`read_now`] could not.
pub(super) async fn read(task: &mut Task, a: Args) -> Result<u64> {
    let file = task.file(a[0])?;
    if file.is_socket() {
        return Box::pin(message::read_ranges(task, a[0], vec![(a[1], a[2].min(MOST))])).await;
    }
    file.wait(&task.thread, IN).await?;
    read_file(task, &file, a[1], a[2]).await
}

pub(super) async fn write(task: &mut Task, a: Args) -> Result<u64> {
    let file = task.file(a[0])?;
    let done = core::mem::take(&mut task.written);
    if file.is_socket() {
        return Box::pin(message::write_ranges(task, a[0], vec![(a[1], a[2].min(MOST))])).await;
    }
    write_file(task, &file, a[1], a[2], done).await
}

pub(super) fn vectors(task: &Task, a: Args) -> Result<Vec<(u64, u64)>> {
    if a[2] > u64::from(linux::UIO_MAXIOV) {
        return Err(Errno::INVAL);
    }
    let words = task.space.get_all::<[u64; 2]>(a[1], a[2] as usize)?;
    let all = words.iter().try_fold(0u64, |all, [_, bytes]| all.checked_add(*bytes));
    all.filter(|all| *all <= i64::MAX as u64).ok_or(Errno::INVAL)?;
    let mut left = MOST;
    let part = |[at, bytes]: [u64; 2]| {
        let bytes = bytes.min(left);
        left -= bytes;
        (at, bytes)
    };
    Ok(words.into_iter().map(part).collect())
}

/// Handles `preadv2` and `pwritev2`: an offset of -1 is the file's own.
pub(super) async fn vector_with_flags(task: &mut Task, a: Args, writes: bool) -> Result<u64> {
    const KNOWN: u64 = linux::RWF_HIPRI as u64 | linux::RWF_DSYNC as u64 | linux::RWF_SYNC as u64;
    if a[5] & !KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let offset = Some(a[3]).filter(|offset| *offset != u64::MAX);
    if writes { write_vector(task, a, offset).await } else { read_vector(task, a, offset).await }
}

/// Checks the offset of a call that names one.
fn check_offset(file: &OpenFile, offset: Option<u64>, reads: bool) -> Result<()> {
    let Some(offset) = offset else { return Ok(()) };
    if offset > i64::MAX as u64 {
        return Err(Errno::INVAL);
    }
    file.node()?;
    if reads && !file.is_readable() || !reads && !file.is_writable() { Err(Errno::BADF) } else { Ok(()) }
}

pub(super) async fn read_vector(task: &mut Task, a: Args, offset: Option<u64>) -> Result<u64> {
    let file = task.file(a[0])?;
    if offset.is_none() && file.is_socket() {
        let ranges = vectors(task, a)?;
        return Box::pin(message::read_ranges(task, a[0], ranges)).await;
    }
    check_offset(&file, offset, true)?;
    let mut done = 0;
    for (at, bytes) in vectors(task, a)?.into_iter().filter(|(_, bytes)| *bytes > 0) {
        let result = match offset {
            Some(offset) => read_by_offset(task, &file, offset + done, at, bytes).await,
            // What follows is only taken if it is there.
            None if done > 0 && !file.is_remote() => read_into(task, &file, at, bytes),
            None => read_file(task, &file, at, bytes).await,
        };
        if !add(&mut done, bytes, result)? {
            break;
        }
    }
    Ok(done)
}

pub(super) async fn write_vector(task: &mut Task, a: Args, offset: Option<u64>) -> Result<u64> {
    let file = task.file(a[0])?;
    if offset.is_none() && file.is_socket() {
        let ranges = vectors(task, a)?;
        return Box::pin(message::write_ranges(task, a[0], ranges)).await;
    }
    check_offset(&file, offset, false)?;
    let mut done = 0;
    for (at, bytes) in vectors(task, a)?.into_iter().filter(|(_, bytes)| *bytes > 0) {
        let result = match offset {
            Some(offset) => write_by_offset(task, &file, offset + done, at, bytes).await,
            None => write_file(task, &file, at, bytes, 0).await,
        };
        if !add(&mut done, bytes, result)? {
            break;
        }
    }
    Ok(done)
}

async fn read_by_offset(task: &Task, file: &OpenFile, offset: u64, at: u64, bytes: u64) -> Result<u64> {
    if file.is_remote() {
        return Box::pin(read_remote(task, file, Some(offset), at, bytes)).await;
    }
    read_node(task, &**file.node()?, offset, at, bytes)
}

async fn write_by_offset(task: &Task, file: &OpenFile, offset: u64, at: u64, bytes: u64) -> Result<u64> {
    if file.is_remote() {
        return Box::pin(write_remote(task, file, Some(offset), at, bytes)).await;
    }
    write_node(task, file, offset, at, bytes)
}

fn write_node(task: &Task, file: &OpenFile, offset: u64, at: u64, bytes: u64) -> Result<u64> {
    if !file.is_writable() {
        return Err(Errno::BADF);
    }
    let node = file.node()?;
    let bytes = bytes.min(MOST);
    let mut buffer = vec![0; CHUNK.min(bytes as usize)];
    let mut done = 0;
    loop {
        let most = buffer.len().min((bytes - done) as usize);
        let copied = task.space.get_bytes(at + done, &mut buffer[..most]);
        let moved = copied.and_then(|()| node.write_at(offset + done, &buffer[..most]));
        if !add(&mut done, most as u64, moved.map(|count| count as u64))? || done == bytes || task.thread.is_ending() {
            return Ok(done);
        }
    }
}

pub(super) async fn read_at(task: &Task, a: Args) -> Result<u64> {
    let file = task.file(a[0])?;
    if !file.is_readable() {
        return Err(Errno::BADF);
    }
    if a[3] > i64::MAX as u64 {
        return Err(Errno::INVAL);
    }
    read_by_offset(task, &file, a[3], a[1], a[2]).await
}

pub(super) async fn write_at(task: &Task, a: Args) -> Result<u64> {
    if a[3] > i64::MAX as u64 {
        return Err(Errno::INVAL);
    }
    write_by_offset(task, &*task.file(a[0])?, a[3], a[1], a[2]).await
}

/// The position that a call begins at: the file's, or, if the call names one, a word of the program's.
fn position(task: &Task, file: &OpenFile, at: u64) -> Result<u64> {
    if at == 0 { Ok(*file.offset.lock()) } else { task.space.get(at) }
}

/// Sets that position.
fn set_position(task: &Task, file: &OpenFile, at: u64, to: u64) -> Result<()> {
    if at != 0 {
        return task.space.put(at, &to);
    }
    *file.offset.lock() = to;
    Ok(())
}

pub(super) async fn send_file(task: &mut Task, a: Args) -> Result<u64> {
    let (to, from) = (task.file(a[0])?, task.file(a[1])?);
    let node = Arc::clone(from.node().map_err(|_| Errno::INVAL)?);
    let mut offset = position(task, &from, a[2])?;
    let mut buffer = vec![0; CHUNK];
    let (mut done, bytes) = (0, a[3].min(MOST));
    'all: while done < bytes {
        let most = CHUNK.min((bytes - done) as usize);
        let count = match task.ask_host(|| node.read_at(offset, &mut buffer[..most])).await {
            Ok(0) => break,
            Ok(count) => count,
            Err(_) if done > 0 => break,
            Err(why) => return Err(why),
        };
        let mut sent = 0;
        while sent < count {
            match task.ask_host(|| to.write_now(&buffer[sent..count])).await {
                Ok(more) => sent += more,
                Err(Errno::AGAIN) if !to.is_nonblocking() => {
                    if wait_for_room(task, &to).await.is_err() {
                        (offset, done) = (offset + sent as u64, done + sent as u64);
                        break 'all;
                    }
                }
                Err(_) if done + sent as u64 > 0 => {
                    (offset, done) = (offset + sent as u64, done + sent as u64);
                    break 'all;
                }
                Err(why) => return broken(task, Err(why)),
            }
        }
        (offset, done) = (offset + count as u64, done + count as u64);
    }
    set_position(task, &from, a[2], offset)?;
    Ok(done)
}

pub(super) async fn copy_range(task: &Task, a: Args) -> Result<u64> {
    let (from, to) = (task.file(a[0])?, task.file(a[2])?);
    if !from.is_readable() || !to.is_writable() {
        return Err(Errno::BADF);
    }
    let (source, target) = (from.node().map_err(|_| Errno::INVAL)?, to.node().map_err(|_| Errno::INVAL)?);
    let (mut read, mut written) = (position(task, &from, a[1])?, position(task, &to, a[3])?);
    let mut buffer = vec![0; CHUNK];
    let mut done = 0;
    while done < a[4].min(MOST) {
        let most = CHUNK.min((a[4] - done) as usize);
        let copied = match task.ask_host(|| source.read_at(read, &mut buffer[..most])).await {
            Ok(0) => break,
            Ok(count) => task.ask_host(|| target.write_at(written, &buffer[..count])).await,
            Err(why) => Err(why),
        };
        let count = match copied {
            Ok(count) => count as u64,
            Err(_) if done > 0 => break,
            Err(why) => return Err(why),
        };
        (read, written, done) = (read + count, written + count, done + count);
    }
    set_position(task, &from, a[1], read)?;
    set_position(task, &to, a[3], written)?;
    Ok(done)
}
