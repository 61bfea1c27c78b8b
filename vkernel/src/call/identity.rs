//! Users, groups, capabilities; groups of processes, sessions.

use super::Args;
use crate::errno::{Errno, Result};
use crate::task::Task;
use crate::task::credentials::{ALL, Capability, Change, Credentials, Ids, Which};
use crate::task::process::{self, Process};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

/// An id that a call sets; -1 keeps the old one.
fn known(id: u64) -> Option<u32> {
    Some(id as u32).filter(|id| *id != u32::MAX)
}

/// Handles calls that read ids.
pub(super) fn get(task: &Task, number: u32, a: Args) -> Result<u64> {
    let credentials = task.credentials();
    let put_three = |ids: Ids| {
        [(a[0], ids.real), (a[1], ids.effective), (a[2], ids.saved)]
            .into_iter()
            .try_for_each(|(at, id)| task.space.put(at, &id))
            .map(|()| 0)
    };
    match number {
        linux::__NR_getuid => Ok(credentials.users.real.into()),
        linux::__NR_geteuid => Ok(credentials.users.effective.into()),
        linux::__NR_getgid => Ok(credentials.groups.real.into()),
        linux::__NR_getegid => Ok(credentials.groups.effective.into()),
        linux::__NR_getresuid => put_three(credentials.users),
        linux::__NR_getresgid => put_three(credentials.groups),
        linux::__NR_getgroups => {
            let groups = &credentials.further;
            let room = usize::try_from(a[0] as i32).map_err(|_| Errno::INVAL)?;
            if room > 0 {
                if room < groups.len() {
                    return Err(Errno::INVAL);
                }
                for (n, group) in groups.iter().enumerate() {
                    task.space.put(a[1] + 4 * n as u64, group)?;
                }
            }
            Ok(groups.len() as u64)
        }
        _ => Err(Errno::NOSYS),
    }
}

/// Handles calls that set ids.
pub(super) fn set(task: &Task, number: u32, a: Args) -> Result<u64> {
    let which = match number {
        linux::__NR_setuid | linux::__NR_setreuid | linux::__NR_setresuid | linux::__NR_setfsuid => Which::Users,
        _ => Which::Groups,
    };
    let change = match number {
        linux::__NR_setuid | linux::__NR_setgid => Change::One(known(a[0]).ok_or(Errno::INVAL)?),
        linux::__NR_setreuid | linux::__NR_setregid => Change::Two(known(a[0]), known(a[1])),
        linux::__NR_setresuid | linux::__NR_setresgid => Change::Three([known(a[0]), known(a[1]), known(a[2])]),
        linux::__NR_setfsuid | linux::__NR_setfsgid => {
            let before = task.credentials();
            let before = if which == Which::Users { before.users.fs } else { before.groups.fs };
            if let Some(id) = known(a[0]) {
                // The result tells nothing of a failure.
                let _ = task.thread.process.change_credentials(|new| new.change(which, Change::Files(id)));
            }
            return Ok(before.into());
        }
        linux::__NR_setgroups => {
            const MOST: u64 = 65536;
            task.credentials().need(Capability::Setgid)?;
            if a[0] > MOST {
                return Err(Errno::INVAL);
            }
            let groups = task.space.get_all(a[1], a[0] as usize)?;
            return task.thread.process.change_credentials(|new| new.set_further(groups)).map(|()| 0);
        }
        _ => return Err(Errno::NOSYS),
    };
    task.thread.process.change_credentials(|new| new.change(which, change)).map(|()| 0)
}

/// Handles calls about groups of processes, and sessions.
pub(super) fn group(task: &Task, number: u32, a: Args) -> Result<u64> {
    let own = &task.thread.process;
    match number {
        linux::__NR_getpgid => Ok(task.process(a[0])?.group().into()),
        linux::__NR_getsid => Ok(task.process(a[0])?.session().into()),
        linux::__NR_setsid => {
            let leads = process::all().iter().any(|other| other.group() == own.pid);
            if leads {
                return Err(Errno::PERM);
            }
            own.begin_session();
            Ok(own.pid.into())
        }
        linux::__NR_setpgid => {
            if (a[1] as i32) < 0 {
                return Err(Errno::INVAL);
            }
            let target = task.process(a[0])?;
            let is_child = target.parent().is_some_and(|parent| parent.pid == own.pid);
            if target.pid != own.pid && !is_child {
                return Err(Errno::SRCH);
            }
            if is_child && target.has_executed.load(Ordering::Relaxed) {
                return Err(Errno::ACCES);
            }
            if target.session() != own.session() || target.session() == target.pid {
                return Err(Errno::PERM);
            }
            let group = if a[1] == 0 { target.pid } else { a[1] as u32 };
            let is_known = |other: &Arc<Process>| other.group() == group && other.session() == own.session();
            if group != target.pid && !process::all().iter().any(is_known) {
                return Err(Errno::PERM);
            }
            target.set_group(group);
            Ok(0)
        }
        _ => Err(Errno::NOSYS),
    }
}

/// The versions of `capset`'s header: of one word for each set, and of two.
const VERSION_1: u32 = 0x1998_0330;
const VERSION_2: u32 = 0x2007_1026;
const VERSION_3: u32 = 0x2008_0522;

/// Reads a header. Returns the words of each set, and the process; `None` for an unknown version, which becomes the known one.
fn capability_header(task: &Task, at: u64) -> Result<Option<(usize, i32)>> {
    let [version, pid] = task.space.get::<[u32; 2]>(at)?;
    let words = match version {
        VERSION_1 => 1,
        VERSION_2 | VERSION_3 => 2,
        _ => {
            task.space.put(at, &VERSION_3)?;
            return Ok(None);
        }
    };
    Ok(Some((words, pid as i32)))
}

pub(super) fn capabilities(task: &Task, [header, data, ..]: Args) -> Result<u64> {
    let Some((words, pid)) = capability_header(task, header)? else {
        return if data == 0 { Ok(0) } else { Err(Errno::INVAL) };
    };
    if pid < 0 {
        return Err(Errno::INVAL);
    }
    let of: Arc<Credentials> = match pid as u32 {
        0 => task.credentials(),
        pid => process::find_thread(pid).ok_or(Errno::SRCH)?.process.credentials(),
    };
    if data == 0 {
        return Ok(0);
    }
    for word in 0..words {
        let part = |set: u64| (set >> (32 * word)) as u32;
        let sets = [part(of.effective), part(of.permitted), part(of.inheritable)];
        task.space.put(data + 12 * word as u64, &sets)?;
    }
    Ok(0)
}

pub(super) fn set_capabilities(task: &Task, [header, data, ..]: Args) -> Result<u64> {
    let Some((words, pid)) = capability_header(task, header)? else { return Err(Errno::INVAL) };
    if pid != 0 && pid as u32 != task.thread.tid && pid as u32 != task.thread.process.pid {
        return Err(Errno::PERM);
    }
    let mut sets = [0u64; 3];
    for word in 0..words {
        let parts = task.space.get::<[u32; 3]>(data + 12 * word as u64)?;
        sets.iter_mut().zip(parts).for_each(|(set, part)| *set |= u64::from(part) << (32 * word));
    }
    let [effective, permitted, inheritable] = sets.map(|set| set & ALL);
    task.thread.process.change_credentials(|new| new.set_capabilities(effective, permitted, inheritable)).map(|()| 0)
}
