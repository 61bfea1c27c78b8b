//! The socket to QEMU's network card, which has a packet for each frame.
//!
//! QEMU's back end `dgram` takes a frame when the card has room for one. Its back end `stream` (QEMU 10) does not: each frame that the card
//! takes lets it read up to 68 KiB more into a queue without a bound, in which the frames of all VMs wait behind those of the one that
//! has the most.

use super::frames::MOST;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::os::fd::OwnedFd;

/// Bytes of memory that frames for the card take at most while they wait for QEMU: some 29 of 1,500 bytes, or 86 of the shortest.
const WAITING: usize = 64 << 10;

/// The socket is closed, or fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Closed;

/// The relay's end of the socket.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) socket: OwnedFd,
    /// The last frame that has come.
    received: Box<[u8; MOST]>,
}

impl Card {
    /// Makes a pair of sockets. Returns the end that is QEMU's as well.
    pub(super) fn pair() -> Result<(Self, OwnedFd), Errno> {
        let (ours, qemu) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // The system doubles it.
        set_socket_send_buffer_size(&ours, WAITING / 2)?;
        Ok((Self { socket: ours, received: Box::new([0; MOST]) }, qemu))
    }

    /// Returns the next frame that has come, without waiting for one.
    pub(super) fn recv(&mut self) -> Result<Option<&[u8]>, Closed> {
        match recv(&self.socket, &mut self.received[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Closed),
            Ok((length, _)) => Ok(Some(&self.received[..length])),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(_) => Err(Closed),
        }
    }

    /// Sends QEMU a frame, unless too many wait. Returns whether it was sent.
    pub(super) fn send(&self, frame: &[u8]) -> Result<bool, Closed> {
        match send(&self.socket, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            // One that has no room at any time is lost.
            Ok(_) | Err(Errno::MSGSIZE) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(false),
            Err(_) => Err(Closed),
        }
    }
}
