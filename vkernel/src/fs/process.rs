//! `/proc`: processes and the kernel, as programs read them.

use super::descriptors::OpenFile;
use super::path::Place;
use super::text::{Directory, Link, Text};
use super::{Node, new_id};
use crate::memory::frames;
use crate::memory::space::{Name, Rights};
use crate::task::credentials::{Birth, Ids};
use crate::task::process::{self, ExitStatus, Process};
use crate::task::timers;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering;

/// The number of `/proc` among file systems.
const SYSTEM: u64 = 2;

fn text(make: impl Fn() -> String + Send + Sync + 'static) -> Arc<dyn Node> {
    Text::node((SYSTEM, new_id()), move || make().into_bytes())
}

fn link(target: String, place: Option<Arc<Place>>) -> Arc<dyn Node> {
    Link::node((SYSTEM, new_id()), target, place)
}

fn directory(
    names: impl Fn() -> Vec<String> + Send + Sync + 'static,
    find: impl Fn(&str) -> Option<Arc<dyn Node>> + Send + Sync + 'static,
) -> Arc<dyn Node> {
    Directory::node((SYSTEM, new_id()), names, find)
}

/// Makes the file system. `own` returns the number of the process that reads it.
#[must_use]
pub fn root(own: fn() -> Option<u32>) -> Arc<dyn Node> {
    const FILES: [&str; 11] = [
        "cmdline",
        "cpuinfo",
        "filesystems",
        "loadavg",
        "meminfo",
        "mounts",
        "self",
        "stat",
        "sys",
        "uptime",
        "version",
    ];
    let names = || {
        let numbers = process::all().into_iter().map(|process| process.pid.to_string());
        numbers.chain(FILES.map(String::from)).collect()
    };
    Directory::node((SYSTEM, 1), names, move |name| {
        if let Ok(pid) = name.parse() {
            return process::find(pid).map(|process| of_process(&process));
        }
        Some(match name {
            "self" => link(own()?.to_string(), None),
            "cmdline" => text(|| format!("{}\n", crate::boot::command_line())),
            "cpuinfo" => text(cpuinfo),
            "filesystems" => text(|| "nodev\ttmpfs\nnodev\tproc\n".into()),
            "loadavg" => text(|| format!("0.00 0.00 0.00 1/{} 1\n", process::thread_count())),
            "meminfo" => text(meminfo),
            "mounts" => text(mounts),
            "stat" => text(stat),
            "sys" => sys(),
            "uptime" => text(|| {
                let now = timers::now();
                format!("{0}.{1:02} 0.00\n", now / timers::SECOND, now % timers::SECOND / 10_000_000)
            }),
            "version" => text(|| format!("Linux version {} (gnomon vkernel)\n", crate::RELEASE)),
            _ => return None,
        })
    })
}

fn mounts() -> String {
    crate::share::tags().iter().fold("rootfs / rootfs rw 0 0\nproc /proc proc rw 0 0\n".into(), |mut text, tag| {
        let _ = writeln!(text, "{tag} /{}/{tag} 9p rw,access=client,trans=virtio 0 0", crate::boot::MOUNTS);
        text
    })
}

fn cpuinfo() -> String {
    (0..crate::boot::harts()).fold(String::new(), |mut text, hart| {
        let _ = writeln!(text, "processor\t: {hart}\nhart\t\t: {hart}\nisa\t\t: rv64imafdc\nmmu\t\t: sv39\n");
        text
    })
}

fn meminfo() -> String {
    let (free, all) = frames::free_and_all();
    let kib = |frames: usize| frames * frames::PAGE / 1024;
    format!(
        "MemTotal:       {:8} kB\nMemFree:        {:8} kB\nMemAvailable:   {:8} kB\nBuffers:        {:8} kB\nCached:         {:8} kB\n\
         SwapTotal:      {:8} kB\nSwapFree:       {:8} kB\n",
        kib(all),
        kib(free),
        kib(free),
        0,
        0,
        0,
        0
    )
}

fn stat() -> String {
    let mut text = String::from("cpu  0 0 0 0 0 0 0 0 0 0\n");
    (0..crate::boot::harts()).for_each(|hart| {
        let _ = writeln!(text, "cpu{hart} 0 0 0 0 0 0 0 0 0 0");
    });
    let started = (timers::time_of_day() - timers::now()) / timers::SECOND;
    let _ = writeln!(text, "ctxt 0\nbtime {started}\nprocesses {}", process::all().len());
    text
}

/// `/proc/sys`, as far as programs read it.
fn sys() -> Arc<dyn Node> {
    const TREE: [(&str, &[(&str, &str)]); 2] = [
        (
            "kernel",
            &[
                ("osrelease", crate::RELEASE),
                ("ostype", "Linux"),
                ("hostname", crate::NAME),
                ("pid_max", "4194304"),
                ("threads-max", "4096"),
                ("random", ""),
            ],
        ),
        ("vm", &[("overcommit_memory", "1"), ("max_map_count", "65530")]),
    ];
    directory(
        || TREE.iter().map(|(name, _)| String::from(*name)).collect(),
        |name| {
            let (_, files) = TREE.iter().find(|(known, _)| *known == name)?;
            let names = || files.iter().map(|(name, _)| String::from(*name)).collect();
            Some(directory(names, |name| {
                let (_, content) = files.iter().find(|(known, _)| *known == name)?;
                let content: &'static str = content;
                Some(text(move || format!("{content}\n")))
            }))
        },
    )
}

fn of_process(process: &Arc<Process>) -> Arc<dyn Node> {
    const FILES: [&str; 12] =
        ["cmdline", "comm", "cwd", "environ", "exe", "fd", "limits", "maps", "mounts", "stat", "statm", "status"];
    let process = Arc::clone(process);
    directory(
        || FILES.map(String::from).into(),
        move |name| {
            let process = Arc::clone(&process);
            let first = || process.threads.lock().values().next().cloned();
            Some(match name {
                "cmdline" => Text::node((SYSTEM, new_id()), move || process.image.lock().arguments.clone()),
                "comm" => text(move || format!("{}\n", name_of(&process))),
                "cwd" | "root" => {
                    let position = first()?.position.lock().lock().clone();
                    let place = if name == "cwd" { &position.current } else { &position.root };
                    link(place.path(&position.root), Some(Arc::clone(place)))
                }
                "environ" => text(String::new),
                "exe" => link(process.image.lock().path.clone(), None),
                "fd" => descriptors(&process),
                "limits" => text(move || limits(&process)),
                "maps" => text(move || maps(&process)),
                "mounts" => text(mounts),
                "stat" => text(move || stat_of(&process)),
                "statm" => text(move || {
                    let (all, resident) = sizes(&process);
                    format!("{} {} 0 0 0 0 0\n", all / 4096, resident / 4096)
                }),
                "status" => text(move || status(&process)),
                _ => return None,
            })
        },
    )
}

fn name_of(process: &Process) -> String {
    let name = process.threads.lock().values().next().map(|thread| thread.name.lock().clone());
    name.unwrap_or_else(|| process.image.lock().path.rsplit('/').next().unwrap_or("").into())
}

fn sizes(process: &Process) -> (u64, u64) {
    let space = process.space.lock().clone();
    space.map_or((0, 0), |space| space.sizes())
}

fn state(process: &Process) -> char {
    match (process.is_dead(), process.is_stopped()) {
        (true, _) => 'Z',
        (_, true) => 'T',
        _ => 'S',
    }
}

fn status(process: &Process) -> String {
    let (all, resident) = sizes(process);
    let credentials = process.credentials();
    let show = |ids: Ids| format!("{}\t{}\t{}\t{}", ids.real, ids.effective, ids.saved, ids.fs);
    let groups: String = credentials.further.iter().flat_map(|group| [group.to_string(), " ".into()]).collect();
    let threads = process.threads.lock();
    let mask = threads.values().next().map_or(0, |thread| thread.mask());
    let umask = threads.values().next().map_or(0, |thread| thread.position.lock().lock().mask);
    format!(
        "Name:\t{}\nUmask:\t{:04o}\nState:\t{}\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{}\nTracerPid:\t0\nUid:\t{}\nGid:\t{}\nGroups:\t{groups}\n\
         VmSize:\t{} kB\nVmRSS:\t{} kB\nThreads:\t{}\nSigPnd:\t{:016x}\nSigBlk:\t{mask:016x}\nCapInh:\t{:016x}\nCapPrm:\t{:016x}\n\
         CapEff:\t{:016x}\nCapBnd:\t{:016x}\nCapAmb:\t{:016x}\nNoNewPrivs:\t{}\n",
        process.image.lock().path.rsplit('/').next().unwrap_or(""),
        umask,
        state(process),
        process.parent().map_or(0, |parent| parent.pid),
        show(credentials.users),
        show(credentials.groups),
        all / 1024,
        resident / 1024,
        threads.len(),
        process.pending.bits(),
        credentials.inheritable,
        credentials.permitted,
        credentials.effective,
        credentials.bounding,
        0,
        u32::from(credentials.gets_no_more),
        pid = process.pid,
    )
}

fn stat_of(process: &Process) -> String {
    let per_tick = timers::per_second() / 100;
    let ticks = |ticks: &core::sync::atomic::AtomicU64| ticks.load(Ordering::Relaxed) / per_tick.max(1);
    let (all, resident) = sizes(process);
    let end = process.ending().map_or(0, |status: ExitStatus| status.encode());
    format!(
        "{} ({}) {} {} {} {} 0 -1 0 0 0 0 0 {} 0 {} 0 20 0 {} 0 0 {all} {} 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 \
         0 0 0 0 {end}\n",
        process.pid,
        name_of(process),
        state(process),
        process.parent().map_or(0, |parent| parent.pid),
        process.group(),
        process.session(),
        ticks(&process.ticks),
        ticks(&process.child_ticks),
        process.threads.lock().len(),
        resident / 4096,
    )
}

fn limits(process: &Process) -> String {
    const NAMES: [&str; 16] = [
        "Max cpu time",
        "Max file size",
        "Max data size",
        "Max stack size",
        "Max core file size",
        "Max resident set",
        "Max processes",
        "Max open files",
        "Max locked memory",
        "Max address space",
        "Max file locks",
        "Max pending signals",
        "Max msgqueue size",
        "Max nice priority",
        "Max realtime priority",
        "Max realtime timeout",
    ];
    let show = |limit: u64| if limit == u64::MAX { "unlimited".into() } else { limit.to_string() };
    let limits = *process.limits.lock();
    let mut text = String::from("Limit                     Soft Limit           Hard Limit           Units     \n");
    for (name, (soft, hard)) in NAMES.iter().zip(limits) {
        let _ = writeln!(text, "{name:25} {:20} {:20}", show(soft), show(hard));
    }
    text
}

fn maps(process: &Process) -> String {
    let Some(space) = process.space.lock().clone() else { return String::new() };
    let mut text = String::new();
    for (start, region) in space.regions() {
        let right = |right, letter| if region.rights.contains(right) { letter } else { '-' };
        let name = match &region.name {
            Name::Anonymous => "",
            Name::Heap => "[heap]",
            Name::Stack => "[stack]",
            Name::Vdso => "[vdso]",
            Name::File(path) => path,
        };
        let rights: String = [right(Rights::R, 'r'), right(Rights::W, 'w'), right(Rights::X, 'x')].iter().collect();
        let kind = if region.is_shared { 's' } else { 'p' };
        let _ = writeln!(text, "{start:08x}-{:08x} {rights}{kind} 00000000 00:00 0 {name}", region.end);
    }
    text
}

fn descriptors(process: &Arc<Process>) -> Arc<dyn Node> {
    let find = {
        let process = Arc::clone(process);
        move |fd: u32| -> Option<Arc<OpenFile>> {
            let thread = process.threads.lock().values().next().cloned()?;
            let files = Arc::clone(&thread.files.lock());
            let file = files.lock().get(fd);
            file.ok()
        }
    };
    let credentials = process.credentials();
    let owner = Birth { mode: 0o500, uid: credentials.users.effective, gid: credentials.groups.effective };
    let process = Arc::clone(process);
    let names = move || {
        let thread = process.threads.lock().values().next().cloned();
        let files = thread.map(|thread| Arc::clone(&thread.files.lock()));
        files.map_or(Vec::new(), |files| files.lock().numbers().iter().map(ToString::to_string).collect())
    };
    // Through the entries files are opened that others may not see.
    Directory::owned((SYSTEM, new_id()), owner, names, move |name| {
        let file = find(name.parse().ok()?)?;
        let target = match &file.place {
            Some(place) => place.path(&crate::boot::root()),
            None => format!("anon:[{}]", file.status().id.1),
        };
        // A stream without a name is opened by its descriptor.
        let place = file.place.clone().unwrap_or_else(|| Place::root(Arc::new(Descriptor(file))));
        Some(link(target, Some(place)))
    })
}

/// The node of an open file without a name.
#[derive(Debug)]
struct Descriptor(Arc<OpenFile>);

impl Node for Descriptor {
    /// Only the owner of the descriptor comes here, by the directory's mode: the file is the user's own.
    fn status(&self) -> super::Status {
        let user = crate::task::run::current().and_then(process::find).map(|process| process.credentials());
        let ids = user.map_or((0, 0), |user| (user.users.fs, user.groups.fs));
        super::Status { uid: ids.0, gid: ids.1, ..self.0.status() }
    }

    fn open(&self, _flags: u32) -> crate::errno::Result<Option<Arc<dyn super::Stream>>> {
        Ok(self.0.stream().cloned())
    }
}
