//! Tasks that wait for an event.

use super::Thread;
use super::timers;
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::{Poll, Waker};
use smallvec::SmallVec;

/// Most queues have one task, if any.
type Wakers = SmallVec<[Waker; 1]>;

/// Tasks that wait for something to change.
#[derive(Debug, Default)]
pub struct WaitQueue(Mutex<Wakers>);

impl WaitQueue {
    /// Makes one without tasks.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Wakers::new_const()))
    }

    /// Adds a task, to be woken once.
    pub fn add(&self, waker: &Waker) {
        let mut all = self.0.lock();
        if !all.iter().any(|known| known.will_wake(waker)) {
            all.push(waker.clone());
        }
    }

    /// Wakes all tasks.
    pub fn wake(&self) {
        let all = core::mem::take(&mut *self.0.lock());
        all.into_iter().for_each(Waker::wake);
    }

    /// Waits until a condition gives a value. Each change of it is followed by [`WaitQueue::wake`].
    pub async fn until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| {
            if let Some(value) = condition() {
                return Poll::Ready(value);
            }
            self.add(cx.waker());
            // It may have changed before the task was in the queue.
            condition().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Waits for a future, or until the thread has a signal to handle.
///
/// # Errors
/// [`Errno::RESTART`] for a signal.
pub async fn interruptible<T>(thread: &Thread, future: impl Future<Output = T>) -> Result<T> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        if thread.has_work() { Poll::Ready(Err(Errno::RESTART)) } else { Poll::Pending }
    })
    .await
}

/// Waits for a future until a moment of [`timers::now`]. `None` is the end of time.
pub async fn before<T>(deadline: Option<u64>, future: impl Future<Output = T>) -> Option<T> {
    let Some(deadline) = deadline else { return Some(future.await) };
    let mut future = pin!(future);
    let mut sleep = pin!(timers::sleep_until(deadline));
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}
