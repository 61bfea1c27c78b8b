//! The sessions of a VM's agent ([`abi::agent`]): programs in the guest, for several commands at once, by one guest port.
//!
//! ```text
//!  gnomon shell ─┐ frames, each session       frames of all sessions
//!  gnomon cp ────┼─► thread ──► link ────────► port (ports::serve) ─► agent
//!                └◄─ thread ◄── queue ◄─ thread ◄─
//! ```
//!
//! The link is open while there are commands, and some time longer, so that a guest without commands is not polled. The
//! agent is not trusted: frames that are damaged, unknown or of no session are dropped, and a session whose frames pile
//! up beyond the window ends.

use super::ports;
use abi::agent::{self, Ask, MOST_SESSIONS, Open, Tell, WINDOW};
use abi::control::Answer;
use abi::control::frame::Bad;
use abi::control::port::{Heard, Wish};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The time for which a link without sessions stays open, and after which a hello without an answer is repeated.
const LINGER: Duration = Duration::from_secs(1);
/// The time after which a link is closed whose agent reads nothing, although it is sent more than is kept for it.
const MOST_STALLED: Duration = Duration::from_secs(60);
/// Most bytes of frames that wait for a command. Frames of one byte of output each take some twenty.
const MOST_WAITING: usize = 2 * WINDOW as usize * 24;

/// The connection to the agent.
#[derive(Debug)]
struct Link {
    /// Writers take turns, frame by frame.
    writer: Arc<Mutex<UnixStream>>,
    /// For the end.
    stream: UnixStream,
    /// The number of its hello.
    hello: u64,
    is_ready: bool,
}

/// A session, as the thread knows it that reads the link.
#[derive(Debug)]
struct Session {
    /// Frames for the command.
    frames: Sender<Vec<u8>>,
    /// Bytes of those.
    waiting: Arc<AtomicUsize>,
    client: UnixStream,
}

#[derive(Debug, Default)]
struct State {
    link: Option<Link>,
    sessions: BTreeMap<u32, Session>,
    /// The number of the last session, or hello.
    last: u32,
}

/// The sessions of one VM.
struct Sessions {
    state: Mutex<State>,
    /// Held while a link is served: the port has one connection at a time.
    turn: Mutex<()>,
    ask: Box<dyn Fn(Wish) -> Option<Answer> + Send + Sync>,
    /// Returns the number of the next connection to the port.
    next_connection: Box<dyn Fn() -> u32 + Send + Sync>,
}

/// Serves the commands that connect to a VM's agent, in threads of their own.
pub(super) fn serve(
    listener: UnixListener,
    ask: impl Fn(Wish) -> Option<Answer> + Send + Sync + 'static,
    next_connection: impl Fn() -> u32 + Send + Sync + 'static,
) {
    let (state, turn) = (Mutex::default(), Mutex::default());
    let all = Arc::new(Sessions { state, turn, ask: Box::new(ask), next_connection: Box::new(next_connection) });
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let all = Arc::clone(&all);
            thread::spawn(move || all.serve_client(client));
        }
    });
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a command until it has gone, or its session is over.
    fn serve_client(self: &Arc<Self>, client: UnixStream) {
        let (Ok(reader), Ok(writer)) = (client.try_clone(), client.try_clone()) else { return };
        let (number, link, frames, waiting) = match self.attach(&client) {
            Ok(Some(parts)) => parts,
            Ok(None) => {
                return refuse(&client, format!("{MOST_SESSIONS} commands are connected to it, which is the limit"));
            }
            Err(why) => return refuse(&client, format!("the run cannot open a connection to its agent: {why}")),
        };
        thread::spawn(move || write_frames(writer, &frames, &waiting));
        let is_open = pass_on(reader, number, &link);
        self.lock().sessions.remove(&number);
        if is_open {
            let _ = send(&link, number, &Ask::Hangup);
        }
        // Wakes its reader.
        let _ = client.shutdown(Shutdown::Both);
    }

    /// Gives a command a session, and opens the link if there is none. Returns `None` if there are as many sessions as
    /// can be.
    #[expect(clippy::type_complexity, reason = "the parts go to different threads")]
    fn attach(
        self: &Arc<Self>,
        client: &UnixStream,
    ) -> io::Result<Option<(u32, Arc<Mutex<UnixStream>>, Receiver<Vec<u8>>, Arc<AtomicUsize>)>> {
        let mut state = self.lock();
        if state.sessions.len() >= MOST_SESSIONS {
            return Ok(None);
        }
        state.last = state.last.wrapping_add(1).max(1);
        let number = state.last;
        let (frames, receiver) = channel();
        let waiting = Arc::<AtomicUsize>::default();
        let session = Session { frames, waiting: Arc::clone(&waiting), client: client.try_clone()? };
        let link = match state.link.take() {
            None => self.open(u64::from(std::process::id()) << 32 | u64::from(number))?,
            Some(link) => link,
        };
        if link.is_ready {
            session.push(agent::encode(0, &Tell::Hello(0)));
        }
        let writer = Arc::clone(&link.writer);
        state.link = Some(link);
        state.sessions.insert(number, session);
        Ok(Some((number, writer, receiver, waiting)))
    }

    /// Opens a link, and starts the threads that serve it.
    fn open(self: &Arc<Self>, hello: u64) -> io::Result<Link> {
        let (own, other) = UnixStream::pair()?;
        let (reader, stream) = (own.try_clone()?, own.try_clone()?);
        reader.set_read_timeout(Some(LINGER))?;
        own.set_write_timeout(Some(MOST_STALLED))?;
        let writer = Arc::new(Mutex::new(own));
        let _ = send(&writer, 0, &Ask::Hello(hello));
        let (all, port) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || {
            // The one before may still deliver its last bytes.
            let _turn = port.turn.lock().unwrap_or_else(PoisonError::into_inner);
            let was_open = Cell::new(false);
            ports::serve(other, (port.next_connection)(), &|wish| {
                let answer = (port.ask)(wish);
                // An agent that has ended takes its programs with it, and says nothing.
                match answer {
                    Some(Answer::Heard(Heard { is_open: false, .. })) if was_open.get() => None,
                    Some(Answer::Heard(Heard { is_open: true, .. })) => {
                        was_open.set(true);
                        answer
                    }
                    answer => answer,
                }
            });
        });
        thread::spawn(move || {
            all.read_link(reader, hello);
            let mut state = all.lock();
            // There may be another one by now.
            if state.link.as_ref().is_some_and(|link| link.hello == hello) {
                state.close();
            }
        });
        Ok(Link { writer, stream, hello, is_ready: false })
    }

    /// Passes the agent's frames on, until the port is closed or no command has needed it for a while.
    fn read_link(&self, mut link: UnixStream, hello: u64) {
        let mut reader = agent::reader();
        let mut buffer = [0; 8 << 10];
        let mut was_idle = false;
        loop {
            match link.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    let mut rest = &buffer[..count];
                    while let Some(frame) = reader.next(&mut rest) {
                        let said = frame.and_then(|frame| agent::decode::<Tell>(&frame));
                        self.lock().hear(said);
                    }
                }
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    let mut state = self.lock();
                    let is_idle = state.sessions.is_empty();
                    if is_idle && was_idle {
                        state.close();
                        return;
                    }
                    was_idle = is_idle;
                    let asks = state.link.as_ref().filter(|link| !link.is_ready).map(|link| Arc::clone(&link.writer));
                    drop(state);
                    // A guest that reboots loses what it was sent.
                    if let Some(writer) = asks.filter(|_| !is_idle) {
                        repeat_hello(&writer, hello);
                    }
                }
                Err(_) => return,
            }
        }
    }
}

impl State {
    /// Handles what the agent says.
    fn hear(&mut self, said: Result<(u32, Tell), Bad>) {
        let Some(link) = &mut self.link else { return };
        match said {
            Ok((_, Tell::Hello(hello))) if hello == link.hello => {
                if !link.is_ready {
                    link.is_ready = true;
                    let ready = agent::encode(0, &Tell::Hello(hello));
                    self.sessions.retain(|_, session| session.push(ready.clone()));
                }
            }
            // An agent that has started over knows no session.
            Ok((_, Tell::Hello(_))) if link.is_ready => self.close(),
            Ok((_, Tell::Hello(_))) => {}
            Ok((number, tell)) => {
                let Some(session) = self.sessions.get(&number) else { return };
                if !session.push(agent::encode(0, &tell)) {
                    self.sessions.remove(&number);
                }
            }
            // Commands find the version in the frame.
            Err(Bad::Version { version, .. }) => {
                let frame = abi::control::frame::encode_as(version, 0, &Tell::Hello(0));
                self.sessions.retain(|_, session| session.push(frame.clone()));
            }
            Err(Bad::TooLong | Bad::Garbled | Bad::Malformed { .. }) => {}
        }
    }

    /// Closes the link, and ends all sessions.
    fn close(&mut self) {
        if let Some(link) = self.link.take() {
            let _ = link.stream.shutdown(Shutdown::Both);
        }
        std::mem::take(&mut self.sessions).into_values().for_each(|session| session.end());
    }
}

impl Session {
    /// Queues a frame for the command. Returns false, and ends the session, if too many bytes wait.
    fn push(&self, frame: Vec<u8>) -> bool {
        if self.waiting.load(Ordering::SeqCst) + frame.len() > MOST_WAITING {
            self.end();
            return false;
        }
        self.waiting.fetch_add(frame.len(), Ordering::SeqCst);
        // A command that has gone hears nothing.
        let _ = self.frames.send(frame);
        true
    }

    fn end(&self) {
        let _ = self.client.shutdown(Shutdown::Read);
    }
}

/// Tells a command that it gets no session.
fn refuse(mut client: &UnixStream, why: String) {
    let _ = client.write_all(&agent::encode(0, &Tell::Refused(why)));
}

/// Writes a session's frames to its command, until the session is removed.
fn write_frames(mut client: UnixStream, frames: &Receiver<Vec<u8>>, waiting: &AtomicUsize) {
    for frame in frames {
        if client.write_all(&frame).is_err() {
            break;
        }
        waiting.fetch_sub(frame.len(), Ordering::SeqCst);
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// Sends a message to the agent. Closes the link if that fails, for two reasons: a part of a frame may have been sent, and
/// other sessions wait for their turn and do not notice meanwhile that their commands have gone.
fn send(link: &Mutex<UnixStream>, session: u32, ask: &Ask) -> io::Result<()> {
    let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
    let sent = link.write_all(&agent::encode(session, ask));
    if sent.is_err() {
        // Its reader ends all sessions.
        let _ = link.shutdown(Shutdown::Both);
    }
    sent
}

/// Repeats a hello, if there is room for it at once: a guest that takes long to boot has no agent, and is not cut off.
fn repeat_hello(link: &Mutex<UnixStream>, hello: u64) {
    let Ok(mut link) = link.try_lock() else { return };
    let mut polled = [PollFd::new(&*link, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::OUT) {
        // The reader notices a link that is closed.
        let _ = link.write_all(&agent::encode(0, &Ask::Hello(hello)));
    }
}

/// Passes a command's frames to the agent, as frames of its session. Returns false if the agent cannot be reached.
fn pass_on(mut client: UnixStream, number: u32, link: &Mutex<UnixStream>) -> bool {
    let mut reader = agent::reader();
    let mut buffer = [0; 8 << 10];
    loop {
        let count = match client.read(&mut buffer) {
            Ok(0) => return true,
            Ok(count) => count,
            Err(why) if why.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return true,
        };
        let mut rest = &buffer[..count];
        while let Some(frame) = reader.next(&mut rest) {
            let ask = match frame.and_then(|frame| agent::decode::<Ask>(&frame)) {
                // It is the link's.
                Ok((_, Ask::Hello(_))) => continue,
                Ok((_, ask)) => ask,
                Err(_) => return true,
            };
            if matches!(&ask, Ask::Open(open) if !Open::is_sound(open)) {
                return true;
            }
            if send(link, number, &ask).is_err() {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> (Session, UnixStream, Receiver<Vec<u8>>) {
        let (client, command) = UnixStream::pair().expect("sockets");
        let (frames, receiver) = channel();
        (Session { frames, waiting: Arc::default(), client }, command, receiver)
    }

    #[test]
    fn frames_of_another_version_are_bounded_too() {
        let (own, _agent) = UnixStream::pair().expect("sockets");
        let stream = own.try_clone().expect("a socket");
        let link = Link { writer: Arc::new(Mutex::new(own)), stream, hello: 1, is_ready: true };
        let (session, _command, frames) = session();
        let mut client = session.client.try_clone().expect("a socket");
        let mut state = State { link: Some(link), sessions: BTreeMap::from([(1, session)]), last: 1 };
        let said = || Err(Bad::Version { version: 2, number: 0 });
        let count = (0..=MOST_WAITING).find(|_| {
            state.hear(said());
            state.sessions.is_empty()
        });
        assert!(count.is_some());
        assert!(frames.iter().map(|frame| frame.len()).sum::<usize>() <= MOST_WAITING);
        // The thread that reads the command ends.
        assert_eq!(client.read(&mut [0]).expect("an end"), 0);
    }

    #[test]
    fn a_link_that_is_not_read_is_closed() {
        let (own, mut agent) = UnixStream::pair().expect("sockets");
        own.set_write_timeout(Some(Duration::from_millis(20))).expect("a time limit");
        let link = Mutex::new(own);
        let mut sent = 0;
        while send(&link, 1, &Ask::EndInput).is_ok() {
            sent += 1;
        }
        assert!(sent > 0);
        repeat_hello(&link, 1);
        // The end comes behind what was sent.
        let mut received = Vec::new();
        agent.read_to_end(&mut received).expect("the end");
        assert!(received.len() >= sent * agent::encode(1, &Ask::EndInput).len());
    }

    #[test]
    fn a_hello_is_not_repeated_without_room() {
        let (own, _agent) = UnixStream::pair().expect("sockets");
        let link = Mutex::new(own);
        // More than a socket keeps: it would wait for ever.
        (0..100_000).for_each(|hello| repeat_hello(&link, hello));
    }
}
