//! `agent`: runs programs for `gnomon shell` and `gnomon cp`, which reach it by a guest port (`abi::agent`).
//!
//! It has one thread, and waits for events of all its sessions. While no command is connected it waits in a write to the
//! port, and uses no processor time.
#![no_std]
#![no_main]

extern crate alloc;

mod session;
mod spawn;
mod sys;

use abi::agent::{self, Ask, End, MOST_SESSIONS, Tell};
use abi::control::frame::{Bad, Reader};
use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;
use programs::linux::{Args, Failure};
use session::{LAST, Session};
use sys::{EAGAIN, EINTR, Fd, HUP, IN, OUT, PollFd};

programs::entry_point!(main, heap);

/// Output of programs waits while so many bytes for the port do.
const MOST_QUEUED: usize = 16 << 10;
/// The time in which the port's driver may come, in tenths of a second.
const PATIENCE: usize = 300;
/// Numbers of virtio devices and of their ports in names of Linux's.
const DEVICES: usize = 32;
const PORTS: usize = 8;

fn main(_: Args) -> Result<(), Failure> {
    let failure = |what| move |errno| Failure::Call(what, errno);
    sys::new_session();
    // Programs get other files in place of these; so no stream of theirs has such a number.
    let null = Fd::open(c"/dev/null", true).map_err(failure("open /dev/null"))?;
    for number in 0..3 {
        null.become_number(number).map_err(failure("dup3"))?;
    }
    let children = sys::child_signals().map_err(failure("signalfd"))?;
    let port = (0..PATIENCE).find_map(|_| {
        let port = find_port();
        if port.is_none() {
            sys::sleep_ms(100);
        }
        port
    });
    let port = port.ok_or(Failure::Wrong("there is no port of the name"))?;
    let mut agent =
        Agent { port, children, reader: agent::reader(), queue: Vec::new(), sessions: Vec::new(), connection: 0 };
    loop {
        agent.await_host().map_err(failure("write to the port"))?;
        agent.serve().map_err(failure("read from the port"))?;
        agent.end_all();
    }
}

/// Opens the port that is called [`agent::PORT`].
fn find_port() -> Option<Fd> {
    let places = (0..DEVICES).flat_map(|device| (0..PORTS).map(move |port| format!("vport{device}p{port}")));
    places.into_iter().find_map(|place| {
        let name = CString::new(format!("/sys/class/virtio-ports/{place}/name")).ok()?;
        let name = Fd::open(&name, false).ok()?.read_all(64);
        if name.trim_ascii() != agent::PORT.as_bytes() {
            return None;
        }
        Fd::open(&CString::new(format!("/dev/{place}")).ok()?, true).ok()
    })
}

struct Agent {
    port: Fd,
    /// Can be read when a program has ended.
    children: Fd,
    reader: Reader,
    /// Frames for the port.
    queue: Vec<u8>,
    sessions: Vec<Session>,
    /// The number of the connection, from its hello.
    connection: u64,
}

impl Agent {
    /// Waits until a command is connected. Linux keeps a write to a port waiting until then.
    fn await_host(&mut self) -> Result<(), sys::Errno> {
        self.connection = 0;
        self.port.set_blocking(true)?;
        let hello = agent::encode(0, &Tell::Hello(0));
        let mut sent = 0;
        while sent < hello.len() {
            match self.port.write(&hello[sent..]) {
                Ok(count) => sent += count,
                Err(EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.port.set_blocking(false)
    }

    /// Serves a connection to its end.
    fn serve(&mut self) -> Result<(), sys::Errno> {
        loop {
            let mut waits = Vec::from([
                PollFd { fd: self.port.raw(), events: if self.queue.is_empty() { IN } else { IN | OUT }, revents: 0 },
                PollFd { fd: self.children.raw(), events: IN, revents: 0 },
            ]);
            let has_room = self.has_room();
            self.sessions.iter().for_each(|session| session.wait_for(has_room, &mut waits));
            sys::poll(&mut waits, self.timeout());
            if waits[0].revents & HUP != 0 {
                return Ok(());
            }
            if waits[0].revents & IN != 0 && !self.read_port()? {
                return Ok(());
            }
            self.serve_sessions();
            self.write_port()?;
        }
    }

    /// Ends all sessions, and waits some time for their programs.
    fn end_all(&mut self) {
        self.queue.clear();
        self.sessions.iter_mut().for_each(Session::hang_up);
        let until = sys::now() + 2 * LAST;
        loop {
            self.serve_sessions();
            self.queue.clear();
            let left = until.saturating_sub(sys::now());
            if left == 0 {
                // A program that waits for a device does not end by SIGKILL before that. It is reaped later.
                self.sessions.clear();
            }
            if self.sessions.is_empty() {
                return;
            }
            let timeout = self.timeout().map_or(left, |timeout| timeout.min(left));
            sys::poll(&mut [PollFd { fd: self.children.raw(), events: IN, revents: 0 }], Some(timeout));
        }
    }

    const fn has_room(&self) -> bool {
        self.queue.len() < MOST_QUEUED
    }

    /// The time to the next deadline, in milliseconds.
    fn timeout(&self) -> Option<u64> {
        let has_room = self.has_room();
        let next = self.sessions.iter().filter_map(|session| session.deadline(has_room)).min()?;
        Some(next.saturating_sub(sys::now()) + 1)
    }

    /// Reads frames. Returns false if no command is connected.
    fn read_port(&mut self) -> Result<bool, sys::Errno> {
        let mut buffer = [0; 8 << 10];
        let count = match self.port.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(EAGAIN | EINTR) => return Ok(true),
            Err(errno) => return Err(errno),
        };
        let mut rest = &buffer[..count];
        while let Some(frame) = self.reader.next(&mut rest) {
            match frame.and_then(|frame| agent::decode::<Ask>(&frame)) {
                Ok((session, ask)) => self.take(session, ask),
                // The frame of the answer names this agent's version.
                Err(Bad::Version { .. }) => self.queue.extend(agent::encode(0, &Tell::Hello(0))),
                Err(Bad::TooLong | Bad::Garbled | Bad::Malformed { .. }) => {}
            }
        }
        Ok(true)
    }

    fn take(&mut self, number: u32, ask: Ask) {
        let Self { queue, sessions, connection, .. } = self;
        let mut say = |number, tell: &Tell| queue.extend(agent::encode(number, tell));
        let count = sessions.len();
        let known = sessions.iter_mut().find(|session| session.number == number && session.is_known());
        match (ask, known) {
            (Ask::Hello(hello), _) => {
                if hello != *connection {
                    *connection = hello;
                    sessions.iter_mut().for_each(Session::hang_up);
                }
                say(0, &Tell::Hello(hello));
            }
            (Ask::Open(_), Some(_)) => {}
            (Ask::Open(_), None) if count >= MOST_SESSIONS => {
                say(number, &Tell::Refused(format!("its agent runs {MOST_SESSIONS} programs, which is the limit")));
            }
            (Ask::Open(open), None) => match Session::start(number, &open) {
                Ok(session) => sessions.push(session),
                Err(why) => say(number, &Tell::Refused(why)),
            },
            (ask, Some(session)) => session.ask(ask, &mut say),
            (Ask::Hangup, None) => {}
            (_, None) => say(number, &Tell::Ended(End::Lost)),
        }
    }

    /// Passes all that sessions have on, and removes those that are over.
    fn serve_sessions(&mut self) {
        // Reading it is all that it needs.
        let _ = self.children.read(&mut [0; 128]);
        while let Some((process, status)) = sys::ended_child() {
            let _ = self.sessions.iter_mut().any(|session| session.child_ended(process, status));
        }
        let Self { queue, sessions, .. } = self;
        sessions.retain_mut(|session| {
            let has_room = queue.len() < MOST_QUEUED;
            let mut say = |number, tell: &Tell| queue.extend(agent::encode(number, tell));
            session.serve(has_room, &mut say);
            session.check_deadline();
            let over = session.over();
            if let Some(end) = over.filter(|_| session.is_known()) {
                say(session.number, &Tell::Ended(end));
            }
            over.is_none()
        });
    }

    fn write_port(&mut self) -> Result<(), sys::Errno> {
        while !self.queue.is_empty() {
            match self.port.write(&self.queue) {
                Ok(count) => drop(self.queue.drain(..count)),
                Err(EAGAIN) => return Ok(()),
                Err(EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}
