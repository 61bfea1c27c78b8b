//! Operations of a call that wait for the host.
//!
//! A call's operations on shares are recorded in its thread's [`Ledger`], in their order. The first one without a result ends the call with
//! [`Errno::HOST`]; [`Ledger::settle`] waits for it. When the call is made again, its operations find their results there.

use super::node::ShareNode;
use crate::errno::{Errno, Result};
use crate::fs::{Attribute, Entry, System};
use crate::machine::{self, MAX_HARTS};
use crate::sync::Mutex;
use crate::task::Thread;
use crate::task::timers::{self, SECOND};
use crate::task::wait::before;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};

/// The time for which a signal waits for the end of an operation, in nanoseconds: a server that is alive answers before.
const PATIENCE: u64 = SECOND;
/// The time for which the kernel polls a device for an answer, in nanoseconds.
const POLLING: u64 = 20 * SECOND;

/// Operations of a call at most: a path has 2,048 names, and may lead through 40 links.
const MOST_OPERATIONS: usize = 100_000;

/// An operation on a node, by the node's number. A call that is made again makes the same operations in the same order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the operations are those of `fs::Node`")]
pub enum Key {
    Lookup(u64, String),
    List(u64),
    Create(u64, String),
    Link(u64, String),
    Unlink(u64, String),
    Rename(u64, String, u64, String),
    Target(u64),
    Open(u64, u32),
    Read(u64, u64, usize),
    Write(u64, u64, usize),
    Append(u64, usize),
    Set(u64, Attribute),
    Refresh(u64),
    Flush(u64),
    Fill(u64, u64),
    System(u64),
}

/// The result of an operation.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Output {
    Done,
    Node(Arc<ShareNode>),
    Entries(Arc<Vec<Entry>>),
    Text(String),
    Bytes(Arc<Vec<u8>>),
    /// The offset behind what was written, and its bytes.
    Written(u64, usize),
    System(System),
    /// The steps of a path: each is a lookup, with its result.
    Walk(Vec<(Key, Result<Output>)>),
}

/// An operation on its way.
pub type Operation = Pin<Box<dyn Future<Output = Result<Output>> + Send>>;

#[derive(Default)]
struct Inner {
    results: Vec<(Key, Result<Output>)>,
    /// Results before this index were asked for in this attempt.
    cursor: usize,
    pending: Option<(Key, Operation)>,
}

impl Inner {
    fn record(&mut self, key: Key, result: Result<Output>) {
        match result {
            Ok(Output::Walk(steps)) => self.results.extend(steps),
            result => self.results.push((key, result)),
        }
    }
}

/// The operations of a thread's call.
#[derive(Default)]
pub struct Ledger {
    inner: Mutex<Inner>,
    /// Set if `inner` has anything: to be read without its lock.
    is_used: AtomicBool,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

/// The ledger of the thread that each hart runs.
static CURRENT: [Mutex<Option<Arc<Ledger>>>; MAX_HARTS] = [const { Mutex::new(None) }; MAX_HARTS];

/// Sets the thread whose operations this hart makes. Without one, operations poll.
pub fn enter(ledger: Option<Arc<Ledger>>) {
    let before = core::mem::replace(&mut *CURRENT[machine::hart_index()].lock(), ledger);
    drop(before);
}

fn current() -> Option<Arc<Ledger>> {
    CURRENT[machine::hart_index()].lock().clone()
}

/// Makes an operation, or returns its result if it was made before.
///
/// # Errors
/// [`Errno::HOST`] if the thread has to wait for it; the operation's.
pub(super) fn perform(key: Key, make: impl FnOnce() -> Operation) -> Result<Output> {
    match current() {
        Some(ledger) => ledger.ask(key, make),
        None => poll_until_done(&mut make()),
    }
}

/// Runs an operation to its end on this hart.
///
/// # Errors
/// The operation's; `EIO` if the server does not answer.
pub(super) fn poll_until_done(operation: &mut Operation) -> Result<Output> {
    let until = timers::now().saturating_add(POLLING);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(result) = operation.as_mut().poll(&mut cx) {
            return result;
        }
        if timers::now() > until {
            return Err(Errno::IO);
        }
        crate::device::service_shares();
        machine::relax();
    }
}

/// Ends the operation that this hart's thread waits for, by polling: for accesses to a program's memory in the midst of a call.
pub fn settle_here() {
    if let Some(ledger) = current() {
        let pending = ledger.inner.lock().pending.take();
        if let Some((key, mut operation)) = pending {
            let result = poll_until_done(&mut operation);
            ledger.inner.lock().record(key, result);
        }
    }
}

impl Ledger {
    fn ask(&self, key: Key, make: impl FnOnce() -> Operation) -> Result<Output> {
        self.is_used.store(true, Ordering::Relaxed);
        let mut inner = self.inner.lock();
        let cursor = inner.cursor;
        if let Some(found) = inner.results[cursor..].iter().position(|(known, _)| *known == key) {
            inner.cursor = cursor + found + 1;
            return inner.results[cursor + found].1.clone();
        }
        if inner.results.len() >= MOST_OPERATIONS {
            return Err(Errno::LOOP);
        }
        let before = inner.pending.replace((key, make()));
        drop(inner);
        // Dropping it may send messages.
        drop(before);
        Err(Errno::HOST)
    }

    /// Begins another attempt of the call.
    pub fn rewind(&self) {
        if self.is_used.load(Ordering::Relaxed) {
            self.inner.lock().cursor = 0;
        }
    }

    /// Ends the call.
    pub fn clear(&self) {
        if self.is_used.swap(false, Ordering::Relaxed) {
            let before = core::mem::take(&mut *self.inner.lock());
            drop(before);
        }
    }

    /// Polls the operation without a result.
    fn poll_pending(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some((key, mut operation)) = self.inner.lock().pending.take() else { return Poll::Ready(()) };
        let result = operation.as_mut().poll(cx);
        let mut inner = self.inner.lock();
        match result {
            Poll::Ready(result) => {
                inner.record(key, result);
                Poll::Ready(())
            }
            Poll::Pending => {
                inner.pending = Some((key, operation));
                Poll::Pending
            }
        }
    }

    /// Waits for the operation without a result.
    ///
    /// # Errors
    /// `EINTR` if the thread ends, or has had a signal to handle for [`PATIENCE`] while the server did not answer.
    pub async fn settle(&self, thread: &Thread) -> Result<()> {
        let mut until = None;
        loop {
            let is_wanted = || thread.is_ending() || thread.has_work();
            let settled = poll_fn(|cx| match self.poll_pending(cx) {
                Poll::Pending if until.is_none() && is_wanted() => Poll::Ready(false),
                other => other.map(|()| true),
            });
            match before(until, settled).await {
                Some(true) => {
                    self.rewind();
                    return Ok(());
                }
                Some(false) => until = Some(timers::now() + PATIENCE),
                None => {
                    self.clear();
                    return Err(Errno::INTR);
                }
            }
        }
    }
}
