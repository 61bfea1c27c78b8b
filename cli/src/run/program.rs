//! A run of one program on the vkernel: its input and output are this command's ([`abi::exec::Message`]).

use super::{Prepared, RunEnd, ShowSpec, machine_of, reach, report, trouble};
use crate::control::runs::Runs;
use crate::host::tty::{self, TerminalSize};
use crate::machine::process::{Machine, MachineError};
use crate::machine::stream::Piece;
use crate::run::console::ExecDemux;
use crate::run::show::Show;
use abi::bundle::ConsoleMode;
use abi::exec::{Decoder, Io, MOST, Message, PORT, ROOM};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use std::io::{ErrorKind, Read, Write, stderr, stdin, stdout};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// The line to the kernel, for several threads.
#[derive(Debug, Clone)]
struct Line(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stream: Mutex<UnixStream>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Bytes of input that the kernel has room for.
    room: usize,
    /// The program's status, when it has ended.
    status: Option<u8>,
}

impl Line {
    fn new(stream: UnixStream) -> Self {
        let state = Mutex::new(State { room: ROOM, status: None });
        Self(Arc::new(Shared { stream: Mutex::new(stream), state, changed: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message. Returns whether the kernel is still there.
    fn send(&self, message: &Message) -> bool {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.0.stream.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes).is_ok()
    }

    /// Sends input as there is room for it. Returns whether the kernel is still there.
    fn input(&self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let mut state = self.state();
            while state.room == 0 && state.status.is_none() {
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.status.is_some() {
                return false;
            }
            let count = bytes.len().min(state.room).min(MOST);
            state.room -= count;
            drop(state);
            if !self.send(&Message::Input(bytes[..count].to_vec())) {
                return false;
            }
            bytes = &bytes[count..];
        }
        true
    }

    /// Handles what the kernel sends, until the program has ended or the line is gone.
    fn follow(&self, mut stream: UnixStream) {
        let (mut decoder, mut buffer) = (Decoder::default(), vec![0; MOST]);
        loop {
            let count = match stream.read(&mut buffer) {
                Err(why) if why.kind() == ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => return,
                Ok(count) => count,
            };
            let Ok(messages) = decoder.push(&buffer[..count]) else {
                tty::say("gnomon: the vkernel's port has sent bytes that are no message");
                return;
            };
            for message in messages {
                if self.handle(message) {
                    return;
                }
            }
        }
    }

    /// Handles a message. Returns whether it is the last one.
    fn handle(&self, message: Message) -> bool {
        match message {
            Message::Output(bytes) => self.print(&mut stdout().lock(), &bytes),
            Message::Error(bytes) => self.print(&mut stderr().lock(), &bytes),
            Message::Word(bytes) => tty::say(&format!("gnomon: vkernel: {}", String::from_utf8_lossy(&bytes))),
            Message::Room(more) => {
                self.state().room += more as usize;
                self.0.changed.notify_all();
            }
            Message::Exited(status) => {
                self.state().status = Some(status);
                self.0.changed.notify_all();
                self.send(&Message::Seen);
                return true;
            }
            _ => {}
        }
        false
    }

    /// Prints output. The program gets a signal if its reader has gone.
    fn print(&self, to: &mut dyn Write, bytes: &[u8]) {
        if to.write_all(bytes).and_then(|()| to.flush()).is_err() {
            self.send(&Message::Signal(nix::libc::SIGPIPE as u8));
        }
    }
}

/// Returns how the program's input and output are those of this command: a terminal only if both are one.
#[must_use]
pub fn io() -> Io {
    if tty::is_interactive() { Io::Terminal } else { Io::Pipes }
}

/// Passes signals on to the program, and changes of the terminal's size.
fn forward_signals(line: &Line) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH])?;
    let line = line.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            let message = match (signal, TerminalSize::of_output()) {
                (SIGWINCH, Some(size)) => Message::Size(size.lines, size.columns),
                (SIGWINCH, None) => continue,
                (signal, _) => Message::Signal(signal as u8),
            };
            line.send(&message);
        }
    });
    Ok(())
}

/// Sends this command's input.
fn forward_input(line: &Line) {
    let line = line.clone();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            match stdin().lock().read(&mut buffer) {
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(count) if line.input(&buffer[..count]) => {}
                Ok(_) => return,
            }
        }
        line.send(&Message::End);
    });
}

/// Runs a program that was prepared, to its end. Returns its status, or that of what has ended it.
///
/// # Errors
/// If the machine cannot be run.
pub fn run(prepared: &Prepared, show: &ShowSpec) -> miette::Result<u8> {
    let mut spec = machine_of(prepared, show);
    let Some(bridge) = reach(prepared, &mut spec, &show.reach)? else {
        return Err(miette::miette!("the run has no control channel"));
    };
    let vm = prepared.vms.first().map_or("", String::as_str);
    let stream = Runs::open()?.connect_port(bridge.name(), vm, PORT)?;
    let reader = stream.try_clone().map_err(MachineError::from)?;
    let line = Line::new(stream);
    forward_signals(&line).map_err(MachineError::from)?;
    let (machine, stopper) = Machine::start(&spec)?;
    let raw = match io() {
        Io::Terminal => Some(tty::RawMode::enter(tty::Screen::SAME).map_err(MachineError::from)?),
        _ => None,
    };
    if let Some(size) = TerminalSize::of_output().filter(|_| raw.is_some()) {
        line.send(&Message::Size(size.lines, size.columns));
    }
    forward_input(&line);
    let follower = {
        let line = line.clone();
        thread::spawn(move || line.follow(reader))
    };
    let demux = Some(ExecDemux::new(std::iter::empty()));
    let mut view = Show::new(ConsoleMode::Lines, demux, None, show.is_verbose);
    let started = Instant::now();
    let deadline = show.timeout.and_then(|timeout| started.checked_add(timeout));
    let outcome = machine.run(deadline, |piece| {
        if let Piece::Trouble(trouble) = piece {
            trouble::lines(prepared, trouble).iter().for_each(|line| view.say(line));
        }
        view.piece(piece)
    })?;
    drop((raw, stopper));
    drop(bridge);
    // The line ends with the machine at the latest.
    let _ = follower.join();
    view.finish();
    let status = line.state().status;
    let end = report::judge(prepared, &outcome, &view, started.elapsed());
    if let Some(path) = &show.stats {
        end.write_stats(path, prepared, &outcome)?;
    }
    Ok(conclude(status, &end, &view))
}

/// Says what has ended the program if it has not ended by itself. Returns the exit status.
fn conclude(status: Option<u8>, end: &RunEnd, view: &Show) -> u8 {
    match status {
        Some(status) => status,
        None => {
            end.details(view).iter().for_each(|line| tty::say(line));
            if end.status == 0 { report::STATUS_VM } else { end.status }
        }
    }
}
