//! Makes system calls about users, locks and sockets, and prints their results, to compare kernels. Nothing that is printed depends on
//! a process's number or on time.
#![no_std]
#![no_main]

use core::ffi::CStr;
use programs::linux::{self, Args, Failure, line, process};

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
    pairs()?;
    local()?;
    internet()?;
    wrong()
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

const STREAM: usize = 1;
const DATAGRAM: usize = 2;
const PACKETS: usize = 5;
const DONTWAIT: usize = 0x40;
const PEEK: usize = 2;
const TRUNCATED: usize = 0x20;
const NOSIGNAL: usize = 0x4000;

fn pair(style: usize) -> [usize; 2] {
    let mut ends = [0u32; 2];
    must(number::SOCKETPAIR, &[1, style, 0, out(&mut ends)]);
    ends.map(|end| end as usize)
}

fn send(what: &str, fd: usize, bytes: &[u8], flags: usize) {
    show(what, number::SENDTO, &[fd, bytes.as_ptr().expose_provenance(), bytes.len(), flags | NOSIGNAL]);
}

fn receive(what: &str, fd: usize, most: usize, flags: usize) {
    let mut buffer = [0u8; 64];
    let result = call(number::RECVFROM, [fd, out(&mut buffer), most, flags, 0, 0]);
    let bytes = &buffer[..result.clamp(0, most.min(64).cast_signed()).cast_unsigned()];
    line(format_args!("{what}: {result} {:?}", core::str::from_utf8(bytes).unwrap_or("?")));
}

fn option(fd: usize, name: usize) -> u32 {
    let (mut value, mut length) = (0u32, 4u32);
    must(number::GETSOCKOPT, &[fd, 1, name, out(&mut value), out(&mut length)]);
    value
}

/// Prints for what a descriptor is ready.
fn ready(what: &str, fd: usize) {
    let mut poll = [fd as u32, 0x201f];
    must(number::PPOLL, &[out(&mut poll), 1, at(&[0u64; 2]), 0, 8]);
    line(format_args!("{what}: ready {:#x}", poll[1] >> 16));
}

/// `struct msghdr` of one range and control data.
fn message(range: &[usize; 2], control: usize, bytes: usize) -> [usize; 7] {
    [0, 0, at(range), 1, control, bytes, 0]
}

fn pairs() -> Result<(), Failure> {
    let [a, b] = pair(STREAM);
    line(format_args!("types {} {} {}", option(a, 3), option(pair(DATAGRAM)[0], 3), option(pair(PACKETS)[0], 3)));
    ready("empty", a);
    send("send", a, b"hello", 0);
    send("send", a, b" world", 0);
    ready("full", b);
    receive("peek", b, 8, PEEK);
    receive("some", b, 3, 0);
    receive("rest", b, 60, 0);
    receive("nothing", b, 60, DONTWAIT);
    show("shutdown", number::SHUTDOWN, &[a, 1]);
    ready("shut", b);
    receive("end", b, 60, 0);
    send("behind the end", a, b"x", 0);
    send("the other way", b, b"x", 0);
    close(a);
    ready("closed", b);
    receive("reset", b, 60, 0);
    receive("closed", b, 60, 0);
    close(b);
    for style in [DATAGRAM, PACKETS] {
        let [a, b] = pair(style);
        send("message", a, b"one message", 0);
        send("empty message", a, b"", 0);
        send("second", a, b"two", 0);
        receive("cut", b, 3, TRUNCATED);
        receive("empty", b, 60, 0);
        receive("second", b, 60, 0);
        receive("none", b, 60, DONTWAIT);
        close(a);
        ready("closed", b);
        receive("closed", b, 60, DONTWAIT);
        send("to a closed one", b, b"x", 0);
        close(b);
    }
    files_by_message()?;
    circles();
    // A writer waits for room, and a reader for bytes.
    let [a, b] = pair(STREAM);
    let child = process::start(|| {
        let bytes = [7u8; 4096];
        for _ in 0..200 {
            must(number::WRITE, &[a, at(&bytes), bytes.len()]);
        }
        Ok(())
    })?;
    close(a);
    let (mut all, mut buffer) = (0, [0u8; 5000]);
    loop {
        match must(number::READ, &[b, out(&mut buffer), buffer.len()]) {
            0 => break,
            count => all += count,
        }
    }
    child.wait()?;
    line(format_args!("{all} bytes came"));
    Ok(())
}

/// Sends files and credentials.
fn files_by_message() -> Result<(), Failure> {
    let [a, b] = pair(STREAM);
    let file = open(c"passed", CREATE | READ_WRITE);
    must(number::WRITE, &[file, at(b"content"), 7]);
    let bytes = *b"F";
    let range = [at(&bytes), 1];
    let control = [20u64, 1 | 1 << 32, file as u64];
    show("sendmsg", number::SENDMSG, &[a, at(&message(&range, at(&control), 24)), 0]);
    close(file);
    must(number::SETSOCKOPT, &[b, 1, 16, at(&1u32), 4]);
    let (mut into, mut control) = ([0u8; 8], [0u64; 8]);
    let range = [out(&mut into), 8];
    let header = message(&range, out(&mut control), 64);
    show("recvmsg", number::RECVMSG, &[b, at(&header), 0]);
    line(format_args!("control {} {:#x} {:#x}", header[5], control[0], control[1]));
    let rights = control.iter().skip_while(|word| **word != 1 | 1 << 32).nth(1);
    let fd = rights.map_or(usize::MAX, |word| *word as usize);
    let mut content = [0u8; 8];
    show("read of the file", 67, &[fd, out(&mut content), 8, 0]);
    line(format_args!("{:?}", core::str::from_utf8(&content[..7]).unwrap_or("?")));
    let wrong = [20u64, 1 | 1 << 32, 999];
    show("no file", number::SENDMSG, &[a, at(&message(&range, at(&wrong), 24)), 0]);
    let wrong = [8u64, 1 | 1 << 32, 0];
    show("too short", number::SENDMSG, &[a, at(&message(&range, at(&wrong), 24)), 0]);
    let wrong = [20u64, 1 | 99 << 32, 0];
    show("no kind", number::SENDMSG, &[a, at(&message(&range, at(&wrong), 24)), 0]);
    apart(|| {
        become_user(1000);
        let sender = [28u64, 1 | 2 << 32, 1, 0];
        show("a false sender", number::SENDMSG, &[a, at(&message(&range, at(&sender), 32)), 0]);
    })
}

/// Sends sockets through each other, and forgets them.
fn circles() {
    let mut sent = 0;
    for _ in 0..2000 {
        let [a, b] = pair(STREAM);
        let [c, d] = pair(STREAM);
        let bytes = *b"F";
        let range = [at(&bytes), 1];
        for (over, file) in [(a, d), (c, b), (a, b)] {
            let control = [20u64, 1 | 1 << 32, file as u64];
            let header = message(&range, at(&control), 24);
            sent += usize::from(call(number::SENDMSG, [over, at(&header), 0, 0, 0, 0]) == 1);
        }
        [a, b, c, d].into_iter().for_each(close);
    }
    line(format_args!("{sent} in circles"));
}

/// A local address: its bytes, and how many.
fn local_address(name: &[u8]) -> ([u8; 64], usize) {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    bytes[2..2 + name.len()].copy_from_slice(name);
    (bytes, 2 + name.len())
}

fn with_address(what: &str, number: usize, fd: usize, (bytes, length): &([u8; 64], usize)) {
    show(what, number, &[fd, at(bytes), *length]);
}

fn show_address(what: &str, number: usize, fd: usize) {
    let (mut bytes, mut length) = ([0u8; 64], 64u32);
    let result = call(number, [fd, out(&mut bytes), out(&mut length), 0, 0, 0]);
    line(format_args!("{what}: {result} {length} {:?}", &bytes[..length.min(24) as usize]));
}

fn local() -> Result<(), Failure> {
    for name in [&b"socket\0"[..], b"\0abstract name"] {
        let address = local_address(name);
        let server = must(number::SOCKET, &[1, STREAM, 0]);
        show("listen without an address", number::LISTEN, &[server, 1]);
        with_address("bind", number::BIND, server, &address);
        with_address("bind again", number::BIND, server, &address);
        let client = must(number::SOCKET, &[1, STREAM, 0]);
        with_address("bind to the same", number::BIND, client, &address);
        with_address("connect too early", number::CONNECT, client, &address);
        show("listen", number::LISTEN, &[server, 1]);
        ready("listening", server);
        with_address("connect", number::CONNECT, client, &address);
        with_address("connect again", number::CONNECT, client, &address);
        ready("one waits", server);
        send("before accept", client, b"early", 0);
        let accepted = must(number::ACCEPT, &[server, 0, 0]);
        receive("accepted", accepted, 60, 0);
        show_address("own address", number::GETSOCKNAME, accepted);
        show_address("the client's", number::GETPEERNAME, accepted);
        show_address("the server's", number::GETPEERNAME, client);
        let datagram = must(number::SOCKET, &[1, DATAGRAM, 0]);
        with_address("another style", number::CONNECT, datagram, &address);
        let (mut peer, mut length) = ([0u32; 3], 12u32);
        must(number::GETSOCKOPT, &[client, 1, 17, out(&mut peer), out(&mut length)]);
        line(format_args!("peer is me: {} {:?}", peer[0] as usize == must(number::GETPID, &[]), &peer[1..]));
        [server, client, accepted, datagram].into_iter().for_each(close);
        let late = must(number::SOCKET, &[1, STREAM, 0]);
        with_address("nothing listens", number::CONNECT, late, &address);
        close(late);
    }
    show_file(c"socket");
    show("open", number::OPEN, &[HERE, text(c"socket"), READ_WRITE]);
    must(number::CHMOD, &[HERE, text(c"socket"), 0o700]);
    apart(|| {
        become_user(1000);
        let client = must(number::SOCKET, &[1, STREAM, 0]);
        with_address("not mine", number::CONNECT, client, &local_address(b"socket\0"));
        with_address("not there", number::CONNECT, client, &local_address(b"nothing\0"));
        with_address("not a socket", number::CONNECT, client, &local_address(b"locked\0"));
        with_address("not my directory", number::BIND, client, &local_address(b"shut/s\0"));
    })?;
    // Messages to an address, with the sender's.
    let (one, other) = (must(number::SOCKET, &[1, DATAGRAM, 0]), must(number::SOCKET, &[1, DATAGRAM, 0]));
    let (to, from) = (local_address(b"\0to"), local_address(b"\0from"));
    must(number::BIND, &[one, at(&to.0), to.1]);
    send("no address", other, b"x", 0);
    must(number::BIND, &[other, at(&from.0), from.1]);
    show("sendto", number::SENDTO, &[other, at(b"text"), 4, 0, at(&to.0), to.1]);
    let (mut bytes, mut sender, mut length) = ([0u8; 8], [0u8; 64], 64u32);
    show("recvfrom", number::RECVFROM, &[one, out(&mut bytes), 8, 0, out(&mut sender), out(&mut length)]);
    line(format_args!("from {:?}", &sender[..length as usize]));
    with_address("connect", number::CONNECT, other, &to);
    send("to the connected", other, b"more", 0);
    receive("more", one, 60, 0);
    // A limit of time.
    must(number::SETSOCKOPT, &[one, 1, 20, at(&[0u64, 50_000]), 16]);
    receive("in time", one, 60, 0);
    show("listen", number::LISTEN, &[one, 1]);
    Ok(())
}

fn internet() -> Result<(), Failure> {
    // The loopback device of Debian's initramfs is down at first.
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16] = 1;
    let control = must(number::SOCKET, &[2, DATAGRAM, 0]);
    call(29, [control, 0x8914, at(&request), 0, 0, 0]);
    let address = |port: u16| {
        let mut bytes = [0u8; 64];
        bytes[0] = 2;
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes[4..8].copy_from_slice(&[127, 0, 0, 1]);
        (bytes, 16)
    };
    let server = must(number::SOCKET, &[2, STREAM, 6]);
    with_address("bind", number::BIND, server, &address(4000));
    show("listen", number::LISTEN, &[server, 4]);
    show_address("bound", number::GETSOCKNAME, server);
    let child = process::start(|| {
        let client = must(number::SOCKET, &[2, STREAM, 0]);
        must(number::CONNECT, &[client, at(&address(4000).0), 16]);
        must(number::WRITE, &[client, at(b"request"), 7]);
        receive("answer", client, 60, 0);
        receive("end", client, 60, 0);
        Ok(())
    })?;
    let accepted = must(number::ACCEPT, &[server, 0, 0]);
    receive("request", accepted, 60, 0);
    show_address("accepted", number::GETSOCKNAME, accepted);
    must(number::WRITE, &[accepted, at(b"yes"), 3]);
    close(accepted);
    child.wait()?;
    let client = must(number::SOCKET, &[2, STREAM, 0]);
    with_address("nothing listens", number::CONNECT, client, &address(4001));
    let (one, other) = (must(number::SOCKET, &[2, DATAGRAM, 0]), must(number::SOCKET, &[2, DATAGRAM, 0]));
    with_address("bind", number::BIND, one, &address(4002));
    with_address("bind the same", number::BIND, other, &address(4002));
    show("to nothing", number::SENDTO, &[other, at(b"x"), 1, 0, at(&address(4003).0), 16]);
    show("sendto", number::SENDTO, &[other, at(b"text"), 4, 0, at(&address(4002).0), 16]);
    receive("text", one, 60, 0);
    send("without an address", other, b"x", 0);
    with_address("connect", number::CONNECT, other, &address(4002));
    send("connected", other, b"more", 0);
    receive("more", one, 60, 0);
    Ok(())
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
