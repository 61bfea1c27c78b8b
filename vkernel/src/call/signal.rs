//! Signals.

use super::{Args, clock};
use crate::errno::{Errno, Result};
use crate::task::process::{self, Process};
use crate::task::signal::{self, Action, AltStack, Info, LAST, UNBLOCKABLE, bit};
use crate::task::wait::{before, interruptible};
use crate::task::{Task, timers};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Poll;
use linux_raw_sys::general as linux;

/// Bytes of a mask.
const MASK_BYTES: u64 = 8;

fn number(value: u64) -> Result<u32> {
    Some(value as u32).filter(|signal| (1..=LAST).contains(signal)).ok_or(Errno::INVAL)
}

pub(super) fn action(task: &Task, [signal, new, old, bytes, ..]: Args) -> Result<u64> {
    let signal = number(signal)?;
    if bytes != MASK_BYTES || new != 0 && bit(signal) & UNBLOCKABLE != 0 {
        return Err(Errno::INVAL);
    }
    let process = &task.thread.process;
    let before = process.action(signal);
    if new != 0 {
        let [handler, flags, mask] = task.space.get::<[u64; 3]>(new)?;
        let action = Action { handler, flags, mask: mask & !UNBLOCKABLE };
        process.actions.lock()[signal as usize - 1] = action;
        if signal::effect(signal, &action) == signal::Effect::Ignore {
            process.discard_signals(bit(signal));
        }
    }
    if old != 0 {
        task.space.put(old, &[before.handler, before.flags, before.mask])?;
    }
    Ok(0)
}

pub(super) fn mask(task: &Task, [how, set, old, bytes, ..]: Args) -> Result<u64> {
    if bytes != MASK_BYTES {
        return Err(Errno::INVAL);
    }
    let before = task.thread.mask();
    if set != 0 {
        let set = task.space.get::<u64>(set)?;
        task.thread.set_mask(match how as u32 {
            linux::SIG_BLOCK => before | set,
            linux::SIG_UNBLOCK => before & !set,
            linux::SIG_SETMASK => set,
            _ => return Err(Errno::INVAL),
        });
    }
    if old != 0 {
        task.space.put(old, &before)?;
    }
    Ok(0)
}

pub(super) fn pending(task: &Task, [to, bytes, ..]: Args) -> Result<u64> {
    if bytes > MASK_BYTES {
        return Err(Errno::INVAL);
    }
    let all = task.thread.pending.bits() | task.thread.process.pending.bits();
    task.space.put(to, &(all & task.thread.mask())).map(|()| 0)
}

pub(super) fn alt_stack(task: &Task, [new, old, ..]: Args) -> Result<u64> {
    const LEAST: u64 = linux::MINSIGSTKSZ as u64;
    let mut stack = task.thread.alt_stack.lock();
    let is_used = stack.has(task.context.x[crate::machine::reg::SP]);
    if old != 0 {
        let flags = stack.flags | if is_used { linux::SS_ONSTACK } else { 0 };
        task.space.put(old, &[stack.at, u64::from(flags), stack.bytes])?;
    }
    if new != 0 {
        if is_used {
            return Err(Errno::PERM);
        }
        let [at, flags, bytes] = task.space.get::<[u64; 3]>(new)?;
        let flags = flags as u32;
        *stack = match flags {
            flags if flags & linux::SS_DISABLE != 0 => AltStack::NONE,
            0 | linux::SS_ONSTACK if bytes < LEAST => return Err(Errno::NOMEM),
            0 | linux::SS_ONSTACK => AltStack { at, bytes, flags: 0 },
            _ => return Err(Errno::INVAL),
        };
    }
    Ok(0)
}

/// Returns whether a process may send another one a signal.
pub(super) fn may_signal(own: &Process, other: &Process, signal: u32) -> bool {
    let is_job = signal == signal::number::CONT && own.session() == other.session();
    own.pid == other.pid || is_job || own.credentials().may_signal(&other.credentials())
}

pub(super) fn kill(task: &Task, [pid, signal, ..]: Args) -> Result<u64> {
    if signal as u32 > LAST {
        return Err(Errno::INVAL);
    }
    let own = &task.thread.process;
    let is_other =
        |process: &Arc<Process>| process.pid != process::KERNEL && process.pid != own.pid && !process.is_dead();
    let receivers: Vec<_> = match pid as i32 {
        0 => process::members(own.group()).collect(),
        -1 => process::all().into_iter().filter(is_other).collect(),
        pid if pid < 0 => process::members(pid.unsigned_abs()).collect(),
        pid => process::find(pid as u32).into_iter().collect(),
    };
    if receivers.is_empty() {
        return Err(Errno::SRCH);
    }
    let mut is_allowed = false;
    for process in receivers.iter().filter(|process| may_signal(own, process, signal as u32)) {
        is_allowed = true;
        if signal as u32 != 0 && process.pid != process::KERNEL {
            signal::send(process, Info::from(own, signal as u32));
        }
    }
    if is_allowed { Ok(0) } else { Err(Errno::PERM) }
}

pub(super) fn kill_thread(task: &Task, process: u32, tid: u32, signal: u64) -> Result<u64> {
    if signal as u32 > LAST || tid as i32 <= 0 {
        return Err(Errno::INVAL);
    }
    let thread =
        process::find_thread(tid).filter(|thread| process == 0 || thread.process.pid == process).ok_or(Errno::SRCH)?;
    if !may_signal(&task.thread.process, &thread.process, signal as u32) {
        return Err(Errno::PERM);
    }
    if signal as u32 != 0 {
        let info = Info { code: linux::SI_TKILL, ..Info::from(&task.thread.process, signal as u32) };
        signal::send_to_thread(&thread, info);
    }
    Ok(0)
}

/// Reads the `siginfo_t` of a signal that a program sends.
pub(super) fn read_info(task: &Task, at: u64, signal: u32) -> Result<Info> {
    let bytes = task.space.get::<[u8; 32]>(at)?;
    let code = i32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|n| bytes[at + n]));
    Ok(Info { signal, code, pid: word(16) as u32, uid: (word(16) >> 32) as u32, value: word(24) })
}

pub(super) fn queue_to_thread(task: &Task, [pid, tid, signal, info, ..]: Args) -> Result<u64> {
    if pid as i32 <= 0 || tid as i32 <= 0 {
        return Err(Errno::INVAL);
    }
    let signal = number(signal)?;
    let info = read_info(task, info, signal)?;
    let own = &task.thread.process;
    if (info.code >= 0 || info.code == linux::SI_TKILL) && pid as u32 != own.pid {
        return Err(Errno::PERM);
    }
    let thread = process::find_thread(tid as u32).filter(|thread| thread.process.pid == pid as u32);
    let thread = thread.ok_or(Errno::SRCH)?;
    if !may_signal(own, &thread.process, signal) {
        return Err(Errno::PERM);
    }
    signal::send_to_thread(&thread, info);
    Ok(0)
}

pub(super) fn queue(task: &Task, [pid, signal, info, ..]: Args) -> Result<u64> {
    let signal = number(signal)?;
    let process = process::find(pid as u32).filter(|process| process.pid != process::KERNEL).ok_or(Errno::SRCH)?;
    let info = read_info(task, info, signal)?;
    if (info.code >= 0 || info.code == linux::SI_TKILL) && process.pid != task.thread.process.pid {
        return Err(Errno::PERM);
    }
    if !may_signal(&task.thread.process, &process, signal) {
        return Err(Errno::PERM);
    }
    signal::send(&process, info);
    Ok(0)
}

pub(super) async fn suspend(task: &mut Task, [mask, bytes, ..]: Args) -> Result<u64> {
    if bytes != MASK_BYTES {
        return Err(Errno::INVAL);
    }
    let mask = task.space.get::<u64>(mask)?;
    set_until_return(task, mask);
    let never = core::future::poll_fn(|_| Poll::<()>::Pending);
    interruptible(&task.thread, never).await.map_err(|_| Errno::RESTART_UNHANDLED)?;
    Ok(0)
}

/// Sets the mask until the call returns; a handler returns to the old one.
pub(super) fn set_until_return(task: &mut Task, mask: u64) {
    task.saved_mask.get_or_insert(task.thread.mask());
    task.thread.set_mask(mask);
}

pub(super) async fn timed_wait(task: &mut Task, [set, info, timeout, bytes, ..]: Args) -> Result<u64> {
    if bytes != MASK_BYTES {
        return Err(Errno::INVAL);
    }
    let set = task.space.get::<u64>(set)? & !UNBLOCKABLE;
    let deadline = match timeout {
        0 => None,
        at => Some(timers::now().saturating_add(clock::read(task, at)?)),
    };
    let thread = Arc::clone(&task.thread);
    // Signals that are waited for interrupt nothing else: they wake the task, which looks for them.
    let found = core::future::poll_fn(|_| {
        let taken = thread.pending.take(set).or_else(|| thread.process.pending.take(set));
        taken.map_or(Poll::Pending, Poll::Ready)
    });
    let result = before(deadline, interruptible(&task.thread, found)).await;
    let found = result.ok_or(Errno::AGAIN)?.map_err(|_| Errno::INTR)?;
    if info != 0 {
        task.space.put_bytes(info, &found.encode())?;
    }
    Ok(u64::from(found.signal))
}
