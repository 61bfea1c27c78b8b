//! The queue of runnable tasks, and the loop of each hart.

use super::timers;
use crate::machine::{self, MAX_HARTS};
use crate::sync::Mutex;
use alloc::collections::VecDeque;
use async_task::Runnable;
use core::future::Future;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Milliseconds that a task may run while others wait.
pub const SLICE_MS: u64 = 6;

static QUEUE: Mutex<VecDeque<Runnable>> = Mutex::new(VecDeque::new());
/// The length of the queue, to be read without its lock.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Harts that wait for an interrupt: a bit for each index.
static IDLE: AtomicU64 = AtomicU64::new(0);
/// The time at which the task of each hart began its turn.
static TURN: [AtomicU64; MAX_HARTS] = [const { AtomicU64::new(0) }; MAX_HARTS];

/// Makes a task runnable. A hart that is idle is interrupted for it.
fn schedule(runnable: Runnable) {
    {
        let mut queue = QUEUE.lock();
        queue.push_back(runnable);
        WAITING.store(queue.len(), Ordering::SeqCst);
    }
    let idle = IDLE.load(Ordering::SeqCst) & !(1 << machine::hart_index());
    if idle != 0 {
        let chosen = idle & idle.wrapping_neg();
        // One that was chosen is not chosen again until it is idle again.
        if IDLE.fetch_and(!chosen, Ordering::SeqCst) & chosen != 0 {
            machine::interrupt_harts(chosen);
        }
    }
}

fn next() -> Option<Runnable> {
    if WAITING.load(Ordering::SeqCst) == 0 {
        return None;
    }
    let mut queue = QUEUE.lock();
    let next = queue.pop_front();
    WAITING.store(queue.len(), Ordering::SeqCst);
    next
}

/// Starts a task.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    let (runnable, task) = async_task::spawn(future, schedule);
    task.detach();
    runnable.schedule();
}

/// Records that a task begins its turn on this hart.
pub fn begin_turn() {
    TURN[machine::hart_index()].store(machine::ticks(), Ordering::Relaxed);
}

/// Returns when the turn of this hart's task ends, if another one waits.
#[must_use]
pub fn turn_end() -> Option<u64> {
    let has_others = WAITING.load(Ordering::Relaxed) != 0;
    has_others.then(|| TURN[machine::hart_index()].load(Ordering::Relaxed) + SLICE_MS * timers::per_second() / 1000)
}

/// Lets others run that wait.
pub async fn yield_now() {
    let mut has_yielded = false;
    core::future::poll_fn(|cx| {
        if core::mem::replace(&mut has_yielded, true) {
            return core::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        core::task::Poll::Pending
    })
    .await;
}

/// Runs tasks for ever.
#[cfg(feature = "machine")]
pub fn run() -> ! {
    use crate::memory::translation;
    let own = 1 << machine::hart_index();
    loop {
        while let Some(task) = next() {
            task.run();
            // Tasks may wake each other for long without running a program.
            if machine::is_timer_due() {
                timers::expired();
                timers::expire();
            }
        }
        // No space is kept alive by a hart that runs nothing.
        translation::leave();
        IDLE.fetch_or(own, Ordering::SeqCst);
        timers::expire();
        crate::device::poll();
        if WAITING.load(Ordering::SeqCst) == 0 {
            timers::arm(None);
            machine::wait_for_interrupt();
        }
        IDLE.fetch_and(!own, Ordering::SeqCst);
        machine::clear_ipi();
    }
}
