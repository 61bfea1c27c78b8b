//! Messages of sockets: how they are sent, wait, and are received.

use super::address::{Address, Family};
use super::flight::Files;
use super::{Inner, Role, Sender, Socket, Style};
use crate::errno::{Errno, Result};
use crate::fs::descriptors::OpenFile;
use crate::memory::frames;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A message that waits to be received.
#[derive(Debug)]
pub struct Message {
    charge: Charge,
    pub(super) bytes: Vec<u8>,
    /// Bytes that were received already, of a stream.
    pub(super) done: usize,
    from: Address,
    files: Files,
    sender: Sender,
}

/// Bytes that a message takes beside its own.
pub(super) const OVERHEAD: usize = 512;
/// The most bytes of a message of a stream: smaller ones become one.
const MOST_JOINED: usize = 32 << 10;

/// A message that was received.
#[derive(Debug)]
pub struct Received {
    /// Its bytes, as far as there was room.
    pub bytes: Vec<u8>,
    /// Bytes of the whole message.
    pub full: usize,
    /// The sender's address.
    pub from: Address,
    /// Files that came with it.
    pub files: Vec<Arc<OpenFile>>,
    /// The sender.
    pub sender: Sender,
}

/// Bytes of all messages that wait, with their overhead.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A part of [`WAITING`]. All sockets together may have one part in [`Charge::PART`] of the memory.
#[derive(Debug)]
struct Charge(usize);

impl Charge {
    const PART: usize = 16;

    /// Charges so many bytes.
    ///
    /// # Errors
    /// `ENOBUFS` if too much waits.
    fn new(bytes: usize) -> Result<Self> {
        let mut charge = Self(0);
        charge.add(bytes)?;
        Ok(charge)
    }

    /// Charges further bytes.
    ///
    /// # Errors
    /// `ENOBUFS` if too much waits; the charge is unchanged.
    fn add(&mut self, bytes: usize) -> Result<()> {
        let waiting = WAITING.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if waiting > frames::bytes() / Self::PART {
            WAITING.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Errno::NOBUFS);
        }
        self.0 += bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        WAITING.fetch_sub(self.0, Ordering::Relaxed);
    }
}

impl Socket {
    /// Returns the socket that it sends to.
    ///
    /// # Errors
    /// `ENOTCONN`, `EDESTADDRREQ`; `EPIPE`; the error that no call has returned yet.
    pub fn target(&self) -> Result<Arc<Self>> {
        let mut inner = self.inner.lock();
        if let Some(error) = inner.error.take() {
            return Err(error);
        }
        if inner.is_write_closed {
            return Err(Errno::PIPE);
        }
        match &inner.role {
            Role::Connected(peer) => match peer.upgrade() {
                Some(peer) => Ok(peer),
                None if self.connects() => Err(Errno::PIPE),
                None => {
                    // Nothing is there any more.
                    inner.role = Role::None;
                    Err(Errno::CONNREFUSED)
                }
            },
            Role::Connecting => Err(Errno::AGAIN),
            _ if self.connects() && self.family != Family::Local => Err(Errno::PIPE),
            _ if self.connects() || self.family == Family::Local => Err(Errno::NOTCONN),
            _ => Err(Errno::DESTADDRREQ),
        }
    }

    /// Sends a message, or as much of a stream as there is room for. Returns the number of bytes.
    ///
    /// # Errors
    /// `EAGAIN` if there is no room yet; `EMSGSIZE`, `EPIPE`, `EPERM`. `files` stay if nothing is sent.
    pub fn send(&self, to: &Self, bytes: &[u8], files: &mut Files, sender: Sender) -> Result<usize> {
        let (from, room) = {
            let inner = self.inner.lock();
            if inner.is_write_closed {
                return Err(Errno::PIPE);
            }
            (inner.address.as_sender(self.family), inner.options.send_room)
        };
        if !self.connects() && !to.accepts(self) {
            // A message that the receiver does not want is lost, or refused.
            return if self.family == Family::Local { Err(Errno::PERM) } else { Ok(bytes.len()) };
        }
        let joins = self.style == Style::Stream;
        if !joins && bytes.len() > room {
            return Err(Errno::MSGSIZE);
        }
        let mut inner = to.inner.lock();
        if inner.is_read_closed {
            return Err(if self.connects() { Errno::PIPE } else { Errno::CONNREFUSED });
        }
        let left = room.saturating_sub(inner.bytes);
        let count = if joins { bytes.len().min(left.saturating_sub(OVERHEAD)) } else { bytes.len() };
        let has_room = if joins { count > 0 || bytes.is_empty() } else { inner.bytes == 0 || left >= count + OVERHEAD };
        if !has_room {
            return Err(Errno::AGAIN);
        }
        if joins && bytes.is_empty() {
            return Ok(0);
        }
        let is_alone = files.are_there();
        match inner.received.back_mut() {
            Some(last)
                if joins
                    && !is_alone
                    && !last.files.are_there()
                    && last.sender == sender
                    && last.bytes.len() + count <= MOST_JOINED =>
            {
                last.charge.add(count)?;
                last.bytes.extend_from_slice(&bytes[..count]);
                inner.bytes += count;
            }
            _ => {
                let charge = Charge::new(count + OVERHEAD)?;
                let files = core::mem::take(files);
                let bytes = bytes[..count].to_vec();
                inner.received.push_back(Message { charge, bytes, done: 0, from, files, sender });
                inner.bytes += count + OVERHEAD;
            }
        }
        drop(inner);
        to.changed.wake();
        Ok(count)
    }

    /// Receives a message, or at most so many bytes of a stream. With `peeks` all stays. An empty message with `full` 0 is the end of a
    /// connection.
    ///
    /// # Errors
    /// `EAGAIN` if there is nothing yet; `ENOTCONN`, `EINVAL`; the error that no call has returned yet.
    pub fn receive(&self, most: usize, peeks: bool) -> Result<Received> {
        let mut inner = self.inner.lock();
        let mut received = Received {
            bytes: Vec::new(),
            full: 0,
            from: Address::Unnamed,
            files: Vec::new(),
            sender: Sender::default(),
        };
        if inner.received.is_empty() {
            if let Some(error) = inner.error.take() {
                return Err(error);
            }
            if inner.is_read_closed {
                return Ok(received);
            }
            return Err(match inner.role {
                Role::Listening { .. } => Errno::INVAL,
                Role::None if self.family == Family::Local && self.style == Style::Stream => Errno::INVAL,
                Role::None if self.connects() => Errno::NOTCONN,
                _ => Errno::AGAIN,
            });
        }
        // What is taken is dropped without the lock: files go with it.
        let mut taken = Vec::new();
        if self.style == Style::Stream {
            let Inner { received: queue, bytes: all, options, .. } = &mut *inner;
            let parts = options.passes_sender;
            let mut at = 0;
            while let Some(message) = queue.get_mut(at) {
                let is_other =
                    at + taken.len() > 0 && (message.files.are_there() || parts && message.sender != received.sender);
                if is_other || received.bytes.len() == most && at + taken.len() > 0 {
                    break;
                }
                received.sender = message.sender;
                let part = &message.bytes[message.done..];
                let count = part.len().min(most - received.bytes.len());
                received.bytes.extend_from_slice(&part[..count]);
                let (has_files, is_whole) = (message.files.are_there(), count == part.len());
                if peeks {
                    at += 1;
                    if has_files {
                        received.files = queue[at - 1].files.get();
                        break;
                    }
                    continue;
                }
                *all -= count;
                message.done += count;
                if is_whole {
                    *all -= OVERHEAD;
                    taken.extend(queue.pop_front());
                } else if has_files {
                    // Files come with the first byte.
                    let files = core::mem::take(&mut message.files);
                    taken.push(Message {
                        charge: Charge(0),
                        bytes: Vec::new(),
                        done: 0,
                        from: Address::Unnamed,
                        files,
                        sender: message.sender,
                    });
                }
                if has_files || !is_whole {
                    break;
                }
            }
            received.full = received.bytes.len();
        } else if let Some(message) = inner.received.front() {
            let count = message.bytes.len().min(most);
            received.bytes.extend_from_slice(&message.bytes[..count]);
            (received.full, received.sender) = (message.bytes.len(), message.sender);
            received.from = message.from.clone();
            if peeks {
                received.files = message.files.get();
            } else {
                inner.bytes -= message.bytes.len() + OVERHEAD;
                taken.extend(inner.received.pop_front());
            }
        }
        drop(inner);
        for message in &taken {
            received.files.extend(message.files.get());
        }
        drop(taken);
        if !peeks {
            self.changed.wake();
        }
        Ok(received)
    }

    /// Returns the port from which its next message was sent.
    #[must_use]
    pub fn next_sender(&self) -> Option<u16> {
        let inner = self.inner.lock();
        let message = inner.received.front()?;
        Some(if let Address::Internet(from) = message.from { from.port } else { 0 })
    }

    /// Adds a datagram of another machine, if the socket takes it and has room. Otherwise it is lost.
    pub fn deliver(&self, bytes: &[u8], from: Address) {
        let mut inner = self.inner.lock();
        let is_wanted = match inner.role {
            Role::Connected(_) => inner.peer_address.is_same(&from),
            _ => true,
        };
        let size = bytes.len() + OVERHEAD;
        if !is_wanted || inner.is_read_closed || inner.bytes + size > inner.options.receive_room {
            return;
        }
        let Ok(charge) = Charge::new(size) else { return };
        let (bytes, files, sender) = (bytes.to_vec(), Files::default(), Sender::default());
        inner.received.push_back(Message { charge, bytes, done: 0, from, files, sender });
        inner.bytes += size;
        drop(inner);
        self.changed.wake();
    }

    /// Calls a function with each file in its messages, and in those of connections that are not accepted.
    pub fn each_file(&self, call: &mut dyn FnMut(&Arc<OpenFile>)) {
        let inner = self.inner.lock();
        inner.received.iter().flat_map(|message| message.files.all()).for_each(&mut *call);
        if let Role::Listening { queue, .. } = &inner.role {
            queue.iter().for_each(|socket| socket.each_file(call));
        }
    }

    /// Takes all messages, and those of connections that are not accepted.
    #[must_use]
    pub fn take_messages(&self) -> Vec<Message> {
        let mut inner = self.inner.lock();
        let mut all: Vec<_> = core::mem::take(&mut inner.received).into();
        inner.bytes = 0;
        if let Role::Listening { queue, .. } = &inner.role {
            queue.iter().for_each(|socket| all.extend(socket.take_messages()));
        }
        all
    }
}
