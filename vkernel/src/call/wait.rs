//! Calls that wait for children.

use super::{Args, handle};
use crate::errno::{Errno, Result};
use crate::memory::user::zeroed;
use crate::task::Task;
use crate::task::process::{self, Change, Process};
use crate::task::wait::interruptible;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

/// The children that are waited for.
#[derive(Clone, Copy)]
enum Which {
    Any,
    Process(u32),
    Group(u32),
}

impl Which {
    fn has(self, child: &Process) -> bool {
        match self {
            Self::Any => true,
            Self::Process(pid) => child.pid == pid,
            Self::Group(group) => child.group() == group,
        }
    }
}

/// Waits for a change of a child. The change is taken unless `keeps`.
async fn wait(task: &mut Task, which: Which, options: u32, keeps: bool) -> Result<Option<(Arc<Process>, Change)>> {
    let own = Arc::clone(&task.thread.process);
    let wants = |change: &Change| match change {
        Change::Ended(_) => options & linux::WEXITED != 0,
        Change::Stopped(_) => options & linux::WUNTRACED != 0,
        Change::Continued => options & linux::WCONTINUED != 0,
    };
    let look = || {
        let children = own.children.lock();
        let mut has_any = false;
        for child in children.values().filter(|child| which.has(child)) {
            has_any = true;
            let mut change = child.change.lock();
            if let Some(found) = change.filter(wants) {
                if !keeps {
                    *change = None;
                }
                return Some(Ok(Some((Arc::clone(child), found))));
            }
        }
        if !has_any {
            Some(Err(Errno::CHILD))
        } else if options & linux::WNOHANG != 0 {
            Some(Ok(None))
        } else {
            None
        }
    };
    let (child, change) = match interruptible(&task.thread, own.child_changed.until(look)).await?? {
        None => return Ok(None),
        Some(found) => found,
    };
    if let (Change::Ended(_), false) = (change, keeps) {
        own.children.lock().remove(&child.pid);
        process::remove(child.pid);
        let ticks = child.ticks.load(Ordering::Relaxed) + child.child_ticks.load(Ordering::Relaxed);
        own.child_ticks.fetch_add(ticks, Ordering::Relaxed);
    }
    Ok(Some((child, change)))
}

pub(super) async fn wait4(task: &mut Task, [pid, status, options, usage, ..]: Args) -> Result<u64> {
    let which = match pid as i32 {
        -1 => Which::Any,
        0 => Which::Group(task.thread.process.group()),
        i32::MIN => return Err(Errno::SRCH),
        pid if pid < 0 => Which::Group(pid.unsigned_abs()),
        pid => Which::Process(pid as u32),
    };
    let known =
        linux::WNOHANG | linux::WUNTRACED | linux::WCONTINUED | linux::__WALL | linux::__WCLONE | linux::__WNOTHREAD;
    if options as u32 & !known != 0 {
        return Err(Errno::INVAL);
    }
    let Some((child, change)) = wait(task, which, options as u32 | linux::WEXITED, false).await? else { return Ok(0) };
    if status != 0 {
        let encoded = match change {
            Change::Ended(status) => status.encode(),
            Change::Stopped(signal) => signal << 8 | 0x7f,
            Change::Continued => 0xffff,
        };
        task.space.put(status, &encoded)?;
    }
    if usage != 0 {
        task.space.put(usage, &zeroed::<linux::rusage>())?;
    }
    Ok(u64::from(child.pid))
}

pub(super) async fn waitid(task: &mut Task, [kind, id, to, options, ..]: Args) -> Result<u64> {
    let which = match kind as u32 {
        linux::P_ALL => Which::Any,
        linux::P_PID => Which::Process(id as u32),
        linux::P_PIDFD => Which::Process(handle::process_of(task, id)?.pid),
        linux::P_PGID if id == 0 => Which::Group(task.thread.process.group()),
        linux::P_PGID => Which::Group(id as u32),
        _ => return Err(Errno::INVAL),
    };
    let mut options = options as u32;
    let is_nonblocking = kind as u32 == linux::P_PIDFD && task.file(id)?.is_nonblocking();
    if is_nonblocking {
        options |= linux::WNOHANG;
    }
    if options & (linux::WEXITED | linux::WUNTRACED | linux::WCONTINUED) == 0 {
        return Err(Errno::INVAL);
    }
    let found = wait(task, which, options, options & linux::WNOWAIT != 0).await?;
    if is_nonblocking && found.is_none() {
        return Err(Errno::AGAIN);
    }
    if to != 0 {
        let bytes = match found {
            None => [0; 128],
            Some((child, change)) => child.info(change).encode(),
        };
        task.space.put_bytes(to, &bytes)?;
    }
    Ok(0)
}
