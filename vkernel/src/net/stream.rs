//! Connections of TCP.

use super::{Stack, address, endpoint};
use crate::errno::{Errno, Result};
use crate::fs::socket::Socket;
use crate::fs::socket::address::Internet;
use crate::memory::frames;
use alloc::sync::{Arc, Weak};
use alloc::vec;
use alloc::vec::Vec;
use core::task::Waker;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{self, State};
use smoltcp::time::Duration;

/// Bytes that a connection holds in each direction.
const BUFFER: usize = 32 << 10;
/// Bytes that are moved at once.
const CHUNK: usize = 16 << 10;
/// Connections that may arrive for a port before the task has seen them.
const ARRIVING: usize = 4;
/// Connections at most, with those that arrive.
const MOST_STREAMS: usize = 1024;
/// The time after which a side that does not answer is gone, in seconds.
const PATIENCE: u64 = 120;

/// A connection with the outside.
pub(super) struct Stream {
    handle: SocketHandle,
    /// The hidden socket.
    near: Arc<Socket>,
    /// The program's.
    program: Weak<Socket>,
    is_connecting: bool,
    /// Set if the program sends nothing more.
    has_sent_end: bool,
    /// Set if the outside sends nothing more.
    has_received_end: bool,
}

/// A port at which a program listens.
pub(super) struct Listener {
    socket: Weak<Socket>,
    port: u16,
    arriving: Vec<SocketHandle>,
}

fn new_socket() -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    socket.set_timeout(Some(Duration::from_secs(PATIENCE)));
    socket.set_nagle_enabled(false);
    socket
}

impl Stack {
    fn check_streams(&self) -> Result<()> {
        let arriving: usize = self.listeners.iter().map(|listener| listener.arriving.len()).sum();
        if frames::is_short() || self.streams.len() + arriving >= MOST_STREAMS {
            return Err(Errno::NOBUFS);
        }
        Ok(())
    }

    pub(super) fn connect(&mut self, socket: &Arc<Socket>, to: Internet) -> Result<()> {
        self.check_streams()?;
        let (own, remote) = (super::own().ok_or(Errno::NETUNREACH)?, endpoint(&to)?);
        let near = socket.begin_connecting(to, own)?;
        let port = socket.port();
        let mut tcp = new_socket();
        if tcp.connect(self.interface.context(), remote, port).is_err() {
            socket.end_connecting(&near, Err(Errno::NETUNREACH));
            return Err(Errno::NETUNREACH);
        }
        self.streams.push(Stream {
            handle: self.sockets.add(tcp),
            near,
            program: Arc::downgrade(socket),
            is_connecting: true,
            has_sent_end: false,
            has_received_end: false,
        });
        Ok(())
    }

    pub(super) fn listen(&mut self, socket: &Arc<Socket>) -> Result<()> {
        let (port, own) = (socket.port(), Arc::downgrade(socket));
        if self.listeners.iter().any(|listener| listener.socket.ptr_eq(&own)) {
            return Ok(());
        }
        self.check_streams()?;
        self.listeners.push(Listener { socket: own, port, arriving: Vec::new() });
        Ok(())
    }

    /// Moves bytes of connections, and takes new ones. Returns whether anything has moved.
    pub(super) fn move_streams(&mut self, waker: &Waker) -> bool {
        let mut has_moved = self.take_new(waker);
        let sockets = &mut self.sockets;
        self.streams.retain_mut(|stream| {
            let tcp = sockets.get_mut::<tcp::Socket<'_>>(stream.handle);
            has_moved |= stream.advance(tcp, waker);
            let is_over = tcp.state() == State::Closed && tcp.recv_queue() == 0;
            if is_over {
                stream.end();
                sockets.remove(stream.handle);
            }
            !is_over
        });
        has_moved
    }

    /// Gives programs that listen the connections that have come.
    fn take_new(&mut self, waker: &Waker) -> bool {
        let mut has_moved = false;
        let has_room = self.check_streams().is_ok();
        let (sockets, streams) = (&mut self.sockets, &mut self.streams);
        self.listeners.retain_mut(|listener| {
            let program = listener.socket.upgrade().filter(|socket| socket.is_listening());
            let Some(program) = program else {
                for handle in listener.arriving.drain(..) {
                    // It is sent a reset.
                    sockets.get_mut::<tcp::Socket<'_>>(handle).abort();
                    streams.push(Stream::orphan(handle));
                }
                has_moved = true;
                return false;
            };
            program.changed.add(waker);
            listener.arriving.retain(|handle| {
                let tcp = sockets.get_mut::<tcp::Socket<'_>>(*handle);
                match tcp.state() {
                    State::Listen | State::SynReceived => true,
                    State::Closed => {
                        sockets.remove(*handle);
                        false
                    }
                    _ => {
                        let ends = tcp.local_endpoint().zip(tcp.remote_endpoint());
                        let Some((local, remote)) = ends else { return true };
                        // Without room it stays until the program has accepted others.
                        let Some((near, accepted)) = program.arrive(address(local), address(remote)) else {
                            return true;
                        };
                        streams.push(Stream {
                            handle: *handle,
                            near,
                            program: accepted,
                            is_connecting: false,
                            has_sent_end: false,
                            has_received_end: false,
                        });
                        has_moved = true;
                        false
                    }
                }
            });
            while has_room && listener.arriving.len() < ARRIVING {
                let mut tcp = new_socket();
                if tcp.listen(listener.port).is_err() {
                    break;
                }
                listener.arriving.push(sockets.add(tcp));
            }
            true
        });
        has_moved
    }
}

impl Stream {
    /// A connection that no program has.
    fn orphan(handle: SocketHandle) -> Self {
        use crate::fs::socket::Style;
        use crate::fs::socket::address::Family;
        Self {
            handle,
            near: Socket::new(Family::Internet, Style::Stream),
            program: Weak::new(),
            is_connecting: false,
            has_sent_end: true,
            has_received_end: true,
        }
    }

    /// Moves what can be moved. Returns whether anything was.
    fn advance(&mut self, tcp: &mut tcp::Socket<'_>, waker: &Waker) -> bool {
        let mut has_moved = false;
        if self.is_connecting {
            match tcp.state() {
                State::SynSent | State::SynReceived => {
                    if let Some(program) = self.program.upgrade() {
                        program.changed.add(waker);
                    } else {
                        tcp.abort();
                    }
                    return false;
                }
                State::Closed => return false,
                _ => {
                    self.is_connecting = false;
                    if let Some(program) = self.program.upgrade() {
                        program.end_connecting(&self.near, Ok(()));
                    }
                    has_moved = true;
                }
            }
        }
        has_moved |= self.send(tcp, waker);
        has_moved | self.receive(tcp, waker)
    }

    fn send(&mut self, tcp: &mut tcp::Socket<'_>, waker: &Waker) -> bool {
        self.near.changed.add(waker);
        let mut has_moved = false;
        while !self.has_sent_end && tcp.may_send() {
            let room = (tcp.send_capacity() - tcp.send_queue()).min(CHUNK);
            if room == 0 {
                break;
            }
            match self.near.receive(room, false) {
                Ok(received) if received.full > 0 => {
                    // There is room for all of it.
                    let _ = tcp.send_slice(&received.bytes);
                }
                Ok(_) => {
                    self.has_sent_end = true;
                    tcp.close();
                }
                Err(Errno::AGAIN) => break,
                // The program has left bytes unread.
                Err(_) => {
                    self.has_sent_end = true;
                    tcp.abort();
                }
            }
            has_moved = true;
        }
        has_moved
    }

    fn receive(&mut self, tcp: &mut tcp::Socket<'_>, waker: &Waker) -> bool {
        let mut has_moved = false;
        while tcp.can_recv() {
            let Some(program) = self.program.upgrade() else {
                // What comes for a program that is gone is refused.
                tcp.abort();
                let _ = tcp.recv(|bytes| (bytes.len(), ()));
                return true;
            };
            let near = &self.near;
            let mut pass = || {
                tcp.recv(|bytes| match near.pass(&program, bytes) {
                    Ok(count) => (count, count > 0),
                    Err(Errno::PIPE) => (bytes.len(), true),
                    Err(_) => (0, false),
                })
            };
            if !matches!(pass(), Ok(true)) {
                program.changed.add(waker);
                // The program may have made room before the task was in its queue.
                if !matches!(pass(), Ok(true)) {
                    break;
                }
            }
            has_moved = true;
        }
        let has_come_to_end = !matches!(
            tcp.state(),
            State::Listen
                | State::SynSent
                | State::SynReceived
                | State::Established
                | State::FinWait1
                | State::FinWait2
        );
        if !self.has_received_end && tcp.recv_queue() == 0 && has_come_to_end && tcp.state() != State::Closed {
            self.has_received_end = true;
            // It may have ended already.
            let _ = self.near.shut_down(false, true);
            has_moved = true;
        }
        has_moved
    }

    /// Tells the program that the connection is over.
    fn end(&self) {
        let Some(program) = self.program.upgrade() else { return };
        if self.is_connecting {
            program.end_connecting(&self.near, Err(Errno::CONNREFUSED));
        } else if !self.has_received_end || !self.has_sent_end {
            program.cut(Errno::CONNRESET);
        }
    }
}
