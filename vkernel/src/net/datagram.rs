//! Datagrams of UDP.

use super::{Stack, address, endpoint};
use crate::errno::{Errno, Result};
use crate::fs::socket::address::{Address, Family, Internet};
use crate::fs::socket::{Socket, Style};
use crate::memory::frames;
use crate::task::timers::{self, SECOND};
use alloc::sync::{Arc, Weak};
use alloc::vec;
use core::task::Waker;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::udp;
use smoltcp::wire::IpEndpoint;

/// Datagrams, and their bytes, that a port holds in each direction.
const PACKETS: usize = 32;
const BYTES: usize = 32 << 10;
/// Ports at most.
const MOST_PORTS: usize = 256;
/// Addresses that datagrams are on their way to, at most.
const MOST_GATES: usize = 256;
/// Nanoseconds for which an address is kept without a datagram.
const IDLE: u64 = 10 * SECOND;
/// Content of a datagram at most: it is sent in one frame.
pub const MOST_DATAGRAM: usize = super::link::MOST_FRAME - 14 - 20 - 8;

/// A port of a program's.
pub(super) struct Port {
    handle: SocketHandle,
    number: u16,
    socket: Weak<Socket>,
}

/// The hidden socket for an address.
pub(super) struct Gate {
    to: Internet,
    remote: IpEndpoint,
    socket: Arc<Socket>,
    /// Its last use, as of [`timers::now`].
    used: u64,
}

impl Stack {
    pub(super) fn open_port(&mut self, socket: &Arc<Socket>) -> Result<()> {
        let own = Arc::downgrade(socket);
        if self.ports.iter().any(|port| port.socket.ptr_eq(&own)) {
            return Ok(());
        }
        if frames::is_short() || self.ports.len() >= MOST_PORTS {
            return Err(Errno::NOBUFS);
        }
        let number = socket.port();
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; PACKETS], vec![0; BYTES]);
        let mut udp = udp::Socket::new(buffer(), buffer());
        // The port is free but for a socket that has just ended.
        self.close_ports();
        udp.bind(number).map_err(|_| Errno::ADDRINUSE)?;
        let handle = self.sockets.add(udp);
        self.ports.push(Port { handle, number, socket: own });
        Ok(())
    }

    fn close_ports(&mut self) {
        let sockets = &mut self.sockets;
        self.ports.retain(|port| {
            // What it has sent last goes first.
            let is_used =
                port.socket.strong_count() > 0 || sockets.get::<udp::Socket<'_>>(port.handle).send_queue() > 0;
            if !is_used {
                sockets.remove(port.handle);
            }
            is_used
        });
    }

    pub(super) fn gate(&mut self, to: Internet) -> Result<Arc<Socket>> {
        let now = timers::now();
        if let Some(gate) = self.gates.iter_mut().find(|gate| gate.to == to) {
            gate.used = now;
            return Ok(Arc::clone(&gate.socket));
        }
        if to.port == 0 {
            return Err(Errno::INVAL);
        }
        if self.gates.len() >= MOST_GATES {
            let idle = self.gates.iter().enumerate().filter(|(_, gate)| gate.socket.is_empty());
            let oldest = idle.min_by_key(|(_, gate)| gate.used).map(|(at, _)| at);
            self.gates.swap_remove(oldest.ok_or(Errno::NOBUFS)?);
        }
        let socket = Socket::new(Family::Internet, Style::Datagram);
        self.gates.push(Gate { to, remote: endpoint(&to)?, socket: Arc::clone(&socket), used: now });
        Ok(socket)
    }

    /// Moves datagrams. Returns whether any has moved.
    pub(super) fn move_datagrams(&mut self, waker: &Waker) -> bool {
        let mut has_moved = false;
        let now = timers::now();
        let (ports, sockets) = (&self.ports, &mut self.sockets);
        self.gates.retain(|gate| {
            gate.socket.changed.add(waker);
            while let Some(port) = gate.socket.next_sender() {
                let port = ports.iter().find(|known| known.number == port);
                let udp = port.map(|port| sockets.get_mut::<udp::Socket<'_>>(port.handle));
                if udp.as_ref().is_some_and(|udp| !udp.can_send()) {
                    break;
                }
                let Ok(message) = gate.socket.receive(usize::MAX, false) else { break };
                if let Some(udp) = udp {
                    // Without room for its bytes it is lost.
                    let _ = udp.send_slice(&message.bytes, gate.remote);
                }
                has_moved = true;
            }
            !gate.socket.is_empty() || now.saturating_sub(gate.used) < IDLE
        });
        for port in &self.ports {
            let Some(program) = port.socket.upgrade() else { continue };
            program.changed.add(waker);
            let udp = self.sockets.get_mut::<udp::Socket<'_>>(port.handle);
            while let Ok((bytes, from)) = udp.recv() {
                program.deliver(bytes, Address::Internet(address(from.endpoint)));
                has_moved = true;
            }
        }
        self.close_ports();
        has_moved
    }
}
