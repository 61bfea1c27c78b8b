//! Pipes.

use super::{ERR, HUP, IN, Kind, OUT, Ready, Status, Stream, new_id};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::Task;
use crate::task::wait::WaitQueue;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::task::Waker;
use linux_raw_sys::general as linux;
use linux_raw_sys::ioctl;

/// Bytes that a pipe has room for.
const ROOM: usize = 64 << 10;
/// Bytes that are written at once or not at all.
const WHOLE: usize = 4096;

#[derive(Debug, Default)]
struct Inner {
    bytes: VecDeque<u8>,
    readers: usize,
    writers: usize,
    /// Ends that were ever opened: an opener waits for the other kind.
    read_opens: u64,
    write_opens: u64,
}

/// A pipe, to which ends lead.
#[derive(Debug)]
pub struct Pipe {
    number: u64,
    inner: Mutex<Inner>,
    changed: WaitQueue,
}

/// An end of a pipe, or both.
#[derive(Debug)]
pub struct End {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
    has_name: bool,
    /// Set if there was an end of the other kind when this one was opened. It may be gone by the time that the opener looks.
    had_other: bool,
    /// Ends of the other kind that had been opened before this one.
    seen: u64,
}

impl Pipe {
    /// Makes one without ends.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { number: new_id(), inner: Mutex::default(), changed: WaitQueue::new() })
    }

    fn end(self: &Arc<Self>, reads: bool, writes: bool, has_name: bool) -> Arc<End> {
        let mut inner = self.inner.lock();
        inner.readers += usize::from(reads);
        inner.writers += usize::from(writes);
        inner.read_opens += u64::from(reads);
        inner.write_opens += u64::from(writes);
        let (others, seen) = if reads { (inner.writers, inner.write_opens) } else { (inner.readers, inner.read_opens) };
        let had_other = others > 0;
        drop(inner);
        self.changed.wake();
        Arc::new(End { pipe: Arc::clone(self), reads, writes, has_name, had_other, seen })
    }

    /// Makes one, and returns the ends for reading and for writing.
    #[must_use]
    pub fn pair() -> (Arc<dyn Stream>, Arc<dyn Stream>) {
        let pipe = Self::new();
        (pipe.end(true, false, false), pipe.end(false, true, false))
    }

    /// Opens a pipe that has a name.
    #[must_use]
    pub fn open(self: &Arc<Self>, flags: u32) -> Arc<dyn Stream> {
        let access = flags & linux::O_ACCMODE;
        self.end(access != linux::O_WRONLY, access != linux::O_RDONLY, true)
    }
}

impl End {
    /// Waits until the pipe has been opened for the other direction as well.
    ///
    /// # Errors
    /// `ENXIO` for a writer that is not to wait.
    pub async fn opened(&self, is_nonblocking: bool) -> Result<()> {
        if !self.has_name || self.had_other || self.reads && self.writes {
            return Ok(());
        }
        let has_other = || {
            let inner = self.pipe.inner.lock();
            let (now, opens) =
                if self.reads { (inner.writers, inner.write_opens) } else { (inner.readers, inner.read_opens) };
            now > 0 || opens > self.seen
        };
        if is_nonblocking {
            return if self.writes && !has_other() { Err(Errno::NXIO) } else { Ok(()) };
        }
        self.pipe.changed.until(|| has_other().then_some(())).await;
        Ok(())
    }
}

impl Stream for End {
    fn read(&self, to: &mut [u8]) -> Result<usize> {
        if !self.reads {
            return Err(Errno::BADF);
        }
        let mut inner = self.pipe.inner.lock();
        if inner.bytes.is_empty() {
            return if inner.writers == 0 || to.is_empty() { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let count = to.len().min(inner.bytes.len());
        let (first, second) = inner.bytes.as_slices();
        let split = count.min(first.len());
        to[..split].copy_from_slice(&first[..split]);
        to[split..count].copy_from_slice(&second[..count - split]);
        inner.bytes.drain(..count);
        drop(inner);
        self.pipe.changed.wake();
        Ok(count)
    }

    fn write(&self, from: &[u8]) -> Result<usize> {
        if !self.writes {
            return Err(Errno::BADF);
        }
        let mut inner = self.pipe.inner.lock();
        if inner.readers == 0 {
            return Err(Errno::PIPE);
        }
        let room = ROOM - inner.bytes.len();
        let count = from.len().min(room);
        if count == 0 && !from.is_empty() || count < from.len() && from.len() <= WHOLE {
            return Err(Errno::AGAIN);
        }
        inner.bytes.extend(&from[..count]);
        drop(inner);
        self.pipe.changed.wake();
        Ok(count)
    }

    fn ready(&self, waker: Option<&Waker>) -> Ready {
        if let Some(waker) = waker {
            self.pipe.changed.add(waker);
        }
        let inner = self.pipe.inner.lock();
        let mut ready = 0;
        if self.reads {
            ready |= if inner.bytes.is_empty() { 0 } else { IN };
            ready |= if inner.writers == 0 { HUP } else { 0 };
        }
        if self.writes {
            ready |= if ROOM - inner.bytes.len() >= WHOLE { OUT } else { 0 };
            ready |= if inner.readers == 0 { ERR } else { 0 };
        }
        ready
    }

    fn status(&self) -> Status {
        Status::plain((0, self.pipe.number), Kind::Pipe, 0o600)
    }

    fn ioctl(&self, task: &mut Task, request: u32, argument: u64) -> Result<u64> {
        if request == ioctl::FIONREAD {
            let count = self.pipe.inner.lock().bytes.len() as u32;
            task.space.put(argument, &count)?;
            return Ok(0);
        }
        Err(Errno::NOTTY)
    }

    fn as_pipe(&self) -> Option<&End> {
        Some(self)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut inner = self.pipe.inner.lock();
        inner.readers -= usize::from(self.reads);
        inner.writers -= usize::from(self.writes);
        drop(inner);
        self.pipe.changed.wake();
    }
}
