//! The one UART of the host, shared by the guests' consoles, Gnomon's own messages and records.
//! The key sequences are described in `docs/console.md`.

use abi::bundle::ConsoleMode;
use abi::record::{MARK, Record};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

/// The key that starts a command: Ctrl-A, as in QEMU and screen.
pub const ESCAPE: u8 = 0x01;
/// Output that a console keeps while another one is attached, in bytes.
const BACKLOG: usize = 16 << 10;
/// A line longer than this is printed in pieces.
const LINE: usize = 1024;

/// What a key sequence asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Give this byte to the guest with this index.
    Input(usize, u8),
    /// Print the counters.
    Stats,
    /// End all VMs.
    Quit,
}

/// The console.
#[derive(Debug)]
pub struct Console {
    put: fn(u8),
    mode: ConsoleMode,
    guests: Vec<Guest>,
    attached: usize,
    escaped: bool,
    /// Whether the cursor is at the start of a line.
    fresh: bool,
}

#[derive(Debug)]
struct Guest {
    name: String,
    running: bool,
    /// In `Lines` mode the unfinished line; in `Attached` mode what was missed while detached.
    held: VecDeque<u8>,
}

impl Console {
    /// A console that prints bytes with `put` (which waits until it can).
    #[must_use]
    pub fn new(put: fn(u8)) -> Self {
        Self { put, mode: ConsoleMode::Lines, guests: Vec::new(), attached: 0, escaped: false, fresh: true }
    }

    /// Names the guests, in the order of their indices.
    pub fn set_guests(&mut self, mode: ConsoleMode, names: impl Iterator<Item = String>) {
        self.mode = mode;
        self.guests = names.map(|name| Guest { name, running: true, held: VecDeque::new() }).collect();
    }

    fn raw(&mut self, byte: u8) {
        (self.put)(byte);
        self.fresh = byte == b'\n';
    }

    fn start_line(&mut self) {
        if !self.fresh {
            self.text("\r\n");
        }
    }

    fn text(&mut self, text: &str) {
        for byte in text.bytes() {
            self.raw(byte);
        }
    }

    /// A message of Gnomon's own, on a line of its own.
    pub fn say(&mut self, message: &str) {
        self.start_line();
        self.text("gnomon: ");
        for byte in message.bytes() {
            self.guest_byte(byte);
        }
        self.text("\r\n");
    }

    /// A record, for programs to read.
    pub fn record(&mut self, record: &Record) {
        self.start_line();
        self.raw(MARK);
        self.text(&record.to_json());
        self.text("\n");
    }

    /// A byte that a guest chose: never the mark of a record.
    fn guest_byte(&mut self, byte: u8) {
        self.raw(if byte == MARK { b'?' } else { byte });
    }

    /// Output of guest number `guest`.
    pub fn guest_output(&mut self, guest: usize, byte: u8) {
        match self.mode {
            ConsoleMode::Attached if guest == self.attached => self.guest_byte(byte),
            ConsoleMode::Attached => {
                let held = &mut self.guests[guest].held;
                if held.len() == BACKLOG {
                    held.pop_front();
                }
                held.push_back(byte);
            }
            // One guest owns the line: nothing to hold back, so that prompts show.
            ConsoleMode::Lines if self.guests.len() == 1 => self.guest_byte(byte),
            ConsoleMode::Lines => {
                self.guests[guest].held.push_back(byte);
                if byte == b'\n' || self.guests[guest].held.len() >= LINE {
                    self.flush_line(guest);
                }
            }
        }
    }

    fn flush_line(&mut self, guest: usize) {
        let held = core::mem::take(&mut self.guests[guest].held);
        if held.is_empty() {
            return;
        }
        self.start_line();
        let name = self.guests[guest].name.clone();
        self.text(&name);
        self.text("| ");
        held.iter().for_each(|b| self.guest_byte(*b));
        self.start_line();
    }

    /// Says that a guest makes no further output.
    pub fn guest_ended(&mut self, guest: usize) {
        if self.mode == ConsoleMode::Lines && self.guests.len() > 1 {
            self.flush_line(guest);
        }
        self.guests[guest].running = false;
        if self.mode == ConsoleMode::Attached && guest == self.attached {
            self.attach_next();
        }
    }

    /// A key from the outside; returns what it asks for.
    pub fn key(&mut self, byte: u8) -> Option<Command> {
        if self.mode == ConsoleMode::Lines {
            return Some(Command::Input(self.guests.iter().position(|g| g.running)?, byte));
        }
        if !core::mem::take(&mut self.escaped) {
            if byte == ESCAPE {
                self.escaped = true;
                return None;
            }
            return self.guests.get(self.attached)?.running.then_some(Command::Input(self.attached, byte));
        }
        match byte {
            ESCAPE => return Some(Command::Input(self.attached, ESCAPE)),
            b'n' => self.attach_next(),
            b'1'..=b'9' if usize::from(byte - b'1') < self.guests.len() => self.attach(usize::from(byte - b'1')),
            b's' => return Some(Command::Stats),
            b'x' => return Some(Command::Quit),
            b'h' | b'?' => self.help(),
            _ => self.say("no such command; Ctrl-A h lists them"),
        }
        None
    }

    fn help(&mut self) {
        self.say("Ctrl-A n    next console");
        self.say("Ctrl-A 1-9  console of that VM");
        self.say("Ctrl-A s    print counters");
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
        let missed = core::mem::take(&mut self.guests[guest].held);
        missed.iter().for_each(|b| self.guest_byte(*b));
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::cell::RefCell;

    std::thread_local! { static OUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) }; }

    fn console(mode: ConsoleMode, names: &[&str]) -> Console {
        OUT.take();
        let mut console = Console::new(|byte| OUT.with_borrow_mut(|out| out.push(byte)));
        console.set_guests(mode, names.iter().map(|n| String::from(*n)));
        console
    }

    fn out() -> String {
        String::from_utf8(OUT.take()).unwrap()
    }

    fn print(console: &mut Console, guest: usize, text: &str) {
        text.bytes().for_each(|b| console.guest_output(guest, b));
    }

    #[test]
    fn lines_of_several_guests_do_not_mix() {
        let mut console = console(ConsoleMode::Lines, &["a", "b"]);
        print(&mut console, 0, "hel");
        print(&mut console, 1, "world\r\n");
        print(&mut console, 0, "lo\r\nrest");
        console.guest_ended(0);
        assert_eq!(out(), "b| world\r\na| hello\r\na| rest\r\n");
    }

    #[test]
    fn a_guest_cannot_forge_a_record() {
        let mut console = console(ConsoleMode::Lines, &["a"]);
        print(&mut console, 0, "x\u{1e}\"halt\"\n");
        assert_eq!(out(), "x?\"halt\"\n");
        console.say("killed: \u{1e}\"halt\"");
        console.record(&Record::Halt);
        assert_eq!(out(), "gnomon: killed: ?\"halt\"\r\n\u{1e}\"halt\"\n");
    }

    #[test]
    fn records_start_a_line() {
        let mut console = console(ConsoleMode::Lines, &["a"]);
        print(&mut console, 0, "# ");
        console.record(&Record::Halt);
        assert_eq!(out(), "# \r\n\u{1e}\"halt\"\n");
    }

    #[test]
    fn keys_switch_and_missed_output_is_shown() {
        let mut console = console(ConsoleMode::Attached, &["a", "b"]);
        print(&mut console, 1, "missed");
        assert_eq!(console.key(b'k'), Some(Command::Input(0, b'k')));
        assert_eq!(console.key(ESCAPE), None);
        assert_eq!(console.key(b'n'), None);
        assert_eq!(out(), "gnomon: console of b\r\nmissed");
        assert_eq!(console.key(b'k'), Some(Command::Input(1, b'k')));
        console.key(ESCAPE);
        assert_eq!(console.key(ESCAPE), Some(Command::Input(1, ESCAPE)));
        console.key(ESCAPE);
        assert_eq!(console.key(b's'), Some(Command::Stats));
        console.guest_ended(1);
        assert_eq!(console.key(b'k'), Some(Command::Input(0, b'k')), "the end of one attaches the next");
        console.guest_ended(0);
        assert_eq!(console.key(b'k'), None);
    }
}
