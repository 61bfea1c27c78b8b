//! The ends of threads and processes.

use super::process::{self, Change, ExitStatus, Process};
use super::run::Task;
use super::{futex, signal};
use crate::fs::lock;
use crate::fs::socket::flight;
use crate::memory::{space, translation};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

/// The address of the code by which handlers of signals return.
pub const RETURN_FROM_HANDLER: u64 = space::USER_END - (1 << 21);

/// Ends a thread, and with the last one its process.
pub async fn thread_ends(mut task: Task) {
    task.leave_hart();
    let thread = Arc::clone(&task.thread);
    let process = Arc::clone(&thread.process);
    task.space.activate();
    futex::release_robust(&thread, &task.space);
    let word = thread.clear_at_exit.load(Ordering::Relaxed);
    if word != 0 && task.space.put(word, &0u32).is_ok() {
        futex::wake(futex::Key::of(&task.space, word, false), 1, u32::MAX);
    }
    let is_last = {
        let mut threads = process.threads.lock();
        threads.remove(&thread.tid);
        threads.is_empty()
    };
    process.moves.wake();
    process::give_back_id();
    translation::leave();
    drop(task);
    // Files are closed before the end is reported.
    let files = core::mem::take(&mut *thread.files.lock());
    drop(files);
    flight::collect();
    if is_last {
        process_ends(&process);
    }
}

fn process_ends(process: &Arc<Process>) {
    let status = process.ending().unwrap_or(ExitStatus::Exited(0));
    *process.space.lock() = None;
    lock::process_ends(process.pid);
    process.release();
    process.set_dead();
    crate::call::delete_timers(process);
    process.alarm.stop();
    process.moves.wake();
    let kernel = process::find(process::KERNEL);
    let orphans = core::mem::take(&mut *process.children.lock());
    for (pid, child) in orphans {
        let Some(kernel) = &kernel else { break };
        child.set_parent(kernel);
        if child.is_dead() {
            process::remove(pid);
        } else {
            kernel.children.lock().insert(pid, child);
        }
    }
    crate::terminal::session_ends(process);
    let parent = process.parent().filter(|parent| !parent.is_dead());
    let is_waited_for =
        parent.as_ref().is_some_and(|parent| parent.pid != process::KERNEL && !ignores_children(parent));
    process.report(Change::Ended(status));
    if !is_waited_for {
        if let Some(parent) = &parent {
            parent.children.lock().remove(&process.pid);
        }
        process::remove(process.pid);
    }
    crate::boot::process_ended(process.pid, status);
}

/// Returns whether a process leaves its children's ends to the kernel.
fn ignores_children(process: &Process) -> bool {
    use linux_raw_sys::general::SA_NOCLDWAIT;
    let action = process.action(signal::number::CHLD);
    action.handler == 1 || action.flags & u64::from(SA_NOCLDWAIT) != 0
}
