//! Calls about policies and priorities.

use super::{Args, clock};
use crate::errno::{Errno, Result};
use crate::task::process::{self, Process};
use crate::task::schedule::priorities;
use crate::task::{Task, executor};
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

/// The process of a thread's number, 0 for the caller's.
fn process_of(task: &Task, tid: u64) -> Result<Arc<Process>> {
    match tid as i32 {
        0 => Ok(Arc::clone(&task.thread.process)),
        tid if tid < 0 => Err(Errno::INVAL),
        // The first process has no thread.
        tid => process::find(tid as u32)
            .or_else(|| Some(Arc::clone(&process::find_thread(tid as u32)?.process)))
            .ok_or(Errno::SRCH),
    }
}

pub(super) fn policy(task: &Task, [tid, ..]: Args) -> Result<u64> {
    let schedule = *process_of(task, tid)?.schedule.lock();
    Ok(u64::from(schedule.policy | if schedule.resets { linux::SCHED_RESET_ON_FORK } else { 0 }))
}

pub(super) fn set_policy(task: &Task, [tid, policy, at, ..]: Args) -> Result<u64> {
    if (policy as i32) < 0 {
        return Err(Errno::INVAL);
    }
    set(task, tid, Some(policy as u32), at)
}

pub(super) fn set_priority_only(task: &Task, [tid, at, ..]: Args) -> Result<u64> {
    set(task, tid, None, at)
}

fn set(task: &Task, tid: u64, policy: Option<u32>, at: u64) -> Result<u64> {
    if at == 0 {
        return Err(Errno::INVAL);
    }
    let priority = task.space.get::<i32>(at)?;
    let process = process_of(task, tid)?;
    let owner = process.credentials();
    let mut schedule = process.schedule.lock();
    let resets = if schedule.resets { linux::SCHED_RESET_ON_FORK } else { 0 };
    let policy = policy.unwrap_or(schedule.policy | resets);
    schedule.set(policy, priority, &owner, &task.credentials()).map(|()| 0)
}

pub(super) fn priority_only(task: &Task, [tid, at, ..]: Args) -> Result<u64> {
    if at == 0 {
        return Err(Errno::INVAL);
    }
    let priority = process_of(task, tid)?.schedule.lock().priority;
    task.space.put(at, &priority).map(|()| 0)
}

pub(super) fn least_priority([policy, ..]: Args) -> Result<u64> {
    priorities(policy as u32).map(|(least, _)| least.into())
}

pub(super) fn greatest_priority([policy, ..]: Args) -> Result<u64> {
    priorities(policy as u32).map(|(_, most)| most.into())
}

pub(super) fn slice(task: &Task, [tid, at, ..]: Args) -> Result<u64> {
    let policy = process_of(task, tid)?.schedule.lock().policy;
    clock::write(task, at, if policy == linux::SCHED_FIFO { 0 } else { executor::SLICE_MS * 1_000_000 })
}

/// The processes that a kind and a number name.
fn named(task: &Task, kind: u64, id: u64) -> Result<Vec<Arc<Process>>> {
    let own = &task.thread.process;
    let all = || process::all().into_iter().filter(|process| process.pid != process::KERNEL && !process.is_dead());
    let found: Vec<_> = match (kind as u32, id as u32) {
        (linux::PRIO_PROCESS, _) => process_of(task, id).into_iter().collect(),
        (linux::PRIO_PGRP, group) => {
            let group = if group == 0 { own.group() } else { group };
            all().filter(|process| process.group() == group).collect()
        }
        (linux::PRIO_USER, user) => {
            let user = if user == 0 { task.credentials().users.real } else { user };
            all().filter(|process| process.credentials().users.real == user).collect()
        }
        _ => return Err(Errno::INVAL),
    };
    if found.is_empty() { Err(Errno::SRCH) } else { Ok(found) }
}

pub(super) fn nice(task: &Task, [kind, id, ..]: Args) -> Result<u64> {
    let all = named(task, kind, id)?;
    let least = all.iter().map(|process| process.schedule.lock().nice).min().unwrap_or(0);
    Ok((20 - least) as u64)
}

pub(super) fn set_nice(task: &Task, [kind, id, nice, ..]: Args) -> Result<u64> {
    let user = task.credentials();
    let mut result = Ok(0);
    for process in named(task, kind, id)? {
        let (owner, limit) = (process.credentials(), process.limit(linux::RLIMIT_NICE));
        let set = process.schedule.lock().set_nice(nice as i32, limit, &owner, &user);
        result = set.and(result);
    }
    result
}

pub(super) fn set_harts(task: &Task, [tid, bytes, at, ..]: Args) -> Result<u64> {
    let process = process_of(task, tid)?;
    let mut mask = [0u8; 8];
    let count = mask.len().min(bytes as usize);
    task.space.get_bytes(at, &mut mask[..count])?;
    if !task.credentials().may_schedule(&process.credentials()) {
        return Err(Errno::PERM);
    }
    let all = u64::MAX >> (64 - crate::boot::harts().clamp(1, 64));
    // A thread runs on every hart: no other set can be kept.
    match u64::from_le_bytes(mask) & all {
        0 => Err(Errno::INVAL),
        _ => Ok(0),
    }
}
