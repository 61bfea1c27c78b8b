//! Open files, and the descriptors of processes.

use super::lock;
use super::path::Place;
use super::{ERR, HUP, IN, Kind, Node, OUT, Ready, Status, Stream};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::Thread;
use crate::task::wait::{WaitQueue, interruptible};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::task::{Poll, Waker};
use linux_raw_sys::general as linux;

/// The content of an open file.
#[derive(Clone, Debug)]
pub enum Content {
    /// A node that is read by position.
    Node(Arc<dyn Node>),
    /// A stream.
    Stream(Arc<dyn Stream>),
}

/// The entries of a directory: names, numbers of nodes, kinds.
pub type Listing = Vec<(String, u64, Kind)>;

/// A right that one thread has at a time, and that others wait for.
#[derive(Debug, Default)]
pub struct Turn {
    is_taken: AtomicBool,
    ends: WaitQueue,
}

/// The right of a [`Turn`].
#[derive(Debug)]
pub struct Held<'a>(&'a Turn);

impl Turn {
    /// Waits for the right.
    ///
    /// # Errors
    /// [`Errno::RESTART`].
    pub async fn take(&self, thread: &Thread) -> Result<Held<'_>> {
        let free = self.ends.until(|| (!self.is_taken.swap(true, Ordering::Acquire)).then_some(Held(self)));
        interruptible(thread, free).await
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
        self.0.ends.wake();
    }
}

/// An open file, which several descriptors may have.
#[derive(Debug)]
pub struct OpenFile {
    /// The content.
    pub content: Content,
    /// The place at which it was opened, if it has a name.
    pub place: Option<Arc<Place>>,
    /// The position of the next read or write, or of the next entry of a directory.
    pub offset: Mutex<u64>,
    /// Held by the transfer that moves the position, if that may have to wait for another computer.
    pub turn: Turn,
    /// The entries of a directory that is being read.
    pub listing: Mutex<Option<Arc<Listing>>>,
    /// `O_` flags.
    flags: AtomicU32,
    /// Set if it was ever locked.
    is_locked: AtomicBool,
}

impl OpenFile {
    /// Makes one.
    #[must_use]
    pub fn new(content: Content, place: Option<Arc<Place>>, flags: u32) -> Arc<Self> {
        let flags = flags & !(linux::O_CREAT | linux::O_EXCL | linux::O_NOCTTY | linux::O_TRUNC | linux::O_CLOEXEC);
        Arc::new(Self {
            content,
            place,
            offset: Mutex::new(0),
            turn: Turn::default(),
            listing: Mutex::default(),
            flags: AtomicU32::new(flags),
            is_locked: AtomicBool::new(false),
        })
    }

    /// Makes one of a stream without a name.
    #[must_use]
    pub fn of(stream: Arc<dyn Stream>, flags: u32) -> Arc<Self> {
        Self::new(Content::Stream(stream), None, flags)
    }

    /// Returns its flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets the flags that can change.
    pub fn set_flags(&self, flags: u32) {
        const CHANGEABLE: u32 = linux::O_APPEND | linux::O_NONBLOCK;
        self.flags.store(self.flags() & !CHANGEABLE | flags & CHANGEABLE, Ordering::Relaxed);
    }

    /// Returns whether it was opened for reading.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.flags() & (linux::O_ACCMODE | linux::O_PATH) != linux::O_WRONLY && self.flags() & linux::O_PATH == 0
    }

    /// Returns whether it was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.flags() & linux::O_ACCMODE != linux::O_RDONLY && self.flags() & linux::O_PATH == 0
    }

    /// Records that a lock of it is asked for.
    pub fn set_locked(&self) {
        self.is_locked.store(true, Ordering::Relaxed);
    }

    /// Returns whether a lock of it was ever asked for.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.is_locked.load(Ordering::Relaxed)
    }

    /// Returns whether operations fail instead of waiting.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.flags() & linux::O_NONBLOCK != 0
    }

    /// Returns the description.
    #[must_use]
    pub fn status(&self) -> Status {
        match &self.content {
            Content::Node(node) => node.status(),
            Content::Stream(stream) => self.place.as_ref().map_or_else(|| stream.status(), |place| place.node.status()),
        }
    }

    /// Returns the node that is read by position.
    ///
    /// # Errors
    /// `ESPIPE` for a stream.
    pub fn node(&self) -> Result<&Arc<dyn Node>> {
        match &self.content {
            Content::Node(node) => Ok(node),
            Content::Stream(_) => Err(Errno::SPIPE),
        }
    }

    /// Returns the stream, if it is one.
    #[must_use]
    pub fn stream(&self) -> Option<&Arc<dyn Stream>> {
        match &self.content {
            Content::Stream(stream) => Some(stream),
            Content::Node(_) => None,
        }
    }

    /// Reads without waiting, from the position on.
    ///
    /// # Errors
    /// `EBADF`, `EAGAIN`, and the node's or the stream's.
    pub fn read_now(&self, to: &mut [u8]) -> Result<usize> {
        if !self.is_readable() {
            return Err(Errno::BADF);
        }
        match &self.content {
            Content::Stream(stream) => stream.read(to),
            Content::Node(node) => {
                let mut offset = self.offset.lock();
                let count = node.read_at(*offset, to)?;
                *offset += count as u64;
                Ok(count)
            }
        }
    }

    /// Writes without waiting, from the position on.
    ///
    /// # Errors
    /// As [`OpenFile::read_now`].
    pub fn write_now(&self, from: &[u8]) -> Result<usize> {
        if !self.is_writable() {
            return Err(Errno::BADF);
        }
        match &self.content {
            Content::Stream(stream) => stream.write(from),
            Content::Node(node) => {
                let mut offset = self.offset.lock();
                if self.flags() & linux::O_APPEND != 0 {
                    let (end, count) = node.append(from)?;
                    *offset = end;
                    return Ok(count);
                }
                let count = node.write_at(*offset, from)?;
                *offset += count as u64;
                Ok(count)
            }
        }
    }

    /// Returns whether reads and writes may have to wait for another computer.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(&self.content, Content::Node(node) if node.is_remote())
    }

    /// Returns for what it is ready. A node is always.
    #[must_use]
    pub fn ready(&self, waker: Option<&core::task::Waker>) -> Ready {
        self.stream().map_or(IN | OUT, |stream| stream.ready(waker))
    }

    /// Returns whether it is a socket: reads and writes are messages.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.stream().is_some_and(|stream| stream.as_socket().is_some())
    }

    /// Waits until it is ready for one of these.
    ///
    /// # Errors
    /// [`Errno::RESTART`]; `EAGAIN` if it is not to wait.
    pub async fn wait(&self, thread: &Thread, wanted: Ready) -> Result<()> {
        if self.is_nonblocking() {
            return Err(Errno::AGAIN);
        }
        let is_ready = |waker: Option<&Waker>| self.ready(waker) & (wanted | HUP | ERR) != 0;
        // The task is added to a queue only if it has to wait: else what is left there would wake it in vain.
        let ready =
            poll_fn(|cx| if is_ready(None) || is_ready(Some(cx.waker())) { Poll::Ready(()) } else { Poll::Pending });
        interruptible(thread, ready).await
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.is_locked() {
            lock::file_closes(self);
        }
    }
}

/// A descriptor.
#[derive(Clone, Debug)]
struct Descriptor {
    file: Arc<OpenFile>,
    closes_at_exec: bool,
}

/// The descriptors of a process.
#[derive(Clone, Debug, Default)]
pub struct Descriptors(Vec<Option<Descriptor>>);

impl Descriptors {
    /// Returns an open file.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn get(&self, fd: u32) -> Result<Arc<OpenFile>> {
        self.slot(fd).map(|descriptor| Arc::clone(&descriptor.file)).ok_or(Errno::BADF)
    }

    fn slot(&self, fd: u32) -> Option<&Descriptor> {
        self.0.get(fd as usize)?.as_ref()
    }

    /// Gives a file the least free descriptor that is not below `least`.
    ///
    /// # Errors
    /// `EMFILE` if that would not be below `limit`.
    pub fn add(&mut self, file: Arc<OpenFile>, closes_at_exec: bool, least: u32, limit: u64) -> Result<u32> {
        let free = self.free(least, limit)?;
        self.set(free, file, closes_at_exec);
        Ok(free)
    }

    /// Returns the lowest descriptor, from one on, that is free.
    ///
    /// # Errors
    /// `EMFILE` if all below the limit are in use.
    pub fn free(&self, least: u32, limit: u64) -> Result<u32> {
        let free = (least as usize..).find(|fd| self.0.get(*fd).is_none_or(Option::is_none)).ok_or(Errno::MFILE)?;
        if (free as u64) < limit { Ok(free as u32) } else { Err(Errno::MFILE) }
    }

    /// Gives a file a descriptor, in place of what that had.
    pub fn set(&mut self, fd: u32, file: Arc<OpenFile>, closes_at_exec: bool) -> Option<Arc<OpenFile>> {
        let fd = fd as usize;
        if self.0.len() <= fd {
            self.0.resize(fd + 1, None);
        }
        self.0[fd].replace(Descriptor { file, closes_at_exec }).map(|old| old.file)
    }

    /// Frees a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&mut self, fd: u32) -> Result<Arc<OpenFile>> {
        let slot = self.0.get_mut(fd as usize).ok_or(Errno::BADF)?;
        slot.take().map(|descriptor| descriptor.file).ok_or(Errno::BADF)
    }

    /// Returns whether a descriptor closes when another program begins.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn closes_at_exec(&self, fd: u32) -> Result<bool> {
        self.slot(fd).map(|descriptor| descriptor.closes_at_exec).ok_or(Errno::BADF)
    }

    /// Sets whether a descriptor closes when another program begins.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_closes_at_exec(&mut self, fd: u32, closes: bool) -> Result<()> {
        let slot = self.0.get_mut(fd as usize).and_then(Option::as_mut).ok_or(Errno::BADF)?;
        slot.closes_at_exec = closes;
        Ok(())
    }

    /// Closes what closes when another program begins.
    pub fn begin_program(&mut self) -> Vec<Arc<OpenFile>> {
        let closing =
            self.0.iter_mut().filter(|slot| slot.as_ref().is_some_and(|descriptor| descriptor.closes_at_exec));
        closing.filter_map(Option::take).map(|descriptor| descriptor.file).collect()
    }

    /// Returns the descriptors that are in use.
    #[must_use]
    pub fn numbers(&self) -> Vec<u32> {
        (0..self.0.len() as u32).filter(|fd| self.slot(*fd).is_some()).collect()
    }
}

/// Returns whether a file is a directory.
#[must_use]
pub fn is_directory(file: &OpenFile) -> bool {
    file.status().kind == Kind::Directory
}
