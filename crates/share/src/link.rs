//! The loop that serves a socket (`SOCK_SEQPACKET`), and the packets on it: [`abi::share`] has their format.

use crate::server::Server;
use crate::wire::{HEAD, MOST_MESSAGE};
use abi::share::{LOST_BYTES, MOST_PACKET, PADDING, has_two_packets};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::os::fd::{AsFd, BorrowedFd};

/// Answers the messages of a socket until its other end is closed.
///
/// # Errors
/// If the socket fails, or a packet is no message: the other end is Gnomon, which sends only whole ones.
pub fn serve(socket: impl AsFd, server: &mut Server) -> Result<()> {
    let socket = socket.as_fd();
    let (mut message, mut answer) = (vec![0; MOST_MESSAGE + 1], Vec::with_capacity(MOST_MESSAGE));
    loop {
        let Some(length) = receive(socket, &mut message)? else { return Ok(()) };
        server.answer(&message[..length], &mut answer);
        send(socket, &answer, has_two_packets(&message[..length]))?;
    }
}

/// Says that the server has ended, in its place.
///
/// # Errors
/// If the socket fails.
pub fn say_lost(socket: impl AsFd) -> Result<()> {
    send_all(socket.as_fd(), &[IoSlice::new(&[0xff; LOST_BYTES])])
}

/// Receives a message; `None` if there will be no more.
fn receive(socket: BorrowedFd<'_>, message: &mut [u8]) -> Result<Option<usize>> {
    let first = packet(socket, message)?;
    if first == 0 {
        return Ok(None);
    }
    let size = message.first_chunk().map_or(0, |size| u32::from_le_bytes(*size)) as usize;
    let is_message = (HEAD..=MOST_MESSAGE).contains(&size) && first == size.min(MOST_PACKET);
    if !is_message || first < size && packet(socket, &mut message[first..])? != size - first {
        return Err(Error::new(ErrorKind::InvalidData, "a packet that is no message"));
    }
    Ok(Some(size))
}

fn packet(socket: BorrowedFd<'_>, room: &mut [u8]) -> Result<usize> {
    loop {
        match rustix::net::recv(socket, &mut *room, RecvFlags::TRUNC) {
            // The length of the packet itself.
            Ok((_, length)) => return Ok(length),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn send(socket: BorrowedFd<'_>, answer: &[u8], in_two: bool) -> Result<()> {
    if !in_two {
        return send_all(socket, &[IoSlice::new(answer)]);
    }
    let (first, rest) = answer.split_at(answer.len().min(MOST_PACKET));
    send_all(socket, &[IoSlice::new(first)])?;
    send_all(socket, &[IoSlice::new(rest), IoSlice::new(&[0; PADDING])])
}

fn send_all(socket: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> Result<()> {
    loop {
        let sent = rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
        match sent {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            // QEMU has ended: there is nobody to be answered, and the next look says so.
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
