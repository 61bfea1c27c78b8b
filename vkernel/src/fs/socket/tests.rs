//! Sockets without programs.

use super::address::{self, Address, Family, Internet, Name};
use super::flight::{self, Files};
use super::{ROOM, Sender, Socket, Style};
use crate::errno::Errno;
use crate::fs::descriptors::OpenFile;
use crate::fs::{HUP, IN, OUT, Stream};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

const ME: Sender = Sender { pid: 5, uid: 6, gid: 7 };

fn send(from: &Socket, to: &Socket, bytes: &[u8]) -> Result<usize, Errno> {
    from.send(to, bytes, &mut Files::default(), ME)
}

fn receive(socket: &Socket, most: usize) -> Result<Vec<u8>, Errno> {
    socket.receive(most, false).map(|received| received.bytes)
}

#[test]
fn a_stream_joins_and_splits() {
    let [a, b] = Socket::pair(Style::Stream, ME);
    assert_eq!((send(&a, &b, b"abc"), send(&a, &b, b"def")), (Ok(3), Ok(3)));
    assert_eq!(b.receive(4, true).map(|received| received.bytes), Ok(b"abcd".to_vec()));
    assert_eq!((receive(&b, 2), receive(&b, 9)), (Ok(b"ab".to_vec()), Ok(b"cdef".to_vec())));
    assert_eq!(receive(&b, 9), Err(Errno::AGAIN));
    // No more than its room, and that again after all was read.
    let much = alloc::vec![1; 1 << 20];
    let mut sent = 0;
    while let Ok(count) = send(&a, &b, &much) {
        sent += count;
    }
    assert!(sent > ROOM / 2 && sent <= ROOM && a.ready(None) & OUT == 0, "{sent}");
    assert_eq!(receive(&b, 1 << 20).map(|bytes| bytes.len()), Ok(sent));
    assert_ne!(a.ready(None) & OUT, 0);
    drop(a);
    assert_eq!((receive(&b, 1), send(&b, &b, b"x"), b.ready(None) & HUP), (Ok(Vec::new()), Err(Errno::PIPE), HUP));
    let [a, b] = Socket::pair(Style::Stream, ME);
    assert_eq!(send(&a, &b, b"lost"), Ok(4));
    drop(b);
    assert_eq!((receive(&a, 1), receive(&a, 1)), (Err(Errno::CONNRESET), Ok(Vec::new())));
}

#[test]
fn packets_keep_their_ends() {
    let [a, b] = Socket::pair(Style::Packets, ME);
    assert_eq!((send(&a, &b, b"abc"), send(&a, &b, b""), send(&a, &b, b"de")), (Ok(3), Ok(0), Ok(2)));
    let first = b.receive(2, false).expect("a message");
    assert_eq!((first.bytes, first.full, first.sender), (b"ab".to_vec(), 3, ME));
    assert_eq!((receive(&b, 9), receive(&b, 9)), (Ok(Vec::new()), Ok(b"de".to_vec())));
    assert_eq!(send(&a, &b, &alloc::vec![0; ROOM + 1]), Err(Errno::MSGSIZE));
    a.shut_down(false, true).expect("connected");
    assert_eq!((receive(&b, 9), send(&a, &b, b"x"), send(&b, &a, b"x")), (Ok(Vec::new()), Err(Errno::PIPE), Ok(1)));
}

#[test]
fn connections_wait_to_be_accepted() {
    let name = || Address::Abstract(b"here".to_vec());
    let server = Socket::new(Family::Local, Style::Stream);
    server.bind(Name::Abstract(Style::Stream, b"here".to_vec()), name()).expect("free");
    let client = Socket::new(Family::Local, Style::Stream);
    assert_eq!(client.bind(Name::Abstract(Style::Stream, b"here".to_vec()), name()), Err(Errno::ADDRINUSE));
    assert_eq!(client.connect(&server, name(), ME), Err(Errno::CONNREFUSED));
    server.listen(0, Sender { pid: 9, ..ME }).expect("bound");
    let found = address::find(&Name::Abstract(Style::Stream, b"here".to_vec())).expect("bound");
    assert_eq!(client.connect(&found, name(), ME), Ok(()));
    assert_eq!(client.connect(&found, name(), ME), Err(Errno::ISCONN));
    let late = Socket::new(Family::Local, Style::Stream);
    assert_eq!(late.connect(&found, name(), ME), Err(Errno::AGAIN));
    assert_eq!((server.ready(None), client.peer().pid), (IN, 9));
    let target = client.target().expect("connected");
    assert_eq!(send(&client, &target, b"early"), Ok(5));
    let accepted = server.accept().expect("one waits");
    assert_eq!((receive(&accepted, 9), accepted.peer(), accepted.address()), (Ok(b"early".to_vec()), ME, name()));
    assert_eq!(server.accept().map(|_| ()), Err(Errno::AGAIN));
    drop((server, found));
    assert!(address::find(&Name::Abstract(Style::Stream, b"here".to_vec())).is_none());
    assert_eq!(late.target().map(|_| ()), Err(Errno::NOTCONN));
}

#[test]
fn addresses_are_read_as_they_are_written() {
    let six = Internet { ip: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], port: 7 };
    for (address, family) in [
        (Address::Unnamed, Family::Local),
        (Address::Path(b"/a/b".to_vec()), Family::Local),
        (Address::Abstract(b"a\0b".to_vec()), Family::Local),
        (Address::Internet(Internet::mapped([127, 0, 0, 1], 80)), Family::Internet),
        (Address::Internet(six), Family::Internet6),
    ] {
        assert_eq!(Address::decode(&address.encode(family), family), Ok(address));
    }
    assert_eq!(Address::decode(&[1], Family::Local), Err(Errno::INVAL));
    assert_eq!(Address::decode(&[2, 0], Family::Local), Err(Errno::INVAL));
    assert_eq!(Address::decode(&[2, 0, 0, 80, 127, 0, 0], Family::Internet), Err(Errno::INVAL));
    assert_eq!(Address::decode(&[9; 28], Family::Internet6), Err(Errno::AFNOSUPPORT));
}

/// Sends a file over a connection.
fn send_file(from: &Socket, to: &Socket, file: &Arc<OpenFile>) {
    let mut files = Files::new(alloc::vec![Arc::clone(file)], u64::MAX).expect("room");
    assert_eq!(from.send(to, b"f", &mut files, ME), Ok(1));
}

fn open(socket: &Arc<Socket>) -> Arc<OpenFile> {
    OpenFile::of(Arc::clone(socket) as _, 2)
}

#[test]
fn files_in_flight_arrive_and_circles_are_closed() {
    // A circle of two, and one file that a socket outside of the circle has as well.
    let ([a, b], [c, d]) = (Socket::pair(Style::Stream, ME), Socket::pair(Style::Stream, ME));
    let [outer, inner] = Socket::pair(Style::Stream, ME);
    let files = [open(&b), open(&d)];
    send_file(&a, &b, &files[1]);
    send_file(&c, &d, &files[0]);
    send_file(&outer, &inner, &files[0]);
    let watched: [Weak<Socket>; 2] = [Arc::downgrade(&b), Arc::downgrade(&d)];
    drop((a, b, c, d, files));
    flight::collect();
    assert!(watched.iter().all(|socket| socket.upgrade().is_some()), "the one outside leads to both");
    let received = inner.receive(1, true).expect("it is there");
    assert_eq!(received.files.len(), 1);
    drop((received, inner));
    flight::collect();
    assert!(watched.iter().all(|socket| socket.upgrade().is_none()), "nothing leads to them any more");
    // A chain of any length is closed without as deep a stack.
    let mut last = Socket::pair(Style::Stream, ME);
    for _ in 0..4000 {
        let next = Socket::pair(Style::Stream, ME);
        let file = open(&last[1]);
        send_file(&next[0], &next[1], &file);
        last = next;
    }
    drop(last);
    assert_eq!(
        Files::new(alloc::vec![open(&Socket::new(Family::Local, Style::Stream)); 10], 9).map(|_| ()),
        Err(Errno::TOOMANYREFS)
    );
}
