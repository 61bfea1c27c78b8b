//! Makes system calls about users, locks and sockets, and prints their results, to compare kernels. Nothing that is printed depends on
//! a process's number or on time.
#![no_std]
#![no_main]

mod sockets;

use core::ffi::CStr;
use programs::linux::{self, Args, Failure, line, process};
use sockets::{DATAGRAM, DONTWAIT, STREAM, pair};

programs::entry_point!(main);

/// Numbers of calls.
mod number {
    pub const FCNTL: usize = 25;
    pub const FLOCK: usize = 32;
    pub const MKNOD: usize = 33;
    pub const MKDIR: usize = 34;
    pub const UNLINK: usize = 35;
    pub const LINK: usize = 37;
    pub const TRUNCATE: usize = 45;
    pub const ACCESS: usize = 48;
    pub const CHDIR: usize = 49;
    pub const CHROOT: usize = 51;
    pub const CHMOD: usize = 53;
    pub const CHOWN: usize = 54;
    pub const OPEN: usize = 56;
    pub const CLOSE: usize = 57;
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const PPOLL: usize = 73;
    pub const STAT: usize = 79;
    pub const UTIMENS: usize = 88;
    pub const CAPGET: usize = 90;
    pub const NANOSLEEP: usize = 101;
    pub const KILL: usize = 129;
    pub const SIGACTION: usize = 134;
    pub const SETUID: usize = 146;
    pub const SETRESUID: usize = 147;
    pub const GETRESUID: usize = 148;
    pub const SETRESGID: usize = 149;
    pub const SETFSUID: usize = 151;
    pub const GETGROUPS: usize = 158;
    pub const SETGROUPS: usize = 159;
    pub const UMASK: usize = 166;
    pub const GETPID: usize = 172;
    pub const SOCKET: usize = 198;
    pub const SOCKETPAIR: usize = 199;
    pub const BIND: usize = 200;
    pub const LISTEN: usize = 201;
    pub const ACCEPT: usize = 202;
    pub const CONNECT: usize = 203;
    pub const GETSOCKNAME: usize = 204;
    pub const GETPEERNAME: usize = 205;
    pub const SENDTO: usize = 206;
    pub const RECVFROM: usize = 207;
    pub const SETSOCKOPT: usize = 208;
    pub const GETSOCKOPT: usize = 209;
    pub const SHUTDOWN: usize = 210;
    pub const SENDMSG: usize = 211;
    pub const RECVMSG: usize = 212;
    pub const EPOLL_CREATE: usize = 20;
    pub const EPOLL_WAIT2: usize = 441;
    pub const EXIT: usize = 93;
    pub const SETITIMER: usize = 103;
    pub const CLONE: usize = 220;
    pub const WAIT: usize = 260;
    pub const RENAME: usize = 276;
    pub const ACCESS2: usize = 439;
}

/// The current directory, as a descriptor.
const HERE: usize = (-100isize).cast_unsigned();
/// An id that is kept.
const KEEP: usize = u32::MAX as usize;
/// An address that no program has.
const WILD: usize = 1 << 60;

fn at<T: ?Sized>(value: &T) -> usize {
    core::ptr::from_ref(value).expose_provenance()
}

fn out<T: ?Sized>(value: &mut T) -> usize {
    core::ptr::from_mut(value).expose_provenance()
}

fn text(path: &CStr) -> usize {
    path.as_ptr().expose_provenance()
}

/// Makes a call. Returns its result, or the error's number below 0.
fn call(number: usize, args: [usize; 6]) -> isize {
    match linux::call("", number, args) {
        Ok(value) => value.cast_signed(),
        Err(Failure::Call(_, error)) => -error.cast_signed(),
        Err(_) => isize::MIN,
    }
}

/// Makes a call, and prints its result.
fn show(what: &str, number: usize, args: &[usize]) -> isize {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let result = call(number, all);
    line(format_args!("{what}: {result}"));
    result
}

/// Makes a call that has to succeed.
fn must(number: usize, args: &[usize]) -> usize {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let result = call(number, all);
    if result < 0 {
        line(format_args!("call {number} failed: {result}"));
    }
    result.max(0).cast_unsigned()
}

const READ_ONLY: usize = 0;
const WRITE_ONLY: usize = 1;
const READ_WRITE: usize = 2;
const CREATE: usize = 0o100;

fn open(path: &CStr, flags: usize) -> usize {
    must(number::OPEN, &[HERE, text(path), flags, 0o666])
}

fn close(fd: usize) {
    must(number::CLOSE, &[fd]);
}

fn sleep(milliseconds: u64) {
    must(number::NANOSLEEP, &[at(&[milliseconds / 1000, milliseconds % 1000 * 1_000_000]), 0]);
}

/// Runs a part in a process of its own, and waits for it.
fn apart(work: impl FnOnce()) -> Result<(), Failure> {
    let ended = process::run(|| {
        work();
        Ok(())
    })?;
    if ended.succeeded() { Ok(()) } else { Err(Failure::Wrong("a process failed")) }
}

fn main(_: Args) -> Result<(), Failure> {
    call(number::MKDIR, [HERE, text(c"/tmp"), 0o777, 0, 0, 0]);
    must(number::MKDIR, &[HERE, text(c"/tmp/calls"), 0o777]);
    must(number::CHMOD, &[HERE, text(c"/tmp/calls"), 0o777]);
    must(number::CHDIR, &[text(c"/tmp/calls")]);
    apart(ids)?;
    files()?;
    locks()?;
    sockets::pairs()?;
    sockets::local()?;
    sockets::internet()?;
    events()?;
    odd_numbers();
    wrong()
}

/// A child whose end is told by a number that is no signal's, and a timer that is set many times.
fn odd_numbers() {
    const ALL: usize = 0x4000_0000;
    let child = call(number::CLONE, [0xff, 0, 0, 0, 0, 0]);
    if child == 0 {
        call(number::EXIT, [3, 0, 0, 0, 0, 0]);
    }
    let (set, mut found) = (must(number::EPOLL_CREATE, &[0]), [0u64; 2]);
    show("a wait by nanoseconds", number::EPOLL_WAIT2, &[set, out(&mut found), 1, at(&[0u64, 1_000_000]), 0, 8]);
    show("none", number::EPOLL_WAIT2, &[set, out(&mut found), 1, at(&[0u64, 2_000_000_000]), 0, 8]);
    close(set);
    let mut status = 0u32;
    let ended = call(number::WAIT, [child.max(0).cast_unsigned(), out(&mut status), ALL, 0, 0, 0]);
    line(format_args!("the child's end: {} {status:#x}", ended == child));
    for seconds in (1000..21_000u64).rev() {
        must(number::SETITIMER, &[0, at(&[0, 0, seconds, 0]), 0]);
    }
    must(number::SETITIMER, &[0, at(&[0u64; 4]), 0]);
    line(format_args!("a timer that is set often"));
}

fn show_users(what: &str) {
    let mut ids = [0u32; 3];
    let [a, b, c] = &mut ids;
    must(number::GETRESUID, &[out(a), out(b), out(c)]);
    let mut sets = [[0u32; 3]; 2];
    must(number::CAPGET, &[at(&[0x2008_0522u32, 0]), out(&mut sets)]);
    line(format_args!("{what}: users {ids:?} capable {}", sets[0].map(|set| u32::from(set != 0))[0]));
}

fn ids() {
    show_users("at first");
    show("setgroups", number::SETGROUPS, &[3, at(&[30u32, 10, 20])]);
    let mut groups = [0u32; 4];
    show("getgroups", number::GETGROUPS, &[4, out(&mut groups)]);
    line(format_args!("{groups:?}"));
    show("getgroups of too few", number::GETGROUPS, &[2, out(&mut groups)]);
    show("setresgid", number::SETRESGID, &[100, 100, 100]);
    show("setfsuid", number::SETFSUID, &[7]);
    show("setfsuid again", number::SETFSUID, &[KEEP]);
    show("effective", number::SETRESUID, &[KEEP, 1000, KEEP]);
    show_users("effective");
    show("back", number::SETRESUID, &[KEEP, 0, KEEP]);
    show_users("back");
    show("setuid", number::SETUID, &[1000]);
    show_users("setuid");
    show("setuid to root", number::SETUID, &[0]);
    show("setgroups as a user", number::SETGROUPS, &[0, 0]);
    show("kill the first process", number::KILL, &[1, 0]);
    show("chroot as a user", number::CHROOT, &[text(c"/")]);
    show("mknod of a device", number::MKNOD, &[HERE, text(c"device"), 0o020_666, 0x103]);
    let parent = process::parent();
    show("kill the parent", number::KILL, &[parent, 0]);
}

fn become_user(id: usize) {
    must(number::SETGROUPS, &[0, 0]);
    must(number::SETRESGID, &[id, id, id]);
    must(number::SETUID, &[id]);
}

/// Prints mode, owner and group of a file.
fn show_file(path: &CStr) {
    let mut stat = [0u32; 32];
    must(number::STAT, &[HERE, text(path), out(&mut stat), 0x100]);
    line(format_args!("{path:?}: {:o} {} {}", stat[4], stat[6], stat[7]));
}

fn files() -> Result<(), Failure> {
    must(number::UMASK, &[0o022]);
    for (name, mode) in [(c"open", 0o777), (c"sticky", 0o1777), (c"shut", 0o700), (c"group", 0o2777)] {
        must(number::MKDIR, &[HERE, text(name), mode]);
        must(number::CHMOD, &[HERE, text(name), mode]);
    }
    must(number::CHOWN, &[HERE, text(c"group"), KEEP, 50, 0]);
    for name in [c"open/root", c"sticky/root", c"shut/root"] {
        close(open(name, CREATE | WRITE_ONLY));
    }
    must(number::CHMOD, &[HERE, text(c"open/root"), 0o640]);
    must(number::CHMOD, &[HERE, text(c"sticky/root"), 0o666]);
    apart(|| {
        become_user(1000);
        let mode = 0o666;
        show("read of root's", number::OPEN, &[HERE, text(c"open/root"), READ_ONLY]);
        show("write of root's", number::OPEN, &[HERE, text(c"open/root"), WRITE_ONLY]);
        show("path of root's", number::OPEN, &[HERE, text(c"open/root"), 0o10_000_000]);
        show("in a shut directory", number::OPEN, &[HERE, text(c"shut/root"), READ_ONLY]);
        show("new in a shut directory", number::OPEN, &[HERE, text(c"shut/new"), CREATE | READ_WRITE, mode]);
        show("list of a shut directory", number::OPEN, &[HERE, text(c"shut"), READ_ONLY]);
        show("chdir", number::CHDIR, &[text(c"shut")]);
        show("new", number::OPEN, &[HERE, text(c"group/new"), CREATE | READ_WRITE, 0o2777]);
        show("mkdir", number::MKDIR, &[HERE, text(c"group/dir"), 0o755]);
        show_file(c"group/new");
        show_file(c"group/dir");
        show("unlink of root's", number::UNLINK, &[HERE, text(c"sticky/root"), 0]);
        show("rename of root's", number::RENAME, &[HERE, text(c"sticky/root"), HERE, text(c"sticky/x"), 0]);
        show("rename over root's", number::RENAME, &[HERE, text(c"group/new"), HERE, text(c"sticky/root"), 0]);
        show("truncate", number::TRUNCATE, &[text(c"open/root"), 0]);
        show("unlink in an open directory", number::UNLINK, &[HERE, text(c"open/root"), 0]);
        show("unlink in a shut directory", number::UNLINK, &[HERE, text(c"shut/root"), 0]);
        show("link", number::LINK, &[HERE, text(c"sticky/root"), HERE, text(c"shut/link"), 0]);
        show("chmod of root's", number::CHMOD, &[HERE, text(c"sticky/root"), 0o777]);
        show("chown of root's", number::CHOWN, &[HERE, text(c"sticky/root"), 1000, KEEP, 0]);
        show("chown of an own one", number::CHOWN, &[HERE, text(c"group/new"), 1001, KEEP, 0]);
        show("chgrp of an own one", number::CHOWN, &[HERE, text(c"group/new"), KEEP, 1000, 0]);
        show("chmod with set-group-id", number::CHMOD, &[HERE, text(c"group/new"), 0o6755]);
        show_file(c"group/new");
        show("chgrp clears", number::CHOWN, &[HERE, text(c"group/new"), KEEP, 1000, 0]);
        show_file(c"group/new");
        show("times of root's", number::UTIMENS, &[HERE, text(c"sticky/root"), 0, 0]);
        show("given times of root's", number::UTIMENS, &[HERE, text(c"sticky/root"), at(&[1u64, 0, 1, 0]), 0]);
        show("access", number::ACCESS, &[HERE, text(c"shut/root"), 0]);
        show("access to write", number::ACCESS, &[HERE, text(c"sticky/root"), 2]);
        show("access to execute", number::ACCESS, &[HERE, text(c"sticky/root"), 1]);
    })?;
    show_file(c"sticky/root");
    apart(|| {
        must(number::SETRESUID, &[1000, 0, 0]);
        close(open(c"shut/real", CREATE | WRITE_ONLY));
        show("access of the real user", number::ACCESS, &[HERE, text(c"shut/real"), 4]);
        show("access of the effective user", number::ACCESS2, &[HERE, text(c"shut/real"), 4, 0x200]);
    })
}

/// `struct flock`: kind and whence, range, process.
fn record(kind: u64, start: u64, bytes: u64) -> [u64; 4] {
    [kind, start, bytes, 0]
}

const SHARED: u64 = 0;
const EXCLUSIVE: u64 = 1;
const FREE: u64 = 2;
const GET: usize = 5;
const SET: usize = 6;
const WAIT: usize = 7;

fn lock(what: &str, fd: usize, command: usize, record: &[u64; 4]) {
    show(what, number::FCNTL, &[fd, command, at(record)]);
}

/// Prints the lock that excludes another one.
fn show_lock(fd: usize, command: usize, kind: u64, start: u64, bytes: u64) {
    let mut record = record(kind, start, bytes);
    must(number::FCNTL, &[fd, command, out(&mut record)]);
    line(format_args!("lock {} {} {} {}", record[0], record[1], record[2], u32::from(record[3] as u32 != 0)));
}

fn locks() -> Result<(), Failure> {
    const OF_FILE: usize = 31;
    let file = open(c"locked", CREATE | READ_WRITE);
    lock("lock 10 to 19", file, SET, &record(EXCLUSIVE, 10, 10));
    lock("share 30 to the end", file, SET, &record(SHARED, 30, 0));
    lock("free 12 to 14", file, SET, &record(FREE, 12, 3));
    lock("no kind", file, SET, &record(9, 0, 0));
    lock("no place", file, SET, &record(EXCLUSIVE | 9 << 16, 0, 0));
    lock("before the start", file, SET, &record(EXCLUSIVE, (-1i64).cast_unsigned(), 1));
    let reader = open(c"locked", READ_ONLY);
    lock("exclusive without writing", reader, SET, &record(EXCLUSIVE, 100, 1));
    apart(|| {
        for start in [9, 10, 12, 15, 20, 40] {
            show_lock(file, GET, SHARED, start, 1);
        }
        show_lock(file, GET, EXCLUSIVE, 0, 0);
        show_lock(file, GET, EXCLUSIVE, 25, 100);
        lock("taken", file, SET, &record(SHARED, 10, 1));
        lock("shared", file, SET, &record(SHARED, 50, 1));
        show_lock(file, GET + OF_FILE, EXCLUSIVE, 0, 0);
    })?;
    // Any descriptor's end is the end of the locks.
    close(reader);
    apart(|| show_lock(file, GET, EXCLUSIVE, 0, 0))?;
    // Processes that would wait for each other.
    lock("first", file, SET, &record(EXCLUSIVE, 0, 1));
    let child = process::start(|| {
        lock("second", file, SET, &record(EXCLUSIVE, 1, 1));
        must(number::FCNTL, &[file, WAIT, at(&record(EXCLUSIVE, 0, 1))]);
        Ok(())
    })?;
    sleep(200);
    lock("deadlock", file, WAIT, &record(EXCLUSIVE, 1, 1));
    lock("free", file, SET, &record(FREE, 0, 1));
    line(format_args!("the child has both: {}", child.wait()?.succeeded()));
    lock("free after its end", file, WAIT, &record(EXCLUSIVE, 0, 0));
    lock("free", file, SET, &record(FREE, 0, 0));
    // Locks of open files.
    let other = open(c"locked", READ_WRITE);
    lock("of one file", file, SET + OF_FILE, &record(EXCLUSIVE, 0, 5));
    lock("of the other", other, SET + OF_FILE, &record(EXCLUSIVE, 4, 5));
    lock("of the process", other, SET, &record(EXCLUSIVE, 4, 5));
    show_lock(other, GET, SHARED, 0, 0);
    close(file);
    lock("of the other", other, SET + OF_FILE, &record(EXCLUSIVE, 4, 5));
    // Locks of whole files.
    let one = open(c"locked", READ_ONLY);
    show("flock", number::FLOCK, &[one, 2]);
    show("flock of another", number::FLOCK, &[other, 2 | 4]);
    show("flock that is shared", number::FLOCK, &[other, 1 | 4]);
    show("flock of nothing", number::FLOCK, &[other, 4]);
    let child = process::start(|| {
        close(one);
        let own = open(c"locked", READ_WRITE);
        must(number::FLOCK, &[own, 2]);
        line(format_args!("the child has it"));
        Ok(())
    })?;
    sleep(100);
    line(format_args!("closed"));
    close(one);
    child.wait()?;
    wait_with_a_signal(other)?;
    // A process that is ended while it waits.
    let one = open(c"locked", READ_WRITE);
    must(number::FLOCK, &[one, 2]);
    let me = must(number::GETPID, &[]);
    let mut pipe = [0u32; 2];
    must(59, &[out(&mut pipe), 0]);
    let child = process::start(|| {
        let pid = must(number::GETPID, &[]);
        must(number::WRITE, &[pipe[1] as usize, at(&pid), 8]);
        let own = open(c"locked", READ_WRITE);
        must(number::FLOCK, &[own, 2]);
        line(format_args!("never"));
        Ok(())
    })?;
    let mut pid = me;
    must(number::READ, &[pipe[0] as usize, out(&mut pid), 8]);
    sleep(100);
    show("kill", number::KILL, &[pid, 9]);
    child.wait()?;
    show("still held", number::FLOCK, &[one, 2]);
    // Thousands of locks, and all at once.
    let mut taken = 0;
    for n in 0..3000 {
        taken += usize::from(call(number::FCNTL, [one, SET, at(&record(EXCLUSIVE, 2 * n, 1)), 0, 0, 0]) == 0);
    }
    line(format_args!("{taken} locks"));
    apart(|| show_lock(one, GET, EXCLUSIVE, 2001, 10))?;
    lock("all free", one, SET, &record(FREE, 0, 0));
    apart(|| show_lock(one, GET, EXCLUSIVE, 0, 0))
}

extern "C" fn handler() {}

/// A signal ends a wait with `EINTR`.
fn wait_with_a_signal(file: usize) -> Result<(), Failure> {
    must(number::FLOCK, &[file, 2]);
    let me = must(number::GETPID, &[]);
    let action = [(handler as *const ()).expose_provenance(), 0, 0];
    must(number::SIGACTION, &[10, at(&action), 0, 8]);
    let own = open(c"locked", READ_WRITE);
    let child = process::start(|| {
        sleep(200);
        must(number::KILL, &[me, 10]);
        Ok(())
    })?;
    show("interrupted", number::FLOCK, &[own, 2]);
    child.wait()?;
    must(number::FLOCK, &[file, 8]);
    close(own);
    Ok(())
}

/// Signals that are read, timers, processes as descriptors, and priorities.
fn events() -> Result<(), Failure> {
    let set = 1u64 << 11;
    must(135, &[0, at(&set), 0, 8]);
    let signals = must(74, &[usize::MAX, at(&set), 8, 0]);
    let mut timer = 0u32;
    let event = [77u64, 12, 0, 0, 0, 0, 0, 0];
    show("timer_create", 107, &[1, at(&event), out(&mut timer)]);
    show("timer_settime", 110, &[timer as usize, 0, at(&[0u64, 0, 0, 20_000_000]), 0]);
    let mut record = [0u32; 32];
    show("read of a signal", number::READ, &[signals, out(&mut record), 128]);
    line(format_args!("signal {} {} {}", record[0], record[2].cast_signed(), record[11]));
    show("timer_getoverrun", 109, &[timer as usize]);
    show("timer_delete", 111, &[timer as usize]);
    show("timer_delete again", 111, &[timer as usize]);
    show("too small", number::READ, &[signals, out(&mut record), 100]);
    let child = process::start(|| {
        sleep(100);
        Ok(())
    })?;
    let handle = must(434, &[child.number(), 0]);
    show("alive", 424, &[handle, 0, 0, 0]);
    let mut poll = [handle as u32, 1];
    show("poll until the end", number::PPOLL, &[out(&mut poll), 1, 0, 0, 8]);
    child.wait()?;
    show("ended", 424, &[handle, 0, 0, 0]);
    show("not a process", 434, &[0, 0]);
    let (mut into, from) = ([0u8; 4], *b"copy");
    let (local, remote) = ([out(&mut into), 4], [at(&from), 4]);
    show("process_vm_readv", 270, &[must(number::GETPID, &[]), at(&local), 1, at(&remote), 1, 0]);
    line(format_args!("{:?}", core::str::from_utf8(&into).unwrap_or("?")));
    show("process_vm_readv of nowhere", 270, &[must(number::GETPID, &[]), at(&local), 1, at(&[WILD, 4]), 1, 0]);
    apart(|| {
        show("nice", 140, &[0, 0, 5]);
        show("getpriority", 141, &[0, 0]);
        show("no policy", 119, &[0, 99, at(&0u32)]);
        show("no priority", 119, &[0, 1, at(&0u32)]);
        show("greatest", 125, &[1]);
        show("least", 126, &[3]);
        become_user(1000);
        show("nicer as a user", 140, &[0, 0, 0]);
        show("real time as a user", 119, &[0, 1, at(&1u32)]);
        show("hostname as a user", 161, &[at(b"x"), 1]);
        show("time as a user", 170, &[at(&[1u64, 0]), 0]);
        show("more files", 261, &[0, 7, at(&[9u64, 1 << 30]), 0]);
    })
}

/// Calls with wrong arguments.
fn wrong() -> Result<(), Failure> {
    let file = open(c"locked", READ_WRITE);
    let [a, _b] = pair(STREAM);
    for (what, domain, style, protocol) in [
        ("family", 0, 1, 0),
        ("type", 1, 75, 0),
        ("flags", 1, 1 | 1 << 20, 0),
        ("protocol", 2, 1, 17),
        ("local protocol", 1, 1, 9),
    ] {
        show(what, number::SOCKET, &[domain, style, protocol]);
    }
    show("pair of another family", number::SOCKETPAIR, &[2, 1, 0, out(&mut [0u64])]);
    show("pair to nowhere", number::SOCKETPAIR, &[1, 1, 0, WILD]);
    for (what, number) in
        [("bind", number::BIND), ("connect", number::CONNECT), ("sendto", number::SENDTO), ("recvmsg", number::RECVMSG)]
    {
        show(what, number, &[file, at(&[1u64; 8]), 16]);
        show(what, number, &[500, at(&[1u64; 8]), 16]);
    }
    show("bind of nowhere", number::BIND, &[a, WILD, 16]);
    show("bind of too much", number::BIND, &[a, at(&[1u64; 32]), 200]);
    show("bind of a huge length", number::BIND, &[a, at(&[1u64; 32]), usize::MAX]);
    show("send of nowhere", number::SENDTO, &[a, WILD, 10, 0]);
    show("receive to nowhere", number::RECVMSG, &[a, WILD, DONTWAIT]);
    show("send from nowhere", number::SENDMSG, &[a, WILD, 0]);
    show("option to nowhere", number::GETSOCKOPT, &[a, 1, 3, WILD, at(&4u32)]);
    show("option without a length", number::GETSOCKOPT, &[a, 1, 3, at(&[0u64]), WILD]);
    show("no option", number::SETSOCKOPT, &[a, 1, 999, at(&1u32), 4]);
    show("no level", number::SETSOCKOPT, &[a, 77, 1, at(&1u32), 4]);
    show("shutdown of what", number::SHUTDOWN, &[a, 7]);
    show("seek", 62, &[a, 0, 0]);
    show("lock from nowhere", number::FCNTL, &[file, SET, WILD]);
    show("flock of nothing", number::FLOCK, &[77, 1]);
    show("groups of nowhere", number::SETGROUPS, &[5, WILD]);
    show("too many groups", number::SETGROUPS, &[1 << 17, at(&[0u64])]);
    show("capget of nowhere", number::CAPGET, &[WILD, 0]);
    show("datagram too large", number::SENDTO, &[pair(DATAGRAM)[0], at(&[0u8; 8]), 1 << 30, 0]);
    Ok(())
}
