//! Tests of the output of the port.

extern crate std;
use super::*;
use alloc::boxed::Box;
use alloc::string::String;
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

/// Returns the first guest that has that slot.
const fn guest(slot: usize) -> Handle {
    Handle { slot, number: slot as u64 }
}

impl Port for Line {
    fn room(&self) -> usize {
        self.0.lock().unwrap().room.min(16)
    }
    fn send(&self, bytes: &[u8]) {
        let mut state = self.0.lock().unwrap();
        state.room = state.room.checked_sub(bytes.len()).expect("only as much as there is room for");
        state.out.extend(bytes);
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
    let console = Console::new(line, mode, names.len() > 1);
    names.iter().enumerate().for_each(|(slot, name)| console.open(guest(slot), name));
    (console, line)
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
    assert_eq!(console.key(b'k'), Some(Command::Input(guest(0), b'k')));
    assert_eq!(console.key(ESCAPE), None);
    assert_eq!((console.listener(), console.key(b'n'), console.listener()), (None, None, Some(guest(1))));
    assert_eq!(line.out(), "gnomon: console of b\r\nmissed");
    assert_eq!(console.key(b'k'), Some(Command::Input(guest(1), b'k')));
    console.key(ESCAPE);
    assert_eq!(console.key(ESCAPE), Some(Command::Input(guest(1), ESCAPE)));
    console.key(ESCAPE);
    assert_eq!(
        (console.key(b'3'), line.out().as_str()),
        (None, "\r\ngnomon: there is no such VM; Ctrl-A h lists them\r\n")
    );
    console.key(ESCAPE);
    assert_eq!(console.key(b's'), Some(Command::Stats));
    assert_eq!(
        [ESCAPE, b'p', ESCAPE, b'k'].map(|key| console.key(key)),
        [None, Some(Command::Pause(guest(1))), None, Some(Command::End(guest(1)))]
    );
    assert_eq!(
        [ESCAPE, b'-', ESCAPE, b'+'].map(|key| console.key(key)),
        [None, Some(Command::Balloon(guest(1), Step::Less)), None, Some(Command::Balloon(guest(1), Step::More))]
    );
    console.say_of(1, "b ended", true);
    assert_eq!(console.key(b'k'), Some(Command::Input(guest(0), b'k')), "the end of one attaches the next");
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

#[test]
fn the_next_guest_in_a_slot_has_its_name_and_a_line_of_its_own() {
    let (console, line) = console(ConsoleMode::Lines, &["a", "b"]);
    print(&console, 0, "half a li");
    console.say_of(0, "a ended", true);
    assert_eq!(console.listener(), Some(guest(1)));
    let next = Handle { slot: 0, number: 2 };
    console.open(next, "c");
    assert_eq!(console.listener(), Some(next), "not the one that had the slot");
    print(&console, 0, "hello\n");
    assert_eq!(line.out(), "a| half a li\r\ngnomon: a ended\r\nc| hello\r\n");
}

#[test]
fn output_of_a_guest_that_is_gone_is_still_printed() {
    let (console, line) = console_with_room(ConsoleMode::Lines, &["a"], 3);
    print(&console, 0, "hello");
    console.say_of(0, "a ended", true);
    console.open(Handle { slot: 0, number: 1 }, "b");
    print(&console, 0, "world");
    assert_eq!(line.out(), "hel");
    line.0.lock().unwrap().room = usize::MAX;
    assert_eq!(console.write(0, b"\n"), (1, Left::Nothing));
    assert_eq!(line.out(), "lo\r\ngnomon: a ended\r\nworld\r\n");
}

#[test]
fn who_comes_to_a_console_that_nobody_is_left_on_is_attached() {
    let (console, line) = console(ConsoleMode::Attached, &["a", "b"]);
    print(&console, 1, "missed");
    console.say_of(1, "b ended", true);
    console.open(Handle { slot: 1, number: 2 }, "c");
    print(&console, 1, " and more");
    console.say_of(0, "a ended", true);
    let attached = "gnomon: console of c\r\ngnomon: a ended\r\nmissed and more";
    assert_eq!(
        line.out(),
        std::format!("gnomon: b ended\r\n{attached}"),
        "what both have printed, and the screen had not shown"
    );
    console.say_of(1, "c ended", true);
    assert_eq!(console.listener(), None);
    console.open(Handle { slot: 0, number: 3 }, "d");
    assert_eq!(line.out(), "\r\ngnomon: c ended\r\ngnomon: console of d\r\n");
    assert_eq!(console.key(b'x'), Some(Command::Input(Handle { slot: 0, number: 3 }, b'x')));
}
