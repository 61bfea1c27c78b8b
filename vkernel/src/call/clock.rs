//! Clocks, sleeps, interval timers.

use super::Args;
use crate::errno::{Errno, Result};
use crate::task::credentials::Capability;
use crate::task::futex::deadline;
use crate::task::signal::{self, Info, number};
use crate::task::timers::{self, SECOND};
use crate::task::wait::interruptible;
use crate::task::{Process, Task};
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

/// Reads a `timespec`, in nanoseconds.
pub(super) fn read(task: &Task, at: u64) -> Result<u64> {
    let [seconds, nanoseconds] = task.space.get::<[i64; 2]>(at)?;
    if seconds < 0 || !(0..SECOND as i64).contains(&nanoseconds) {
        return Err(Errno::INVAL);
    }
    Ok((seconds as u64).saturating_mul(SECOND).saturating_add(nanoseconds as u64))
}

/// Writes a `timespec`.
pub(super) fn write(task: &Task, at: u64, nanoseconds: u64) -> Result<u64> {
    task.space.put(at, &[nanoseconds / SECOND, nanoseconds % SECOND]).map(|()| 0)
}

fn nanoseconds(ticks: u64) -> u64 {
    (u128::from(ticks) * u128::from(SECOND) / u128::from(timers::per_second())) as u64
}

pub(super) fn get(task: &Task, [clock, to, ..]: Args) -> Result<u64> {
    let now = match clock as u32 {
        linux::CLOCK_REALTIME | linux::CLOCK_REALTIME_COARSE | linux::CLOCK_TAI => timers::time_of_day(),
        linux::CLOCK_MONOTONIC
        | linux::CLOCK_MONOTONIC_RAW
        | linux::CLOCK_MONOTONIC_COARSE
        | linux::CLOCK_BOOTTIME
        | linux::CLOCK_REALTIME_ALARM
        | linux::CLOCK_BOOTTIME_ALARM => timers::now(),
        // Threads of a process are not told apart.
        linux::CLOCK_PROCESS_CPUTIME_ID | linux::CLOCK_THREAD_CPUTIME_ID => {
            nanoseconds(task.thread.process.ticks.load(Ordering::Relaxed))
        }
        clock if (clock as i32) < 0 => nanoseconds(task.thread.process.ticks.load(Ordering::Relaxed)),
        _ => return Err(Errno::INVAL),
    };
    write(task, to, now)
}

pub(super) fn set_time_of_day(task: &Task, [from, zone, ..]: Args) -> Result<u64> {
    let time = if from == 0 { None } else { Some(task.space.get::<[i64; 2]>(from)?) };
    if zone != 0 {
        // There are no time zones here.
        task.space.get::<[u32; 2]>(zone)?;
    }
    if time.is_some_and(|[seconds, microseconds]| seconds < 0 || !(0..1_000_000).contains(&microseconds)) {
        return Err(Errno::INVAL);
    }
    task.need(Capability::SysTime)?;
    if let Some([seconds, microseconds]) = time {
        timers::set_time_of_day((seconds as u64).saturating_mul(SECOND).saturating_add(microseconds as u64 * 1000));
    }
    Ok(0)
}

pub(super) fn set(task: &Task, [clock, from, ..]: Args) -> Result<u64> {
    if clock as u32 != linux::CLOCK_REALTIME {
        return Err(Errno::INVAL);
    }
    let to = read(task, from)?;
    task.need(Capability::SysTime)?;
    timers::set_time_of_day(to);
    Ok(0)
}

pub(super) fn resolution(task: &Task, [clock, to, ..]: Args) -> Result<u64> {
    if clock as u32 > linux::CLOCK_TAI {
        return Err(Errno::INVAL);
    }
    if to == 0 { Ok(0) } else { write(task, to, (SECOND / timers::per_second()).max(1)) }
}

pub(super) fn time_of_day(task: &Task, [to, zone, ..]: Args) -> Result<u64> {
    let now = timers::time_of_day();
    if to != 0 {
        task.space.put(to, &[now / SECOND, now % SECOND / 1000])?;
    }
    if zone != 0 {
        task.space.put(zone, &[0u32; 2])?;
    }
    Ok(0)
}

pub(super) fn times(task: &Task, [to, ..]: Args) -> Result<u64> {
    const PER_SECOND: u64 = 100;
    let ticks = |nanoseconds: u64| nanoseconds / (SECOND / PER_SECOND);
    if to != 0 {
        let process = &task.thread.process;
        let own = ticks(nanoseconds(process.ticks.load(Ordering::Relaxed)));
        let children = ticks(nanoseconds(process.child_ticks.load(Ordering::Relaxed)));
        task.space.put(to, &[own, 0, children, 0])?;
    }
    Ok(ticks(timers::now()))
}

pub(super) async fn sleep(task: &mut Task, [clock, flags, request, left, ..]: Args) -> Result<u64> {
    let is_relative = flags & u64::from(linux::TIMER_ABSTIME) == 0;
    let is_real_time = match clock as u32 {
        linux::CLOCK_REALTIME | linux::CLOCK_TAI => true,
        linux::CLOCK_MONOTONIC | linux::CLOCK_BOOTTIME => false,
        _ => return Err(Errno::INVAL),
    };
    let until = deadline(read(task, request)?, is_relative, is_real_time);
    match interruptible(&task.thread, timers::sleep_until(until)).await {
        Ok(()) => Ok(0),
        Err(_) => {
            if is_relative && left != 0 {
                write(task, left, until.saturating_sub(timers::now()))?;
            }
            Err(if is_relative { Errno::INTR } else { Errno::RESTART_UNHANDLED })
        }
    }
}

/// The time that is left, and the interval, in microseconds as `itimerval` has them.
fn interval(process: &Process) -> [u64; 4] {
    let (at, interval) = *process.interval.lock();
    let left = if at == 0 { 0 } else { at.saturating_sub(timers::now()).max(1000) };
    [interval / SECOND, interval % SECOND / 1000, left / SECOND, left % SECOND / 1000]
}

pub(super) fn get_interval(task: &Task, [which, to, ..]: Args) -> Result<u64> {
    let value = match which as u32 {
        linux::ITIMER_REAL => interval(&task.thread.process),
        linux::ITIMER_VIRTUAL | linux::ITIMER_PROF => [0; 4],
        _ => return Err(Errno::INVAL),
    };
    task.space.put(to, &value).map(|()| 0)
}

pub(super) fn set_interval(task: &Task, [which, new, old, ..]: Args) -> Result<u64> {
    if which as u32 != linux::ITIMER_REAL {
        return Err(Errno::INVAL);
    }
    let process = &task.thread.process;
    let before = interval(process);
    if new != 0 {
        let [seconds, microseconds, first_seconds, first_microseconds] = task.space.get::<[u64; 4]>(new)?;
        if microseconds >= 1_000_000 || first_microseconds >= 1_000_000 {
            return Err(Errno::INVAL);
        }
        let nanoseconds =
            |seconds: u64, microseconds: u64| seconds.saturating_mul(SECOND).saturating_add(microseconds * 1000);
        let first = nanoseconds(first_seconds, first_microseconds);
        let at = if first == 0 { 0 } else { timers::now().saturating_add(first) };
        *process.interval.lock() = (at, nanoseconds(seconds, microseconds));
        let own = Arc::downgrade(process);
        process.alarm.set(at, move || expire(&own));
    }
    if old != 0 {
        task.space.put(old, &before)?;
    }
    Ok(0)
}

/// Sends the signal of an interval timer. Returns the next moment, 0 for none.
fn expire(process: &Weak<Process>) -> u64 {
    let Some(process) = process.upgrade().filter(|process| !process.is_dead()) else { return 0 };
    let next = {
        let mut set = process.interval.lock();
        let now = timers::now();
        if set.0 == 0 || now < set.0 {
            // It has been set to another moment meanwhile, which the alarm has been told.
            return 0;
        }
        let next = set.0.saturating_add(set.1).max(now + timers::LEAST_INTERVAL);
        set.0 = if set.1 == 0 { 0 } else { next };
        set.0
    };
    signal::send(&process, Info::kernel(number::ALRM));
    next
}
