//! Moments that may change before they have come.

use super::executor;
use super::wait::{WaitQueue, before};
use crate::sync::Mutex;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

/// A moment of [`super::timers::now`] at which something is done. However often it is set, one task waits.
#[derive(Debug, Default)]
pub struct Alarm {
    /// 0 is never.
    at: Mutex<u64>,
    changed: WaitQueue,
    has_task: AtomicBool,
}

impl Alarm {
    /// Sets the moment. When it has come, `act` is done, and returns the next moment. Each call for an alarm has the same `act`.
    pub fn set(self: &Arc<Self>, at: u64, act: impl Fn() -> u64 + Send + 'static) {
        *self.at.lock() = at;
        self.changed.wake();
        if at != 0 && !self.has_task.swap(true, Ordering::SeqCst) {
            executor::spawn(run(Arc::clone(self), act));
        }
    }

    /// Sets it to never.
    pub fn stop(&self) {
        *self.at.lock() = 0;
        self.changed.wake();
    }
}

async fn run(alarm: Arc<Alarm>, act: impl Fn() -> u64) {
    loop {
        let at = *alarm.at.lock();
        if at == 0 {
            alarm.has_task.store(false, Ordering::SeqCst);
            // It may have been set before that could be seen.
            if *alarm.at.lock() == 0 || alarm.has_task.swap(true, Ordering::SeqCst) {
                return;
            }
            continue;
        }
        let differs = || (*alarm.at.lock() != at).then_some(());
        if before(Some(at), alarm.changed.until(differs)).await.is_none() {
            let next = act();
            let mut now = alarm.at.lock();
            if *now == at {
                *now = next;
            }
        }
    }
}
