//! A session: a program, and its streams.

use crate::spawn::{self, Started};
use crate::sys::{self, EAGAIN, EINTR, Fd, IN, OUT, PollFd, SIGHUP, SIGKILL};
use abi::agent::{Ask, End, Open, PIECE, Stream, Tell, WINDOW};
use abi::snapshot::bytes::Bytes;
use alloc::string::String;
use alloc::vec::Vec;

/// The time in which a program whose command has gone may end by itself, in milliseconds.
pub const LAST: u64 = 2000;
/// The time in which the last output of a program passes through its terminal, in milliseconds.
const DRAIN: u64 = 100;
/// The character by which a terminal ends its input.
const END_OF_FILE: u8 = 4;

/// An output stream, and the bytes that may still be sent of it.
#[derive(Debug)]
struct Output {
    from: Fd,
    stream: Stream,
    room: u32,
}

/// The place that a program's input goes to.
#[derive(Debug)]
enum Input {
    Pipe(Fd),
    /// The terminal, which is the output stream as well.
    Terminal,
    /// The program reads no more.
    Closed,
}

/// A program, and its streams.
#[derive(Debug)]
pub struct Session {
    /// Its number.
    pub number: u32,
    process: usize,
    input: Input,
    /// Input that the program has not read yet.
    pending: Vec<u8>,
    has_ended_input: bool,
    outputs: Vec<Output>,
    end: Option<End>,
    /// The time up to which output of a terminal is awaited whose program has ended.
    drains_until: Option<u64>,
    /// Set if the command has gone: the time at which the program is killed.
    hung_up: Option<u64>,
}

impl Session {
    /// Starts a program.
    ///
    /// # Errors
    /// The reason, for the user.
    pub fn start(number: u32, open: &Open) -> Result<Self, String> {
        let Started { process, input, out, error } = spawn::start(open)?;
        let output = |from, stream| Output { from, stream, room: WINDOW };
        let mut outputs = Vec::from([output(out, Stream::Out)]);
        outputs.extend(error.map(|error| output(error, Stream::Error)));
        Ok(Self {
            number,
            process,
            input: input.map_or(Input::Terminal, Input::Pipe),
            pending: Vec::new(),
            has_ended_input: false,
            outputs,
            end: None,
            drains_until: None,
            hung_up: None,
        })
    }

    const fn is_terminal(&self) -> bool {
        matches!(self.input, Input::Terminal)
    }

    /// Does what a message asks; `say` sends answers.
    pub fn ask(&mut self, ask: Ask, say: &mut impl FnMut(u32, &Tell)) {
        match ask {
            Ask::Input(Bytes(bytes)) => {
                // A sender that does not keep the window is not this protocol's.
                if self.pending.len() + bytes.len() > WINDOW as usize {
                    return self.hang_up();
                }
                self.pending.extend(bytes);
                self.pass_input(say);
            }
            Ask::EndInput => {
                self.has_ended_input = true;
                if self.is_terminal() {
                    self.pending.push(END_OF_FILE);
                }
                self.pass_input(say);
            }
            Ask::Room(stream, bytes) => {
                for output in self.outputs.iter_mut().filter(|output| output.stream == stream) {
                    output.room = output.room.saturating_add(bytes).min(WINDOW);
                }
            }
            // The program gets SIGPIPE at its next write.
            Ask::Close(stream) if !self.is_terminal() => self.outputs.retain(|output| output.stream != stream),
            Ask::Resize(size) if self.is_terminal() => {
                self.outputs.iter().for_each(|output| output.from.resize(size.lines, size.columns));
            }
            Ask::Signal(signal) if self.end.is_none() => sys::kill_group(self.process, signal),
            Ask::Hangup | Ask::Close(_) => self.hang_up(),
            Ask::Signal(_) | Ask::Resize(_) | Ask::Hello(_) | Ask::Open(_) => {}
        }
    }

    /// Ends the program: by SIGHUP, and by SIGKILL if it is there some time later.
    pub fn hang_up(&mut self) {
        if self.hung_up.is_some() {
            return;
        }
        self.hung_up = Some(sys::now() + LAST);
        if self.end.is_none() {
            sys::kill_group(self.process, SIGHUP);
        }
        self.input = Input::Closed;
        self.pending.clear();
        self.outputs.clear();
    }

    fn pass_input(&mut self, say: &mut impl FnMut(u32, &Tell)) {
        let mut passed = 0;
        while passed < self.pending.len() {
            let to = match &self.input {
                Input::Pipe(pipe) => Some(pipe),
                Input::Terminal => self.outputs.first().map(|output| &output.from),
                Input::Closed => None,
            };
            // Input that no program reads is taken, and dropped.
            let Some(to) = to else {
                passed = self.pending.len();
                break;
            };
            match to.write(&self.pending[passed..]) {
                Ok(count @ 1..) => passed += count,
                Ok(0) | Err(EAGAIN) => break,
                Err(EINTR) => {}
                Err(_) => match self.input {
                    Input::Pipe(_) => self.input = Input::Closed,
                    Input::Terminal | Input::Closed => passed = self.pending.len(),
                },
            }
        }
        self.pending.drain(..passed);
        if passed > 0 {
            say(self.number, &Tell::Room(passed as u32));
        }
        if self.has_ended_input && self.pending.is_empty() && matches!(self.input, Input::Pipe(_)) {
            self.input = Input::Closed;
        }
    }

    /// Adds the descriptors that the session waits for; `has_room` is true if output can be sent.
    pub fn wait_for(&self, has_room: bool, all: &mut Vec<PollFd>) {
        let mut add = |fd: &Fd, events| all.push(PollFd { fd: fd.raw(), events, revents: 0 });
        for output in &self.outputs {
            // A pipe without writers would end each wait at once.
            let mut events = if has_room && output.room > 0 { IN } else { 0 };
            if self.is_terminal() && !self.pending.is_empty() {
                events |= OUT;
            }
            if events != 0 {
                add(&output.from, events);
            }
        }
        if let Input::Pipe(pipe) = &self.input
            && !self.pending.is_empty()
        {
            add(pipe, OUT);
        }
    }

    /// Passes input on, and a piece of each output stream.
    pub fn serve(&mut self, has_room: bool, say: &mut impl FnMut(u32, &Tell)) {
        self.pass_input(say);
        if !has_room {
            return;
        }
        let mut buffer = [0; PIECE];
        let (number, drains_until) = (self.number, self.drains_until);
        self.outputs.retain_mut(|output| {
            if output.room == 0 {
                return true;
            }
            let most = PIECE.min(output.room as usize);
            match output.from.read(&mut buffer[..most]) {
                Ok(0) => false,
                Ok(count) => {
                    output.room -= count as u32;
                    say(number, &Tell::Output(output.stream, Bytes(buffer[..count].into())));
                    true
                }
                Err(EINTR) => true,
                Err(EAGAIN) => drains_until.is_none_or(|until| sys::now() < until),
                // A terminal without programs, for one.
                Err(_) => false,
            }
        });
    }

    /// Returns whether a command has the session.
    pub const fn is_known(&self) -> bool {
        self.hung_up.is_none()
    }

    /// Returns whether it is the session of this process, which has ended with that status of Linux's.
    pub fn child_ended(&mut self, process: usize, status: u32) -> bool {
        if self.end.is_some() || self.process != process {
            return false;
        }
        self.end = Some(match status & 0x7f {
            0 => End::Exited((status >> 8) as u8),
            signal => End::Killed(signal as u8),
        });
        if self.is_terminal() {
            // Programs that are left on the terminal may never end.
            self.drains_until = Some(sys::now() + DRAIN);
        }
        true
    }

    /// Returns the end of the session if it is over: the program has ended, and its output was sent.
    pub fn over(&self) -> Option<End> {
        self.end.filter(|_| self.outputs.is_empty())
    }

    /// Returns the time at which something is to be done without an event; `has_room` is true if output can be sent.
    pub fn deadline(&self, has_room: bool) -> Option<u64> {
        // Without room nothing is read, and the message that makes room is an event.
        let can_read = has_room && self.outputs.iter().any(|output| output.room > 0);
        self.hung_up.into_iter().chain(self.drains_until.filter(|_| can_read)).min()
    }

    /// Kills a program that has not ended in time.
    pub fn check_deadline(&mut self) {
        if self.end.is_none() && self.hung_up.is_some_and(|until| until <= sys::now()) {
            sys::kill_group(self.process, SIGKILL);
            self.hung_up = Some(sys::now() + LAST);
        }
    }
}
