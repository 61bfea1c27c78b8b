//! Calls about the system as a whole.

use super::Args;
use crate::errno::{Errno, Result};
use crate::machine;
use crate::memory::frames;
use crate::memory::user::zeroed;
use crate::sync::Mutex;
use crate::task::Task;
use crate::task::credentials::{ALL, Capability, Credentials};
use crate::task::process;
use crate::task::timers::{self, SECOND};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::{general as linux, prctl};

pub(super) fn name(task: &Task, [to, ..]: Args) -> Result<u64> {
    /// Bytes of each field of `struct new_utsname`.
    const FIELD: usize = 65;
    let [host, domain] = NAMES.lock().clone().map(|name| name.unwrap_or_default());
    let host = if host.is_empty() { crate::NAME.into() } else { host };
    let domain = if domain.is_empty() { b"(none)".to_vec() } else { domain };
    let fields: [&[u8]; 6] = [b"Linux", &host, crate::RELEASE.as_bytes(), b"#1 gnomon vkernel", b"riscv64", &domain];
    let fields = fields.map(|text| {
        let mut field = [0; FIELD];
        field.iter_mut().zip(text).for_each(|(to, byte)| *to = *byte);
        field
    });
    task.space.put(to, &fields).map(|()| 0)
}

/// The names of the host and of its domain, as far as they were set.
static NAMES: Mutex<[Option<Vec<u8>>; 2]> = Mutex::new([None, None]);

/// Sets the name of the host, or of its domain.
pub(super) fn set_name(task: &Task, [at, bytes, ..]: Args, is_domain: bool) -> Result<u64> {
    const MOST: u64 = 64;
    task.need(Capability::SysAdmin)?;
    if bytes > MOST {
        return Err(Errno::INVAL);
    }
    let mut name = alloc::vec![0; bytes as usize];
    task.space.get_bytes(at, &mut name)?;
    NAMES.lock()[usize::from(is_domain)] = Some(name);
    Ok(0)
}

pub(super) fn information(task: &Task, [to, ..]: Args) -> Result<u64> {
    let (free, all) = frames::free_and_all();
    // `struct sysinfo`: 14 words, of which some hold smaller fields.
    let mut words = [0u64; 14];
    words[0] = timers::now() / SECOND;
    words[4] = (all * frames::PAGE) as u64;
    words[5] = (free * frames::PAGE) as u64;
    words[10] = process::all().len() as u64;
    words[13] = 1;
    task.space.put(to, &words).map(|()| 0)
}

pub(super) fn random(task: &Task, [to, bytes, flags, ..]: Args) -> Result<u64> {
    const KNOWN: u64 = linux::GRND_NONBLOCK as u64 | linux::GRND_RANDOM as u64 | linux::GRND_INSECURE as u64;
    if flags & !KNOWN != 0 || flags == u64::from(linux::GRND_RANDOM | linux::GRND_INSECURE) {
        return Err(Errno::INVAL);
    }
    let mut buffer = [0; 256];
    let bytes = bytes.min(1 << 25);
    let mut done = 0;
    while done < bytes {
        let count = buffer.len().min((bytes - done) as usize);
        crate::random::fill(&mut buffer[..count]);
        task.space.put_bytes(to + done, &buffer[..count])?;
        done += count as u64;
    }
    Ok(done)
}

/// The most that a process's limit of descriptors can be.
const MOST_DESCRIPTORS: u64 = 64 << 10;

pub(super) fn limit(task: &Task, [pid, kind, new, old, ..]: Args) -> Result<u64> {
    let process = task.process(pid)?;
    if process.pid != task.thread.process.pid {
        let (own, other) = (task.credentials(), process.credentials());
        if !own.owns_all_ids_of(&other) {
            own.need(Capability::SysResource)?;
        }
    }
    let kind = kind as usize;
    let before = *process.limits.lock().get(kind).ok_or(Errno::INVAL)?;
    if new != 0 {
        let [soft, hard] = task.space.get::<[u64; 2]>(new)?;
        if soft > hard {
            return Err(Errno::INVAL);
        }
        if hard > before.1 {
            task.need(Capability::SysResource)?;
        }
        if kind == linux::RLIMIT_NOFILE as usize && hard > MOST_DESCRIPTORS {
            return Err(Errno::PERM);
        }
        process.limits.lock()[kind] = (soft, hard);
    }
    if old != 0 {
        task.space.put(old, &[before.0, before.1])?;
    }
    Ok(0)
}

pub(super) fn usage(task: &Task, [who, to, ..]: Args) -> Result<u64> {
    let process = &task.thread.process;
    let ticks = match who as i32 {
        -1 => process.child_ticks.load(Ordering::Relaxed),
        0 | 1 => process.ticks.load(Ordering::Relaxed),
        _ => return Err(Errno::INVAL),
    };
    let mut usage = zeroed::<linux::rusage>();
    let microseconds = ticks * 1_000_000 / timers::per_second();
    usage.ru_utime.tv_sec = (microseconds / 1_000_000) as _;
    usage.ru_utime.tv_usec = (microseconds % 1_000_000) as _;
    task.space.put(to, &usage).map(|()| 0)
}

/// The number of the last capability.
const LAST_CAPABILITY: u64 = ALL.count_ones() as u64 - 1;

fn change_credentials(task: &Task, change: impl FnOnce(&mut Credentials)) -> Result<u64> {
    let changed = task.thread.process.change_credentials(|new| {
        change(new);
        Ok(())
    });
    changed.map(|()| 0)
}

pub(super) fn control(task: &Task, [option, argument, second, third, fourth, _]: Args) -> Result<u64> {
    const NAME_BYTES: usize = 16;
    match option as u32 {
        prctl::PR_SET_NAME => {
            let name = task.space.get_bytes_until_zero(argument, NAME_BYTES);
            let name = match name {
                Ok(name) => name,
                Err(Errno::NAMETOOLONG) => task.space.get::<[u8; NAME_BYTES - 1]>(argument)?.to_vec(),
                Err(why) => return Err(why),
            };
            *task.thread.name.lock() = alloc::string::String::from_utf8_lossy(&name).chars().take(15).collect();
            Ok(0)
        }
        prctl::PR_GET_NAME => {
            let mut name = [0; NAME_BYTES];
            let known = task.thread.name.lock().clone();
            name.iter_mut().take(NAME_BYTES - 1).zip(known.bytes()).for_each(|(to, byte)| *to = byte);
            task.space.put(argument, &name).map(|()| 0)
        }
        prctl::PR_GET_DUMPABLE => Ok(1),
        prctl::PR_GET_PDEATHSIG => task.space.put(argument, &0u32).map(|()| 0),
        prctl::PR_GET_NO_NEW_PRIVS if [argument, second, third, fourth] == [0; 4] => {
            Ok(task.credentials().gets_no_more.into())
        }
        prctl::PR_SET_NO_NEW_PRIVS if [argument, second, third, fourth] == [1, 0, 0, 0] => {
            change_credentials(task, |new| new.gets_no_more = true)
        }
        prctl::PR_GET_KEEPCAPS => Ok(task.credentials().keeps_capabilities.into()),
        prctl::PR_SET_KEEPCAPS if argument <= 1 => {
            change_credentials(task, |new| new.keeps_capabilities = argument == 1)
        }
        prctl::PR_CAPBSET_READ if argument <= LAST_CAPABILITY => Ok(task.credentials().bounding >> argument & 1),
        prctl::PR_CAPBSET_DROP if argument <= LAST_CAPABILITY => {
            task.need(Capability::Setpcap)?;
            change_credentials(task, |new| new.bounding &= !(1 << argument))
        }
        prctl::PR_GET_TIMERSLACK => Ok(0),
        prctl::PR_SET_DUMPABLE | prctl::PR_SET_PDEATHSIG | prctl::PR_SET_TIMERSLACK | prctl::PR_SET_CHILD_SUBREAPER => {
            Ok(0)
        }
        _ => Err(Errno::INVAL),
    }
}

pub(super) fn harts(task: &Task, [_, bytes, to, ..]: Args) -> Result<u64> {
    if bytes < 8 || bytes % 8 != 0 {
        return Err(Errno::INVAL);
    }
    let all = u64::MAX >> (64 - crate::boot::harts().clamp(1, 64));
    task.space.put(to, &all)?;
    Ok(8)
}

pub(super) fn hart(task: &Task, [to, node, ..]: Args) -> Result<u64> {
    if to != 0 {
        task.space.put(to, &(machine::hart_index() as u32))?;
    }
    if node != 0 {
        task.space.put(node, &0u32)?;
    }
    Ok(0)
}

pub(super) fn barrier([command, ..]: Args) -> Result<u64> {
    const QUERY: u64 = 0;
    if command == QUERY { Ok(0) } else { Err(Errno::INVAL) }
}

pub(super) fn probe(task: &Task, [pairs, count, ..]: Args) -> Result<u64> {
    const BASE: i64 = 3;
    const EXTENSIONS: i64 = 4;
    /// IMA, FD, C.
    const KNOWN: [(i64, u64); 2] = [(BASE, 1), (EXTENSIONS, 3)];
    for n in 0..count.min(64) {
        let at = pairs + 16 * n;
        let key = task.space.get::<i64>(at)?;
        match KNOWN.iter().find(|(known, _)| *known == key) {
            Some((_, value)) => task.space.put(at + 8, value)?,
            None if (0..=2).contains(&key) || (5..=32).contains(&key) => task.space.put(at + 8, &0u64)?,
            None => task.space.put(at, &[-1i64, 0])?,
        }
    }
    Ok(0)
}

pub(super) fn reboot(task: &Task, [magic, magic2, command, ..]: Args) -> Result<u64> {
    task.need(Capability::SysBoot)?;
    if magic as u32 != linux::LINUX_REBOOT_MAGIC1 || magic2 as u32 != linux::LINUX_REBOOT_MAGIC2 {
        return Err(Errno::INVAL);
    }
    match command as u32 {
        linux::LINUX_REBOOT_CMD_RESTART => crate::boot::end(crate::boot::End::Again),
        linux::LINUX_REBOOT_CMD_HALT | linux::LINUX_REBOOT_CMD_POWER_OFF => {
            crate::boot::end(crate::boot::End::Status(0))
        }
        linux::LINUX_REBOOT_CMD_CAD_ON | linux::LINUX_REBOOT_CMD_CAD_OFF => Ok(0),
        _ => Err(Errno::INVAL),
    }
}
