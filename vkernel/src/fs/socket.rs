//! Sockets between programs of the VM: local ones, and those of the Internet, of which only this machine is there.
//!
//! A message lies in the receiver's queue. Sockets name each other by weak references; no two that programs reach are locked at once.

pub mod address;
pub mod flight;
pub mod message;
mod outer;

use super::{ERR, HUP, IN, Kind, OUT, Ready, Status, Stream, new_id};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::Task;
use crate::task::wait::WaitQueue;
use address::{Address, Family, Internet, Name};
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::task::Waker;
use flight::Files;
use linux_raw_sys::{general as linux, ioctl};
pub use message::Received;
use message::{Message, OVERHEAD};

/// The style of a socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Style {
    /// Bytes of a connection.
    Stream,
    /// Messages without a connection.
    Datagram,
    /// Messages of a connection.
    Packets,
}

/// The process at the other end, as it was when it connected or sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sender {
    /// The process's number.
    pub pid: u32,
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
}

/// Bytes that may wait in a queue.
pub const ROOM: usize = 212_992;

/// Options of a socket that programs set.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes that may wait to be received by the other side.
    pub send_room: usize,
    /// Bytes that a program has asked to receive. Senders' room counts.
    pub receive_room: usize,
    /// Nanoseconds that a send waits; 0 is for ever.
    pub send_timeout: u64,
    /// Nanoseconds that a receive waits; 0 is for ever.
    pub receive_timeout: u64,
    /// True if the sender of each message is received.
    pub passes_sender: bool,
    /// Options that are kept for the program alone, by bits of their numbers.
    pub kept: u64,
    /// `SO_LINGER`.
    pub linger: [u32; 2],
}

#[derive(Debug, Default)]
enum Role {
    #[default]
    None,
    /// Connections that are not accepted yet.
    Listening {
        most: usize,
        queue: VecDeque<Arc<Socket>>,
    },
    Connected(Weak<Socket>),
    /// Another machine has not answered yet.
    Connecting,
}

#[derive(Debug)]
struct Inner {
    address: Address,
    name: Option<Name>,
    peer_address: Address,
    /// The process at the other end, or the one that listens.
    peer: Sender,
    role: Role,
    received: VecDeque<Message>,
    /// Bytes of them, with what they take.
    bytes: usize,
    /// True if nothing more is received.
    is_read_closed: bool,
    /// True if nothing more can be sent.
    is_write_closed: bool,
    error: Option<Errno>,
    options: Options,
}

/// A socket.
#[derive(Debug)]
pub struct Socket {
    number: u64,
    /// The family.
    pub family: Family,
    /// The style.
    pub style: Style,
    own: Weak<Socket>,
    inner: Mutex<Inner>,
    /// Woken by each change of the socket, or of the room in its queue, and by its end: tasks that wait for these keep no socket alive.
    pub changed: Arc<WaitQueue>,
}

impl Socket {
    /// Makes a socket.
    #[must_use]
    pub fn new(family: Family, style: Style) -> Arc<Self> {
        let options = Options {
            send_room: ROOM,
            receive_room: ROOM,
            send_timeout: 0,
            receive_timeout: 0,
            passes_sender: false,
            kept: 0,
            linger: [0; 2],
        };
        let inner = Inner {
            address: Address::Unnamed,
            name: None,
            peer_address: Address::Unnamed,
            peer: Sender { pid: 0, uid: u32::MAX, gid: u32::MAX },
            role: Role::None,
            received: VecDeque::new(),
            bytes: 0,
            is_read_closed: false,
            is_write_closed: false,
            error: None,
            options,
        };
        Arc::new_cyclic(|own| Self {
            number: new_id(),
            family,
            style,
            own: own.clone(),
            inner: Mutex::new(inner),
            changed: Arc::default(),
        })
    }

    /// Makes two that are connected.
    #[must_use]
    pub fn pair(style: Style, own: Sender) -> [Arc<Self>; 2] {
        let pair = [Self::new(Family::Local, style), Self::new(Family::Local, style)];
        for (one, other) in [(0, 1), (1, 0)] {
            let mut inner = pair[one].inner.lock();
            inner.role = Role::Connected(Arc::downgrade(&pair[other]));
            inner.peer = own;
        }
        pair
    }

    /// Returns whether it has connections.
    #[must_use]
    pub fn connects(&self) -> bool {
        self.style != Style::Datagram
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.inner.lock().address.clone()
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn peer_address(&self) -> Result<Address> {
        let inner = self.inner.lock();
        if matches!(inner.role, Role::Connected(_)) { Ok(inner.peer_address.clone()) } else { Err(Errno::NOTCONN) }
    }

    /// Returns the process at the other end.
    #[must_use]
    pub fn peer(&self) -> Sender {
        self.inner.lock().peer
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> Options {
        self.inner.lock().options
    }

    /// Changes the options.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) {
        change(&mut self.inner.lock().options);
    }

    /// Returns whether it listens.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        matches!(self.inner.lock().role, Role::Listening { .. })
    }

    /// Takes the error that no call has returned yet.
    #[must_use]
    pub fn take_error(&self) -> Option<Errno> {
        self.inner.lock().error.take()
    }

    /// Returns whether it has an address.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.inner.lock().name.is_some()
    }

    /// Gives it an address that the table knows by a name.
    ///
    /// # Errors
    /// `EINVAL` if it has one; `EADDRINUSE`.
    pub fn bind(self: &Arc<Self>, name: Name, address: Address) -> Result<()> {
        if self.is_bound() {
            return Err(Errno::INVAL);
        }
        address::bind(name.clone(), self)?;
        let mut inner = self.inner.lock();
        (inner.name, inner.address) = (Some(name), address);
        Ok(())
    }

    /// Gives it an address that is free, unless it has one.
    ///
    /// # Errors
    /// `EADDRINUSE` if all are taken.
    pub fn bind_any(self: &Arc<Self>, at: Internet) -> Result<()> {
        const PORTS: core::ops::RangeInclusive<u16> = 32_768..=60_999;
        const NAMES: u32 = 1 << 20;
        if self.is_bound() {
            return Ok(());
        }
        let (name, address) = if self.family == Family::Local {
            let names = (0..NAMES).map(|n| alloc::format!("{n:05x}").into_bytes());
            let named = names.map(|name| (Name::Abstract(self.style, name.clone()), name));
            let name = address::bind_any(named, self)?;
            (Name::Abstract(self.style, name.clone()), Address::Abstract(name))
        } else {
            let first = *PORTS.start() + (self.number % PORTS.len() as u64) as u16;
            let ports = (first..=*PORTS.end()).chain(*PORTS.start()..first);
            let port = address::bind_any(ports.map(|port| (Name::Port(self.style, port), port)), self)?;
            (Name::Port(self.style, port), Address::Internet(Internet { port, ..at }))
        };
        let mut inner = self.inner.lock();
        (inner.name, inner.address) = (Some(name), address);
        Ok(())
    }

    /// Makes it listen for at most so many connections beside one.
    ///
    /// # Errors
    /// `EINVAL` if it is connected.
    pub fn listen(&self, most: usize, own: Sender) -> Result<()> {
        let mut inner = self.inner.lock();
        match &mut inner.role {
            Role::Connected(_) | Role::Connecting => return Err(Errno::INVAL),
            Role::Listening { most: now, .. } => *now = most,
            role @ Role::None => *role = Role::Listening { most, queue: VecDeque::new() },
        }
        inner.peer = own;
        drop(inner);
        self.changed.wake();
        Ok(())
    }

    /// Connects it to a socket: to one that listens, or, without connections, as the receiver of what it sends.
    ///
    /// # Errors
    /// `EAGAIN` if the other side has to accept others first; `ECONNREFUSED`, `EISCONN`, `EINVAL`, `EPROTOTYPE`.
    pub fn connect(self: &Arc<Self>, to: &Arc<Self>, to_address: Address, own: Sender) -> Result<()> {
        if to.style != self.style {
            return Err(Errno::PROTOTYPE);
        }
        if !self.connects() {
            if self.family == Family::Local && !to.accepts(self) {
                return Err(Errno::PERM);
            }
            let mut inner = self.inner.lock();
            (inner.role, inner.peer_address) = (Role::Connected(Arc::downgrade(to)), to_address);
            return Ok(());
        }
        let other = Self::new(self.family, self.style);
        {
            let mut inner = self.inner.lock();
            match inner.role {
                Role::None => {}
                Role::Connected(_) => return Err(Errno::ISCONN),
                Role::Connecting => return Err(Errno::ALREADY),
                Role::Listening { .. } => return Err(Errno::INVAL),
            }
            (inner.role, inner.peer_address) = (Role::Connected(Arc::downgrade(&other)), to_address.clone());
            (inner.is_read_closed, inner.is_write_closed) = (false, false);
        }
        let own_address = self.address();
        let result = {
            let mut server = to.inner.lock();
            let (address, options, peer) = (server.address.clone(), server.options, server.peer);
            let is_closed = server.is_read_closed;
            match &mut server.role {
                _ if is_closed => Err(Errno::CONNREFUSED),
                Role::Listening { most, queue } if queue.len() <= *most => {
                    let mut inner = other.inner.lock();
                    inner.role = Role::Connected(Arc::downgrade(self));
                    let address = if matches!(to_address, Address::Internet(_)) { to_address.clone() } else { address };
                    (inner.address, inner.peer_address) = (address, own_address);
                    (inner.peer, inner.options) = (own, options);
                    drop(inner);
                    queue.push_back(Arc::clone(&other));
                    Ok(peer)
                }
                Role::Listening { .. } => Err(Errno::AGAIN),
                _ => Err(Errno::CONNREFUSED),
            }
        };
        match result {
            Ok(peer) => {
                self.inner.lock().peer = peer;
                to.changed.wake();
                self.changed.wake();
                Ok(())
            }
            Err(why) => {
                self.inner.lock().role = Role::None;
                Err(why)
            }
        }
    }

    /// Ends the relation of a socket without connections.
    pub fn disconnect(&self) {
        let mut inner = self.inner.lock();
        (inner.role, inner.peer_address) = (Role::None, Address::Unnamed);
    }

    /// Returns whether it takes messages of another one: a connected one only those of its peer.
    fn accepts(&self, from: &Self) -> bool {
        let from_address = if self.family == Family::Local { Address::Unnamed } else { from.address() };
        let inner = self.inner.lock();
        match &inner.role {
            Role::Connected(peer) if self.family == Family::Local => core::ptr::eq(peer.as_ptr(), from),
            Role::Connected(_) => inner.peer_address.is_same(&from_address),
            _ => true,
        }
    }

    /// Returns the shared reference to it.
    #[must_use]
    pub fn shared(&self) -> Option<Arc<Self>> {
        self.own.upgrade()
    }

    /// Sets the error that the next call returns.
    pub fn set_error(&self, error: Errno) {
        self.inner.lock().error = Some(error);
        self.changed.wake();
    }

    /// Takes a connection.
    ///
    /// # Errors
    /// `EINVAL` if it does not listen; `EAGAIN`.
    pub fn accept(&self) -> Result<Arc<Self>> {
        let accepted = {
            let mut inner = self.inner.lock();
            let none = if inner.is_read_closed { Errno::INVAL } else { Errno::AGAIN };
            match &mut inner.role {
                Role::Listening { queue, .. } => queue.pop_front().ok_or(none)?,
                _ => return Err(Errno::INVAL),
            }
        };
        self.changed.wake();
        Ok(accepted)
    }

    /// Closes it for reading, for writing, or for both.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn shut_down(&self, reads: bool, writes: bool) -> Result<()> {
        let mut inner = self.inner.lock();
        let peer = match &inner.role {
            Role::Connected(peer) => peer.upgrade(),
            Role::None if self.family != Family::Local => return Err(Errno::NOTCONN),
            _ => None,
        };
        inner.is_read_closed |= reads;
        inner.is_write_closed |= writes;
        drop(inner);
        self.changed.wake();
        if let Some(peer) = peer.filter(|_| self.connects()) {
            {
                let mut inner = peer.inner.lock();
                inner.is_read_closed |= writes;
                // What comes for the closed side of a connection of the Internet's is lost there.
                inner.is_write_closed |= reads && self.family == Family::Local;
            }
            peer.changed.wake();
        }
        Ok(())
    }
}

/// `POLLRDHUP`: nothing more is received.
const RDHUP: Ready = linux::POLLRDHUP;

impl Stream for Socket {
    fn read(&self, to: &mut [u8]) -> Result<usize> {
        let received = self.receive(to.len(), false)?;
        to[..received.bytes.len()].copy_from_slice(&received.bytes);
        Ok(received.bytes.len())
    }

    fn write(&self, from: &[u8]) -> Result<usize> {
        self.send(&*self.target()?, from, &mut Files::default(), Sender::default())
    }

    fn ready(&self, waker: Option<&Waker>) -> Ready {
        if let Some(waker) = waker {
            self.changed.add(waker);
        }
        let inner = self.inner.lock();
        let mut ready = if inner.error.is_some() { ERR } else { 0 };
        if !inner.received.is_empty() || inner.is_read_closed {
            ready |= IN;
        }
        if inner.is_read_closed {
            ready |= RDHUP;
        }
        if inner.is_read_closed && inner.is_write_closed {
            ready |= HUP;
        }
        let room = inner.options.send_room;
        let peer = match &inner.role {
            Role::Listening { queue, .. } => return ready | if queue.is_empty() { 0 } else { IN },
            Role::None => return ready | if self.connects() { HUP | OUT } else { OUT },
            Role::Connecting => return ready,
            Role::Connected(peer) => peer.upgrade(),
        };
        drop(inner);
        let has_room = peer.is_none_or(|peer| {
            if let Some(waker) = waker {
                peer.changed.add(waker);
            }
            let waiting = peer.inner.lock().bytes;
            // A message needs room for all of it: as on Linux, there is room while three quarters are free.
            if self.style == Style::Stream { waiting + 2 * OVERHEAD < room } else { 4 * waiting <= room }
        });
        ready | if has_room { OUT } else { 0 }
    }

    fn status(&self) -> Status {
        Status::plain((0, self.number), Kind::Socket, 0o777)
    }

    fn ioctl(&self, task: &mut Task, request: u32, argument: u64) -> Result<u64> {
        if request != ioctl::FIONREAD {
            return Err(Errno::NOTTY);
        }
        let inner = self.inner.lock();
        if matches!(inner.role, Role::Listening { .. }) {
            return Err(Errno::INVAL);
        }
        let parts = inner.received.iter().map(|message| message.bytes.len() - message.done);
        let count: usize = if self.style == Style::Stream { parts.sum() } else { parts.take(1).sum() };
        drop(inner);
        task.space.put(argument, &(count as u32)).map(|()| 0)
    }

    fn as_socket(&self) -> Option<&Socket> {
        Some(self)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        if let Some(name) = &inner.name {
            address::unbind(name);
        }
        // Those that wait for room here, or to be accepted.
        self.changed.wake();
        let Role::Connected(peer) = &inner.role else { return };
        let Some(peer) = peer.upgrade().filter(|_| self.style != Style::Datagram) else { return };
        {
            let mut other = peer.inner.lock();
            (other.is_read_closed, other.is_write_closed) = (true, true);
            if !inner.received.is_empty() {
                other.error = Some(Errno::CONNRESET);
            }
        }
        peer.changed.wake();
    }
}

#[cfg(test)]
mod tests;
