//! Futexes and robust lists.

use super::{Args, clock};
use crate::errno::{Errno, Result};
use crate::task::Task;
use crate::task::futex::{self, Key};
use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

const FLAGS: u32 = linux::FUTEX_PRIVATE_FLAG | linux::FUTEX_CLOCK_REALTIME;

/// Returns whether an operation may wait.
pub(super) const fn waits(operation: u32) -> bool {
    matches!(operation & !FLAGS, linux::FUTEX_WAIT | linux::FUTEX_WAIT_BITSET)
}

pub(super) async fn wait(task: &mut Task, [at, operation, expected, timeout, _, bits]: Args) -> Result<u64> {
    let operation = operation as u32;
    let is_relative = operation & !FLAGS == linux::FUTEX_WAIT;
    let bits = if is_relative { u32::MAX } else { bits as u32 };
    if bits == 0 {
        return Err(Errno::INVAL);
    }
    let deadline = match timeout {
        0 => None,
        at => {
            let is_real_time = operation & linux::FUTEX_CLOCK_REALTIME != 0;
            Some(futex::deadline(clock::read(task, at)?, is_relative, is_real_time))
        }
    };
    let is_private = operation & linux::FUTEX_PRIVATE_FLAG != 0;
    futex::wait(task, at, expected as u32, deadline, bits, is_private).await.map(|()| 0)
}

pub(super) fn act(task: &Task, [at, operation, value, value2, at2, value3]: Args) -> Result<u64> {
    let operation = operation as u32;
    let is_private = operation & linux::FUTEX_PRIVATE_FLAG != 0;
    let key = |at: u64| {
        if !at.is_multiple_of(4) { Err(Errno::INVAL) } else { Ok(Key::of(&task.space, at, is_private)) }
    };
    match operation & !FLAGS {
        linux::FUTEX_WAKE => Ok(futex::wake(key(at)?, value as u32, u32::MAX).into()),
        linux::FUTEX_WAKE_BITSET if value3 as u32 == 0 => Err(Errno::INVAL),
        linux::FUTEX_WAKE_BITSET => Ok(futex::wake(key(at)?, value as u32, value3 as u32).into()),
        linux::FUTEX_REQUEUE => {
            let (woken, moved) = futex::requeue(key(at)?, key(at2)?, value as u32, value2 as u32);
            Ok(u64::from(woken + moved))
        }
        linux::FUTEX_CMP_REQUEUE => {
            if task.space.load_word(at)? != value3 as u32 {
                return Err(Errno::AGAIN);
            }
            let (woken, moved) = futex::requeue(key(at)?, key(at2)?, value as u32, value2 as u32);
            Ok(u64::from(woken + moved))
        }
        linux::FUTEX_WAKE_OP => {
            let is_true = operate(task, at2, value3 as u32)?;
            let woken = futex::wake(key(at)?, value as u32, u32::MAX);
            let others = if is_true { futex::wake(key(at2)?, value2 as u32, u32::MAX) } else { 0 };
            Ok(u64::from(woken + others))
        }
        _ => Err(Errno::NOSYS),
    }
}

/// Changes a word and compares what it was, as `FUTEX_OP` encodes both.
fn operate(task: &Task, at: u64, encoded: u32) -> Result<bool> {
    const SHIFT: u32 = 8;
    let sign_extended = |value: u32| ((value << 20) as i32 >> 20) as u32;
    let (operation, comparison) = (encoded >> 28, encoded >> 24 & 15);
    let (argument, compared) = (sign_extended(encoded >> 12 & 0xfff), sign_extended(encoded & 0xfff) as i32);
    let argument = if operation & SHIFT != 0 { 1 << (argument & 31) } else { argument };
    loop {
        let old = task.space.load_word(at)?;
        let new = match operation & 7 {
            linux::FUTEX_OP_SET => argument,
            linux::FUTEX_OP_ADD => old.wrapping_add(argument),
            linux::FUTEX_OP_OR => old | argument,
            linux::FUTEX_OP_ANDN => old & !argument,
            linux::FUTEX_OP_XOR => old ^ argument,
            _ => return Err(Errno::NOSYS),
        };
        if task.space.compare_exchange(at, old, new)? != old {
            continue;
        }
        let old = old as i32;
        return match comparison {
            linux::FUTEX_OP_CMP_EQ => Ok(old == compared),
            linux::FUTEX_OP_CMP_NE => Ok(old != compared),
            linux::FUTEX_OP_CMP_LT => Ok(old < compared),
            linux::FUTEX_OP_CMP_LE => Ok(old <= compared),
            linux::FUTEX_OP_CMP_GT => Ok(old > compared),
            linux::FUTEX_OP_CMP_GE => Ok(old >= compared),
            _ => Err(Errno::NOSYS),
        };
    }
}

pub(super) fn set_robust_list(task: &Task, [head, bytes, ..]: Args) -> Result<u64> {
    if bytes != 24 {
        return Err(Errno::INVAL);
    }
    task.thread.robust_list.store(head, Ordering::Relaxed);
    Ok(0)
}

pub(super) fn get_robust_list(task: &Task, [tid, head, bytes, ..]: Args) -> Result<u64> {
    let thread = match tid as u32 {
        0 => task.thread.clone(),
        tid => crate::task::process::find_thread(tid).ok_or(Errno::SRCH)?,
    };
    task.space.put(head, &thread.robust_list.load(Ordering::Relaxed))?;
    task.space.put(bytes, &24u64)?;
    Ok(0)
}
