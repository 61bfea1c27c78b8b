//! A session with the server of a share: file numbers, and messages in flight.

use super::wire::{self, Builder, Fields, HEAD, kind};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::wait::WaitQueue;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::sync::atomic::{AtomicBool, Ordering};

/// The greatest length of a message and of an answer, in bytes: a packet of Gnomon's.
const MOST_MESSAGE: usize = 64 << 10;
/// File numbers are below this: Gnomon's device has no more.
const MOST_FIDS: u32 = 1 << 16;
/// The tag of a message outside a session.
const NO_TAG: u16 = u16::MAX;
/// Bytes of an answer that contains neither content nor a path.
const SMALL: usize = 512;

/// The device that carries messages.
pub trait Transport: Debug + Send + Sync {
    /// Sends what [`Client::next`] returns, and passes answers to [`Message::complete`].
    fn service(&self, client: &Client);
}

/// A message that is sent, with its answer when that has come.
#[derive(Debug)]
pub struct Message {
    bytes: Mutex<Vec<u8>>,
    kind: u8,
    /// The bytes that its answer has at most.
    pub room: usize,
    /// A file number that is free when the answer has come.
    frees: Option<u32>,
    answer: Mutex<Option<Result<Vec<u8>>>>,
    arrived: WaitQueue,
}

impl Message {
    /// Gives the message its tag, and returns its bytes.
    #[must_use]
    pub fn take(&self, tag: u16) -> Vec<u8> {
        let mut bytes = core::mem::take(&mut *self.bytes.lock());
        let tag = if self.kind == kind::VERSION { NO_TAG } else { tag };
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[5..HEAD].copy_from_slice(&tag.to_le_bytes());
        bytes
    }

    /// Ends the message with its answer. The tag is that of [`Message::take`].
    pub fn complete(&self, client: &Client, tag: u16, answer: Vec<u8>) {
        let tag = if self.kind == kind::VERSION { NO_TAG } else { tag };
        let checked = wire::check(&answer, self.kind, tag);
        if let Some(fid) = self.frees {
            client.fids.lock().free.push(fid);
        }
        *self.answer.lock() = Some(checked.map(|()| answer));
        self.arrived.wake();
    }

    /// Waits for the answer.
    pub(super) async fn answer(&self) -> Result<Vec<u8>> {
        self.arrived.until(|| self.answer.lock().take()).await
    }
}

/// File numbers.
#[derive(Debug, Default)]
struct Fids {
    free: Vec<u32>,
    /// The least number that was never used.
    next: u32,
}

/// A session.
#[derive(Debug)]
pub struct Client {
    transport: Arc<dyn Transport>,
    waiting: Mutex<VecDeque<Arc<Message>>>,
    fids: Mutex<Fids>,
}

/// A file number. The server is told when it is dropped.
#[derive(Debug)]
pub(super) struct Fid {
    client: Arc<Client>,
    pub(super) number: u32,
    /// False once the server has said that the number is not a file's.
    is_known: AtomicBool,
}

impl Fid {
    /// Records that the server has refused to give the number a file.
    pub(super) fn forget(&self) {
        self.is_known.store(false, Ordering::Relaxed);
    }
}

impl Drop for Fid {
    fn drop(&mut self) {
        if self.is_known.load(Ordering::Relaxed) {
            self.client.send_and_free(Builder::new(kind::CLUNK).u32(self.number), Some(self.number));
        } else {
            self.client.fids.lock().free.push(self.number);
        }
    }
}

impl Client {
    /// Makes the client of a device.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>) -> Arc<Self> {
        Arc::new(Self { transport, waiting: Mutex::default(), fids: Mutex::default() })
    }

    /// Returns the next message that is to be sent.
    pub fn next(&self) -> Option<Arc<Message>> {
        self.waiting.lock().pop_front()
    }

    /// Moves messages and answers.
    pub fn service(&self) {
        self.transport.service(self);
    }

    fn enqueue(&self, message: Builder, frees: Option<u32>, room: usize) -> Arc<Message> {
        let bytes = message.finish();
        let kind = bytes[4];
        let message = Arc::new(Message {
            bytes: Mutex::new(bytes),
            kind,
            room,
            frees,
            answer: Mutex::new(None),
            arrived: WaitQueue::new(),
        });
        self.waiting.lock().push_back(Arc::clone(&message));
        self.service();
        message
    }

    fn send_and_free(&self, message: Builder, frees: Option<u32>) {
        self.enqueue(message, frees, SMALL);
    }

    /// Sends a message whose answer has up to `room` bytes.
    pub(super) fn send_for(&self, message: Builder, room: usize) -> Arc<Message> {
        self.enqueue(message, None, room)
    }

    /// Sends a message with a short answer.
    pub(super) fn send(&self, message: Builder) -> Arc<Message> {
        self.send_for(message, SMALL)
    }

    /// Takes a file number. The message that gives it a file follows.
    ///
    /// # Errors
    /// `ENFILE` if all are in use.
    pub(super) fn new_fid(self: &Arc<Self>) -> Result<Fid> {
        let mut fids = self.fids.lock();
        let number = match fids.free.pop() {
            Some(number) => number,
            None if fids.next < MOST_FIDS => {
                fids.next += 1;
                fids.next - 1
            }
            None => return Err(Errno::NFILE),
        };
        Ok(Fid { client: Arc::clone(self), number, is_known: AtomicBool::new(true) })
    }

    /// Begins the session. Returns the number of the root directory.
    ///
    /// # Errors
    /// `EIO` if the server speaks another protocol.
    pub(super) async fn begin(self: &Arc<Self>) -> Result<Fid> {
        const DIALECT: &str = "9P2000.L";
        const NO_FID: u32 = u32::MAX;
        let version = Builder::new(kind::VERSION).u32(MOST_MESSAGE as u32).text(DIALECT);
        let answer = self.send(version).answer().await?;
        let mut fields = Fields::of(&answer);
        let size = fields.u32()?;
        if (size as usize) < MOST_MESSAGE || fields.text()? != DIALECT {
            return Err(Errno::IO);
        }
        let root = self.new_fid()?;
        let attach = Builder::new(kind::ATTACH).u32(root.number).u32(NO_FID).text("").text("").u32(0);
        self.send(attach).answer().await.inspect_err(|_| root.forget())?;
        Ok(root)
    }
}
