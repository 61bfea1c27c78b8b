//! What is on the screen: whose output is shown, in which form, and what the keys do.

use super::port::{Listen, Port};
use super::ring::Ring;
use abi::bundle::ConsoleMode;
use abi::record::{MARK, Record};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use spin::Mutex;

/// The key that starts a command: Ctrl-A, as in QEMU and screen.
pub const ESCAPE: u8 = 0x01;
/// A line longer than this is printed in pieces, where lines must not mix.
const LINE: usize = 1024;
/// How many bytes are taken at a time: whoever owns a ring may be waiting for it.
const PIECE: usize = 64;

/// What a key sequence asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Give this byte to the guest with this index.
    Input(usize, u8),
    /// Print the counters.
    Stats,
    /// Pause the guest with this index, or let it go on.
    Pause(usize),
    /// End the guest with this index.
    End(usize),
    /// End all VMs.
    Quit,
}

/// Why printing came to an end.
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
    name: String,
    running: bool,
}

/// A line that is being printed where lines must not mix.
#[derive(Debug)]
struct Line {
    guest: usize,
    /// How many bytes of it there can still be.
    rest: usize,
    /// Whether the guest's name goes in front of the next byte.
    needs_name: bool,
}

#[derive(Debug)]
pub(super) struct Screen {
    mode: ConsoleMode,
    guests: Vec<Guest>,
    attached: usize,
    escaped: bool,
    /// What goes to the port next.
    out: VecDeque<u8>,
    /// The last byte that was added there.
    last: u8,
    /// Whose turn it is.
    turn: usize,
    line: Option<Line>,
    /// What the port interrupts for.
    wanted: Listen,
}

impl Screen {
    pub(super) fn new(mode: ConsoleMode, names: Vec<String>) -> Self {
        Self {
            mode,
            guests: names.into_iter().map(|name| Guest { name, running: true }).collect(),
            attached: 0,
            escaped: false,
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

    /// UNFORGED: a byte that a guest chose: never the mark of a record.
    fn guest_byte(&mut self, byte: u8) {
        self.byte(if byte == MARK { b'?' } else { byte });
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

    /// Whether lines of several guests are mixed on the screen.
    fn mixes(&self) -> bool {
        self.mode == ConsoleMode::Lines && self.guests.len() > 1
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
            let count = port.room().min(self.out.len()).min(*budget);
            if count == 0 {
                return Done::NoRoom;
            }
            self.out.drain(..count).for_each(|byte| port.send(byte));
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
            let count = rings.len();
            let is_whole = |ring: &Ring| ring.line_ends > 0 || ring.bytes.len() >= LINE;
            let whole = |guest: &usize| rings[*guest].try_lock().is_some_and(|ring| is_whole(&ring));
            let Some(guest) = (self.turn..self.turn + count).map(|turn| turn % count).find(whole) else { return false };
            self.turn = guest + 1;
            self.begin_line(guest);
        }
        let guest = self.line.as_ref().map_or(0, |line| line.guest);
        rings[guest].try_lock().is_some_and(|mut ring| self.take_of_line(&mut ring))
    }

    fn take_piece(&mut self, ring: &mut Ring, most: usize) -> bool {
        let mut taken = 0;
        while taken < most
            && let Some(byte) = ring.pop()
        {
            self.guest_byte(byte);
            taken += 1;
        }
        taken > 0
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
            match (byte, ring.bytes.front()) {
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

    /// Shows all that a guest has written so far, unless its console is detached. If it `ends`, nobody listens there any
    /// more.
    pub(super) fn settle(&mut self, guest: usize, ring: &mut Ring, ends: bool) {
        if self.mixes() {
            while !ring.bytes.is_empty() {
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
            if self.mode == ConsoleMode::Attached && guest == self.attached {
                self.attach_next();
            }
        }
    }

    pub(super) fn attached(&self) -> usize {
        self.attached
    }

    /// Who would get the next key.
    pub(super) fn listener(&self) -> Option<usize> {
        match self.mode {
            ConsoleMode::Lines => self.guests.iter().position(|guest| guest.running),
            ConsoleMode::Attached if self.escaped => None,
            ConsoleMode::Attached => Some(self.attached).filter(|at| self.guests.get(*at).is_some_and(|g| g.running)),
        }
    }

    pub(super) fn key(&mut self, byte: u8) -> Option<Command> {
        if self.mode == ConsoleMode::Lines {
            return Some(Command::Input(self.listener()?, byte));
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
        self.say("Ctrl-A p    pause this VM, or let it go on");
        self.say("Ctrl-A k    end this VM");
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
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::{BUDGET, Console, Left, RING};
    use super::*;
    use alloc::boxed::Box;
    use alloc::string::ToString;
    use std::sync::Mutex as StdMutex;

    /// A port that takes so many bytes until it is given more room.
    #[derive(Debug)]
    struct Line(StdMutex<State>);

    #[derive(Debug)]
    struct State {
        out: Vec<u8>,
        room: usize,
        wanted: Listen,
    }

    impl Port for Line {
        fn room(&self) -> usize {
            self.0.lock().unwrap().room.min(16)
        }
        fn send(&self, byte: u8) {
            let mut state = self.0.lock().unwrap();
            state.room = state.room.checked_sub(1).expect("only as much as there is room for");
            state.out.push(byte);
        }
        fn receive(&self) -> Option<u8> {
            None
        }
        fn listen(&self, wanted: Listen) {
            self.0.lock().unwrap().wanted = wanted;
        }
        fn interrupts(&self) -> bool {
            true
        }
    }

    impl Line {
        fn out(&self) -> String {
            String::from_utf8(core::mem::take(&mut self.0.lock().unwrap().out)).unwrap()
        }
        fn wants_room(&self) -> bool {
            self.0.lock().unwrap().wanted.room
        }
    }

    fn console_with_room(mode: ConsoleMode, names: &[&str], room: usize) -> (Console, &'static Line) {
        let wanted = Listen { input: true, room: false };
        let line = Box::leak(Box::new(Line(StdMutex::new(State { out: Vec::new(), room, wanted }))));
        (Console::new(line, mode, names.iter().map(ToString::to_string).collect()), line)
    }

    fn console(mode: ConsoleMode, names: &[&str]) -> (Console, &'static Line) {
        console_with_room(mode, names, usize::MAX)
    }

    fn print(console: &Console, guest: usize, text: &str) {
        assert_eq!(console.write(guest, text.as_bytes()), (text.len(), Left::Nothing));
    }

    #[test]
    fn lines_of_several_guests_do_not_mix() {
        let (console, line) = console(ConsoleMode::Lines, &["a", "b"]);
        print(&console, 0, "hel");
        print(&console, 1, "world\r\n\n");
        print(&console, 0, "lo\r\nrest");
        console.say_of(0, "a ended", true);
        assert_eq!(line.out(), "b| world\r\nb| \r\na| hello\r\na| rest\r\ngnomon: a ended\r\n");
    }

    #[test]
    fn a_carriage_return_leaves_the_name_in_front() {
        let (console, line) = console(ConsoleMode::Lines, &["a", "b"]);
        print(&console, 0, "10%\r20%\r\n");
        assert_eq!(line.out(), "a| 10%\ra| 20%\r\n");
    }

    #[test]
    fn no_line_starts_below_the_end_of_another() {
        let (console, line) = console(ConsoleMode::Lines, &["a"]);
        print(&console, 0, "one\ntwo\r\n\n");
        console.say("three\nfour");
        assert_eq!(line.out(), "one\r\ntwo\r\n\r\ngnomon: three\r\nfour\r\n");
    }

    #[test]
    fn a_guest_cannot_forge_a_record() {
        let (console, line) = console(ConsoleMode::Lines, &["a"]);
        print(&console, 0, "x\u{1e}\"halt\"\n");
        assert_eq!(line.out(), "x?\"halt\"\r\n");
        console.say("killed: \u{1e}\"halt\"");
        console.record(&Record::Halt);
        assert_eq!(line.out(), "gnomon: killed: ?\"halt\"\r\n\u{1e}\"halt\"\n");
    }

    #[test]
    fn records_start_a_line() {
        let (console, line) = console(ConsoleMode::Lines, &["a"]);
        print(&console, 0, "# ");
        console.record(&Record::Halt);
        assert_eq!(line.out(), "# \r\n\u{1e}\"halt\"\n");
    }

    #[test]
    fn keys_switch_and_missed_output_is_shown() {
        let (console, line) = console(ConsoleMode::Attached, &["a", "b"]);
        print(&console, 1, "missed");
        assert_eq!(console.key(b'k'), Some(Command::Input(0, b'k')));
        assert_eq!(console.key(ESCAPE), None);
        assert_eq!((console.listener(), console.key(b'n'), console.listener()), (None, None, Some(1)));
        assert_eq!(line.out(), "gnomon: console of b\r\nmissed");
        assert_eq!(console.key(b'k'), Some(Command::Input(1, b'k')));
        console.key(ESCAPE);
        assert_eq!(console.key(ESCAPE), Some(Command::Input(1, ESCAPE)));
        console.key(ESCAPE);
        assert_eq!(
            (console.key(b'3'), line.out().as_str()),
            (None, "\r\ngnomon: there is no such VM; Ctrl-A h lists them\r\n")
        );
        console.key(ESCAPE);
        assert_eq!(console.key(b's'), Some(Command::Stats));
        assert_eq!(
            [ESCAPE, b'p', ESCAPE, b'k'].map(|key| console.key(key)),
            [None, Some(Command::Pause(1)), None, Some(Command::End(1))]
        );
        console.say_of(1, "b ended", true);
        assert_eq!(console.key(b'k'), Some(Command::Input(0, b'k')), "the end of one attaches the next");
        console.say_of(0, "a ended", true);
        assert_eq!(console.key(b'k'), None);
    }

    #[test]
    fn a_detached_console_keeps_the_end_of_what_was_missed() {
        let (console, line) = console(ConsoleMode::Attached, &["a", "b"]);
        let text: String = (0..3 * RING).map(|n| char::from(b'a' + (n / RING) as u8)).collect();
        text.as_bytes().chunks(1000).for_each(|part| assert_eq!(console.write(1, part), (part.len(), Left::Nothing)));
        console.key(ESCAPE);
        console.key(b'n');
        while console.print() == Left::More {}
        assert_eq!(line.out(), alloc::format!("gnomon: console of b\r\n{}", "c".repeat(RING)));
    }

    #[test]
    fn a_port_without_room_makes_nobody_wait_and_loses_nothing() {
        let (console, line) = console_with_room(ConsoleMode::Lines, &["a"], 3);
        print(&console, 0, "hello");
        assert_eq!((line.out().as_str(), line.wants_room()), ("hel", true));
        let text = "x".repeat(2 * RING);
        let (taken, left) = console.write(0, text.as_bytes());
        assert!(left == Left::Nothing && taken < text.len(), "the guest is to offer the rest again");
        assert_eq!(console.write(0, b"y"), (0, Left::Nothing));
        line.0.lock().unwrap().room = usize::MAX;
        assert_eq!((console.write(0, b"").0, line.wants_room()), (0, false));
        while console.print() == Left::More {}
        assert_eq!(line.out(), alloc::format!("lo{}", "x".repeat(taken)));
    }

    #[test]
    fn nobody_prints_for_ever_and_turns_are_fair() {
        let (console, line) = console_with_room(ConsoleMode::Lines, &["a", "b"], 0);
        let flood = "a line of some length\n".repeat(500);
        assert_eq!(console.write(0, flood.as_bytes()).1, Left::Nothing);
        print(&console, 1, "help\n");
        line.0.lock().unwrap().room = usize::MAX;
        assert_eq!(console.write(0, b""), (0, Left::More));
        let out = line.out();
        assert!(out.len() == BUDGET && out.contains("b| help\r\n"), "{out}");
    }

    #[test]
    fn what_harts_print_at_once_is_whole() {
        let names: Vec<String> = (0..4).map(|n| alloc::format!("vm{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (console, line) = console(ConsoleMode::Lines, &names);
        std::thread::scope(|scope| {
            for guest in 0..4 {
                let console = &console;
                scope.spawn(move || {
                    for round in 0..500 {
                        let text = alloc::format!("{guest} says {round}\n");
                        let mut rest = text.as_bytes();
                        while !rest.is_empty() {
                            let (taken, left) = console.write(guest, rest);
                            rest = &rest[taken..];
                            if left == Left::More {
                                let _ = console.print();
                            }
                        }
                    }
                });
            }
        });
        while console.print() == Left::More {}
        let out = line.out();
        for guest in 0..4 {
            let mut rounds = 0;
            for said in out.lines().filter_map(|line| line.strip_prefix(&alloc::format!("vm{guest}| {guest} says "))) {
                assert_eq!(said, rounds.to_string());
                rounds += 1;
            }
            assert_eq!(rounds, 500);
        }
        assert_eq!(out.lines().count(), 2000);
    }
}
