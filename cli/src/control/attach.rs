//! A VM's console, on this terminal: what it prints, and what is typed for it.
//!
//! Gnomon keeps the end of each VM's output anyway. So this end polls for new output, 100 times a second while there is some,
//! and a slow reader blocks nothing.

use super::ControlError;
use super::client::Client;
use crate::host::tty::{self, PREFIX, RawMode, Screen, read_input};
use crate::host::words::shown;
use abi::control::{MOST_OUTPUT, MOST_TYPED, Output, VmInfo, VmState};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// The shortest and the longest pause between two polls.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(50);
/// Bytes that wait for the VM to take them, at most.
const MOST_WAITING: usize = 16 << 10;
/// Pieces of input that wait to be looked at.
const MOST_CHUNKS: usize = 16;

/// The reason why an attachment has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The user left, by the key, or the reader closed the output.
    Left,
    /// The VM has ended.
    Vm,
    /// The run has ended.
    Run,
    /// The user gave a command by this key, which is for the caller ([`Console::with_commands`]).
    Command(u8),
}

/// The kind of this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A terminal, which is raw: a key leaves, and lines begin at its left.
    Terminal,
    /// Something else: bytes go through as they are.
    Plain,
}

impl Form {
    /// Enters the form that suits this process's input and output; the terminal is raw as long as the second value lives.
    ///
    /// # Errors
    /// [`ControlError::Terminal`].
    pub fn enter() -> Result<(Self, Option<RawMode>), ControlError> {
        if !tty::is_interactive() {
            return Ok((Self::Plain, None));
        }
        let raw = tty::restore_at_signals().and_then(|()| RawMode::enter(Screen::SAME));
        Ok((Self::Terminal, Some(raw.map_err(ControlError::Terminal)?)))
    }
}

/// The action of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Type(u8),
    Leave,
    Command(u8),
    Help,
    Unknown,
    Nothing,
}

/// Follows the keys.
#[derive(Debug, Default)]
struct Keys {
    after_prefix: bool,
    /// The keys that are the caller's.
    commands: &'static [u8],
}

impl Keys {
    fn key(&mut self, byte: u8) -> Key {
        match (std::mem::take(&mut self.after_prefix), byte) {
            (false, PREFIX) => {
                self.after_prefix = true;
                Key::Nothing
            }
            (false, byte) => Key::Type(byte),
            (true, PREFIX) => Key::Type(PREFIX),
            (true, b'd') => Key::Leave,
            (true, byte) if self.commands.contains(&byte) => Key::Command(byte),
            (true, b'h' | b'?') => Key::Help,
            (true, _) => Key::Unknown,
        }
    }
}

/// The typed input, in pieces: read by a thread of its own, which ends with the input.
#[must_use]
pub fn typed() -> Receiver<Vec<u8>> {
    let (sender, receiver) = sync_channel(MOST_CHUNKS);
    std::thread::spawn(move || read_input(1024, |bytes| sender.send(bytes.to_vec()).is_ok()));
    receiver
}

/// The result of a poll.
enum Look {
    Found(Output),
    Over(End),
    Silent,
}

/// A console that is attached.
#[derive(Debug)]
pub struct Console<'a, W, E> {
    client: &'a mut Client,
    vm: &'a VmInfo,
    form: Form,
    output: W,
    /// The output for messages of this command, if `output` is not a terminal.
    words: E,
    /// The last byte that was shown.
    last: u8,
    keys: Keys,
    /// Input that the VM had no room for yet.
    waiting: VecDeque<u8>,
    /// The last poll was not answered.
    is_silent: bool,
}

impl<'a, W: Write, E: Write> Console<'a, W, E> {
    /// Attaches to a VM. Its output goes to `output`. Messages go there too if it is a terminal, otherwise to `words`.
    pub fn new(client: &'a mut Client, vm: &'a VmInfo, (form, output): (Form, W), words: E) -> Self {
        Self {
            client,
            vm,
            form,
            output,
            words,
            last: b'\n',
            keys: Keys::default(),
            waiting: VecDeque::new(),
            is_silent: false,
        }
    }

    /// Leaves these keys, after Ctrl-A, to the caller. They do nothing where `form` is not a terminal.
    #[must_use]
    pub fn with_commands(mut self, commands: &'static [u8]) -> Self {
        self.keys.commands = commands;
        self
    }

    /// Shows what the VM prints, and types what comes, until one of both ends.
    ///
    /// # Errors
    /// [`ControlError`], if there is no such console, or the run does not answer.
    pub fn follow(&mut self, typed: &Receiver<Vec<u8>>) -> Result<End, ControlError> {
        let (mut from, mut pause, mut has_input) = (None, SHORTEST, true);
        loop {
            let output = match self.look(from)? {
                Look::Found(output) => output,
                Look::Over(end) => return Ok(end),
                Look::Silent => Output { at: from.unwrap_or(0), bytes: Vec::new(), is_over: false },
            };
            if let Some(lost) = from.and_then(|from| output.at.checked_sub(from)).filter(|lost| *lost != 0) {
                self.say(&format!("{lost} bytes of its output are lost: this terminal did not read them in time"));
            }
            from = Some(output.at + output.bytes.len() as u64);
            if self.show(&output.bytes).is_err() {
                return Ok(End::Left);
            }
            if output.is_over {
                return Ok(End::Vm);
            }
            if let Some(end) = self.send()? {
                return Ok(end);
            }
            pause = if output.bytes.is_empty() { LONGEST.min(pause * 2) } else { SHORTEST };
            if output.bytes.len() == MOST_OUTPUT {
                // There is more: but what is typed has its turn, too.
                pause = Duration::ZERO;
            }
            // What comes from a pipe waits there while the VM takes nothing. Of a terminal a key may be the one to leave.
            if !has_input || self.form == Form::Plain && self.waiting.len() >= MOST_WAITING {
                std::thread::sleep(pause);
                continue;
            }
            match typed.recv_timeout(pause) {
                Ok(bytes) => {
                    if let Some(end) = self.take(&bytes) {
                        return Ok(end);
                    }
                    pause = SHORTEST;
                }
                Err(RecvTimeoutError::Timeout) => {}
                // A terminal that is gone has no reader.
                Err(RecvTimeoutError::Disconnected) if self.form == Form::Terminal => return Ok(End::Left),
                Err(RecvTimeoutError::Disconnected) => has_input = false,
            }
        }
    }

    /// Reads the output since the last poll. A machine that is stopped does not answer, and may resume later.
    fn look(&mut self, from: Option<u64>) -> Result<Look, ControlError> {
        let refused = match (self.client.output(self.vm.number, from), from) {
            (Ok(output), _) => {
                self.is_silent = false;
                return Ok(Look::Found(output));
            }
            (Err(ControlError::Gone(_)), _) => return Ok(Look::Over(End::Run)),
            // The VM existed before: either it is gone, or the machine does not answer.
            (Err(why @ (ControlError::Refused { .. } | ControlError::Silent(_))), Some(_)) => why,
            (Err(why), _) => return Err(why),
        };
        let number = self.vm.number;
        match self.client.vms() {
            Ok(vms) if vms.vms.iter().all(|vm| vm.number != number || vm.state == VmState::Ended) => {
                return Ok(Look::Over(End::Vm));
            }
            Err(ControlError::Gone(_)) => return Ok(Look::Over(End::Run)),
            Ok(_) | Err(ControlError::Refused { .. } | ControlError::Silent(_)) => {}
            Err(why) => return Err(why),
        }
        if !std::mem::replace(&mut self.is_silent, true) {
            self.say(&refused.to_string());
        }
        Ok(Look::Silent)
    }

    /// Takes what was typed. Returns the end that it asks for, if it does; what follows is dropped then.
    fn take(&mut self, bytes: &[u8]) -> Option<End> {
        if self.form == Form::Plain {
            self.waiting.extend(bytes);
            return None;
        }
        for byte in bytes {
            match self.keys.key(*byte) {
                Key::Leave => return Some(End::Left),
                Key::Command(byte) => return Some(End::Command(byte)),
                Key::Type(byte) if self.waiting.len() < MOST_WAITING => self.waiting.push_back(byte),
                // As a terminal does whose line is full.
                Key::Type(_) => _ = self.output.write_all(b"\x07").and_then(|()| self.output.flush()),
                Key::Help => self.say("Ctrl-A d leaves while the VM keeps running; Ctrl-A Ctrl-A sends Ctrl-A to it"),
                Key::Unknown => self.say("no such command; Ctrl-A d leaves, Ctrl-A h helps"),
                Key::Nothing => {}
            }
        }
        None
    }

    /// Types what waits, as far as the VM has room.
    fn send(&mut self) -> Result<Option<End>, ControlError> {
        while !self.waiting.is_empty() {
            let piece: Vec<u8> = self.waiting.iter().take(MOST_TYPED).copied().collect();
            let taken = match self.client.type_in(self.vm.number, piece) {
                Ok(taken) => taken,
                Err(ControlError::Gone(_)) => return Ok(Some(End::Run)),
                // The next poll finds out why.
                Err(ControlError::Refused { .. } | ControlError::Silent(_)) => return Ok(None),
                Err(why) => return Err(why),
            };
            self.waiting.drain(..taken.min(self.waiting.len()));
            if taken < MOST_TYPED {
                break;
            }
        }
        Ok(None)
    }

    /// Shows what the VM has printed. At a terminal each line feed goes to the start of the next line.
    fn show(&mut self, bytes: &[u8]) -> io::Result<()> {
        for run in bytes.split_inclusive(|byte| *byte == b'\n') {
            if let (Form::Terminal, Some(text)) = (self.form, run.strip_suffix(b"\n")) {
                self.output.write_all(text)?;
                let has_return = text.last().unwrap_or(&self.last) == &b'\r';
                self.output.write_all(if has_return { b"\n" } else { b"\r\n" })?;
            } else {
                self.output.write_all(run)?;
            }
            self.last = *run.last().unwrap_or(&self.last);
        }
        self.output.flush()
    }

    /// Says something that is not the VM's, on a line of its own.
    pub fn say(&mut self, what: &str) {
        let what = shown(what);
        match self.form {
            Form::Terminal => {
                let start = if self.last == b'\n' { "" } else { "\r\n" };
                // A reader that is gone needs no message.
                let _ = write!(self.output, "{start}gnomon: {what}\r\n").and_then(|()| self.output.flush());
                self.last = b'\n';
            }
            Form::Plain => _ = writeln!(self.words, "gnomon: {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::control::frame::{Reader, decode, encode};
    use abi::control::{Answer, MOST_REQUEST_BYTES, Request, Vms};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;

    fn vm(state: VmState) -> VmInfo {
        let (mode, since) = (None, None);
        VmInfo { number: 3, name: "vm".into(), state, mode, vcpus: 1, memory_bytes: 0, resident_bytes: 0, since }
    }

    fn vms(state: VmState) -> Answer {
        Answer::Vms(Vms {
            now: 0,
            timebase: 1,
            vms: vec![vm(state)],
            lost: Vec::new(),
            ports: Vec::new(),
            disks: Vec::new(),
        })
    }

    fn output(at: u64, text: &str, is_over: bool) -> Answer {
        Answer::Output(Output { at, bytes: text.into(), is_over })
    }

    /// A run that gives these answers, whatever it is asked, and hangs up. Returns what was shown, what came of it, and the requests.
    fn attach(answers: Vec<Answer>, form: Form, keys: &[u8]) -> (String, Result<End, ControlError>, Vec<Request>) {
        let (near, mut far) = UnixStream::pair().expect("sockets");
        let run = std::thread::spawn(move || {
            let (mut reader, mut asked, mut buffer) = (Reader::new(MOST_REQUEST_BYTES), Vec::new(), [0; 1024]);
            let mut answers = answers.into_iter();
            loop {
                let count = far.read(&mut buffer).expect("a request");
                let mut bytes = &buffer[..count];
                while let Some(frame) = reader.next(&mut bytes) {
                    let Some(answer) = answers.next() else { return asked };
                    let (number, request) = decode(&frame.expect("whole")).expect("a request");
                    asked.push(request);
                    far.write_all(&encode(number, &answer)).expect("it reads");
                }
                if count == 0 {
                    return asked;
                }
            }
        });
        let mut client = Client::new("run".into(), near, Duration::from_secs(10));
        let (sender, typed) = channel();
        sender.send(keys.to_vec()).expect("it is there");
        let (vm, mut shown) = (vm(VmState::Running), Vec::new());
        let end = Console::new(&mut client, &vm, (form, &mut shown), io::sink()).follow(&typed);
        drop(client);
        (String::from_utf8(shown).expect("text"), end, run.join().expect("no panic"))
    }

    #[test]
    fn what_is_printed_is_shown_and_what_is_lost_is_said() {
        let answers = || vec![output(5, "a\nb\r\n", false), output(10, "c", false), output(20, "d", true)];
        let (shown, end, asked) = attach(answers(), Form::Terminal, b"");
        assert_eq!(
            shown,
            "a\r\nb\r\nc\r\ngnomon: 9 bytes of its output are lost: this terminal did not read them in time\r\nd"
        );
        assert!(matches!(end, Ok(End::Vm)));
        let from = [None, Some(10), Some(11)].map(|from| Request::Output { vm: 3, from });
        assert_eq!(asked, from);
        assert_eq!(attach(answers(), Form::Plain, b"").0, "a\nb\r\ncd");
    }

    #[test]
    fn what_the_vm_has_no_room_for_is_typed_again() {
        let answers =
            vec![output(0, "", false), output(0, "", false), Answer::Taken(2), output(0, "", false), Answer::Taken(1)];
        let (_, end, asked) = attach(answers, Form::Terminal, b"abc");
        assert!(matches!(end, Ok(End::Run)), "{end:?}");
        let typed = asked.into_iter().filter(|request| matches!(request, Request::Type(..))).collect::<Vec<_>>();
        assert_eq!(typed, [Request::Type(3, b"abc".to_vec()), Request::Type(3, b"c".to_vec())]);
    }

    #[test]
    fn a_machine_that_does_not_answer_is_no_end_and_a_vm_that_is_gone_is_one() {
        let silent = || Answer::Refused("its machine does not answer".into());
        let answers = vec![
            output(0, "a", false),
            silent(),
            silent(),
            silent(),
            silent(),
            output(1, "b", false),
            output(2, "", false),
        ];
        let (shown, end, _) = attach(answers, Form::Terminal, b"");
        assert_eq!((shown.matches("does not answer").count(), shown.ends_with('b')), (1, true), "{shown}");
        assert!(matches!(end, Ok(End::Run)));
        for gone in [
            vms(VmState::Ended),
            Answer::Vms(Vms {
                now: 0,
                timebase: 1,
                vms: vec![],
                lost: Vec::new(),
                ports: Vec::new(),
                disks: Vec::new(),
            }),
        ] {
            let answers = vec![output(0, "a", false), Answer::Refused("it has ended".into()), gone];
            assert!(matches!(attach(answers, Form::Plain, b"").1, Ok(End::Vm)));
        }
        // One that was never there is an error.
        let (_, end, _) = attach(vec![Answer::Refused("it is not there yet".into())], Form::Terminal, b"");
        assert!(matches!(end, Err(ControlError::Refused { .. })));
        assert!(matches!(attach(vec![output(0, "", false)], Form::Terminal, b"x\x01d").1, Ok(End::Left)));
    }

    #[test]
    fn keys_that_are_this_commands() {
        let keys = |typed: &[u8]| {
            let mut keys = Keys::default();
            typed.iter().map(|byte| keys.key(*byte)).filter(|key| *key != Key::Nothing).collect::<Vec<_>>()
        };
        assert_eq!(keys(b"a\x03d"), [Key::Type(b'a'), Key::Type(3), Key::Type(b'd')]);
        assert_eq!(keys(b"\x01d"), [Key::Leave]);
        assert_eq!(keys(b"\x01\x01d\x01h\x01x"), [Key::Type(1), Key::Type(b'd'), Key::Help, Key::Unknown]);
    }
}
