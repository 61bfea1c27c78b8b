//! Sockets for programs that this process starts.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

/// The pause between two looks for a connection.
const PAUSE: Duration = Duration::from_millis(20);

/// A listening socket in a directory of its own (mode 0700).
///
/// Its path leads through `/proc`, so that it is short and has no characters that other programs interpret, whatever the place for scratch
/// files is called.
#[derive(Debug)]
pub struct PrivateSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Keeps the path valid.
    _open: File,
    _dir: TempDir,
}

impl PrivateSocket {
    /// Makes one.
    ///
    /// # Errors
    /// If the place for scratch files cannot be written.
    pub fn listen() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let open = File::open(dir.path())?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}/socket", std::process::id(), open.as_raw_fd()));
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path, _open: open, _dir: dir })
    }

    /// Returns the path by which other processes connect as long as this value lives.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Waits for a connection until `is_over` returns true.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`], or the system's error.
    pub fn accept(&self, mut is_over: impl FnMut() -> bool) -> Result<UnixStream> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return Ok(stream);
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock && !is_over() => sleep(PAUSE),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Err(Error::from(ErrorKind::TimedOut)),
                Err(why) => return Err(why),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_program_connects_by_the_path() {
        let socket = PrivateSocket::listen().expect("a socket");
        assert!(socket.path().to_str().is_some_and(|path| path.len() < 60 && !path.contains([':', ' ', ','])));
        let none = socket.accept(|| true).expect_err("no connection");
        assert_eq!(none.kind(), ErrorKind::TimedOut);
        let mut client = UnixStream::connect(socket.path()).expect("a connection");
        client.write_all(b"hello").and_then(|()| client.shutdown(std::net::Shutdown::Both)).expect("said");
        let mut said = String::new();
        let mut stream = socket.accept(|| false).expect("the client");
        stream.read_to_string(&mut said).expect("text");
        assert_eq!(said, "hello");
    }
}
