//! Sockets that are connected to another machine: their peers are hidden sockets of the network's ([`crate::net`]).

use super::address::{Address, Internet};
use super::flight::Files;
use super::{Role, Sender, Socket, Style};
use crate::errno::{Errno, Result};
use alloc::sync::{Arc, Weak};

impl Socket {
    /// Returns the port that it is bound to; 0 is none.
    #[must_use]
    pub fn port(&self) -> u16 {
        if let Address::Internet(address) = self.inner.lock().address { address.port } else { 0 }
    }

    /// Returns whether no message waits in its queue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.lock().received.is_empty()
    }

    /// Returns whether its connection is on its way.
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        matches!(self.inner.lock().role, Role::Connecting)
    }

    /// Begins a connection to another machine. Returns the hidden socket.
    ///
    /// # Errors
    /// `EISCONN`, `EALREADY`; `EINVAL` if it listens.
    pub fn begin_connecting(self: &Arc<Self>, to: Internet, own: Internet) -> Result<Arc<Self>> {
        let near = Self::new(self.family, Style::Stream);
        near.inner.lock().role = Role::Connected(Arc::downgrade(self));
        let mut inner = self.inner.lock();
        match inner.role {
            Role::None => {}
            Role::Connecting => return Err(Errno::ALREADY),
            Role::Connected(_) => return Err(Errno::ISCONN),
            Role::Listening { .. } => return Err(Errno::INVAL),
        }
        inner.role = Role::Connecting;
        (inner.is_read_closed, inner.is_write_closed) = (false, false);
        inner.peer_address = Address::Internet(to);
        if let Address::Internet(address) = &mut inner.address {
            address.ip = own.ip;
        }
        Ok(near)
    }

    /// Ends the wait for a connection: it has been made, or it has failed.
    pub fn end_connecting(&self, near: &Arc<Self>, result: Result<()>) {
        let mut inner = self.inner.lock();
        match result {
            Ok(()) => inner.role = Role::Connected(Arc::downgrade(near)),
            Err(why) => (inner.role, inner.error) = (Role::None, Some(why)),
        }
        drop(inner);
        self.changed.wake();
    }

    /// Ends the connection with an error.
    pub fn cut(&self, error: Errno) {
        let mut inner = self.inner.lock();
        (inner.is_read_closed, inner.is_write_closed) = (true, true);
        inner.error = Some(error);
        drop(inner);
        self.changed.wake();
    }

    /// Adds a connection from another machine to those that can be accepted. Returns the hidden socket, and the new one. `None` if there is
    /// no room.
    #[must_use]
    pub fn arrive(&self, own: Internet, from: Internet) -> Option<(Arc<Self>, Weak<Self>)> {
        let near = Self::new(self.family, Style::Stream);
        let accepted = Self::new(self.family, Style::Stream);
        near.inner.lock().role = Role::Connected(Arc::downgrade(&accepted));
        let mut server = self.inner.lock();
        {
            let mut inner = accepted.inner.lock();
            inner.role = Role::Connected(Arc::downgrade(&near));
            (inner.address, inner.peer_address) = (Address::Internet(own), Address::Internet(from));
            inner.options = server.options;
        }
        let program = Arc::downgrade(&accepted);
        match &mut server.role {
            Role::Listening { most, queue } if queue.len() <= *most => queue.push_back(accepted),
            _ => {
                drop(server);
                return None;
            }
        }
        drop(server);
        self.changed.wake();
        Some((near, program))
    }

    /// Passes bytes of a connection on to the program's socket.
    ///
    /// # Errors
    /// As [`Socket::send`].
    pub fn pass(&self, to: &Self, bytes: &[u8]) -> Result<usize> {
        self.send(to, bytes, &mut Files::default(), Sender::default())
    }
}
