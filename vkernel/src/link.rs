//! The first program's input and output on the host: messages on a port ([`abi::exec::Message`]).

use crate::errno::{Errno, Result};
use crate::fs::{IN, Kind, OUT, Ready, Status, Stream};
use crate::sync::Mutex;
use crate::task::signal::{self, Info, number};
use crate::task::wait::WaitQueue;
use crate::{device, terminal};
use abi::exec::{Decoder, Io, Message, ROOM};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::task::Waker;

/// Bytes of messages that wait to be sent, at most.
const MOST_WAITING: usize = 64 << 10;
/// Bytes of a message of output.
const PIECE: usize = 8 << 10;

struct State {
    io: Io,
    is_connected: bool,
    outgoing: VecDeque<u8>,
    decoder: Option<Decoder>,
    input: VecDeque<u8>,
    has_ended: bool,
    /// Input that was read since the host was last told.
    read: usize,
    is_over: bool,
}

static STATE: Mutex<State> = Mutex::new(State {
    io: Io::Console,
    is_connected: false,
    outgoing: VecDeque::new(),
    decoder: None,
    input: VecDeque::new(),
    has_ended: false,
    read: 0,
    is_over: false,
});
static CHANGED: WaitQueue = WaitQueue::new();
static IS_USED: AtomicBool = AtomicBool::new(false);
/// The process that gets the host's signals.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// Records that there is a port.
pub fn use_it() {
    STATE.lock().decoder = Some(Decoder::default());
    IS_USED.store(true, Ordering::Relaxed);
}

/// Returns whether there is a port.
#[must_use]
pub fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Sets what the port is for the first program, and the program.
pub fn begin(io: Io, process: u32) {
    STATE.lock().io = io;
    FIRST.store(process, Ordering::Relaxed);
}

/// Records whether the host listens.
pub fn set_connected(is_connected: bool) {
    STATE.lock().is_connected = is_connected;
    CHANGED.wake();
}

/// Takes bytes from the host.
pub fn receive(bytes: &[u8]) {
    let messages = {
        let mut state = STATE.lock();
        let Some(decoder) = &mut state.decoder else { return };
        match decoder.push(bytes) {
            Ok(messages) => messages,
            // Nothing more is understood of it.
            Err(_) => {
                state.decoder = None;
                state.has_ended = true;
                Vec::new()
            }
        }
    };
    messages.into_iter().for_each(handle);
    CHANGED.wake();
}

fn handle(message: Message) {
    let mut state = STATE.lock();
    let io = state.io;
    match message {
        Message::Input(bytes) if io == Io::Terminal => {
            state.read += bytes.len();
            drop(state);
            terminal::input(&bytes);
            tell_room();
        }
        // The host sends no more than there is room for.
        Message::Input(bytes) => {
            let room = ROOM - state.input.len().min(ROOM);
            state.input.extend(&bytes[..bytes.len().min(room)]);
        }
        Message::End if io == Io::Terminal => {
            drop(state);
            terminal::hang_up();
        }
        Message::End => state.has_ended = true,
        Message::Signal(signal) => {
            drop(state);
            let process = crate::task::process::find(FIRST.load(Ordering::Relaxed));
            if let Some(process) = process.filter(|_| (1..=number::SYS as u8).contains(&signal)) {
                signal::send(&process, Info::kernel(signal.into()));
            }
        }
        Message::Size(rows, columns) => {
            drop(state);
            terminal::resize(rows, columns);
        }
        Message::Seen => state.is_over = true,
        _ => {}
    }
}

/// Tells the host of room for input, if there is much.
fn tell_room() {
    let mut state = STATE.lock();
    if state.read >= ROOM / 4 {
        let room = Message::Room(core::mem::take(&mut state.read) as u32);
        push(&mut state, &room);
        drop(state);
        device::service();
    }
}

fn push(state: &mut State, message: &Message) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    state.outgoing.extend(bytes);
}

/// Fills a buffer with what is to be sent. Returns how many bytes.
pub fn send(to: &mut [u8]) -> usize {
    let mut state = STATE.lock();
    if !state.is_connected {
        return 0;
    }
    let count = to.len().min(state.outgoing.len());
    to.iter_mut().zip(state.outgoing.drain(..count)).for_each(|(to, byte)| *to = byte);
    let has_room = state.outgoing.len() < MOST_WAITING;
    drop(state);
    if count > 0 && has_room {
        CHANGED.wake();
    }
    count
}

/// Adds output of the program, as far as there is room. Returns how many bytes.
fn output(bytes: &[u8], message: fn(Vec<u8>) -> Message) -> usize {
    let mut state = STATE.lock();
    let room = MOST_WAITING.saturating_sub(state.outgoing.len());
    let count = bytes.len().min(room);
    for piece in bytes[..count].chunks(PIECE) {
        push(&mut state, &message(piece.to_vec()));
    }
    drop(state);
    device::service();
    count
}

/// Prints on the host's terminal, whether or not there is room: echoes, and lines of the kernel's.
pub fn print(bytes: &[u8]) {
    push(&mut STATE.lock(), &Message::Output(bytes.to_vec()));
    device::service();
}

/// Says something in the kernel's name.
pub fn say(line: &[u8]) {
    push(&mut STATE.lock(), &Message::Word(line.to_vec()));
    device::service();
}

/// Returns whether the port is a terminal.
#[must_use]
pub fn is_terminal() -> bool {
    is_used() && STATE.lock().io == Io::Terminal
}

/// Tells the host how the first program has ended.
pub fn exited(status: u8) {
    push(&mut STATE.lock(), &Message::Exited(status));
}

/// Returns whether the host has heard how the first program has ended.
#[must_use]
pub fn is_over() -> bool {
    STATE.lock().is_over
}

/// Returns whether there is room for output.
#[must_use]
pub fn has_room() -> bool {
    STATE.lock().outgoing.len() < MOST_WAITING
}

/// Adds a task that is woken when the state changes.
pub fn watch(waker: &Waker) {
    CHANGED.add(waker);
}

/// One of the program's three pipes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pipe {
    /// Its input.
    Input,
    /// Its output.
    Output,
    /// Its output for errors.
    Error,
}

impl Pipe {
    /// Returns the stream.
    #[must_use]
    pub fn stream(self) -> Arc<dyn Stream> {
        Arc::new(self)
    }
}

impl Stream for Pipe {
    fn read(&self, to: &mut [u8]) -> Result<usize> {
        if *self != Self::Input {
            return Err(Errno::BADF);
        }
        let mut state = STATE.lock();
        if state.input.is_empty() {
            return if state.has_ended { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let count = to.len().min(state.input.len());
        to.iter_mut().zip(state.input.drain(..count)).for_each(|(to, byte)| *to = byte);
        state.read += count;
        drop(state);
        tell_room();
        Ok(count)
    }

    fn write(&self, from: &[u8]) -> Result<usize> {
        let message = match self {
            Self::Input => return Err(Errno::BADF),
            Self::Output => Message::Output,
            Self::Error => Message::Error,
        };
        match output(from, message) {
            0 if !from.is_empty() => Err(Errno::AGAIN),
            count => Ok(count),
        }
    }

    fn ready(&self, waker: Option<&Waker>) -> Ready {
        if let Some(waker) = waker {
            watch(waker);
        }
        if *self != Self::Input {
            return if has_room() { OUT } else { 0 };
        }
        let state = STATE.lock();
        if state.input.is_empty() && !state.has_ended { 0 } else { IN }
    }

    fn status(&self) -> Status {
        Status::plain((0, 3 + *self as u64), Kind::Pipe, 0o600)
    }
}
