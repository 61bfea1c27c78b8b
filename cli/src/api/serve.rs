//! Clients of the API: one at standard input and output, or several at a socket.
//!
//! ```text
//!  client ──► reader: a thread for each client ──► a thread for each request ──┐
//!     ▲                                                                        │
//!     └──────────────────────── output, one line at a time ◄───────────────────┘
//! ```
//!
//! Memory is bounded: a client has at most [`MOST_PENDING`] requests at a time, each has at most one line that waits to be written, and no
//! further line is read until there is room.

use super::call::Caller;
use super::failure::{ApiError, Code, Failure};
use super::limits::{MOST_CLIENTS, MOST_LONG, MOST_PENDING};
use super::methods::Call;
use super::wire::{Greeting, Id, Line, Lines, parse};
use crate::host::place::IoError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A request that is not answered yet.
#[derive(Debug)]
struct Pending {
    is_cancelled: Arc<AtomicBool>,
    is_long: bool,
}

/// A client.
#[derive(Debug)]
struct Client {
    output: Mutex<File>,
    /// Another descriptor of the output, for looks at its other end while a thread writes.
    other_end: OwnedFd,
    /// The client does not read any more.
    is_closed: AtomicBool,
    /// The reason for that.
    error: Mutex<Option<std::io::Error>>,
    requests: Mutex<Requests>,
    /// A request was answered.
    answered: Condvar,
}

/// The requests of a client.
#[derive(Debug, Default)]
struct Requests {
    /// Those that have no reply yet.
    pending: BTreeMap<Id, Pending>,
    /// Those whose reply is not sent yet: these, and those whose reply waits until the client reads.
    count: usize,
}

/// Polls a descriptor without waiting.
fn look(end: &impl AsFd, wanted: PollFlags) -> PollFlags {
    let mut polled = [PollFd::new(end, wanted)];
    let _ = poll(&mut polled, Some(&Timespec::default()));
    polled[0].revents()
}

/// Returns whether the reader of a pipe or a socket is gone.
pub fn is_unread(end: &impl AsFd) -> bool {
    look(end, PollFlags::empty()).intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}

impl Client {
    fn new(output: OwnedFd) -> std::io::Result<Self> {
        Ok(Self {
            other_end: output.try_clone()?,
            output: Mutex::new(output.into()),
            is_closed: AtomicBool::new(false),
            error: Mutex::default(),
            requests: Mutex::default(),
            answered: Condvar::new(),
        })
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a line. Blocks while the client does not read. Returns false if the client is gone.
    fn send(&self, line: &Line) -> bool {
        self.write(self.output.lock().unwrap_or_else(PoisonError::into_inner), line)
    }

    fn write(&self, mut output: MutexGuard<'_, File>, line: &Line) -> bool {
        // A line after one that was torn would be read as its end.
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let written = output.write_all(&line.bytes());
        let is_written = written.is_ok();
        if let Err(why) = written {
            self.is_closed.store(true, Ordering::Relaxed);
            *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        }
        is_written
    }

    /// Sends a line unless that would block.
    fn send_at_once(&self, line: &Line) {
        if let Ok(output) = self.output.try_lock()
            && look(&self.other_end, PollFlags::OUT).contains(PollFlags::OUT)
        {
            let _ = self.write(output, line);
        }
    }

    fn is_gone(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed) || is_unread(&self.other_end)
    }

    fn fail(&self, id: Option<Id>, why: ApiError) {
        self.send(&Line::Error { id, error: why.into() });
    }

    /// Adds a request. Waits until there is room for it, so no further line is read meanwhile.
    fn admit(&self, id: &Id, pending: Pending) -> Result<(), ApiError> {
        let is_full = |requests: &mut Requests| requests.count >= MOST_PENDING;
        let mut requests = self.answered.wait_while(self.requests(), is_full).unwrap_or_else(PoisonError::into_inner);
        if requests.pending.contains_key(id) {
            return Err(ApiError::IdInUse);
        }
        let long = requests.pending.values().filter(|other| other.is_long).count();
        if pending.is_long && long >= MOST_LONG {
            return Err(ApiError::TooMany);
        }
        requests.pending.insert(id.clone(), pending);
        requests.count += 1;
        Ok(())
    }

    /// Handles a line: `None` if it was too long.
    fn line(self: &Arc<Self>, line: Option<&[u8]>) {
        let Some(line) = line else { return self.fail(None, ApiError::TooLong) };
        let request = match parse(line) {
            Ok(request) => request,
            Err((id, why)) => return self.fail(id, why),
        };
        let id = request.id.clone();
        let call = match Call::read(request) {
            Ok(call) => call,
            Err(why) => return self.fail(Some(id), why),
        };
        let is_cancelled = Arc::new(AtomicBool::new(false));
        match self.admit(&id, Pending { is_cancelled: Arc::clone(&is_cancelled), is_long: call.is_long() }) {
            Ok(()) => {}
            Err(why) => return self.fail(Some(id), why),
        }
        let work = Work { client: Arc::clone(self), id: id.clone(), is_cancelled };
        let place = Place(Arc::clone(self));
        let worker = move || {
            let line = match call.carry_out(&work) {
                Ok(result) => Line::Result { id: work.id.clone(), result },
                Err(why) => Line::Error { id: Some(work.id.clone()), error: (&why).into() },
            };
            // The client may use the `id` again when it reads the reply.
            work.client.requests().pending.remove(&work.id);
            work.client.send(&line);
            drop(place);
        };
        if let Err(why) = thread::Builder::new().spawn(worker) {
            self.requests().pending.remove(&id);
            let message = format!("there is no thread for this request: {why}");
            let error = Failure { code: Code::Busy, message, remedy: Some("send it again later".into()) };
            self.send(&Line::Error { id: Some(id), error });
        }
    }

    /// Serves the client until its input has ended and all of its requests are answered.
    fn serve(self: &Arc<Self>, mut input: impl Read) {
        self.send(&Line::Greeting(Greeting::default()));
        let (mut lines, mut buffer) = (Lines::default(), vec![0; 16 << 10]);
        while !self.is_closed.load(Ordering::Relaxed) {
            match input.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => lines.push(&buffer[..count], |line| self.line(line)),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        lines.finish(|line| self.line(line));
        drop(self.answered.wait_while(self.requests(), |requests| requests.count > 0));
    }
}

/// The place of a request among those of its client. It is free when this is dropped.
struct Place(Arc<Client>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.requests().count -= 1;
        self.0.answered.notify_all();
    }
}

/// A request that is carried out.
struct Work {
    client: Arc<Client>,
    id: Id,
    is_cancelled: Arc<AtomicBool>,
}

impl Work {
    fn notification(&self, notification: Value) -> Line {
        Line::Notification { id: self.id.clone(), notification }
    }
}

impl Caller<Value> for Work {
    fn notify(&self, notice: Value) -> bool {
        !self.is_cancelled.load(Ordering::Relaxed) && self.client.send(&self.notification(notice))
    }

    fn hint(&self, notice: Value) {
        self.client.send_at_once(&self.notification(notice));
    }

    fn cancel(&self, request: &Id) -> bool {
        let requests = self.client.requests();
        let other = requests.pending.get(request).filter(|_| *request != self.id);
        other.inspect(|other| other.is_cancelled.store(true, Ordering::Relaxed)).is_some()
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed) || self.client.is_gone()
    }
}

/// Serves the client at standard input and output, until its input has ended and all of its requests are answered.
///
/// # Errors
/// If standard output cannot be used. A reader that has closed the pipe is not an error.
pub fn serve_input() -> miette::Result<()> {
    let output = std::io::stdout().as_fd().try_clone_to_owned().and_then(Client::new);
    let client = Arc::new(output.map_err(IoError::at("use", "/dev/stdout"))?);
    client.serve(std::io::stdin().lock());
    let error = client.error.lock().unwrap_or_else(PoisonError::into_inner).take();
    match error {
        Some(why) if why.kind() != ErrorKind::BrokenPipe => Err(IoError::at("write", "/dev/stdout")(why).into()),
        _ => Ok(()),
    }
}

/// A listening socket of this process, as a file. It is removed when this is dropped, unless it is another one by then.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.id);
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes a socket for this user alone. A file that exists is not replaced.
fn bind(path: &Path) -> Result<(UnixListener, SocketFile), ApiError> {
    let failed = |why: std::io::Error| {
        let why = match why.kind() {
            ErrorKind::AddrInUse => "a file of that name exists".into(),
            ErrorKind::InvalidInput => "a socket's path has at most 107 bytes".into(),
            _ => why.to_string(),
        };
        ApiError::Listen { path: path.into(), why }
    };
    // The file has these rights from the beginning. No other thread makes files yet.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound.map_err(failed)?;
    let file = fs::symlink_metadata(path).map_err(failed)?;
    Ok((listener, SocketFile { path: path.into(), id: (file.dev(), file.ino()) }))
}

/// Serves clients at a socket until a signal ends this process. Removes the socket then.
///
/// # Errors
/// [`ApiError::Listen`].
pub fn serve_socket(path: &Path) -> miette::Result<u8> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|why| ApiError::Listen { path: path.into(), why: why.to_string() })?;
    let (listener, file) = bind(path)?;
    thread::spawn(move || accept(&listener));
    let signal = signals.forever().next();
    drop(file);
    Ok(signal.map_or(0, crate::host::tty::signal_status))
}

fn accept(listener: &UnixListener) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        // For example, there are too many files: another client may close some.
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        if clients.fetch_add(1, Ordering::SeqCst) >= MOST_CLIENTS {
            let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
            let _ = (&stream).write_all(&Line::Error { id: None, error: ApiError::Busy.into() }.bytes());
            clients.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let count = Arc::clone(&clients);
        let serve = move || {
            let _ = serve_stream(stream);
            count.fetch_sub(1, Ordering::SeqCst);
        };
        if thread::Builder::new().spawn(serve).is_err() {
            clients.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn serve_stream(stream: UnixStream) -> std::io::Result<()> {
    let client = Client::new(stream.try_clone()?.into())?;
    Arc::new(client).serve(stream);
    Ok(())
}
