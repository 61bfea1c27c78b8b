//! Users, groups of processes, sessions.

use super::Args;
use crate::errno::{Errno, Result};
use crate::task::Task;
use crate::task::process::{self, Process};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

pub(super) fn call(task: &Task, number: u32, a: Args) -> Result<u64> {
    let own = &task.thread.process;
    let mut identity = own.identity.lock();
    let set = |to: &mut u32, value: u64| {
        if value as u32 != u32::MAX {
            *to = value as u32;
        }
    };
    match number {
        linux::__NR_getuid => return Ok(identity.uid.into()),
        linux::__NR_geteuid => return Ok(identity.euid.into()),
        linux::__NR_getgid => return Ok(identity.gid.into()),
        linux::__NR_getegid => return Ok(identity.egid.into()),
        linux::__NR_setuid => (identity.uid, identity.euid) = (a[0] as u32, a[0] as u32),
        linux::__NR_setgid => (identity.gid, identity.egid) = (a[0] as u32, a[0] as u32),
        linux::__NR_setreuid | linux::__NR_setresuid => {
            set(&mut identity.uid, a[0]);
            set(&mut identity.euid, a[1]);
        }
        linux::__NR_setregid | linux::__NR_setresgid => {
            set(&mut identity.gid, a[0]);
            set(&mut identity.egid, a[1]);
        }
        linux::__NR_getresuid | linux::__NR_getresgid => {
            let (real, effective) = if number == linux::__NR_getresuid {
                (identity.uid, identity.euid)
            } else {
                (identity.gid, identity.egid)
            };
            drop(identity);
            for (at, id) in [(a[0], real), (a[1], effective), (a[2], effective)] {
                task.space.put(at, &id)?;
            }
            return Ok(0);
        }
        linux::__NR_setfsuid => return Ok(identity.euid.into()),
        linux::__NR_setfsgid => return Ok(identity.egid.into()),
        linux::__NR_getgroups => {
            let groups = identity.groups.clone();
            drop(identity);
            if a[0] == 0 {
                return Ok(groups.len() as u64);
            }
            if (a[0] as usize) < groups.len() {
                return Err(Errno::INVAL);
            }
            for (n, group) in groups.iter().enumerate() {
                task.space.put(a[1] + 4 * n as u64, group)?;
            }
            return Ok(groups.len() as u64);
        }
        linux::__NR_setgroups => {
            const MOST: u64 = 65536;
            if a[0] > MOST {
                return Err(Errno::INVAL);
            }
            drop(identity);
            let groups = task.space.get_all(a[1], a[0] as usize)?;
            own.identity.lock().groups = groups;
        }
        _ => {
            drop(identity);
            return group(task, number, a);
        }
    }
    Ok(0)
}

fn group(task: &Task, number: u32, a: Args) -> Result<u64> {
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

pub(super) fn capabilities(task: &Task, [header, data, ..]: Args) -> Result<u64> {
    const VERSION_3: u32 = 0x2008_0522;
    let version = task.space.get::<u32>(header)?;
    if version != VERSION_3 {
        task.space.put(header, &VERSION_3)?;
        return if data == 0 { Ok(0) } else { Err(Errno::INVAL) };
    }
    // Effective, permitted, inheritable, of both halves: all, as root.
    task.space.put(data, &[u32::MAX, u32::MAX, 0, 0x1ff, 0x1ff, 0]).map(|()| 0)
}
