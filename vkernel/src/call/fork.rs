//! Calls that make and end threads and processes.

use super::Args;
use crate::errno::{Errno, Result};
use crate::machine::{self, FloatUse, reg};
use crate::sync::Mutex;
use crate::task::Task;
use crate::task::process::{self, ExitStatus, Process, Thread};
use crate::task::run;
use crate::task::signal::{Action, AltStack};
use crate::task::wait::interruptible;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

/// The arguments of `clone` and `clone3`.
struct Clone {
    flags: u64,
    stack: u64,
    parent_tid: u64,
    child_tid: u64,
    tls: u64,
    exit_signal: u32,
    /// The address of the descriptor that stands for the child.
    handle: u64,
}

pub(super) async fn clone(task: &mut Task, [flags, stack, parent_tid, tls, child_tid, _]: Args) -> Result<u64> {
    let exit_signal = (flags & 0xff) as u32;
    make(task, Clone { flags: flags & !0xff, stack, parent_tid, child_tid, tls, exit_signal, handle: parent_tid }).await
}

pub(super) async fn clone_extended(task: &mut Task, [at, bytes, ..]: Args) -> Result<u64> {
    const LEAST: u64 = 64;
    if bytes < LEAST {
        return Err(Errno::INVAL);
    }
    let [flags, handle, child_tid, parent_tid, exit_signal, stack, stack_bytes, tls] =
        task.space.get::<[u64; 8]>(at)?;
    if flags & 0xff != 0 || exit_signal > 64 {
        return Err(Errno::INVAL);
    }
    let stack = if stack == 0 { 0 } else { stack.checked_add(stack_bytes).ok_or(Errno::INVAL)? };
    make(task, Clone { flags, stack, parent_tid, child_tid, tls, exit_signal: exit_signal as u32, handle }).await
}

async fn make(task: &mut Task, clone: Clone) -> Result<u64> {
    let has = |flag: u32| clone.flags & u64::from(flag) != 0;
    let is_thread = has(linux::CLONE_THREAD);
    if is_thread && !has(linux::CLONE_SIGHAND) || has(linux::CLONE_SIGHAND) && !has(linux::CLONE_VM) {
        return Err(Errno::INVAL);
    }
    if has(linux::CLONE_PIDFD) {
        task.check_descriptors()?;
    }
    const NAMESPACES: u32 = linux::CLONE_NEWNS
        | linux::CLONE_NEWPID
        | linux::CLONE_NEWUSER
        | linux::CLONE_NEWNET
        | linux::CLONE_NEWIPC
        | linux::CLONE_NEWUTS
        | linux::CLONE_NEWCGROUP;
    if has(NAMESPACES) || has(linux::CLONE_PIDFD) && (is_thread || has(linux::CLONE_DETACHED)) {
        return Err(Errno::INVAL);
    }
    let parent = Arc::clone(&task.thread.process);
    let tid = process::new_id()?;
    let undo = |why| {
        process::give_back_id();
        why
    };
    let space = if has(linux::CLONE_VM) { Arc::clone(&task.space) } else { task.space.fork().map_err(undo)? };
    let files = task.files();
    let files = if has(linux::CLONE_FILES) { files } else { Arc::new(Mutex::new(files.lock().clone())) };
    let position = Arc::clone(&task.thread.position.lock());
    let position = if has(linux::CLONE_FS) { position } else { Arc::new(Mutex::new(position.lock().clone())) };
    let child = if is_thread {
        Arc::clone(&parent)
    } else {
        let actions = if has(linux::CLONE_SIGHAND) {
            Arc::clone(&parent.actions)
        } else {
            Arc::new(Mutex::new(*parent.actions.lock()))
        };
        if clone.flags & linux::CLONE_CLEAR_SIGHAND != 0 {
            actions
                .lock()
                .iter_mut()
                .filter(|action| action.handler > 1)
                .for_each(|action| *action = Action::default());
        }
        let real_parent = if has(linux::CLONE_PARENT) {
            parent.parent().unwrap_or_else(|| Arc::clone(&parent))
        } else {
            Arc::clone(&parent)
        };
        let child = Process::child(&real_parent, tid, Arc::clone(&space), actions);
        child.exit_signal.store(clone.exit_signal, Ordering::Relaxed);
        child
    };
    let thread = Thread::new(tid, &child, files, position, task.thread.mask());
    thread.name.lock().clone_from(&task.thread.name.lock());
    if !has(linux::CLONE_VM) || has(linux::CLONE_VFORK) {
        *thread.alt_stack.lock() = *task.thread.alt_stack.lock();
    }
    let mut context = task.context.clone();
    context.x[reg::A0] = 0;
    if clone.stack != 0 {
        context.x[reg::SP] = clone.stack;
    }
    if has(linux::CLONE_SETTLS) {
        context.x[reg::TP] = clone.tls;
    }
    if has(linux::CLONE_PARENT_SETTID) {
        let _ = task.space.put(clone.parent_tid, &tid);
    }
    if has(linux::CLONE_PIDFD) {
        // There was a free one; another thread may have taken it since.
        let fd = super::handle::add(task, &child, 0).map_or(u32::MAX, |fd| fd as u32);
        let _ = task.space.put(clone.handle, &fd);
    }
    if has(linux::CLONE_CHILD_SETTID) {
        let _ = space.write(clone.child_tid, &tid.to_le_bytes());
    }
    if has(linux::CLONE_CHILD_CLEARTID) {
        thread.clear_at_exit.store(clone.child_tid, Ordering::Relaxed);
    }
    let (f, fcsr) = machine::float_state(&mut task.float);
    let mut float = Box::new(FloatUse::new());
    machine::set_float_state(&mut float, f, fcsr);
    run::start(Task { thread, space, context, float, call: None, written: 0, saved_mask: None });
    if has(linux::CLONE_VFORK) && !is_thread {
        // Only the end of this process ends the wait before the child is released.
        while !child.is_released() {
            let released = child.released.until(|| child.is_released().then_some(()));
            if interruptible(&task.thread, released).await.is_err() && (parent.is_ending() || task.thread.is_ending()) {
                break;
            }
            if !child.is_released() {
                child.released.until(|| (child.is_released() || parent.is_ending()).then_some(())).await;
            }
        }
    }
    Ok(u64::from(tid))
}

#[expect(clippy::unnecessary_wraps, reason = "as other calls")]
pub(super) fn set_tid_address(task: &Task, [at, ..]: Args) -> Result<u64> {
    task.thread.clear_at_exit.store(at, Ordering::Relaxed);
    Ok(u64::from(task.thread.tid))
}

#[expect(clippy::unnecessary_wraps, reason = "as other calls")]
pub(super) fn exit(task: &Task, [status, ..]: Args) -> Result<u64> {
    let process = &task.thread.process;
    if process.threads.lock().len() == 1 {
        process.end(ExitStatus::Exited(status as u8));
    }
    task.thread.end();
    Ok(0)
}

#[expect(clippy::unnecessary_wraps, reason = "as other calls")]
pub(super) fn exit_group(task: &Task, [status, ..]: Args) -> Result<u64> {
    task.thread.process.end(ExitStatus::Exited(status as u8));
    Ok(0)
}

/// Ends all other threads of the process, before another program begins.
///
/// # Errors
/// [`Errno::RESTART`] if this one is to end meanwhile.
pub(super) async fn end_others(task: &mut Task) -> Result<()> {
    let process = Arc::clone(&task.thread.process);
    let others: alloc::vec::Vec<_> = process.threads.lock().values().cloned().collect();
    others.iter().filter(|thread| thread.tid != task.thread.tid).for_each(|thread| thread.end());
    let alone = process.moves.until(|| (process.threads.lock().len() == 1 || process.is_ending()).then_some(()));
    alone.await;
    if process.is_ending() { Err(Errno::RESTART) } else { Ok(()) }
}

/// Gives a thread the state that a program begins with.
pub(super) fn reset(thread: &Thread) {
    *thread.alt_stack.lock() = AltStack::NONE;
    thread.clear_at_exit.store(0, Ordering::Relaxed);
    thread.robust_list.store(0, Ordering::Relaxed);
}
