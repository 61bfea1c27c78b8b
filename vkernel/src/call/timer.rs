//! Timers of processes (`timer_create`).

use super::{Args, clock};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::alarm::Alarm;
use crate::task::futex::deadline;
use crate::task::signal::{self, Info, LAST, number};
use crate::task::{Process, Task, Thread, timers};
use alloc::sync::{Arc, Weak};
use linux_raw_sys::general as linux;

/// The most timers of a process.
const MOST: usize = 256;

/// The moment of the next expiry in nanoseconds of [`timers::now`], 0 if the timer is off, and the interval.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    at: u64,
    interval: u64,
    /// Expiries since the last signal beside the one that it tells.
    overrun: u64,
}

/// A timer that sends signals.
#[derive(Debug)]
pub struct Timer {
    number: u32,
    is_real_time: bool,
    /// The signal; none if the timer is only read.
    signal: Option<Info>,
    /// The thread that gets the signal; the process if it is none.
    thread: Option<Weak<Thread>>,
    state: Mutex<State>,
    alarm: Arc<Alarm>,
}

impl Timer {
    /// The time that is left, and the interval.
    fn left(&self) -> (u64, u64) {
        let state = *self.state.lock();
        (if state.at == 0 { 0 } else { state.at.saturating_sub(timers::now()).max(1) }, state.interval)
    }

    /// Records that the timer has expired, if it has. Returns the signal to send, unless it `is_pending`: then that counts one more.
    fn expire(&self, is_pending: bool) -> Option<Info> {
        let mut state = self.state.lock();
        let now = timers::now();
        if state.at == 0 || now < state.at {
            return None;
        }
        let more = (now - state.at).checked_div(state.interval).unwrap_or(0);
        let next = state.at.saturating_add((more + 1).saturating_mul(state.interval));
        state.at = if state.interval == 0 { 0 } else { next.max(now + timers::LEAST_INTERVAL) };
        if is_pending {
            state.overrun = state.overrun.saturating_add(more + 1);
            return None;
        }
        state.overrun = more;
        self.signal.map(|info| Info { pid: self.number, uid: more.min(i32::MAX as u64) as u32, ..info })
    }
}

/// Sends the signal of a timer that has expired. Returns the next moment, 0 for none.
fn expire(timer: &Weak<Timer>, process: &Weak<Process>) -> u64 {
    let (Some(timer), Some(process)) = (timer.upgrade(), process.upgrade()) else { return 0 };
    match timer.thread.as_ref().map(Weak::upgrade) {
        None => {
            if let Some(info) = timer.expire(process.pending.has_timer(timer.number)) {
                signal::send(&process, info);
            }
        }
        Some(Some(thread)) => {
            if let Some(info) = timer.expire(thread.pending.has_timer(timer.number)) {
                signal::send_to_thread(&thread, info);
            }
        }
        // The thread has ended.
        Some(None) => drop(timer.expire(false)),
    }
    timer.state.lock().at
}

pub(super) fn create(task: &Task, [clock, event, to, ..]: Args) -> Result<u64> {
    let is_real_time = match clock as u32 {
        linux::CLOCK_REALTIME | linux::CLOCK_TAI => true,
        linux::CLOCK_MONOTONIC | linux::CLOCK_BOOTTIME => false,
        // Times of processes are not waited for.
        linux::CLOCK_PROCESS_CPUTIME_ID | linux::CLOCK_THREAD_CPUTIME_ID => return Err(Errno::OPNOTSUPP),
        _ => return Err(Errno::INVAL),
    };
    let process = &task.thread.process;
    let mut timers = process.timers.lock();
    if timers.len() >= MOST {
        return Err(Errno::AGAIN);
    }
    let number = (0..).find(|number| !timers.contains_key(number)).ok_or(Errno::AGAIN)?;
    let (mut info, mut thread) = (Info { value: number.into(), ..Info::kernel(number::ALRM) }, None);
    let mut is_silent = false;
    if event != 0 {
        let value = task.space.get::<u64>(event)?;
        let [signal, notify, tid] = task.space.get::<[u32; 3]>(event + 8)?;
        is_silent = notify == linux::SIGEV_NONE;
        if !is_silent && !(1..=LAST).contains(&signal) {
            return Err(Errno::INVAL);
        }
        match notify {
            // A thread is started by the C library, which is told by a signal.
            linux::SIGEV_NONE | linux::SIGEV_SIGNAL | linux::SIGEV_THREAD => {}
            linux::SIGEV_THREAD_ID => {
                let found = process.threads.lock().get(&tid).cloned().ok_or(Errno::INVAL)?;
                thread = Some(Arc::downgrade(&found));
            }
            _ => return Err(Errno::INVAL),
        }
        info = Info { value, ..Info::kernel(signal) };
    }
    let signal = if is_silent { None } else { Some(Info { code: linux::SI_TIMER, ..info }) };
    task.space.put(to, &number)?;
    let (state, alarm) = (Mutex::default(), Arc::default());
    timers.insert(number, Arc::new(Timer { number, is_real_time, signal, thread, state, alarm }));
    Ok(0)
}

fn timer(task: &Task, number: u64) -> Result<Arc<Timer>> {
    task.thread.process.timers.lock().get(&(number as u32)).cloned().ok_or(Errno::INVAL)
}

fn write(task: &Task, to: u64, (left, interval): (u64, u64)) -> Result<u64> {
    clock::write(task, to, interval)?;
    clock::write(task, to + 16, left)
}

pub(super) fn set(task: &Task, [number, flags, new, old, ..]: Args) -> Result<u64> {
    if new == 0 {
        return Err(Errno::INVAL);
    }
    let (interval, first) = (clock::read(task, new)?, clock::read(task, new + 16)?);
    let timer = timer(task, number)?;
    let before = timer.left();
    let is_relative = flags & u64::from(linux::TIMER_ABSTIME) == 0;
    let at = if first == 0 { 0 } else { deadline(first, is_relative, timer.is_real_time).max(1) };
    {
        let mut state = timer.state.lock();
        (state.at, state.interval, state.overrun) = (at, interval, 0);
    }
    let (own, process) = (Arc::downgrade(&timer), Arc::downgrade(&task.thread.process));
    timer.alarm.set(at, move || expire(&own, &process));
    if old == 0 { Ok(0) } else { write(task, old, before) }
}

pub(super) fn get(task: &Task, [number, to, ..]: Args) -> Result<u64> {
    write(task, to, timer(task, number)?.left())
}

pub(super) fn overrun(task: &Task, [number, ..]: Args) -> Result<u64> {
    Ok(timer(task, number)?.state.lock().overrun.min(i32::MAX as u64))
}

pub(super) fn delete(task: &Task, [number, ..]: Args) -> Result<u64> {
    let timer = task.thread.process.timers.lock().remove(&(number as u32)).ok_or(Errno::INVAL)?;
    end(&timer);
    Ok(0)
}

fn end(timer: &Timer) {
    timer.state.lock().at = 0;
    timer.alarm.stop();
}

/// Deletes all timers of a process.
pub fn delete_all(process: &Process) {
    core::mem::take(&mut *process.timers.lock()).values().for_each(|timer| end(timer));
}
