//! Futexes: tasks that wait at a word of memory.

use super::timers;
use super::wait::{before, interruptible};
use super::{Task, Thread};
use crate::errno::{Errno, Result};
use crate::memory::space::Space;
use crate::sync::Mutex;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::{Poll, Waker};

/// The word that tasks wait at: in private memory by space and address, in shared memory by object and offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key(u64, u64);

impl Key {
    /// Returns the key of a word.
    #[must_use]
    pub fn of(space: &Space, at: u64, is_private: bool) -> Self {
        const OBJECT: u64 = 1 << 63;
        match if is_private { None } else { space.shared_place(at) } {
            Some((object, offset)) => Self(OBJECT | object as u64, offset),
            None => Self(space.translation().id(), at),
        }
    }

    fn bucket(self) -> &'static Mutex<Vec<Waiter>> {
        let hash = (self.0 ^ self.1 >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &BUCKETS[(hash >> 56) as usize % BUCKETS.len()]
    }
}

#[derive(Debug)]
struct Waiter {
    key: Key,
    bits: u32,
    waker: Waker,
    /// Shared with the future, which looks here for whether it was woken.
    state: Arc<State>,
}

/// The state of a waiting task.
#[derive(Debug)]
struct State {
    is_woken: Mutex<bool>,
    /// The key by which it waits now: another one after it was moved.
    key: Mutex<Key>,
}

static BUCKETS: [Mutex<Vec<Waiter>>; 64] = [const { Mutex::new(Vec::new()) }; 64];

/// Removes a waiting task that was not woken.
struct Waiting(Arc<State>);

impl Drop for Waiting {
    fn drop(&mut self) {
        loop {
            let key = *self.0.key.lock();
            key.bucket().lock().retain(|waiter| !Arc::ptr_eq(&waiter.state, &self.0));
            // Another task may have moved it meanwhile.
            if *self.0.key.lock() == key {
                return;
            }
        }
    }
}

/// Waits at a word, if it has the expected value, until another task wakes one of the bits, or the moment has come.
///
/// # Errors
/// `EAGAIN` for another value, `ETIMEDOUT`, [`Errno::RESTART`], `EFAULT`.
pub async fn wait(
    task: &mut Task,
    at: u64,
    expected: u32,
    deadline: Option<u64>,
    bits: u32,
    is_private: bool,
) -> Result<()> {
    // So that the word can be read with the bucket's lock held.
    task.space.load_word(at)?;
    let key = Key::of(&task.space, at, is_private);
    let state = Arc::new(State { is_woken: Mutex::new(false), key: Mutex::new(key) });
    let mut has_begun = false;
    let (space, thread) = (Arc::clone(&task.space), Arc::clone(&task.thread));
    let _waiting = Waiting(Arc::clone(&state));
    let woken = poll_fn(|cx| {
        if has_begun {
            return if *state.is_woken.lock() { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        has_begun = true;
        let mut bucket = key.bucket().lock();
        match space.load_word(at) {
            Err(why) => Poll::Ready(Err(why)),
            Ok(word) if word != expected => Poll::Ready(Err(Errno::AGAIN)),
            Ok(_) => {
                bucket.push(Waiter { key, bits, waker: cx.waker().clone(), state: Arc::clone(&state) });
                Poll::Pending
            }
        }
    });
    match before(deadline, interruptible(&thread, woken)).await {
        None => Err(Errno::TIMEDOUT),
        Some(Err(why)) => Err(why),
        Some(Ok(result)) => result,
    }
}

/// Wakes at most so many tasks that wait at a word for one of the bits. Returns how many.
pub fn wake(key: Key, most: u32, bits: u32) -> u32 {
    let mut woken = Vec::new();
    {
        let mut bucket = key.bucket().lock();
        let mut n = 0;
        while n < bucket.len() && (woken.len() as u32) < most {
            if bucket[n].key == key && bucket[n].bits & bits != 0 {
                let waiter = bucket.remove(n);
                *waiter.state.is_woken.lock() = true;
                woken.push(waiter.waker);
            } else {
                n += 1;
            }
        }
    }
    let count = woken.len() as u32;
    woken.into_iter().for_each(Waker::wake);
    count
}

/// Wakes tasks at a word, and moves at most so many others to another one. Returns how many were woken and moved.
pub fn requeue(from: Key, to: Key, most_woken: u32, most_moved: u32) -> (u32, u32) {
    let woken = wake(from, most_woken, u32::MAX);
    let mut moved = Vec::new();
    {
        let mut bucket = from.bucket().lock();
        let mut n = 0;
        while n < bucket.len() && (moved.len() as u32) < most_moved {
            if bucket[n].key == from {
                let waiter = bucket.remove(n);
                *waiter.state.key.lock() = to;
                moved.push(Waiter { key: to, ..waiter });
            } else {
                n += 1;
            }
        }
    }
    let count = moved.len() as u32;
    to.bucket().lock().append(&mut moved);
    (woken, count)
}

/// Marks robust futexes of a thread that ends as those of a dead owner, and wakes a task at each.
pub fn release_robust(thread: &Thread, space: &Space) {
    const MOST: usize = 2048;
    const WAITERS: u32 = 0x8000_0000;
    const OWNER_DIED: u32 = 0x4000_0000;
    const OWNER: u32 = 0x3fff_ffff;
    let head = thread.robust_list.load(core::sync::atomic::Ordering::Relaxed);
    if head == 0 {
        return;
    }
    let Ok([mut entry, offset, pending]) = space.get::<[u64; 3]>(head) else { return };
    let release = |entry: u64| {
        let at = (entry & !1).wrapping_add(offset);
        while let Ok(word) = space.load_word(at) {
            if word & OWNER != thread.tid {
                return;
            }
            if space.compare_exchange(at, word, word & WAITERS | OWNER_DIED) == Ok(word) {
                wake(Key::of(space, at, false), 1, u32::MAX);
                return;
            }
        }
    };
    for _ in 0..MOST {
        if entry & !1 == head {
            break;
        }
        if entry != pending {
            release(entry);
        }
        match space.get::<u64>(entry & !1) {
            Ok(next) => entry = next,
            Err(_) => break,
        }
    }
    if pending != 0 {
        release(pending);
    }
}

/// Returns the moment of [`timers::now`] for a time that a program gave: relative, or by one of the clocks.
#[must_use]
pub fn deadline(nanoseconds: u64, is_relative: bool, is_real_time: bool) -> u64 {
    if is_relative {
        timers::now().saturating_add(nanoseconds)
    } else if is_real_time {
        nanoseconds.saturating_sub(timers::time_of_day().wrapping_sub(timers::now()))
    } else {
        nanoseconds
    }
}
