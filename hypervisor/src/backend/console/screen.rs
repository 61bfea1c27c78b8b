//! The screen: the guests whose output is shown, its form, and the effect of the keys.

use super::port::{Listen, Port};
use super::ring::Ring;
use crate::slots::Handle;
use crate::sync::Mutex;
use abi::bundle::ConsoleMode;
use abi::record::{MARK, Record};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

/// The key that starts a command: Ctrl-A, as in QEMU and screen.
pub const ESCAPE: u8 = 0x01;
/// A line longer than this is printed in pieces, where lines must not mix.
const LINE: usize = 1024;
/// The number of bytes that are taken from a ring at a time: the ring's owner may be waiting for it.
const PIECE: usize = 64;

/// A command by a key sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Give this byte to that guest.
    Input(Handle, u8),
    /// Print the counters.
    Stats,
    /// Print the tunables.
    Tunables,
    /// Set a tunable: `name=value`, as it was typed.
    Set(String),
    /// Pause that guest, or let it go on.
    Pause(Handle),
    /// End that guest.
    End(Handle),
    /// Let that guest's balloon take an eighth of its memory, or let it have that back.
    Balloon(Handle, Step),
    /// End all VMs.
    Quit,
}

/// The direction of a change to a balloon's target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The guest is to have less memory.
    Less,
    /// The guest may have more.
    More,
}

/// The reason why printing came to an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    /// There is nothing left.
    All,
    /// The port takes no more now; it will say when.
    NoRoom,
    /// The budget is used up.
    Budget,
}

#[derive(Debug)]
struct Guest {
    /// The VM that has the slot, or had it last.
    number: u64,
    name: String,
    running: bool,
}

/// A line that is being printed where lines must not mix.
#[derive(Debug)]
struct Line {
    guest: usize,
    /// The most bytes that the line can still have.
    rest: usize,
    /// Set if the guest's name goes in front of the next byte.
    needs_name: bool,
}

#[derive(Debug)]
pub(super) struct Screen {
    mode: ConsoleMode,
    has_names: bool,
    /// By slot; only as many as were ever taken.
    guests: Vec<Guest>,
    attached: usize,
    escaped: bool,
    /// The setting that is being typed.
    typed: Option<String>,
    /// The bytes that go to the port next.
    out: VecDeque<u8>,
    /// The last byte that was added there.
    last: u8,
    /// The guest whose turn it is.
    turn: usize,
    line: Option<Line>,
    /// The events that the port interrupts for.
    wanted: Listen,
}

impl Screen {
    pub(super) fn new(mode: ConsoleMode, has_names: bool) -> Self {
        Self {
            mode,
            has_names,
            guests: Vec::new(),
            attached: 0,
            escaped: false,
            typed: None,
            out: VecDeque::new(),
            last: b'\n',
            turn: 0,
            line: None,
            wanted: Listen { input: true, room: false },
        }
    }

    /// Adds a byte. A line feed goes to the start of a line on every terminal; records keep theirs alone.
    fn byte(&mut self, byte: u8) {
        if byte == b'\n' && self.last != b'\r' {
            self.out.push_back(b'\r');
        }
        self.out.push_back(byte);
        self.last = byte;
    }

    fn text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.byte(byte));
    }

    fn start_line(&mut self) {
        if self.last != b'\n' {
            self.byte(b'\n');
        }
        if let Some(line) = &mut self.line {
            line.needs_name = true; // it goes on below what interrupts it
        }
    }

    /// UNFORGED: prints a byte that a guest chose: never the mark of a record.
    fn guest_byte(&mut self, byte: u8) {
        self.byte(if byte == MARK { b'?' } else { byte });
    }

    /// Prints several of them. Most stand for themselves.
    fn guest_bytes(&mut self, bytes: &[u8]) {
        for run in bytes.split_inclusive(|byte| matches!(*byte, b'\n' | MARK)) {
            let Some((last, before)) = run.split_last() else { continue };
            if let Some(byte) = before.last() {
                self.out.extend(before);
                self.last = *byte;
            }
            self.guest_byte(*last);
        }
    }

    pub(super) fn say(&mut self, message: &str) {
        self.start_line();
        self.text("gnomon: ");
        message.bytes().for_each(|byte| self.guest_byte(byte));
        self.text("\n");
    }

    pub(super) fn record(&mut self, record: &Record) {
        self.start_line();
        self.out.push_back(MARK);
        self.out.extend(record.to_json().bytes());
        self.out.push_back(b'\n');
        self.last = b'\n';
    }

    /// Returns whether lines of several guests are mixed on the screen.
    fn mixes(&self) -> bool {
        self.mode == ConsoleMode::Lines && self.has_names
    }

    /// Opens the console of a guest that has come to its slot, and attaches it if the attached console has no guest
    /// left.
    pub(super) fn open(&mut self, Handle { slot, number }: Handle, name: &str) {
        let is_first = self.guests.is_empty();
        let nobody = || Guest { number, name: String::new(), running: false };
        self.guests.resize_with(self.guests.len().max(slot + 1), nobody);
        self.guests[slot] = Guest { number, name: name.into(), running: true };
        if is_first {
            self.attached = slot;
        } else if self.mode == ConsoleMode::Attached && (slot == self.attached || !self.guests[self.attached].running) {
            self.attach(slot);
        }
    }

    fn handle(&self, slot: usize) -> Option<Handle> {
        let guest = self.guests.get(slot).filter(|guest| guest.running)?;
        Some(Handle { slot, number: guest.number })
    }

    /// Sends what is to be sent, and takes more from the rings in turn, until there is nothing left, or no room, or as
    /// many bytes were sent as the budget has.
    pub(super) fn print(&mut self, rings: &[Mutex<Ring>], port: &dyn Port, budget: &mut usize) -> Done {
        let done = loop {
            if self.send(port, budget) == Done::NoRoom {
                break Done::NoRoom;
            }
            if *budget == 0 {
                break Done::Budget;
            }
            if self.out.is_empty() && !self.take_turn(rings) {
                break Done::All;
            }
        };
        self.listen(port, |wanted| wanted.room = done == Done::NoRoom);
        done
    }

    /// Sends what is in `out`.
    fn send(&mut self, port: &dyn Port, budget: &mut usize) -> Done {
        while !self.out.is_empty() && *budget > 0 {
            let next = self.out.as_slices().0;
            let count = port.room().min(next.len()).min(*budget);
            if count == 0 {
                return Done::NoRoom;
            }
            port.send(&next[..count]);
            self.out.drain(..count);
            *budget -= count;
        }
        Done::All
    }

    /// Waits for the port until there are no more than `most` bytes to send.
    pub(super) fn flush(&mut self, port: &dyn Port, most: usize) {
        while self.out.len() > most {
            let mut excess = self.out.len() - most;
            if self.send(port, &mut excess) == Done::NoRoom {
                core::hint::spin_loop();
            }
        }
    }

    pub(super) fn listen(&mut self, port: &dyn Port, change: impl FnOnce(&mut Listen)) {
        let before = self.wanted;
        change(&mut self.wanted);
        if self.wanted != before {
            port.listen(self.wanted);
        }
    }

    /// Takes a piece of the next guest's output that can be shown; false if there is none. A ring that its guest is writing to
    /// is left to that guest, which prints when it has written.
    fn take_turn(&mut self, rings: &[Mutex<Ring>]) -> bool {
        if !self.mixes() {
            let ring = rings.get(self.attached).and_then(Mutex::try_lock);
            return ring.is_some_and(|mut ring| self.take_piece(&mut ring, PIECE));
        }
        if self.line.is_none() {
            let count = self.guests.len();
            let is_whole = |ring: &Ring| ring.line_ends > 0 || ring.len() >= LINE;
            let whole = |guest: &usize| rings[*guest].try_lock().is_some_and(|ring| is_whole(&ring));
            let Some(guest) = (self.turn..self.turn + count).map(|turn| turn % count).find(whole) else { return false };
            self.turn = guest + 1;
            self.begin_line(guest);
        }
        let guest = self.line.as_ref().map_or(0, |line| line.guest);
        rings[guest].try_lock().is_some_and(|mut ring| self.take_of_line(&mut ring))
    }

    fn take_piece(&mut self, ring: &mut Ring, most: usize) -> bool {
        ring.take(most, |bytes| self.guest_bytes(bytes)) > 0
    }

    fn begin_line(&mut self, guest: usize) {
        self.start_line();
        self.line = Some(Line { guest, rest: LINE, needs_name: true });
    }

    /// Takes a piece of the line that is being printed. Its guest's name stands in front, after a carriage return as well.
    /// Returns whether there was any.
    fn take_of_line(&mut self, ring: &mut Ring) -> bool {
        let Some(mut line) = self.line.take() else { return false };
        let mut piece = PIECE.min(line.rest);
        line.rest -= piece;
        let is_over = loop {
            let Some(byte) = ring.pop().filter(|byte| *byte != b'\n') else { break true };
            if core::mem::take(&mut line.needs_name) {
                self.name(line.guest);
            }
            match (byte, ring.first()) {
                // The end of the line is added below.
                (b'\r', None | Some(b'\n')) => {}
                (b'\r', Some(_)) => {
                    self.byte(b'\r');
                    line.needs_name = true;
                }
                _ => self.guest_byte(byte),
            }
            piece -= 1;
            if piece == 0 {
                break line.rest == 0;
            }
        };
        if is_over {
            if line.needs_name {
                self.name(line.guest);
            }
            self.byte(b'\n');
        } else {
            self.line = Some(line);
        }
        true
    }

    fn name(&mut self, guest: usize) {
        let name = core::mem::take(&mut self.guests[guest].name);
        self.text(&name);
        self.text("| ");
        self.guests[guest].name = name;
    }

    /// Shows all that a guest has written so far, unless its console is detached. If it `ends`, the console no longer
    /// takes input.
    pub(super) fn settle(&mut self, guest: usize, ring: &mut Ring, ends: bool) {
        if self.mixes() {
            while ring.len() != 0 {
                if self.line.as_ref().is_none_or(|line| line.guest != guest) {
                    self.begin_line(guest);
                }
                self.take_of_line(ring);
            }
        } else if guest == self.attached {
            self.take_piece(ring, usize::MAX);
        }
        if ends {
            self.guests[guest].running = false;
            // The next guest in that slot begins a line of its own, and a ring.
            self.line.take_if(|line| line.guest == guest);
            ring.end();
            if self.mode == ConsoleMode::Attached && guest == self.attached {
                self.attach_next();
            }
        }
    }

    pub(super) fn attached(&self) -> usize {
        self.attached
    }

    /// Returns the guest that would get the next key.
    pub(super) fn listener(&self) -> Option<Handle> {
        match self.mode {
            ConsoleMode::Lines => (0..self.guests.len()).find_map(|slot| self.handle(slot)),
            ConsoleMode::Attached if self.escaped || self.typed.is_some() => None,
            ConsoleMode::Attached => self.handle(self.attached),
        }
    }

    pub(super) fn key(&mut self, byte: u8) -> Option<Command> {
        if self.mode == ConsoleMode::Lines {
            return Some(Command::Input(self.listener()?, byte));
        }
        if self.typed.is_some() {
            return self.type_setting(byte);
        }
        if !core::mem::take(&mut self.escaped) {
            if byte == ESCAPE {
                self.escaped = true;
                return None;
            }
            return Some(Command::Input(self.listener()?, byte));
        }
        match byte {
            ESCAPE => return Some(Command::Input(self.listener()?, ESCAPE)),
            b'n' => self.attach_next(),
            b'1'..=b'9' if usize::from(byte - b'1') < self.guests.len() => self.attach(usize::from(byte - b'1')),
            b'1'..=b'9' => self.say("there is no such VM; Ctrl-A h lists them"),
            b'p' => return self.listener().map(Command::Pause),
            b'k' => return self.listener().map(Command::End),
            b'-' => return self.listener().map(|guest| Command::Balloon(guest, Step::Less)),
            b'+' => return self.listener().map(|guest| Command::Balloon(guest, Step::More)),
            b's' => return Some(Command::Stats),
            b't' => return Some(Command::Tunables),
            b'=' => {
                self.say("set (name=value, Enter):");
                self.typed = Some(String::new());
            }
            b'x' => return Some(Command::Quit),
            b'h' | b'?' => self.help(),
            _ => self.say("no such command; Ctrl-A h lists them"),
        }
        None
    }

    /// Handles a key of a setting that is being typed. Enter ends it, Ctrl-C and Escape give it up.
    fn type_setting(&mut self, byte: u8) -> Option<Command> {
        const BACKSPACE: u8 = 8;
        const DELETE: u8 = 127;
        const MOST: usize = 64;
        let text = self.typed.as_mut()?;
        match byte {
            b'\r' | b'\n' => {
                self.text("\n");
                return self.typed.take().map(Command::Set);
            }
            3 | 27 | ESCAPE => {
                self.typed = None;
                self.text("\n");
            }
            BACKSPACE | DELETE if text.pop().is_some() => self.text("\x08 \x08"),
            b' '..=b'~' if text.len() < MOST => {
                text.push(byte.into());
                self.byte(byte);
            }
            _ => {}
        }
        None
    }

    fn help(&mut self) {
        self.say("Ctrl-A n    next console");
        self.say("Ctrl-A 1-9  console of that VM");
        self.say("Ctrl-A p    pause this VM, or let it go on");
        self.say("Ctrl-A k    end this VM");
        self.say(
            "Ctrl-A -    take an eighth of its memory from this VM, by its balloon; Ctrl-A + lets it have that back",
        );
        self.say("Ctrl-A s    print counters");
        self.say("Ctrl-A t    print tunables");
        self.say("Ctrl-A =    set one");
        self.say("Ctrl-A x    stop all VMs and power off");
        self.say("Ctrl-A Ctrl-A  send Ctrl-A to the guest");
        for index in 0..self.guests.len() {
            let guest = &self.guests[index];
            let state = if !guest.running {
                "ended"
            } else if index == self.attached {
                "attached"
            } else {
                "running"
            };
            let line = alloc::format!("  {}: {} ({state})", index + 1, guest.name);
            self.say(&line);
        }
    }

    fn attach_next(&mut self) {
        let count = self.guests.len();
        let next = (1..=count).map(|step| (self.attached + step) % count).find(|g| self.guests[*g].running);
        match next {
            Some(guest) if guest != self.attached => self.attach(guest),
            _ => {}
        }
    }

    fn attach(&mut self, guest: usize) {
        self.attached = guest;
        let message = alloc::format!("console of {}", self.guests[guest].name);
        self.say(&message);
    }
}
