//! Programs of this host that a guest reaches by its network.

use serde::Serialize;
use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends a program when its parent does, however that dies. Part of util-linux, which Debian
/// always has; without it, a service outlives a killed `gnomon`.
const SETPRIV: &str = "/usr/bin/setpriv";

/// The ports that are tried, in order. They are not those that the system assigns, and so nearly always the same: a guest's command line
/// has them, and runs are to repeat.
const PORTS: std::ops::Range<u16> = 20_000..21_000;

/// A service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Service {
    /// The name of its port's number on the guest's command line.
    pub name: String,
    /// The shell's command line of the program that is started for each connection. Its input and output are the connection.
    pub command: String,
}

/// Services that run, on ports of 127.0.0.1. They end when this is dropped.
#[derive(Debug)]
pub struct Services {
    running: Vec<(String, SocketAddr)>,
    is_over: Arc<AtomicBool>,
}

impl Services {
    /// Starts services.
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] if no port is free.
    pub fn start(services: &[Service]) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut all = Self { running: Vec::new(), is_over };
        for Service { name, command } in services {
            let free = PORTS.into_iter().find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
            let listener = free.ok_or_else(|| Error::from(ErrorKind::AddrInUse))?;
            all.running.push((name.clone(), listener.local_addr()?));
            let (over, command) = (Arc::clone(&all.is_over), command.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    // A guest whose connection fails sees that itself.
                    let _ = stream.and_then(|stream| serve(stream, &command));
                }
            });
        }
        Ok(all)
    }

    /// The words for the guest's command line: each service's name, and its port.
    #[must_use]
    pub fn words(&self) -> String {
        self.running.iter().map(|(name, at)| format!("{name}={}", at.port())).collect::<Vec<_>>().join(" ")
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Each looks at the flag at the next connection.
        self.running.iter().for_each(|(_, at)| _ = TcpStream::connect(at));
    }
}

/// A command that starts a program, which ends with this process.
fn end_with_parent(program: &str) -> Command {
    if !Path::new(SETPRIV).exists() {
        return Command::new(program);
    }
    let mut command = Command::new(SETPRIV);
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

/// Runs the program to its end.
fn serve(stream: TcpStream, command: &str) -> Result<()> {
    let input = OwnedFd::from(stream.try_clone()?);
    let mut child = end_with_parent("/bin/sh");
    child.args(["-c", command]).stdin(input).stdout(OwnedFd::from(stream)).stderr(Stdio::null());
    let mut started = child.spawn()?;
    // Else this process would keep the connection open.
    drop(child);
    started.wait().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Shutdown;

    #[test]
    fn programs_are_reached_by_ports() {
        let service = |name: &str, command: &str| Service { name: name.into(), command: command.into() };
        let services =
            Services::start(&[service("sink", "wc -c"), service("source", "head -c 5 /dev/zero")]).expect("two");
        let ports: Vec<&str> = services.words().leak().split(' ').collect();
        let ask = |name: &str, sent: &[u8]| {
            let port = ports.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).expect("its word");
            let mut stream =
                TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().expect("a port"))).expect("a service");
            stream.write_all(sent).expect("sent");
            stream.shutdown(Shutdown::Write).expect("no more");
            let mut got = Vec::new();
            stream.read_to_end(&mut got).expect("an answer");
            got
        };
        assert_eq!(ask("sink", &[1; 1000]), b"1000\n");
        assert_eq!(ask("source", &[]), [0; 5]);
        assert_eq!(ask("sink", &[]), b"0\n", "one after the other");
        let at = services.running[0].1;
        drop(services);
        let mut rest = [0];
        assert!(TcpStream::connect(at).and_then(|mut stream| stream.read(&mut rest)).unwrap_or(0) == 0, "it is over");
    }
}
