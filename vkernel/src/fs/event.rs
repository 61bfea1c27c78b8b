//! Streams without data of their own: counters, timers, and sets of events.

use super::descriptors::OpenFile;
use super::{ERR, HUP, IN, Kind, OUT, Ready, Status, Stream, new_id};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::alarm::Alarm;
use crate::task::timers;
use crate::task::wait::WaitQueue;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::task::Waker;
use linux_raw_sys::general as linux;

/// A counter (`eventfd`).
#[derive(Debug)]
pub struct Counter {
    number: u64,
    count: Mutex<u64>,
    /// True if a read takes one, not all.
    is_semaphore: bool,
    changed: WaitQueue,
}

impl Counter {
    /// Makes one.
    #[must_use]
    pub fn new(count: u64, is_semaphore: bool) -> Arc<Self> {
        Arc::new(Self { number: new_id(), count: Mutex::new(count), is_semaphore, changed: WaitQueue::new() })
    }
}

fn word(bytes: &[u8]) -> Result<u64> {
    let word = bytes.get(..8).and_then(|bytes| bytes.try_into().ok()).ok_or(Errno::INVAL)?;
    Ok(u64::from_le_bytes(word))
}

impl Stream for Counter {
    fn read(&self, to: &mut [u8]) -> Result<usize> {
        let to = to.get_mut(..8).ok_or(Errno::INVAL)?;
        let mut count = self.count.lock();
        let taken = if self.is_semaphore { 1.min(*count) } else { *count };
        if taken == 0 {
            return Err(Errno::AGAIN);
        }
        *count -= taken;
        drop(count);
        to.copy_from_slice(&taken.to_le_bytes());
        self.changed.wake();
        Ok(8)
    }

    fn write(&self, from: &[u8]) -> Result<usize> {
        let more = word(from)?;
        if more == u64::MAX {
            return Err(Errno::INVAL);
        }
        let mut count = self.count.lock();
        let sum = count.checked_add(more).filter(|sum| *sum < u64::MAX).ok_or(Errno::AGAIN)?;
        *count = sum;
        drop(count);
        self.changed.wake();
        Ok(8)
    }

    fn ready(&self, waker: Option<&Waker>) -> Ready {
        if let Some(waker) = waker {
            self.changed.add(waker);
        }
        let count = *self.count.lock();
        let reads = if count > 0 { IN } else { 0 };
        let writes = if count < u64::MAX - 1 { OUT } else { 0 };
        reads | writes
    }

    fn status(&self) -> Status {
        Status::plain((0, self.number), Kind::File, 0o600)
    }
}

/// A timer that is read (`timerfd`).
#[derive(Debug)]
pub struct Timer {
    number: u64,
    /// The next expiry in nanoseconds of [`timers::now`], 0 if it is off, and the interval.
    state: Mutex<(u64, u64)>,
    /// True if the clock is the time of day.
    pub is_real_time: bool,
    changed: WaitQueue,
    alarm: Arc<Alarm>,
    own: Weak<Timer>,
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.alarm.stop();
    }
}

impl Timer {
    /// Makes one that is off.
    #[must_use]
    pub fn new(is_real_time: bool) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            number: new_id(),
            state: Mutex::default(),
            is_real_time,
            changed: WaitQueue::new(),
            alarm: Arc::default(),
            own: own.clone(),
        })
    }

    /// Sets it: the moment, 0 for off, and the interval. Returns both as they were, the first as the time that was left.
    pub fn set(&self, at: u64, interval: u64) -> (u64, u64) {
        let before = self.left();
        *self.state.lock() = (at, interval);
        self.changed.wake();
        let own = self.own.clone();
        self.alarm.set(at, move || {
            if let Some(timer) = own.upgrade() {
                timer.changed.wake();
            }
            // Until it is read.
            0
        });
        before
    }

    /// Returns the time left and the interval.
    #[must_use]
    pub fn left(&self) -> (u64, u64) {
        let (at, interval) = *self.state.lock();
        (if at == 0 { 0 } else { at.saturating_sub(timers::now()).max(1) }, interval)
    }

    /// Returns how often it has expired.
    fn expired(&self) -> u64 {
        let (at, interval) = *self.state.lock();
        let now = timers::now();
        match (at, interval) {
            (0, _) => 0,
            (at, _) if now < at => 0,
            (_, 0) => 1,
            (at, interval) => (now - at) / interval + 1,
        }
    }
}

impl Stream for Timer {
    fn read(&self, to: &mut [u8]) -> Result<usize> {
        let to = to.get_mut(..8).ok_or(Errno::INVAL)?;
        let count = self.expired();
        if count == 0 {
            return Err(Errno::AGAIN);
        }
        to.copy_from_slice(&count.to_le_bytes());
        let (at, interval) = *self.state.lock();
        let next = if interval == 0 { 0 } else { at + count * interval };
        self.set(next, interval);
        Ok(8)
    }

    fn ready(&self, waker: Option<&Waker>) -> Ready {
        if let Some(waker) = waker {
            self.changed.add(waker);
        }
        if self.expired() > 0 { IN } else { 0 }
    }

    fn status(&self) -> Status {
        Status::plain((0, self.number), Kind::File, 0o600)
    }

    fn as_timer(&self) -> Option<Arc<Timer>> {
        self.own.upgrade()
    }
}

/// A file that a set of events watches.
#[derive(Clone, Debug)]
struct Watch {
    file: Weak<OpenFile>,
    events: Ready,
    data: u64,
    /// For what the file was ready when it was last reported, if it is only reported at changes.
    reported: Ready,
}

/// A set of events (`epoll`).
#[derive(Debug)]
pub struct Events {
    number: u64,
    watches: Mutex<BTreeMap<u32, Watch>>,
    changed: WaitQueue,
}

/// An event: its bits, and the program's word.
pub type Event = (Ready, u64);

impl Events {
    /// Makes an empty one.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { number: new_id(), watches: Mutex::default(), changed: WaitQueue::new() })
    }

    /// Adds, changes or removes what is watched at a descriptor.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `EINVAL`.
    pub fn control(&self, operation: u32, fd: u32, file: &Arc<OpenFile>, events: Ready, data: u64) -> Result<()> {
        let watch = Watch { file: Arc::downgrade(file), events, data, reported: 0 };
        let mut watches = self.watches.lock();
        // A descriptor that was closed meanwhile is free for another file.
        let is_known =
            watches.get(&fd).is_some_and(|watch| watch.file.upgrade().is_some_and(|known| Arc::ptr_eq(&known, file)));
        match operation {
            linux::EPOLL_CTL_ADD if is_known => return Err(Errno::EXIST),
            linux::EPOLL_CTL_MOD | linux::EPOLL_CTL_DEL if !is_known => return Err(Errno::NOENT),
            linux::EPOLL_CTL_ADD | linux::EPOLL_CTL_MOD => {
                watches.insert(fd, watch);
            }
            linux::EPOLL_CTL_DEL => {
                watches.remove(&fd);
            }
            _ => return Err(Errno::INVAL),
        }
        drop(watches);
        self.changed.wake();
        Ok(())
    }

    /// Returns at most so many events that are there now. Those that are reported at changes are so once.
    pub fn take(&self, most: usize, waker: Option<&Waker>) -> Vec<Event> {
        if let Some(waker) = waker {
            self.changed.add(waker);
        }
        let mut found = Vec::new();
        let mut watches = self.watches.lock();
        watches.retain(|_, watch| {
            let Some(file) = watch.file.upgrade() else { return false };
            let ready = file.ready(waker) & (watch.events | HUP | ERR);
            let is_new = watch.events & linux::EPOLLET == 0 || ready & !watch.reported != 0;
            if ready == 0 || !is_new || found.len() >= most {
                watch.reported &= ready;
                return true;
            }
            watch.reported = ready;
            found.push((ready, watch.data));
            if watch.events & linux::EPOLLONESHOT != 0 {
                watch.events = 0;
            }
            true
        });
        found
    }
}

impl Stream for Events {
    fn ready(&self, waker: Option<&Waker>) -> Ready {
        if let Some(waker) = waker {
            self.changed.add(waker);
        }
        let watches = self.watches.lock();
        let is_ready = |watch: &Watch| {
            let ready = watch.file.upgrade().map_or(0, |file| file.ready(waker));
            ready & (watch.events | HUP | ERR) != 0
        };
        if watches.values().any(is_ready) { IN } else { 0 }
    }

    fn status(&self) -> Status {
        Status::plain((0, self.number), Kind::File, 0o600)
    }

    fn as_events(&self) -> Option<&Events> {
        Some(self)
    }
}
