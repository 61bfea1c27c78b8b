//! The host side of VMs' ports: each is a socket, and a program that connects to it exchanges bytes with the guest.
//!
//! While a client is connected, the guest's output is polled 20 to 100 times a second, and without a pause while there is output.
//! Input that the guest has no room for waits in the socket, and so does output that the client does not read: neither blocks
//! other clients.

use abi::control::Answer;
use abi::control::port::{Exchange, Heard, MOST_KEPT, MOST_SENT, Wish};
use abi::snapshot::bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// The error for a machine that does not answer in time.
pub const SILENT: &str = "its machine does not answer";
/// The error for a command that connects to a run when as many are connected as there may be.
pub const CROWDED: &str = "too many commands are connected to this run";
/// The shortest and the longest pause between two polls.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(50);
/// The shortest pause between two polls while there is output, and the pause as a multiple of the machine's time to answer. The
/// machine serves ports on a hart that also runs guests, other VMs' among them.
const TURN: Duration = Duration::from_micros(200);
const TURNS: u32 = 3;
/// The pause before the next request to a VM that does not answer.
const LATER: Duration = Duration::from_millis(100);
/// The time limit for a guest to read the input of a client that has disconnected.
const LAST: Duration = Duration::from_secs(5);

/// The result of a poll of the machine.
enum Look {
    Heard(Heard),
    /// The request has to be repeated later.
    Later,
    /// The VM has ended, or the machine.
    Over,
}

/// A connected client.
struct Line<'a> {
    client: UnixStream,
    /// Asks the machine; `None` if that is gone.
    ask: &'a dyn Fn(Wish) -> Option<Answer>,
    connection: u32,
    /// Bytes from the client that the VM has not taken yet, and the position of the first of them.
    input: Vec<u8>,
    at: u64,
    /// Bytes from the guest that the client has not read yet, and the position behind them.
    output: Vec<u8>,
    from: u64,
    /// Nothing more comes of the client.
    has_ended: bool,
    /// Nor does it read.
    is_gone: bool,
}

/// Serves a connection until one side has closed it. Each connection has a number of its own.
pub(super) fn serve(client: UnixStream, connection: u32, ask: &dyn Fn(Wish) -> Option<Answer>) {
    if client.set_nonblocking(true).is_err() {
        return;
    }
    let (input, output) = (Vec::new(), Vec::new());
    let mut line = Line { client, ask, connection, input, at: 0, output, from: 0, has_ended: false, is_gone: false };
    line.follow();
    // The next connection has another number in any case.
    let _ = (line.ask)(Wish::Close(connection));
}

impl Line<'_> {
    fn follow(&mut self) {
        let (mut pause, mut last) = (SHORTEST, None);
        loop {
            self.read();
            let (before, place, asked) = (self.at, self.from, Instant::now());
            let heard = match self.exchange() {
                Look::Heard(heard) => heard,
                Look::Over => return,
                Look::Later => {
                    self.wait(LATER);
                    if self.is_gone {
                        return;
                    }
                    continue;
                }
            };
            let took = asked.elapsed();
            self.write();
            if self.has_ended && self.input.is_empty() {
                let is_heard = self.is_gone || heard.bytes.0.is_empty() && self.output.is_empty();
                if heard.waiting == 0 && is_heard {
                    return;
                }
            }
            if self.is_gone {
                // No client is left to take it.
                let since = *last.get_or_insert_with(Instant::now);
                if since.elapsed() > LAST {
                    return;
                }
            }
            if (self.at, self.from) == (before, place) {
                pause = LONGEST.min(SHORTEST.max(pause * 2));
                self.wait(pause);
            } else {
                pause = SHORTEST / 2;
                thread::sleep(LONGEST.min(TURN.max(took * TURNS)));
            }
        }
    }

    /// Says what was read, and hears what the guest says as soon as all before has been read here.
    fn exchange(&mut self) -> Look {
        let most = if self.output.is_empty() && !self.is_gone { MOST_KEPT as u32 } else { 0 };
        let bytes = Bytes(self.input[..self.input.len().min(MOST_SENT)].to_vec());
        let said = Exchange { connection: self.connection, at: self.at, bytes, from: self.from, most };
        let heard = match (self.ask)(Wish::Exchange(said)) {
            // More than was asked for is no answer.
            Some(Answer::Heard(heard)) if heard.bytes.0.len() <= most as usize => heard,
            Some(Answer::Later) => return Look::Later,
            Some(Answer::Refused(why)) if why == SILENT => return Look::Later,
            _ => return Look::Over,
        };
        let taken = usize::try_from(heard.taken.saturating_sub(self.at)).unwrap_or(usize::MAX).min(self.input.len());
        self.input.drain(..taken);
        self.at += taken as u64;
        self.from += heard.bytes.0.len() as u64;
        self.output.extend_from_slice(&heard.bytes.0);
        Look::Heard(heard)
    }

    fn read(&mut self) {
        while !self.has_ended && self.input.len() < MOST_SENT {
            let mut buffer = [0; MOST_SENT];
            let room = MOST_SENT - self.input.len();
            match self.client.read(&mut buffer[..room]) {
                Ok(0) => self.has_ended = true,
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(_) => (self.has_ended, self.is_gone) = (true, true),
            }
        }
    }

    fn write(&mut self) {
        while !self.output.is_empty() && !self.is_gone {
            match self.client.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(_) => (self.has_ended, self.is_gone) = (true, true),
            }
        }
    }

    /// Waits, but no longer than until the client says or reads something.
    fn wait(&mut self, pause: Duration) {
        if self.is_gone {
            return thread::sleep(pause);
        }
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, !self.has_ended && self.input.len() < MOST_SENT);
        wanted.set(PollFlags::OUT, !self.output.is_empty());
        let mut polled = [PollFd::new(&self.client, wanted)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
        // Whatever comes of it, the same is tried again.
        let _ = poll(&mut polled, Some(&timeout));
        // It says so of one that is gone altogether.
        self.is_gone = polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
        self.write();
    }
}
