//! A VM's console, on this terminal: what it prints, and what is typed for it.
//!
//! Gnomon keeps the end of what each VM has printed anyway. So whoever looks asks for what has come since the last time, 100 times a second while
//! there is something, and nobody waits for whoever does not.

use super::ControlError;
use super::client::Client;
use abi::control::{MOST_OUTPUT, MOST_TYPED, VmInfo};
use std::collections::VecDeque;
use std::io::{self, Read, Write, stderr, stdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// The key that this command keeps for itself, as `gnomon run` does.
const PREFIX: u8 = 0x01;
/// How long nobody asks, at least and at most.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(50);
/// Bytes that wait for the VM to take them, at most.
const MOST_WAITING: usize = 16 << 10;
/// Pieces of input that wait to be looked at.
const MOST_CHUNKS: usize = 16;

/// Why it is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Somebody has left, by the key, or since nobody reads any more.
    Left,
    /// The VM has ended.
    Vm,
    /// The run has ended.
    Run,
}

/// What is at this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A terminal, which is raw: a key leaves, and lines begin at its left.
    Terminal,
    /// Something else: bytes go through as they are.
    Plain,
}

/// What a key asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Type(u8),
    Leave,
    Help,
    Unknown,
    Nothing,
}

/// Follows the keys.
#[derive(Debug, Default)]
struct Keys {
    after_prefix: bool,
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
            (true, b'h' | b'?') => Key::Help,
            (true, _) => Key::Unknown,
        }
    }
}

/// What is typed here, in pieces: read by a thread of its own, which ends with the input.
#[must_use]
pub fn typed() -> Receiver<Vec<u8>> {
    let (sender, receiver) = sync_channel(MOST_CHUNKS);
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        loop {
            match stdin().read(&mut buffer) {
                Ok(0) => return,
                Ok(count) if sender.send(buffer[..count].to_vec()).is_ok() => {}
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return,
            }
        }
    });
    receiver
}

/// A console that is attached.
#[derive(Debug)]
pub struct Console<'a, W> {
    client: &'a mut Client,
    vm: &'a VmInfo,
    form: Form,
    output: W,
    /// The last byte that was shown.
    last: u8,
    keys: Keys,
    /// What the VM had no room for yet.
    waiting: VecDeque<u8>,
}

impl<'a, W: Write> Console<'a, W> {
    /// That of a VM. What it prints goes to `output`.
    pub fn new(client: &'a mut Client, vm: &'a VmInfo, form: Form, output: W) -> Self {
        Self { client, vm, form, output, last: b'\n', keys: Keys::default(), waiting: VecDeque::new() }
    }

    /// Shows what the VM prints, and types what comes, until one of both ends.
    ///
    /// # Errors
    /// [`ControlError`], if there is no such console, or the run does not answer.
    pub fn follow(&mut self, typed: &Receiver<Vec<u8>>) -> Result<End, ControlError> {
        let (mut from, mut pause, mut has_input) = (None, SHORTEST, true);
        loop {
            let output = match (self.client.output(self.vm.number, from), from) {
                (Ok(output), _) => output,
                (Err(ControlError::Gone(_)), _) => return Ok(End::Run),
                // It was there before.
                (Err(ControlError::Refused { .. }), Some(_)) => return Ok(End::Vm),
                (Err(why), _) => return Err(why),
            };
            if let Some(lost) = from.and_then(|from| output.at.checked_sub(from)).filter(|lost| *lost != 0) {
                self.say(&format!("{lost} bytes that it printed are lost: they were not read here in time"));
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
                    if self.take(&bytes) {
                        return Ok(End::Left);
                    }
                    pause = SHORTEST;
                }
                Err(RecvTimeoutError::Timeout) => {}
                // A terminal that is gone has nobody at it.
                Err(RecvTimeoutError::Disconnected) if self.form == Form::Terminal => return Ok(End::Left),
                Err(RecvTimeoutError::Disconnected) => has_input = false,
            }
        }
    }

    /// Takes what was typed; says whether that is to leave.
    fn take(&mut self, bytes: &[u8]) -> bool {
        if self.form == Form::Plain {
            self.waiting.extend(bytes);
            return false;
        }
        for byte in bytes {
            match self.keys.key(*byte) {
                Key::Leave => return true,
                Key::Type(byte) if self.waiting.len() < MOST_WAITING => self.waiting.push_back(byte),
                // As a terminal does whose line is full.
                Key::Type(_) => _ = self.output.write_all(b"\x07").and_then(|()| self.output.flush()),
                Key::Help => self.say("Ctrl-A d leaves, and the VM runs on; Ctrl-A Ctrl-A sends Ctrl-A to it"),
                Key::Unknown => self.say("no such command; Ctrl-A d leaves, Ctrl-A h helps"),
                Key::Nothing => {}
            }
        }
        false
    }

    /// Types what waits, as far as the VM has room.
    fn send(&mut self) -> Result<Option<End>, ControlError> {
        while !self.waiting.is_empty() {
            let piece: Vec<u8> = self.waiting.iter().take(MOST_TYPED).copied().collect();
            let taken = match self.client.type_in(self.vm.number, piece) {
                Ok(taken) => taken,
                Err(ControlError::Gone(_)) => return Ok(Some(End::Run)),
                // It has ended: its last words are still to be read.
                Err(ControlError::Refused { .. }) => {
                    self.waiting.clear();
                    return Ok(None);
                }
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
        match self.form {
            Form::Terminal => {
                let start = if self.last == b'\n' { "" } else { "\r\n" };
                // Whoever is gone needs no word.
                let _ = write!(self.output, "{start}gnomon: {what}\r\n").and_then(|()| self.output.flush());
                self.last = b'\n';
            }
            Form::Plain => _ = writeln!(stderr(), "gnomon: {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
