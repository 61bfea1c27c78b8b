//! Calls that send and receive messages of sockets.

use super::socket::{self, Opened, attempt, find, opened, sender};
use super::{Args, clock, transfer};
use crate::errno::{Errno, Result};
use crate::fs::socket::address::{Address, Family};
use crate::fs::socket::flight::Files;
use crate::fs::socket::{Received, Sender, Socket, Style};
use crate::task::Task;
use crate::task::credentials::Capability;
use crate::task::signal::{Info, number, send_to_thread};
use crate::task::timers;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;
use linux_raw_sys::net;

/// Ranges of the program's memory: addresses and sizes.
type Ranges = Vec<(u64, u64)>;

/// Bytes of a stream that are copied at once.
const CHUNK: u64 = 64 << 10;
/// The most bytes of control data.
const MOST_CONTROL: u64 = 20 << 10;
/// The most files of a message.
const MOST_FILES: usize = 253;
/// Bytes of a `cmsghdr`.
const CONTROL_HEADER: u64 = 16;
const RIGHTS: u32 = 1;
const CREDENTIALS: u32 = 2;

/// Copies bytes from ranges, from an offset on.
fn gather(task: &Task, ranges: &Ranges, mut skip: u64, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (at, size) in ranges {
        let count = size.saturating_sub(skip).min(most - bytes.len() as u64);
        if count > 0 {
            let start = bytes.len();
            bytes.resize(start + count as usize, 0);
            task.space.get_bytes(at + skip, &mut bytes[start..])?;
        }
        skip = skip.saturating_sub(*size);
    }
    Ok(bytes)
}

/// Copies bytes into ranges, from an offset on.
fn scatter(task: &Task, ranges: &Ranges, mut skip: u64, mut bytes: &[u8]) -> Result<()> {
    for (at, size) in ranges {
        let count = size.saturating_sub(skip).min(bytes.len() as u64) as usize;
        if count > 0 {
            task.space.put_bytes(at + skip, &bytes[..count])?;
            bytes = &bytes[count..];
        }
        skip = skip.saturating_sub(*size);
    }
    Ok(())
}

fn size(ranges: &Ranges) -> u64 {
    ranges.iter().map(|(_, size)| *size).sum()
}

/// A message that a program sends.
struct Outgoing {
    ranges: Ranges,
    to: Option<Address>,
    files: Files,
    sender: Sender,
    flags: u32,
}

async fn send(task: &mut Task, opened: &Opened, mut message: Outgoing) -> Result<u64> {
    let result = send_all(task, opened, &mut message).await;
    let is_silent = message.flags & net::MSG_NOSIGNAL != 0 || opened.socket.style != Style::Stream;
    if result == Err(Errno::PIPE) && !is_silent {
        send_to_thread(&task.thread, Info::from(&task.thread.process, number::PIPE));
    }
    result
}

/// Finds the receiver of a message. `None` if the message goes nowhere, as one to a free port.
fn target(task: &Task, socket: &Arc<Socket>, to: Option<&Address>) -> Result<Option<Arc<Socket>>> {
    if socket.connects() {
        if to.is_some() && socket.family == Family::Local {
            return Err(if socket.peer_address().is_ok() { Errno::ISCONN } else { Errno::OPNOTSUPP });
        }
        return socket.target().map(Some);
    }
    if socket.family == Family::Local {
        return match to {
            None => socket.target().map(Some),
            Some(address) => {
                let found = find(task, socket, address)?;
                if found.style == socket.style { Ok(Some(found)) } else { Err(Errno::PROTOTYPE) }
            }
        };
    }
    if let Some(error) = socket.take_error() {
        return Err(error);
    }
    let connected = socket.peer_address().ok();
    let address = to.or(connected.as_ref()).ok_or(Errno::DESTADDRREQ)?.as_sender(socket.family);
    socket.bind_any(crate::fs::socket::address::Internet::any(socket.family))?;
    match find(task, socket, &address) {
        Err(Errno::CONNREFUSED) => {
            if to.is_none() {
                socket.set_error(Errno::CONNREFUSED);
            }
            Ok(None)
        }
        found => found.map(Some),
    }
}

async fn send_all(task: &mut Task, opened: &Opened, message: &mut Outgoing) -> Result<u64> {
    let Opened { file, socket } = opened;
    if message.flags & net::MSG_OOB != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let all = size(&message.ranges);
    let options = socket.options();
    if socket.style != Style::Stream && all > options.send_room as u64 {
        return Err(Errno::MSGSIZE);
    }
    let Some(target) = target(task, socket, message.to.as_ref())? else { return Ok(all) };
    let waits = !file.is_nonblocking() && message.flags & net::MSG_DONTWAIT == 0;
    // The receiver must be able to end while this thread waits for it.
    let (queue, receiver) = (Arc::clone(&target.changed), Arc::downgrade(&target));
    drop(target);
    let find = || if socket.connects() { socket.target() } else { receiver.upgrade().ok_or(Errno::CONNREFUSED) };
    let mut done = 0;
    loop {
        let part = gather(task, &message.ranges, done, if socket.style == Style::Stream { CHUNK } else { all });
        let part = match part {
            Err(_) if done > 0 => return Ok(done),
            part => part?,
        };
        let mut files = core::mem::take(&mut message.files);
        let mut sent = find().and_then(|target| socket.send(&target, &part, &mut files, message.sender));
        if sent == Err(Errno::AGAIN) && waits {
            let look = || socket.send(&*find()?, &part, &mut files, message.sender);
            sent = attempt(task, &queue, Some(options.send_timeout), look).await;
        }
        match sent {
            Err(_) if done > 0 => return Ok(done),
            Err(why) => return Err(why),
            Ok(count) => done += count as u64,
        }
        if done >= all || !waits && (part.len() as u64) < CHUNK {
            return Ok(done);
        }
    }
}

/// A message that a program receives.
struct Incoming {
    bytes: u64,
    last: Received,
    files: Vec<Arc<crate::fs::descriptors::OpenFile>>,
}

async fn receive(task: &mut Task, opened: &Opened, ranges: &Ranges, flags: u32) -> Result<Incoming> {
    let Opened { file, socket } = opened;
    if flags & net::MSG_OOB != 0 {
        return Err(if socket.family == Family::Local { Errno::OPNOTSUPP } else { Errno::INVAL });
    }
    if flags & net::MSG_ERRQUEUE != 0 {
        return Err(Errno::AGAIN);
    }
    let peeks = flags & net::MSG_PEEK != 0;
    let waits = !file.is_nonblocking() && flags & net::MSG_DONTWAIT == 0;
    let is_stream = socket.style == Style::Stream;
    let all = size(ranges);
    let timeout = socket.options().receive_timeout;
    let (mut done, mut last) = (0, empty());
    loop {
        let most = (all - done).min(if is_stream { CHUNK } else { u64::MAX }) as usize;
        let look = || socket.receive(most, peeks);
        let received = match look() {
            Err(Errno::AGAIN) if waits && (done == 0 || flags & net::MSG_WAITALL != 0) => {
                attempt(task, &socket.changed, Some(timeout), look).await
            }
            result => result,
        };
        let received = match received {
            Err(_) if done > 0 => return Ok(Incoming { bytes: done, last, files: Vec::new() }),
            received => received?,
        };
        scatter(task, ranges, done, &received.bytes)?;
        done += received.bytes.len() as u64;
        let is_end = received.full == 0 || !received.files.is_empty();
        let wants_more = is_stream && !peeks && done < all && !is_end;
        let has_all = received.bytes.len() < most && flags & net::MSG_WAITALL == 0;
        let mut received = received;
        let files = core::mem::take(&mut received.files);
        // At the end, those are told of that came before it.
        if received.full > 0 || done == 0 {
            last = Received { bytes: Vec::new(), ..received };
        }
        if !wants_more || has_all {
            return Ok(Incoming { bytes: done, last, files });
        }
    }
}

fn empty() -> Received {
    Received { bytes: Vec::new(), full: 0, from: Address::Unnamed, files: Vec::new(), sender: Sender::default() }
}

/// Returns the result of a call that receives: with `MSG_TRUNC`, the size of the whole message.
fn length(incoming: &Incoming, socket: &Socket, flags: u32) -> u64 {
    let is_whole = flags & net::MSG_TRUNC != 0 && socket.style != Style::Stream;
    if is_whole { incoming.last.full as u64 } else { incoming.bytes }
}

pub(super) async fn send_to(task: &mut Task, [fd, at, bytes, flags, address, address_bytes]: Args) -> Result<u64> {
    let opened = opened(task, fd)?;
    let to = match address {
        0 => None,
        at => Some(socket::read_address(task, at, address_bytes, opened.socket.family)?),
    };
    let ranges = vec![(at, bytes.min(transfer::MOST))];
    send(task, &opened, Outgoing { ranges, to, files: Files::default(), sender: sender(task), flags: flags as u32 })
        .await
}

pub(super) async fn receive_from(task: &mut Task, [fd, at, bytes, flags, address, length_at]: Args) -> Result<u64> {
    let opened = opened(task, fd)?;
    let ranges = vec![(at, bytes.min(transfer::MOST))];
    let incoming = receive(task, &opened, &ranges, flags as u32).await?;
    if address != 0 {
        write_sender(task, &opened.socket, &incoming, address, length_at)?;
    }
    Ok(length(&incoming, &opened.socket, flags as u32))
}

/// Writes the sender's address; that of a connection's other end is not told.
fn write_sender(task: &Task, socket: &Socket, incoming: &Incoming, at: u64, length: u64) -> Result<()> {
    let is_unnamed = incoming.last.from == Address::Unnamed;
    let bytes = if is_unnamed { Vec::new() } else { incoming.last.from.encode(socket.family) };
    socket::write_address(task, at, length, &bytes)
}

/// Reads and writes by `read`, `write` and their like.
pub(super) async fn read_ranges(task: &mut Task, fd: u64, ranges: Ranges) -> Result<u64> {
    let opened = opened(task, fd)?;
    if size(&ranges) == 0 {
        return Ok(0);
    }
    receive(task, &opened, &ranges, 0).await.map(|incoming| incoming.bytes)
}

pub(super) async fn write_ranges(task: &mut Task, fd: u64, ranges: Ranges) -> Result<u64> {
    let opened = opened(task, fd)?;
    send(task, &opened, Outgoing { ranges, to: None, files: Files::default(), sender: sender(task), flags: 0 }).await
}

/// `struct msghdr`, as far as it is read.
struct Header {
    name: u64,
    name_bytes: u64,
    ranges: Ranges,
    control: u64,
    control_bytes: u64,
}

/// Offsets of fields that are written.
const NAME_BYTES: u64 = 8;
const CONTROL_BYTES: u64 = 40;
const HEADER_FLAGS: u64 = 48;

fn header(task: &Task, at: u64) -> Result<Header> {
    let [name, name_bytes, vectors, count, control, control_bytes, _] = task.space.get::<[u64; 7]>(at)?;
    if count > u64::from(linux::UIO_MAXIOV) {
        return Err(Errno::MSGSIZE);
    }
    let ranges = transfer::vectors(task, [0, vectors, count, 0, 0, 0])?;
    let mut left = transfer::MOST;
    let limit = |(at, size): (u64, u64)| {
        let size = size.min(left);
        left -= size;
        (at, size)
    };
    let ranges = ranges.into_iter().map(limit).collect();
    Ok(Header { name, name_bytes: name_bytes as u32 as u64, ranges, control, control_bytes })
}

/// Reads the control data of a message: files, and the sender that it names.
fn read_control(task: &Task, header: &Header, sender: &mut Sender) -> Result<Files> {
    let mut files = Vec::new();
    if header.control == 0 || header.control_bytes < CONTROL_HEADER {
        return Ok(Files::default());
    }
    if header.control_bytes > MOST_CONTROL {
        return Err(Errno::NOBUFS);
    }
    let mut at = 0;
    while header.control_bytes - at >= CONTROL_HEADER {
        let bytes = task.space.get::<u64>(header.control + at)?;
        let [level, kind] = task.space.get::<[u32; 2]>(header.control + at + 8)?;
        if bytes < CONTROL_HEADER || bytes > header.control_bytes - at {
            return Err(Errno::INVAL);
        }
        let data = header.control + at + CONTROL_HEADER;
        match (level, kind) {
            (net::SOL_SOCKET, RIGHTS) => {
                let count = ((bytes - CONTROL_HEADER) / 4) as usize;
                if files.len() + count > MOST_FILES {
                    return Err(Errno::INVAL);
                }
                for fd in task.space.get_all::<u32>(data, count)? {
                    files.push(task.file(fd.into())?);
                }
            }
            (net::SOL_SOCKET, CREDENTIALS) => {
                if bytes != CONTROL_HEADER + 12 {
                    return Err(Errno::INVAL);
                }
                let [pid, uid, gid] = task.space.get::<[u32; 3]>(data)?;
                let own = task.credentials();
                if pid != sender.pid && !own.can(Capability::SysAdmin)
                    || !own.users.has(uid) && !own.can(Capability::Setuid)
                    || !own.groups.has(gid) && !own.can(Capability::Setgid)
                {
                    return Err(Errno::PERM);
                }
                *sender = Sender { pid, uid, gid };
            }
            _ => return Err(Errno::INVAL),
        }
        at += bytes.next_multiple_of(8);
        if at > header.control_bytes {
            break;
        }
    }
    let limit = task.thread.process.limit(linux::RLIMIT_NOFILE);
    let may_exceed = task.credentials().can(Capability::SysResource);
    Files::new(files, if may_exceed { u64::MAX } else { limit })
}

async fn send_one(task: &mut Task, opened: &Opened, at: u64, flags: u32) -> Result<u64> {
    let header = header(task, at)?;
    let mut sender = sender(task);
    let is_local = opened.socket.family == Family::Local;
    let files = if is_local { read_control(task, &header, &mut sender)? } else { Files::default() };
    let to = match header.name {
        0 => None,
        _ if header.name_bytes == 0 => None,
        at => Some(socket::read_address(task, at, header.name_bytes, opened.socket.family)?),
    };
    send(task, opened, Outgoing { ranges: header.ranges, to, files, sender, flags }).await
}

pub(super) async fn send_message(task: &mut Task, [fd, at, flags, ..]: Args) -> Result<u64> {
    let opened = opened(task, fd)?;
    send_one(task, &opened, at, flags as u32).await
}

/// Control data that a program receives.
struct Control<'a> {
    task: &'a Task,
    at: u64,
    left: u64,
    is_cut: bool,
}

impl Control<'_> {
    fn put(&mut self, kind: u32, data: &[u32]) -> Result<()> {
        let wanted = CONTROL_HEADER + 4 * data.len() as u64;
        if self.left < wanted {
            self.is_cut = true;
        }
        if self.left < CONTROL_HEADER {
            return Ok(());
        }
        let bytes = wanted.min(self.left);
        self.task.space.put(self.at, &bytes)?;
        self.task.space.put(self.at + 8, &[net::SOL_SOCKET, kind])?;
        for (n, word) in data.iter().enumerate().take(((bytes - CONTROL_HEADER) / 4) as usize) {
            self.task.space.put(self.at + CONTROL_HEADER + 4 * n as u64, word)?;
        }
        let step = wanted.next_multiple_of(8).min(self.left);
        (self.at, self.left) = (self.at + step, self.left - step);
        Ok(())
    }

    /// Gives the program the files of a message, as many as there is room for.
    fn put_files(&mut self, files: Vec<Arc<crate::fs::descriptors::OpenFile>>, closes: bool) -> Result<()> {
        let room = self.left.saturating_sub(CONTROL_HEADER) as usize / 4;
        let mut numbers = Vec::new();
        let count = files.len();
        for file in files.into_iter().take(room) {
            match self.task.add_file(file, closes) {
                Ok(fd) => numbers.push(fd as u32),
                Err(_) => break,
            }
        }
        self.is_cut |= numbers.len() < count;
        if numbers.is_empty() { Ok(()) } else { self.put(RIGHTS, &numbers) }
    }
}

async fn receive_one(task: &mut Task, opened: &Opened, at: u64, flags: u32) -> Result<u64> {
    let header = header(task, at)?;
    let incoming = receive(task, opened, &header.ranges, flags).await?;
    let socket = &opened.socket;
    if header.name != 0 {
        write_sender(task, socket, &incoming, header.name, at + NAME_BYTES)?;
    }
    let result = length(&incoming, socket, flags);
    let mut out = 0;
    if socket.style != Style::Stream && incoming.last.full as u64 > incoming.bytes {
        out |= net::MSG_TRUNC;
    }
    let mut control = Control { task, at: header.control, left: header.control_bytes, is_cut: false };
    if socket.options().passes_sender {
        let Sender { pid, uid, gid } = incoming.last.sender;
        control.put(CREDENTIALS, &[pid, uid, gid])?;
    }
    if !incoming.files.is_empty() {
        control.put_files(incoming.files, flags & net::MSG_CMSG_CLOEXEC != 0)?;
    }
    out |= if control.is_cut { net::MSG_CTRUNC } else { 0 };
    out |= flags & net::MSG_CMSG_CLOEXEC;
    task.space.put(at + HEADER_FLAGS, &out)?;
    task.space.put(at + CONTROL_BYTES, &(header.control_bytes - control.left))?;
    Ok(result)
}

pub(super) async fn receive_message(task: &mut Task, [fd, at, flags, ..]: Args) -> Result<u64> {
    let opened = opened(task, fd)?;
    receive_one(task, &opened, at, flags as u32).await
}

/// Bytes of a `mmsghdr`, and the offset of the length in it.
const MANY_BYTES: u64 = 64;
const MANY_LENGTH: u64 = 56;
/// Ends a call at the first message that would have to be waited for.
const MSG_WAITFORONE: u32 = 0x10000;
/// The most messages of a call.
const MOST_MESSAGES: u64 = 1024;

pub(super) async fn send_messages(task: &mut Task, [fd, at, count, flags, ..]: Args) -> Result<u64> {
    let opened = opened(task, fd)?;
    let mut done = 0;
    while done < (count as u32 as u64).min(MOST_MESSAGES) {
        let at = at + MANY_BYTES * done;
        let sent = send_one(task, &opened, at, flags as u32).await;
        let result = sent.and_then(|sent| task.space.put(at + MANY_LENGTH, &(sent as u32)));
        match result {
            Err(why) if done == 0 => return Err(why),
            Err(_) => break,
            Ok(()) => done += 1,
        }
    }
    Ok(done)
}

pub(super) async fn receive_messages(task: &mut Task, [fd, at, count, flags, timeout, _]: Args) -> Result<u64> {
    let opened = opened(task, fd)?;
    let until = match timeout {
        0 => None,
        at => Some(timers::now().saturating_add(clock::read(task, at)?)),
    };
    let (mut done, mut flags) = (0, flags as u32);
    while done < (count as u32 as u64).min(MOST_MESSAGES) {
        let at = at + MANY_BYTES * done;
        let received = receive_one(task, &opened, at, flags & !MSG_WAITFORONE).await;
        let result = received.and_then(|received| task.space.put(at + MANY_LENGTH, &(received as u32)));
        match result {
            Err(why) if done == 0 => return Err(why),
            Err(_) => break,
            Ok(()) => done += 1,
        }
        if flags & MSG_WAITFORONE != 0 {
            flags |= net::MSG_DONTWAIT;
        }
        // The limit is looked at after each message.
        if until.is_some_and(|until| timers::now() >= until) {
            break;
        }
    }
    Ok(done)
}
