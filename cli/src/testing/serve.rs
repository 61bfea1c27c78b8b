//! A server on the host that guests fetch a file from, and that fetches it back from them.
//!
//! It answers `GET /file` with the file, and `GET /back` with `same`, once it has fetched `/file` itself from the port of the host's that
//! leads to port 80 of the first VM, and found it to be the same; else with what was wrong.

use crate::host::size::Size;
use crate::host::words::sha256;
use crate::machine::net::Forward;
use sha2::{Digest, Sha256};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The port of a guest's own server.
const HTTP: NonZeroU16 = NonZeroU16::new(80).unwrap();
/// The time limit for the peer's next bytes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// The port that leads to the first VM.
    pub forward: Forward,
    sum: String,
    is_over: Arc<AtomicBool>,
}

impl Server {
    /// Serves a file of that size, whose content is as good as random.
    ///
    /// # Errors
    /// If the host has no port for it.
    pub fn start(size: Size) -> io::Result<Self> {
        let (listener, free) = (listen()?, listen()?);
        let address = listener.local_addr()?;
        // The system does not assign that port again so soon.
        let host = NonZeroU16::new(free.local_addr()?.port()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let forward = Forward { at: Ipv4Addr::LOCALHOST, host, guest: HTTP };
        let file: Arc<[u8]> = content(size).into();
        let sum = sha256(&file);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let file = Arc::clone(&file);
                // If a client disconnects meanwhile, its own test reports why.
                thread::spawn(move || stream.and_then(|stream| serve(stream, &file, forward)));
            }
        });
        Ok(Self { address, forward, sum, is_over })
    }

    /// The words for the guests' command lines: the server's port, and the SHA-256 of the file.
    #[must_use]
    pub fn words(&self) -> String {
        format!("serve={} sum={}", self.address.port(), self.sum)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // The server checks the flag at the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

fn listen() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

fn content(size: Size) -> Vec<u8> {
    let blocks = (0..size.0.div_ceil(32)).map(|block| Sha256::digest(block.to_le_bytes()));
    let mut content: Vec<u8> = blocks.flatten().collect();
    content.truncate(size.0 as usize);
    content
}

fn serve(mut stream: TcpStream, file: &[u8], forward: Forward) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    // The rest of it is nothing to us, but is to be read.
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let text = match request.split(' ').nth(1) {
        Some("/file") => None,
        Some("/back") => Some(fetch(forward).map_or_else(
            |why| format!("the port is no way to the guest: {why}\n"),
            |body| if body == file { "same\n".into() } else { format!("{} bytes, and not the same\n", body.len()) },
        )),
        _ => Some("there is no such file\n".into()),
    };
    let body = text.as_ref().map_or(file, |text| text.as_bytes());
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
    stream.write_all(body)
}

/// The file that the guest has.
fn fetch(forward: Forward) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect((forward.at, forward.host.get()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /file HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    Ok(answer.split_off(end.map_or(0, |end| end + 4)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_served_and_fetched_back() {
        let (server, other) = (Server::start(Size(100_000)).expect("one"), Server::start(Size(100_000)).expect("two"));
        let at = |server: &Server| Forward { host: NonZeroU16::new(server.address.port()).unwrap(), ..server.forward };
        let file = fetch(at(&server)).expect("the file");
        assert_eq!(file.len(), 100_000);
        let sum: String = Sha256::digest(&file).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(server.words(), format!("serve={} sum={sum}", server.address.port()));
        // What a guest asks when it has the file: here the other server is the guest.
        let ask = |forward| {
            let listener = listen().unwrap();
            let address = listener.local_addr().unwrap();
            let asker = thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"GET /back HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                answer
            });
            serve(listener.accept().unwrap().0, &file, forward).unwrap();
            asker.join().unwrap()
        };
        assert!(ask(at(&other)).ends_with("\r\n\r\nsame\n"));
        assert!(ask(server.forward).contains("no way to the guest"));
    }
}
