//! `gnomon shell`.

use super::control::Which;
use super::script::complain;
use crate::control::ControlError;
use crate::control::session::{Session, Way};
use crate::host::place::IoError;
use crate::host::tty::{self, RawMode, Screen, TerminalSize};
use abi::agent::{Ask, End, Open, Size};
use abi::snapshot::bytes::Bytes;
use clap::Args;
use rustix::termios::isatty;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::{Read, stderr, stdin, stdout};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::ffi::OsStringExt;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

/// The status if the program could not be run, or its session was cut off or left, as ssh's.
const STATUS_CANNOT: u8 = 255;
/// Most messages about signals that wait to be sent.
const MOST_QUEUED: usize = 16;
/// The size of a terminal that does not report one.
const USUAL_SIZE: Size = Size { lines: 24, columns: 80 };

/// Run a command in a VM, or a shell on a terminal (see docs/shell.md).
///
/// The exit status is the command's; 128 and a signal's number if that has killed it; 255 if it could not be run.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShellArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
    /// Give the command a terminal, also if standard input is none
    #[arg(short, long)]
    terminal: bool,
    /// The command's working directory [default: the user's home directory]
    #[arg(long, value_name = "DIR")]
    cwd: Option<OsString>,
    /// An environment variable for the command; can be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<String>,
    /// The VM
    vm: Option<String>,
    /// The command and its arguments, which no shell interprets [default: the user's shell, on a terminal]
    #[arg(last = true, value_name = "COMMAND")]
    words: Vec<OsString>,
}

/// The way to the agent, and the user of its program.
#[derive(Debug, Args)]
pub struct How {
    /// The user in the guest
    #[arg(long, value_name = "NAME", default_value = "root")]
    user: String,
    /// The time to wait for the guest's agent, such as while it boots
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

impl How {
    /// Returns the user, for the agent.
    pub(super) fn user(&self) -> Bytes {
        Bytes(self.user.clone().into_bytes())
    }

    /// Connects to the agent of a VM.
    pub(super) fn connect(&self, which: &Which, vm: Option<&str>) -> Result<Session, ControlError> {
        let (client, vm) = which.find(vm)?;
        Session::connect((client.run(), &vm.name), Duration::from_secs(self.timeout))
    }
}

fn variable(text: &str) -> Result<String, String> {
    let is_one = text.find('=').is_some_and(|at| at > 0);
    if is_one { Ok(text.into()) } else { Err("it is NAME=VALUE".into()) }
}

impl From<TerminalSize> for Size {
    fn from(size: TerminalSize) -> Self {
        Self { lines: size.lines, columns: size.columns }
    }
}

/// Standard input of a raw terminal: after a line break, `~.` ends the command, as in ssh.
struct Keys {
    /// The bytes of the escape so far, the line break included.
    matched: usize,
}

/// The keys that leave a session, after a line break.
const LEAVE: &[u8] = b"\r~.";

impl Keys {
    /// Returns true if the user leaves. All bytes before go to the guest.
    fn leaves(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            let is_break = matches!(byte, b'\r' | b'\n');
            self.matched = match self.matched {
                _ if is_break => 1,
                n if n > 0 && LEAVE.get(n) == Some(byte) => n + 1,
                _ => 0,
            };
            if self.matched == LEAVE.len() {
                return true;
            }
        }
        false
    }
}

impl Read for Keys {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = stdin().read(buffer)?;
        if self.leaves(&buffer[..count]) {
            tty::leave(STATUS_CANNOT);
        }
        Ok(count)
    }
}

/// Passes signals of this process on to the program. Those that would end this one do so when they come again.
fn follow_signals(way: Way, is_raw: bool) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH])?;
    // A thread of its own sends: it waits while the run reads nothing, and signals must end this process even then.
    let (queue, queued) = sync_channel(MOST_QUEUED);
    thread::spawn(move || queued.iter().for_each(|ask| way.send(&ask)));
    thread::spawn(move || {
        let mut passed = Vec::new();
        for signal in signals.forever() {
            match signal {
                SIGWINCH if is_raw => {
                    // A size is lost if the queue is full: nothing is read then.
                    TerminalSize::of_output()
                        .into_iter()
                        .for_each(|size| drop(queue.try_send(Ask::Resize(size.into()))));
                }
                SIGWINCH => {}
                SIGINT | SIGQUIT if !is_raw && !passed.contains(&signal) => {
                    passed.push(signal);
                    if queue.try_send(Ask::Signal(signal as u8)).is_err() {
                        tty::give_up(signal);
                    }
                }
                // The run hangs up for a command that has gone.
                _ => tty::give_up(signal),
            }
        }
    });
    Ok(())
}

/// Returns the exit status for a program's end.
pub(super) fn status(end: End) -> u8 {
    match end {
        End::Exited(status) => status,
        End::Killed(signal) => tty::signal_status(signal.into()),
        End::Lost => STATUS_CANNOT,
    }
}

impl ShellArgs {
    /// Runs the command; returns its exit status.
    pub fn run(self) -> miette::Result<u8> {
        self.run_in_guest().or_else(|why| {
            complain(&why);
            Ok(STATUS_CANNOT)
        })
    }

    fn run_in_guest(self) -> miette::Result<u8> {
        let has_terminal = self.terminal || self.words.is_empty() && isatty(stdin());
        let mut env: Vec<Bytes> = Vec::new();
        if has_terminal {
            let term = std::env::var_os("TERM").filter(|term| !term.is_empty()).unwrap_or_else(|| "dumb".into());
            env.push(Bytes([b"TERM=", term.as_bytes()].concat()));
        }
        env.extend(self.env.into_iter().map(|variable| Bytes(variable.into_bytes())));
        let open = Open {
            words: self.words.into_iter().map(|word| Bytes(word.into_vec())).collect(),
            terminal: has_terminal.then(|| TerminalSize::of_output().map_or(USUAL_SIZE, Size::from)),
            user: Some(self.how.user()),
            cwd: self.cwd.map(|cwd| Bytes(cwd.into_vec())),
            env,
        };
        if !open.is_sound() {
            return Err(miette::miette!(
                help = "pass large data by standard input, or by gnomon cp",
                "the command has more than {} KiB of arguments, or more than {} of them",
                abi::agent::MOST_WORDS >> 10,
                abi::agent::MOST_COUNT
            ));
        }
        let session = self.how.connect(&self.which, self.vm.as_deref())?;
        let is_raw = has_terminal && isatty(stdin());
        let raw = is_raw.then(|| RawMode::enter(Screen::SAME)).transpose().map_err(ControlError::Terminal)?;
        follow_signals(session.way(), is_raw).map_err(IoError::at("follow", "signals"))?;
        let (out, error) = (stdout(), stderr());
        let done = if is_raw {
            session.run(open, Keys { matched: 1 }, out, error)
        } else {
            session.run(open, stdin(), out, error)
        };
        drop(raw);
        let done = done?;
        if let Some(why) = done.lost {
            Err(IoError::at("write", "/dev/stdout")(why))?;
        }
        Ok(status(done.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_left_after_a_line_break_only() {
        for (typed, leaves) in [("~.", true), ("a~.", false), ("a\r~.", true), ("a\n~~.", false), ("\r~a.", false)] {
            let mut keys = Keys { matched: 1 };
            let left = typed.bytes().any(|byte| keys.leaves(&[byte]));
            assert_eq!(left, leaves, "{typed:?}");
            assert_eq!(Keys { matched: 1 }.leaves(typed.as_bytes()), leaves, "{typed:?}");
        }
    }

    #[test]
    fn statuses_are_those_of_shells() {
        assert_eq!([End::Exited(7), End::Killed(9), End::Lost].map(status), [7, 137, 255]);
    }
}
