//! Calls that make, name and connect sockets. Calls that send and receive are in [`super::message`].

use super::file::birth;
use super::{Args, file};
use crate::errno::{Errno, Result};
use crate::fs::descriptors::OpenFile;
use crate::fs::path::Last;
use crate::fs::socket::address::{self, Address, Family, Internet, Name};
use crate::fs::socket::{Sender, Socket, Style};
use crate::fs::{Kind, New};
use crate::net as network;
use crate::task::Task;
use crate::task::credentials::{Capability, WRITE};
use crate::task::timers;
use crate::task::wait::{WaitQueue, before, interruptible};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;
use linux_raw_sys::net;

/// Bytes of the largest address, `sockaddr_storage`.
const MOST_ADDRESS: u64 = 128;
/// Flags in the type of a new socket.
const FLAGS: u32 = linux::O_NONBLOCK | linux::O_CLOEXEC;

/// A socket with its open file.
pub(super) struct Opened {
    pub file: Arc<OpenFile>,
    pub socket: Arc<Socket>,
}

pub(super) fn opened(task: &Task, fd: u64) -> Result<Opened> {
    let file = task.file_not_path(fd)?;
    let socket = file.stream().and_then(|stream| stream.as_socket()).and_then(Socket::shared).ok_or(Errno::NOTSOCK)?;
    Ok(Opened { file, socket })
}

/// Returns the process as the sender of a message.
pub(super) fn sender(task: &Task) -> Sender {
    let credentials = task.credentials();
    Sender { pid: task.thread.process.pid, uid: credentials.users.effective, gid: credentials.groups.effective }
}

/// Tries until there is another result than `EAGAIN`, each time that a queue is woken.
pub(super) async fn attempt<T>(
    task: &Task,
    queue: &WaitQueue,
    timeout: Option<u64>,
    mut look: impl FnMut() -> Result<T>,
) -> Result<T> {
    let wanted = queue.until(|| match look() {
        Err(Errno::AGAIN) => None,
        result => Some(result),
    });
    let deadline = timeout.filter(|timeout| *timeout > 0).map(|timeout| timers::now().saturating_add(timeout));
    match before(deadline, interruptible(&task.thread, wanted)).await {
        None => Err(Errno::AGAIN),
        // With a limit of time the call does not begin again.
        Some(Err(_)) if deadline.is_some() => Err(Errno::INTR),
        Some(result) => result?,
    }
}

/// Reads the address that the program names.
pub(super) fn read_address(task: &Task, at: u64, bytes: u64, family: Family) -> Result<Address> {
    // An `int`: what is above it does not count.
    let bytes = u64::from(bytes as u32);
    if bytes > MOST_ADDRESS {
        return Err(Errno::INVAL);
    }
    let mut buffer = vec![0; bytes as usize];
    task.space.get_bytes(at, &mut buffer)?;
    Address::decode(&buffer, family)
}

/// Writes an address, as much of it as there is room for, and its whole length.
pub(super) fn write_address(task: &Task, at: u64, length: u64, address: &[u8]) -> Result<()> {
    let room = task.space.get::<i32>(length)?;
    let count = usize::try_from(room).map_err(|_| Errno::INVAL)?.min(address.len());
    task.space.put_bytes(at, &address[..count])?;
    task.space.put(length, &(address.len() as u32))
}

/// The family and the style of a new socket.
fn kind(domain: u64, kind: u64, protocol: u64) -> Result<(Family, Style)> {
    const MOST_TYPE: u32 = 10;
    let style = kind as u32 & 0xf;
    if kind as u32 & !(FLAGS | 0xf) != 0 || style > MOST_TYPE || style == 0 {
        return Err(Errno::INVAL);
    }
    let family = match domain as u32 {
        net::AF_UNIX => Family::Local,
        net::AF_INET => Family::Internet,
        net::AF_INET6 => Family::Internet6,
        _ => return Err(Errno::AFNOSUPPORT),
    };
    let style = match (family, style) {
        (Family::Local, _) if protocol as u32 > 1 => return Err(Errno::PROTONOSUPPORT),
        (_, net::SOCK_STREAM) => Style::Stream,
        (_, net::SOCK_DGRAM) | (Family::Local, net::SOCK_RAW) => Style::Datagram,
        (Family::Local, net::SOCK_SEQPACKET) => Style::Packets,
        (_, net::SOCK_RAW) => return Err(Errno::PROTONOSUPPORT),
        _ => return Err(Errno::SOCKTNOSUPPORT),
    };
    let expected = if style == Style::Stream { net::IPPROTO_TCP } else { net::IPPROTO_UDP };
    if family != Family::Local && protocol as u32 != 0 && protocol as u32 != expected as u32 {
        return Err(Errno::PROTONOSUPPORT);
    }
    Ok((family, style))
}

fn add(task: &Task, socket: Arc<Socket>, flags: u64) -> Result<u64> {
    let file = OpenFile::of(socket, linux::O_RDWR | flags as u32 & linux::O_NONBLOCK);
    task.add_file(file, flags as u32 & linux::O_CLOEXEC != 0)
}

pub(super) fn make(task: &Task, [domain, flags, protocol, ..]: Args) -> Result<u64> {
    let (family, style) = kind(domain, flags, protocol)?;
    add(task, Socket::new(family, style), flags)
}

pub(super) fn make_pair(task: &Task, [domain, flags, protocol, to, ..]: Args) -> Result<u64> {
    let (family, style) = kind(domain, flags, protocol)?;
    if family != Family::Local {
        return Err(Errno::OPNOTSUPP);
    }
    let [one, other] = Socket::pair(style, sender(task));
    let one = add(task, one, flags)?;
    let close = |fd| file::close(task, [fd, 0, 0, 0, 0, 0]);
    let put = add(task, other, flags).and_then(|other| {
        task.space.put(to, &[one as u32, other as u32]).inspect_err(|_| {
            let _ = close(other);
        })
    });
    if let Err(why) = put {
        let _ = close(one);
        return Err(why);
    }
    Ok(0)
}

pub(super) fn bind(task: &Task, [fd, at, bytes, ..]: Args) -> Result<u64> {
    let Opened { socket, .. } = opened(task, fd)?;
    let address = read_address(task, at, bytes, socket.family)?;
    match address.clone() {
        Address::Unnamed if socket.is_bound() => return Err(Errno::INVAL),
        Address::Unnamed => socket.bind_any(Internet::any(socket.family))?,
        Address::Abstract(name) => socket.bind(Name::Abstract(socket.style, name), address)?,
        Address::Internet(at) if !at.is_own() => return Err(Errno::ADDRNOTAVAIL),
        Address::Internet(Internet { port: 0, .. }) if socket.is_bound() => return Err(Errno::INVAL),
        Address::Internet(at) if at.port == 0 => socket.bind_any(at)?,
        Address::Internet(at) => {
            const FIRST_FREE: u16 = 1024;
            if at.port < FIRST_FREE && !task.credentials().can(Capability::NetBindService) {
                return Err(Errno::ACCES);
            }
            socket.bind(Name::Port(socket.style, at.port), address)?;
        }
        Address::Path(path) => {
            let path = core::str::from_utf8(&path).map_err(|_| Errno::INVAL)?;
            let position = task.position();
            let (directory, name) = position.absent(&position.current, path).map_err(|why| match why {
                Errno::EXIST => Errno::ADDRINUSE,
                why => why,
            })?;
            let birth = birth(&position, &directory, false, 0o777)?;
            if socket.is_bound() {
                return Err(Errno::INVAL);
            }
            let node = directory.node.create(&name, New::Socket, birth).map_err(|why| match why {
                Errno::EXIST => Errno::ADDRINUSE,
                why => why,
            })?;
            socket.bind(Name::Node(node.status().id), address)?;
        }
    }
    if let Address::Internet(at) = socket.address()
        && !at.is_loopback()
        && !socket.connects()
    {
        network::open_port(&socket)?;
    }
    Ok(0)
}

pub(super) fn listen(task: &Task, [fd, most, ..]: Args) -> Result<u64> {
    const MOST: u64 = 4096;
    let Opened { socket, .. } = opened(task, fd)?;
    if !socket.connects() {
        return Err(Errno::OPNOTSUPP);
    }
    if socket.family != Family::Local {
        socket.bind_any(Internet::any(socket.family))?;
    }
    if !socket.is_bound() {
        return Err(Errno::INVAL);
    }
    let most = if (most as i32) < 0 { MOST } else { most.min(MOST) };
    socket.listen(most as usize, sender(task))?;
    if matches!(socket.address(), Address::Internet(at) if !at.is_loopback()) {
        network::listen(&socket)?;
    }
    Ok(0)
}

/// Finds the socket that an address names.
pub(super) fn find(task: &Task, own: &Socket, address: &Address) -> Result<Arc<Socket>> {
    let name = match address {
        Address::Unnamed => return Err(Errno::INVAL),
        Address::Abstract(name) => Name::Abstract(own.style, name.clone()),
        Address::Path(path) => {
            let path = core::str::from_utf8(path).map_err(|_| Errno::INVAL)?;
            let position = task.position();
            let status = position.present(&position.current, path, Last::Follow)?.node.status();
            position.user.check(&status, WRITE)?;
            if status.kind != Kind::Socket {
                return Err(Errno::CONNREFUSED);
            }
            Name::Node(status.id)
        }
        Address::Internet(at) if network::reaches(at) => {
            return network::gate(&own.shared().ok_or(Errno::NOTCONN)?, *at);
        }
        Address::Internet(at) if !at.is_own() => return Err(Errno::NETUNREACH),
        Address::Internet(at) => Name::Port(own.style, at.port),
    };
    let found = address::find(&name).ok_or(Errno::CONNREFUSED)?;
    if own.family != Family::Local && !address.is_same(&found.address()) {
        return Err(Errno::CONNREFUSED);
    }
    Ok(found)
}

pub(super) async fn connect(task: &mut Task, [fd, at, bytes, ..]: Args) -> Result<u64> {
    let Opened { file, socket } = opened(task, fd)?;
    if bytes as i32 >= 2 && task.space.get::<u16>(at)? == net::AF_UNSPEC as u16 {
        if socket.connects() {
            return Err(Errno::INVAL);
        }
        socket.disconnect();
        return Ok(0);
    }
    let address = read_address(task, at, bytes, socket.family)?.as_sender(socket.family);
    if let Address::Internet(to) = address
        && network::reaches(&to)
        && socket.connects()
    {
        return connect_outside(task, &file, &socket, to).await;
    }
    if socket.family != Family::Local {
        socket.bind_any(Internet::loopback(socket.family))?;
        if !socket.connects() {
            // Who receives is found by the address each time.
            let nothing = Socket::new(socket.family, socket.style);
            return socket.connect(&nothing, address, sender(task)).map(|()| 0);
        }
    } else if socket.options().passes_sender {
        socket.bind_any(Internet::any(socket.family))?;
    }
    let target = find(task, &socket, &address)?;
    let own = sender(task);
    let first = socket.connect(&target, address.clone(), own);
    if first != Err(Errno::AGAIN) || file.is_nonblocking() {
        return first.map(|()| 0);
    }
    let timeout = socket.options().send_timeout;
    let (queue, listener) = (Arc::clone(&target.changed), Arc::downgrade(&target));
    drop(target);
    let look = || socket.connect(&listener.upgrade().ok_or(Errno::CONNREFUSED)?, address.clone(), own);
    attempt(task, &queue, Some(timeout), look).await?;
    Ok(0)
}

/// Connects a stream to another machine.
async fn connect_outside(task: &Task, file: &OpenFile, socket: &Arc<Socket>, to: Internet) -> Result<u64> {
    if !socket.is_connecting() {
        socket.bind_any(Internet::any(socket.family))?;
        network::connect(socket, to)?;
        if file.is_nonblocking() {
            return Err(Errno::INPROGRESS);
        }
    } else if file.is_nonblocking() {
        return Err(Errno::ALREADY);
    }
    let look = || if socket.is_connecting() { Err(Errno::AGAIN) } else { Ok(()) };
    attempt(task, &socket.changed, Some(socket.options().send_timeout), look).await?;
    socket.take_error().map_or(Ok(0), Err)
}

pub(super) async fn accept(task: &mut Task, [fd, at, length, flags, ..]: Args) -> Result<u64> {
    if flags as u32 & !FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    let Opened { file, socket } = opened(task, fd)?;
    if !socket.connects() {
        return Err(Errno::OPNOTSUPP);
    }
    // A connection that has no place stays in the queue.
    task.check_descriptors()?;
    let accepted = match socket.accept() {
        Err(Errno::AGAIN) if !file.is_nonblocking() => {
            let timeout = socket.options().receive_timeout;
            attempt(task, &socket.changed, Some(timeout), || socket.accept()).await?
        }
        result => result?,
    };
    let address = accepted.peer_address().unwrap_or_default().encode(accepted.family);
    if at != 0 {
        write_address(task, at, length, &address)?;
    }
    add(task, accepted, flags)
}

pub(super) fn own_address(task: &Task, [fd, at, length, ..]: Args) -> Result<u64> {
    let Opened { socket, .. } = opened(task, fd)?;
    write_address(task, at, length, &socket.address().encode(socket.family)).map(|()| 0)
}

pub(super) fn peer_address(task: &Task, [fd, at, length, ..]: Args) -> Result<u64> {
    let Opened { socket, .. } = opened(task, fd)?;
    write_address(task, at, length, &socket.peer_address()?.encode(socket.family)).map(|()| 0)
}

pub(super) fn shut_down(task: &Task, [fd, how, ..]: Args) -> Result<u64> {
    let Opened { socket, .. } = opened(task, fd)?;
    let (reads, writes) = match how as u32 {
        net::SHUT_RD => (true, false),
        net::SHUT_WR => (false, true),
        net::SHUT_RDWR => (true, true),
        _ => return Err(Errno::INVAL),
    };
    socket.shut_down(reads, writes).map(|()| 0)
}

/// Options that have no effect between programs of one machine: they are kept for the program.
const KEPT: [u32; 9] = [
    net::SO_DEBUG,
    net::SO_REUSEADDR,
    net::SO_DONTROUTE,
    net::SO_BROADCAST,
    net::SO_KEEPALIVE,
    net::SO_OOBINLINE,
    net::SO_PRIORITY,
    net::SO_REUSEPORT,
    net::SO_TIMESTAMP_OLD,
];
/// Bits of [`crate::fs::socket::Options::kept`] for options that are not the socket's own.
const NODELAY: u64 = 1 << 62;
const ONLY_SIX: u64 = 1 << 63;
/// Bytes of bookkeeping that Linux counts for a buffer: a size that is set is doubled.
const LEAST_SEND: usize = 4608;
const LEAST_RECEIVE: usize = 2304;

/// The bit of an option of a protocol.
fn protocol_option(socket: &Socket, level: u64, option: u64) -> Result<u64> {
    match (socket.family, level as u32, option as u32) {
        (Family::Local, ..) => Err(Errno::OPNOTSUPP),
        (_, level, net::TCP_NODELAY) if level == net::IPPROTO_TCP as u32 && socket.connects() => Ok(NODELAY),
        (Family::Internet6, level, net::IPV6_V6ONLY) if level == net::IPPROTO_IPV6 as u32 => Ok(ONLY_SIX),
        _ => Err(Errno::NOPROTOOPT),
    }
}

pub(super) fn get_option(task: &Task, [fd, level, option, to, length, _]: Args) -> Result<u64> {
    let Opened { socket, .. } = opened(task, fd)?;
    let room = task.space.get::<i32>(length)?;
    let room = usize::try_from(room).map_err(|_| Errno::INVAL)?;
    let options = socket.options();
    let word = |value: u32| value.to_le_bytes().to_vec();
    let time = |nanoseconds: u64| {
        let parts = [nanoseconds / timers::SECOND, nanoseconds % timers::SECOND / 1000];
        parts.iter().flat_map(|part| part.to_le_bytes()).collect::<Vec<u8>>()
    };
    let value = if level as u32 != net::SOL_SOCKET {
        word((options.kept & protocol_option(&socket, level, option)? != 0).into())
    } else {
        match option as u32 {
            net::SO_TYPE => word(match socket.style {
                Style::Stream => net::SOCK_STREAM,
                Style::Datagram => net::SOCK_DGRAM,
                Style::Packets => net::SOCK_SEQPACKET,
            }),
            net::SO_ERROR => word(socket.take_error().map_or(0, |error| error.0.into())),
            net::SO_SNDBUF => word(options.send_room as u32),
            net::SO_RCVBUF => word(options.receive_room as u32),
            net::SO_PASSCRED => word(options.passes_sender.into()),
            net::SO_ACCEPTCONN => word(socket.is_listening().into()),
            net::SO_DOMAIN => word(socket.family.number().into()),
            net::SO_PROTOCOL => word(match (socket.family, socket.style) {
                (Family::Local, _) => 0,
                (_, Style::Stream) => net::IPPROTO_TCP as u32,
                _ => net::IPPROTO_UDP as u32,
            }),
            net::SO_RCVLOWAT | net::SO_SNDLOWAT => word(1),
            net::SO_LINGER => options.linger.iter().flat_map(|part| part.to_le_bytes()).collect(),
            net::SO_RCVTIMEO_OLD | net::SO_RCVTIMEO_NEW => time(options.receive_timeout),
            net::SO_SNDTIMEO_OLD | net::SO_SNDTIMEO_NEW => time(options.send_timeout),
            net::SO_PEERCRED => {
                let Sender { pid, uid, gid } = socket.peer();
                [pid, uid, gid].iter().flat_map(|part| part.to_le_bytes()).collect()
            }
            option if KEPT.contains(&option) => word((options.kept >> option & 1) as u32),
            _ => return Err(Errno::NOPROTOOPT),
        }
    };
    let count = value.len().min(room);
    task.space.put_bytes(to, &value[..count])?;
    task.space.put(length, &(count as u32)).map(|()| 0)
}

pub(super) fn set_option(task: &Task, [fd, level, option, from, length, _]: Args) -> Result<u64> {
    let Opened { socket, .. } = opened(task, fd)?;
    if (length as i32) < 0 {
        return Err(Errno::INVAL);
    }
    let keep = |bit: u64, is_on: bool| {
        socket.set_options(|options| options.kept = options.kept & !bit | if is_on { bit } else { 0 });
    };
    if level as u32 != net::SOL_SOCKET {
        let bit = protocol_option(&socket, level, option)?;
        if length < 4 {
            return Err(Errno::INVAL);
        }
        keep(bit, task.space.get::<u32>(from)? != 0);
        return Ok(0);
    }
    let word = || if length < 4 { Err(Errno::INVAL) } else { task.space.get::<u32>(from) };
    let room = |least: usize| word().map(|bytes| (bytes.min(crate::fs::socket::ROOM as u32) as usize * 2).max(least));
    let time = || {
        if length < 16 {
            return Err(Errno::INVAL);
        }
        let [seconds, microseconds] = task.space.get::<[i64; 2]>(from)?;
        if !(0..1_000_000).contains(&microseconds) {
            return Err(Errno::DOM);
        }
        Ok((seconds.max(0) as u64).saturating_mul(timers::SECOND).saturating_add(microseconds as u64 * 1000))
    };
    match option as u32 {
        net::SO_SNDBUF => {
            let room = room(LEAST_SEND)?;
            socket.set_options(|options| options.send_room = room);
        }
        net::SO_RCVBUF => {
            let room = room(LEAST_RECEIVE)?;
            socket.set_options(|options| options.receive_room = room);
        }
        net::SO_PASSCRED => {
            let is_on = word()? != 0;
            socket.set_options(|options| options.passes_sender = is_on);
        }
        net::SO_LINGER => {
            if length < 8 {
                return Err(Errno::INVAL);
            }
            let linger = task.space.get::<[u32; 2]>(from)?;
            socket.set_options(|options| options.linger = [u32::from(linger[0] != 0), linger[1]]);
        }
        net::SO_RCVTIMEO_OLD | net::SO_RCVTIMEO_NEW => {
            let time = time()?;
            socket.set_options(|options| options.receive_timeout = time);
        }
        net::SO_SNDTIMEO_OLD | net::SO_SNDTIMEO_NEW => {
            let time = time()?;
            socket.set_options(|options| options.send_timeout = time);
        }
        option if KEPT.contains(&option) => keep(1 << option, word()? != 0),
        _ => return Err(Errno::NOPROTOOPT),
    }
    Ok(0)
}
