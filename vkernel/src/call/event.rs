//! Calls that wait for several files, and files that are events.

use super::{Args, clock, signal};
use crate::errno::{Errno, Result};
use crate::fs::descriptors::OpenFile;
use crate::fs::event::{Counter, Event, Events, Timer};
use crate::fs::signal::Signals;
use crate::fs::{ERR, HUP, IN, OUT, Ready, Stream};
use crate::task::signal::UNBLOCKABLE;
use crate::task::wait::{before, interruptible};
use crate::task::{Task, timers};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::Poll;
use linux_raw_sys::general as linux;

/// Waits until a look gives something, or the moment has come, with another signal mask if one is given.
async fn watch<T>(
    task: &mut Task,
    deadline: Option<u64>,
    mask: Option<u64>,
    mut look: impl FnMut(Option<&core::task::Waker>) -> Option<T>,
) -> Result<Option<T>> {
    if let Some(mask) = mask {
        signal::set_until_return(task, mask);
    }
    if let Some(found) = look(None) {
        restore_mask(task);
        return Ok(Some(found));
    }
    if deadline == Some(0) {
        restore_mask(task);
        return Ok(None);
    }
    let seen = poll_fn(|cx| look(Some(cx.waker())).map_or(Poll::Pending, Poll::Ready));
    match before(deadline, interruptible(&task.thread, seen)).await {
        None => {
            restore_mask(task);
            Ok(None)
        }
        Some(Ok(found)) => {
            restore_mask(task);
            Ok(Some(found))
        }
        // The mask is restored when the signal is delivered.
        Some(Err(_)) => Err(Errno::RESTART_UNHANDLED),
    }
}

fn restore_mask(task: &mut Task) {
    if let Some(mask) = task.saved_mask.take() {
        task.thread.set_mask(mask);
    }
}

fn optional_mask(task: &Task, at: u64, bytes: u64) -> Result<Option<u64>> {
    match at {
        0 => Ok(None),
        _ if bytes != 8 => Err(Errno::INVAL),
        at => task.space.get(at).map(Some),
    }
}

/// The moment until which a call waits, by a `timespec`: none for ever, 0 for not at all.
fn until(task: &Task, at: u64) -> Result<Option<u64>> {
    Ok(match at {
        0 => None,
        at => Some(match clock::read(task, at)? {
            0 => 0,
            nanoseconds => timers::now().saturating_add(nanoseconds),
        }),
    })
}

pub(super) async fn poll(task: &mut Task, [at, count, timeout, mask, mask_bytes, _]: Args) -> Result<u64> {
    if count > task.thread.process.limit(linux::RLIMIT_NOFILE) {
        return Err(Errno::INVAL);
    }
    let mut polled: Vec<linux::pollfd> = task.space.get_all(at, count as usize)?;
    let files: Vec<Option<Arc<OpenFile>>> = polled.iter().map(|poll| task.file(poll.fd as u64).ok()).collect();
    let deadline = until(task, timeout)?;
    let mask = optional_mask(task, mask, mask_bytes)?;
    let found = watch(task, deadline, mask, |waker| {
        let mut ready = 0;
        for (poll, file) in polled.iter_mut().zip(&files) {
            let wanted = poll.events as u16 as Ready | HUP | ERR;
            poll.revents = match file {
                _ if poll.fd < 0 => 0,
                None => linux::POLLNVAL as i16,
                Some(file) => (aliases(file.ready(waker)) & wanted) as i16,
            };
            ready += u64::from(poll.revents != 0);
        }
        (ready > 0).then_some(ready)
    });
    let ready = found.await?.unwrap_or(0);
    for (n, poll) in polled.iter().enumerate() {
        task.space.put(at + (n * size_of::<linux::pollfd>()) as u64, poll)?;
    }
    Ok(ready)
}

/// Bits that mean the same.
const fn aliases(ready: Ready) -> Ready {
    let read = if ready & IN != 0 { linux::POLLRDNORM } else { 0 };
    let write = if ready & OUT != 0 { linux::POLLWRNORM } else { 0 };
    ready | read | write
}

pub(super) async fn select(task: &mut Task, [count, reads, writes, others, timeout, mask]: Args) -> Result<u64> {
    const MOST: u64 = 1024;
    if count > MOST {
        return Err(Errno::INVAL);
    }
    let words = count.div_ceil(64) as usize;
    let sets = [(reads, IN | HUP | ERR), (writes, OUT | ERR), (others, 0)];
    let mut wanted = Vec::new();
    for (at, _) in sets {
        wanted.push(if at == 0 { vec![0u64; words] } else { task.space.get_all(at, words)? });
    }
    let has = |set: &[u64], fd: u64| set[fd as usize / 64] & 1 << (fd % 64) != 0;
    let mut files = Vec::new();
    for fd in (0..count).filter(|fd| wanted.iter().any(|set| has(set, *fd))) {
        files.push((fd, task.file(fd)?));
    }
    let mask = match mask {
        0 => None,
        at => {
            let [mask, bytes] = task.space.get::<[u64; 2]>(at)?;
            optional_mask(task, mask, bytes)?
        }
    };
    let deadline = until(task, timeout)?;
    let mut found = vec![vec![0u64; words]; 3];
    let ready = watch(task, deadline, mask, |waker| {
        let mut ready = 0;
        for (fd, file) in &files {
            let now = file.ready(waker);
            for (n, (_, events)) in sets.iter().enumerate() {
                if has(&wanted[n], *fd) && now & events != 0 {
                    found[n][*fd as usize / 64] |= 1 << (fd % 64);
                    ready += 1;
                }
            }
        }
        (ready > 0).then_some(ready)
    });
    let ready = ready.await?.unwrap_or(0);
    for ((at, _), set) in sets.iter().zip(&found).filter(|((at, _), _)| *at != 0) {
        for (n, word) in set.iter().enumerate() {
            task.space.put(at + 8 * n as u64, word)?;
        }
    }
    Ok(ready)
}

pub(super) fn signals(task: &Task, [fd, set, bytes, flags, ..]: Args) -> Result<u64> {
    if bytes != 8 || flags as u32 & !(linux::O_CLOEXEC | linux::O_NONBLOCK) != 0 {
        return Err(Errno::INVAL);
    }
    let set = task.space.get::<u64>(set)? & !UNBLOCKABLE;
    if fd as i32 != -1 {
        let file = task.file(fd)?;
        file.stream().and_then(|stream| stream.as_signals()).ok_or(Errno::INVAL)?.set(set);
        return Ok(fd);
    }
    let file = OpenFile::of(Signals::new(set), linux::O_RDWR | flags as u32 & linux::O_NONBLOCK);
    task.add_file(file, flags as u32 & linux::O_CLOEXEC != 0)
}

pub(super) fn counter(task: &Task, [count, flags, ..]: Args) -> Result<u64> {
    let flags = flags as u32;
    if flags & !(linux::EFD_SEMAPHORE | linux::O_CLOEXEC | linux::O_NONBLOCK) != 0 {
        return Err(Errno::INVAL);
    }
    let counter = Counter::new(count as u32 as u64, flags & linux::EFD_SEMAPHORE != 0);
    let file = OpenFile::of(counter, linux::O_RDWR | flags & linux::O_NONBLOCK);
    task.add_file(file, flags & linux::O_CLOEXEC != 0)
}

pub(super) fn create(task: &Task, [flags, ..]: Args) -> Result<u64> {
    if flags as u32 & !linux::O_CLOEXEC != 0 {
        return Err(Errno::INVAL);
    }
    task.add_file(OpenFile::of(Events::new(), linux::O_RDWR), flags as u32 & linux::O_CLOEXEC != 0)
}

pub(super) fn control(task: &Task, [set, operation, fd, event, ..]: Args) -> Result<u64> {
    let set = task.file(set)?;
    let file = task.file(fd)?;
    let events = set.stream().and_then(|stream| stream.as_events()).ok_or(Errno::INVAL)?;
    if Arc::ptr_eq(&set, &file) || file.stream().is_some_and(|stream| stream.as_events().is_some()) {
        return Err(Errno::INVAL);
    }
    if file.stream().is_none() {
        return Err(Errno::PERM);
    }
    let (wanted, data) = if operation as u32 == linux::EPOLL_CTL_DEL {
        (0, 0)
    } else {
        (task.space.get::<u32>(event)?, task.space.get::<u64>(event + 8)?)
    };
    events.control(operation as u32, fd as u32, &file, wanted, data).map(|()| 0)
}

/// Handles `epoll_pwait`, whose limit of time is milliseconds.
pub(super) async fn wait(task: &mut Task, a: Args) -> Result<u64> {
    let deadline = match a[3] as i32 {
        0 => Some(0),
        timeout if timeout < 0 => None,
        timeout => Some(timers::now() + timeout as u64 * 1_000_000),
    };
    wait_until(task, a, deadline).await
}

/// Handles `epoll_pwait2`, whose limit of time is a `timespec`.
pub(super) async fn wait_precisely(task: &mut Task, a: Args) -> Result<u64> {
    let deadline = until(task, a[3])?;
    wait_until(task, a, deadline).await
}

async fn wait_until(task: &mut Task, [set, to, most, _, mask, mask_bytes]: Args, deadline: Option<u64>) -> Result<u64> {
    let set = task.file(set)?;
    let events = set.stream().and_then(|stream| stream.as_events()).ok_or(Errno::INVAL)?;
    if most as i32 <= 0 {
        return Err(Errno::INVAL);
    }
    let mask = optional_mask(task, mask, mask_bytes)?;
    let most = (most as usize).min(1024);
    let found: Option<Vec<Event>> = watch(task, deadline, mask, |waker| {
        let found = events.take(most, waker);
        (!found.is_empty()).then_some(found)
    })
    .await?;
    let found = found.unwrap_or_default();
    for (n, (ready, data)) in found.iter().enumerate() {
        task.space.put(to + 16 * n as u64, &[u64::from(*ready), *data])?;
    }
    Ok(found.len() as u64)
}

/// The files of timers: the descriptor's own type is known here alone.
fn timer_of(task: &Task, fd: u64) -> Result<Arc<Timer>> {
    let file = task.file(fd)?;
    file.stream().and_then(|stream| stream.as_timer()).ok_or(Errno::INVAL)
}

pub(super) fn timer(task: &Task, [clock, flags, ..]: Args) -> Result<u64> {
    let is_real_time = match clock as u32 {
        linux::CLOCK_REALTIME => true,
        linux::CLOCK_MONOTONIC | linux::CLOCK_BOOTTIME => false,
        _ => return Err(Errno::INVAL),
    };
    let flags = flags as u32;
    let stream: Arc<dyn Stream> = Timer::new(is_real_time);
    task.add_file(OpenFile::of(stream, linux::O_RDWR | flags & linux::O_NONBLOCK), flags & linux::O_CLOEXEC != 0)
}

pub(super) fn set_timer(task: &Task, [fd, flags, new, old, ..]: Args) -> Result<u64> {
    let timer = timer_of(task, fd)?;
    let (interval, first) = (clock::read(task, new)?, clock::read(task, new + 16)?);
    let is_relative = flags & u64::from(linux::TFD_TIMER_ABSTIME) == 0;
    let at = if first == 0 { 0 } else { crate::task::futex::deadline(first, is_relative, timer.is_real_time).max(1) };
    let (left, old_interval) = timer.set(at, interval);
    if old != 0 {
        clock::write(task, old, old_interval)?;
        clock::write(task, old + 16, left)?;
    }
    Ok(0)
}

pub(super) fn get_timer(task: &Task, [fd, to, ..]: Args) -> Result<u64> {
    let (left, interval) = timer_of(task, fd)?.left();
    clock::write(task, to, interval)?;
    clock::write(task, to + 16, left)
}
