//! A command's side of a session: a program in a guest, and its streams ([`abi::agent`]).
//!
//! The agent is not trusted. Its frames are bounded, output beyond the window ends the session, and what it says to the
//! user loses its control characters.

use super::ControlError;
use super::runs::Runs;
use crate::host::words::shown;
use abi::agent::{self, Ask, End, Open, PIECE, Stream, Tell, WINDOW};
use abi::control::frame::{Bad, Reader};
use abi::snapshot::bytes::Bytes;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Most characters of a reason that an agent gives.
const MOST_REASON: usize = 300;

/// The way to the agent, which threads share.
#[derive(Clone, Debug)]
pub struct Way(Arc<Mutex<UnixStream>>);

impl Way {
    /// Sends a message. A session that has ended is noticed by its reader.
    pub fn send(&self, ask: &Ask) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&agent::encode(0, ask));
    }
}

impl Way {
    /// Ends the session, and its program.
    pub fn hang_up(&self) {
        // The run tells the agent.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both);
    }
}

/// Bytes of input that may be sent.
#[derive(Debug)]
struct Room {
    bytes: Mutex<u32>,
    grows: Condvar,
}

impl Room {
    /// Waits until there is some, and returns it.
    fn wait(&self) -> usize {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *self.grows.wait_while(bytes, |bytes| *bytes == 0).unwrap_or_else(PoisonError::into_inner) as usize
    }

    fn change(&self, to: impl FnOnce(u32) -> u32) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *bytes = to(*bytes).min(WINDOW);
        self.grows.notify_all();
    }
}

/// The end of a session.
#[derive(Debug)]
pub struct Outcome {
    /// The end of the program.
    pub end: End,
    /// The error by which output was lost, if its reader has not just gone.
    pub lost: Option<io::Error>,
}

/// A session whose program has not started.
#[derive(Debug)]
pub struct Session {
    vm: String,
    run: String,
    stream: UnixStream,
    reader: Reader,
    /// Received bytes that were not decoded yet.
    rest: Vec<u8>,
    way: Way,
}

impl Session {
    /// Connects to the agent of a VM, which has to answer within a time limit.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn connect((run, vm): (&str, &str), limit: Duration) -> Result<Self, ControlError> {
        let stream = Runs::open()?.connect_shell(run, vm)?;
        Self::new((run, vm), stream, limit)
    }

    /// Makes a session with the agent behind a socket.
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn new((run, vm): (&str, &str), stream: UnixStream, limit: Duration) -> Result<Self, ControlError> {
        let socket = |source| ControlError::Socket { run: run.into(), source };
        let way = Way(Arc::new(Mutex::new(stream.try_clone().map_err(socket)?)));
        let (vm, run) = (vm.to_owned(), run.to_owned());
        let mut session = Self { vm, run, stream, reader: agent::reader(), rest: Vec::new(), way };
        match session.next(Some((Instant::now() + limit, limit)))? {
            Tell::Hello(_) => {}
            Tell::Refused(why) => return Err(session.refused(&why)),
            Tell::Output(..) | Tell::Room(_) | Tell::Ended(_) => return Err(ControlError::CutOff(session.vm)),
        }
        session.stream.set_read_timeout(None).map_err(|source| session.socket(source))?;
        Ok(session)
    }

    fn socket(&self, source: io::Error) -> ControlError {
        ControlError::Socket { run: self.run.clone(), source }
    }

    fn refused(&self, why: &str) -> ControlError {
        let why: String = why.chars().take(MOST_REASON).collect();
        ControlError::Unstarted { vm: self.vm.clone(), why: shown(&why).replace('\n', " ") }
    }

    /// Returns the next message, if it comes in time.
    fn next(&mut self, until: Option<(Instant, Duration)>) -> Result<Tell, ControlError> {
        let mut buffer = [0; 16 << 10];
        loop {
            let mut rest = self.rest.as_slice();
            if let Some(frame) = self.reader.next(&mut rest) {
                let told = frame.and_then(|frame| agent::decode::<Tell>(&frame));
                match told {
                    Ok((_, tell)) => {
                        self.rest = rest.to_vec();
                        return Ok(tell);
                    }
                    Err(Bad::Version { version, .. }) => {
                        return Err(ControlError::AgentVersion { vm: self.vm.clone(), theirs: version });
                    }
                    // The run passes on only what it could decode.
                    Err(_) => return Err(ControlError::CutOff(self.vm.clone())),
                }
            }
            self.rest.clear();
            if let Some((until, limit)) = until {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ControlError::NoAgent { vm: self.vm.clone(), limit });
                }
                self.stream.set_read_timeout(Some(left)).map_err(|why| self.socket(why))?;
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ControlError::CutOff(self.vm.clone())),
                Ok(count) => self.rest.extend_from_slice(&buffer[..count]),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(why) if why.kind() == ErrorKind::ConnectionReset => {
                    return Err(ControlError::CutOff(self.vm.clone()));
                }
                Err(why) => return Err(self.socket(why)),
            }
        }
    }

    /// Returns the VM's name.
    #[must_use]
    pub fn vm(&self) -> &str {
        &self.vm
    }

    /// Returns the way by which other threads send messages of the session.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way.clone()
    }

    /// Runs a program to its end, with these streams. A stream that is not read any more is closed in the guest. Each
    /// stream has a thread; that of the input may outlive the session.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn run(
        mut self,
        open: Open,
        input: impl Read + Send + 'static,
        out: impl Write + Send + 'static,
        error: impl Write + Send + 'static,
    ) -> Result<Outcome, ControlError> {
        self.way.send(&Ask::Open(open));
        let room = Arc::new(Room { bytes: Mutex::new(WINDOW), grows: Condvar::new() });
        let (way, has_room) = (self.way(), Arc::clone(&room));
        thread::spawn(move || send_input(input, &way, &has_room));
        let outputs = [Output::start(Stream::Out, out, self.way()), Output::start(Stream::Error, error, self.way())];
        let end = loop {
            match self.next(None)? {
                Tell::Output(stream, Bytes(bytes)) => {
                    if bytes.len() > PIECE || !outputs[stream as usize].take(bytes) {
                        return Err(ControlError::CutOff(self.vm));
                    }
                }
                Tell::Room(bytes) => room.change(|known| known.saturating_add(bytes)),
                Tell::Ended(End::Lost) => return Err(ControlError::CutOff(self.vm)),
                Tell::Ended(end) => break end,
                Tell::Refused(why) => return Err(self.refused(&why)),
                Tell::Hello(_) => {}
            }
        };
        let lost = outputs.into_iter().filter_map(Output::finish).next();
        Ok(Outcome { end, lost })
    }
}

/// Sends input until it has ended.
fn send_input(mut input: impl Read, way: &Way, room: &Room) {
    let mut buffer = [0; PIECE];
    loop {
        let most = room.wait().min(PIECE);
        match input.read(&mut buffer[..most]) {
            Ok(count @ 1..) => {
                room.change(|known| known.saturating_sub(count as u32));
                way.send(&Ask::Input(Bytes(buffer[..count].into())));
            }
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Ok(0) => return way.send(&Ask::EndInput),
            // A part must not look like the whole.
            Err(_) => return way.hang_up(),
        }
    }
}

/// An output stream, which a thread writes.
struct Output {
    bytes: Sender<Vec<u8>>,
    /// The number of bytes that were not written yet.
    waiting: Arc<AtomicUsize>,
    thread: JoinHandle<Option<io::Error>>,
}

impl Output {
    fn start(stream: Stream, to: impl Write + Send + 'static, way: Way) -> Self {
        let (bytes, receiver) = channel();
        let waiting = Arc::<AtomicUsize>::default();
        let written = Arc::clone(&waiting);
        Self { bytes, waiting, thread: thread::spawn(move || write_output(stream, to, &way, (&receiver, &written))) }
    }

    /// Queues bytes for the thread. Returns false if more bytes wait than the window allows: the run passes on all that
    /// this command reads, so only the command can bound them.
    fn take(&self, bytes: Vec<u8>) -> bool {
        let count = bytes.len();
        let waiting = self.waiting.fetch_add(count, Ordering::SeqCst) + count;
        // An empty piece uses no window, and would wait without a bound.
        if count == 0 || waiting > WINDOW as usize {
            return count == 0;
        }
        if self.bytes.send(bytes).is_err() {
            // The thread could not write, and has closed the stream.
            self.waiting.fetch_sub(count, Ordering::SeqCst);
        }
        true
    }

    /// Waits until all is written. Returns the error by which it was not.
    fn finish(self) -> Option<io::Error> {
        drop(self.bytes);
        self.thread.join().ok().flatten()
    }
}

fn write_output(
    stream: Stream,
    mut to: impl Write,
    way: &Way,
    (bytes, waiting): (&Receiver<Vec<u8>>, &AtomicUsize),
) -> Option<io::Error> {
    for piece in bytes {
        if let Err(why) = to.write_all(&piece).and_then(|()| to.flush()) {
            way.send(&Ask::Close(stream));
            return Some(why).filter(|why| why.kind() != ErrorKind::BrokenPipe);
        }
        // Before the agent knows of the room.
        waiting.fetch_sub(piece.len(), Ordering::SeqCst);
        way.send(&Ask::Room(stream, piece.len() as u32));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An output that is not read until the channel of its gate is closed.
    struct Gate(Receiver<()>);

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn way() -> (Way, UnixStream) {
        let (own, agent) = UnixStream::pair().expect("sockets");
        (Way(Arc::new(Mutex::new(own))), agent)
    }

    #[test]
    fn output_that_waits_is_bounded_by_the_window() {
        let (opener, gate) = channel();
        let (way, _agent) = way();
        let output = Output::start(Stream::Out, Gate(gate), way);
        for _ in 0..WINDOW / 1024 {
            assert!(output.take(vec![0; 1024]));
        }
        assert!(output.take(Vec::new()));
        assert!(!output.take(vec![0]));
        drop(opener);
        assert!(output.finish().is_none());
    }

    #[test]
    fn written_output_makes_room() {
        let (way, agent) = way();
        let output = Output::start(Stream::Out, io::sink(), way);
        let mut agent = io::BufReader::new(agent);
        let frame = agent::encode(0, &Ask::Room(Stream::Out, PIECE as u32));
        for _ in 0..3 * WINDOW as usize / PIECE {
            assert!(output.take(vec![0; PIECE]));
            let mut said = vec![0; frame.len()];
            agent.read_exact(&mut said).expect("room");
            assert_eq!(said, frame);
        }
    }

    #[test]
    fn an_agent_that_ignores_its_window_is_cut_off() {
        let (own, mut agent) = UnixStream::pair().expect("sockets");
        let (opener, gate) = channel();
        agent.write_all(&agent::encode(0, &Tell::Hello(0))).expect("a hello");
        let session = Session::new(("run", "vm"), own, Duration::from_secs(60)).expect("a session");
        let sender = thread::spawn(move || {
            let piece = agent::encode(0, &Tell::Output(Stream::Out, Bytes(vec![0; PIECE])));
            while agent.write_all(&piece).is_ok() {}
        });
        let done = session.run(Open::default(), io::empty(), Gate(gate), io::sink());
        assert!(matches!(done, Err(ControlError::CutOff(_))), "{done:?}");
        drop(opener);
        sender.join().expect("it is cut off");
    }
}
