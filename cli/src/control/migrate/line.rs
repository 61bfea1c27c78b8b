//! The line between both sides, its messages, and what can go wrong.

use crate::control::ControlError;
use crate::host::place::IoError;
use abi::control::frame::{Bad, Reader, decode, encode};
use abi::control::save::Pages;
use abi::snapshot::bytes::Bytes;
use miette::Diagnostic;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The longest message, in bytes of a frame: a state.
const MOST_BYTES: usize = 1 << 20;
/// The time limit for the other side to read, or to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The reason why a VM does not move.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum MigrateError {
    /// The run does not do what it is asked.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Control(#[from] ControlError),
    /// The other side cannot be reached.
    #[error("cannot reach {address}: {source}")]
    #[diagnostic(help("start the other side first: gnomon run --incoming {address}"))]
    Unreachable {
        /// The place at which it should be.
        address: Address,
        /// The operating system's error.
        source: io::Error,
    },
    /// The place to wait at cannot be used.
    #[error("cannot wait for a VM at {address}: {source}")]
    #[diagnostic(help("name a file that does not exist yet (unix:PATH), or a free port (tcp:HOST:PORT)"))]
    NoPlace {
        /// The place.
        address: Address,
        /// The operating system's error.
        source: io::Error,
    },
    /// The line is broken.
    #[error("the line to the other side is broken: {0}")]
    #[diagnostic(help("the VM goes on where it was; see the messages of the other side"))]
    Broken(io::Error),
    /// The other side does not speak the protocol.
    #[error("the other side does not speak this program's protocol: {0}")]
    #[diagnostic(help("use the same version of gnomon on both sides"))]
    Nonsense(&'static str),
    /// The other side cannot take the VM.
    #[error("the other side refuses the VM: {0}")]
    #[diagnostic(help("the VM goes on where it was"))]
    Refused(String),
    /// The line broke when the VM was given away.
    #[error("the VM was given to the other side, which does not say whether it goes on there: {0}")]
    #[diagnostic(help(
        "look there (gnomon ps). If it runs there, end it here (gnomon destroy); if not, let it go on here (gnomon resume). Never both"
    ))]
    Unknown(String),
    /// The other side cannot have a disk that the VM writes to.
    #[error("VM `{vm}` writes to {}, which cannot go to another run: {why}", file.display())]
    #[diagnostic(help("take a snapshot with --stop, and continue from that with the same disk (docs/snapshots.md)"))]
    Disk {
        /// The VM.
        vm: String,
        /// The disk's file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// A file cannot be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
}

/// The place of the other side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A socket of this machine.
    Unix(PathBuf),
    /// A host and a port.
    Tcp(String),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", host)) if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                Ok(Self::Tcp(host.into()))
            }
            _ => Err("it is unix:PATH or tcp:HOST:PORT".into()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host) => write!(f, "tcp:{host}"),
        }
    }
}

/// Messages to the receiver.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Sent {
    /// An early state of the VM, from which the receiver makes it: an [`abi::snapshot::State`]. And of each disk that the VM writes to, the
    /// file's device and inode.
    Hello(Bytes, Vec<(u64, u64)>),
    /// Pages of RAM.
    Pages(Pages),
    /// Pages that are zero: the first one, and the one behind the last.
    Zero(u64, u64),
    /// Asks for [`Reply::Synced`], when all before is done.
    Sync,
    /// The VM's state; asks for [`Reply::Checked`].
    State(Bytes),
    /// The VM is the receiver's.
    Commit,
}

/// Messages to the sender.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The VM is made, and pages may come.
    Ready,
    /// All is done so far.
    Synced,
    /// Nothing is missing: the VM can go on there.
    Checked,
    /// The VM goes on there.
    Started,
    /// The VM cannot go on there, for that reason.
    Refused(String),
}

trait Stream: Read + Write + Send {
    fn set_patience(&self, time: Duration) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn set_patience(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Stream for TcpStream {
    fn set_patience(&self, time: Duration) -> io::Result<()> {
        self.set_nodelay(true)?;
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// A line between both sides, whose messages are those of the control channel: numbered, with a checksum.
pub struct Line {
    stream: Box<dyn Stream>,
    /// True if both sides are on one computer, and so see the same files.
    pub(super) is_local: bool,
    reader: Reader,
    rest: Vec<u8>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl Line {
    fn of(stream: Box<dyn Stream>, is_local: bool) -> Self {
        Self { stream, is_local, reader: Reader::new(MOST_BYTES), rest: Vec::new() }
    }

    /// Connects to a receiver.
    ///
    /// # Errors
    /// [`MigrateError::Unreachable`].
    pub fn to(address: &Address) -> Result<Self, MigrateError> {
        let stream: io::Result<Box<dyn Stream>> = match address {
            Address::Unix(path) => UnixStream::connect(path).map(|stream| Box::new(stream) as _),
            Address::Tcp(host) => TcpStream::connect(host).map(|stream| Box::new(stream) as _),
        };
        let is_local = matches!(address, Address::Unix(_));
        stream
            .map(|stream| Self::of(stream, is_local))
            .map_err(|source| MigrateError::Unreachable { address: address.clone(), source })
    }

    pub(super) fn put<T: Serialize>(&mut self, message: &T) -> Result<(), MigrateError> {
        self.stream.set_patience(PATIENCE).map_err(MigrateError::Broken)?;
        self.stream.write_all(&encode(0, message)).map_err(MigrateError::Broken)
    }

    /// The next message, if it comes in time.
    pub(super) fn get<T: DeserializeOwned>(&mut self, time: Duration) -> Result<T, MigrateError> {
        let until = Instant::now() + time;
        let mut buffer = [0; 64 << 10];
        loop {
            let mut rest = self.rest.as_slice();
            if let Some(frame) = self.reader.next(&mut rest) {
                let message = frame.and_then(|frame| decode::<T>(&frame));
                self.rest = rest.to_vec();
                return message.map(|(_, message)| message).map_err(|why| {
                    MigrateError::Nonsense(match why {
                        Bad::Version { .. } => "its version is another one",
                        Bad::TooLong | Bad::Garbled | Bad::Malformed { .. } => "a message is damaged",
                    })
                });
            }
            self.rest.clear();
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.stream.set_patience(left).map_err(MigrateError::Broken)?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(MigrateError::Broken(ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.rest.extend_from_slice(&buffer[..count]),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(MigrateError::Broken(why)),
            }
        }
    }

    /// Waits for that reply.
    pub(super) fn expect(&mut self, reply: &Reply, time: Duration) -> Result<(), MigrateError> {
        match self.get::<Reply>(time)? {
            found if found == *reply => Ok(()),
            Reply::Refused(why) => Err(MigrateError::Refused(crate::host::words::shown(&why))),
            _ => Err(MigrateError::Nonsense("a reply is none that can come now")),
        }
    }
}

/// A place at which a sender is awaited. A socket of this machine is the user's alone, and goes with this.
pub(super) enum Place {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Place {
    /// Opens it. A socket at which no process listens any more is replaced.
    pub(super) fn open(address: &Address) -> Result<Self, MigrateError> {
        let place = match address {
            Address::Unix(path) => {
                let is_left = |why: &io::Error| {
                    why.kind() == ErrorKind::AddrInUse
                        && UnixStream::connect(path).is_err_and(|why| why.kind() == ErrorKind::ConnectionRefused)
                };
                let bound = match bind(path) {
                    Err(why) if is_left(&why) => std::fs::remove_file(path).and_then(|()| bind(path)),
                    bound => bound,
                };
                bound.map(|listener| Self::Unix(listener, path.clone()))
            }
            Address::Tcp(host) => TcpListener::bind(host).map(Self::Tcp),
        };
        place.map_err(|source| MigrateError::NoPlace { address: address.clone(), source })
    }

    /// Waits for the next one that connects.
    pub(super) fn accept(&self) -> io::Result<Line> {
        Ok(match self {
            Self::Unix(listener, _) => Line::of(Box::new(listener.accept()?.0), true),
            Self::Tcp(listener) => Line::of(Box::new(listener.accept()?.0), false),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket to which only the user may connect, from the first moment on.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    listener
}
