//! Sockets: pairs, local addresses, and addresses of the Internet.

use super::{
    CREATE, HERE, READ_WRITE, apart, at, become_user, call, close, must, number, open, out, show, show_file, text,
};
use programs::linux::{Failure, line, process};

pub const STREAM: usize = 1;
pub const DATAGRAM: usize = 2;
const PACKETS: usize = 5;
pub const DONTWAIT: usize = 0x40;
const PEEK: usize = 2;
const TRUNCATED: usize = 0x20;
const NOSIGNAL: usize = 0x4000;

pub fn pair(style: usize) -> [usize; 2] {
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

/// Messages of every kind of size, each of which the kernel has to keep whole.
fn large_messages() {
    const MOST: usize = 200_000;
    static BYTES: [u8; MOST] = [7; MOST];
    let [a, b] = pair(DATAGRAM);
    let received = (1..=40).map(|part| {
        send("large message", a, &BYTES[..part * MOST / 40], 0);
        let mut short = [0u8; 8];
        // The whole size is told, however little there is room for.
        call(number::RECVFROM, [b, out(&mut short), short.len(), TRUNCATED, 0, 0])
    });
    line(format_args!("large messages: {} bytes", received.sum::<isize>()));
    close(a);
    close(b);
}

pub fn pairs() -> Result<(), Failure> {
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
    large_messages();
    // A stream has no empty messages, and a message socket no room for all that is sent to it.
    let [a, b] = pair(STREAM);
    send("nothing on a stream", a, b"", 0);
    receive("nothing on a stream", b, 60, DONTWAIT);
    close(a);
    close(b);
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
    // The reader ends while the writer waits.
    let [a, b] = pair(STREAM);
    let child = process::start(|| {
        close(b);
        let bytes = [7u8; 4096];
        let mut result = 1;
        while result > 0 {
            result = call(number::SENDTO, [a, at(&bytes), bytes.len(), NOSIGNAL, 0, 0]);
        }
        line(format_args!("the writer got {result}"));
        Ok(())
    })?;
    close(a);
    super::sleep(200);
    close(b);
    child.wait()?;
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

pub fn local() -> Result<(), Failure> {
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
        // A length is an int, whatever is above it in the register.
        show("length with more above it", number::CONNECT, &[client, at(&address.0), address.1 | 1 << 40]);
        show("negative length", number::CONNECT, &[client, at(&address.0), 1 << 31 | 1 << 63]);
        show("shutdown of one that listens", number::SHUTDOWN, &[server, 2]);
        show("accept behind it", number::ACCEPT, &[server, 0, 0]);
        let refused = must(number::SOCKET, &[1, STREAM, 0]);
        with_address("connect behind it", number::CONNECT, refused, &address);
        close(refused);
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

pub fn internet() -> Result<(), Failure> {
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
