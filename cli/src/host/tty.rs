//! The user's terminal: raw while a console is attached to it, and restored on every way out.

use crate::host::words::shown;
use rustix::io::retry_on_intr;
use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, isatty, tcdrain, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::raise;
use std::io::{Read, Write, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The key that Gnomon listens to; see `docs/console.md`.
pub(crate) const PREFIX: u8 = 0x01;

/// A script that waits until this program is gone, then gives the terminal its settings back. Standard output is the terminal.
const GUARD: &str = "trap '' HUP INT QUIT TERM TSTP TTIN TTOU; read _; printf %s \"$2\"; stty \"$1\" <&1";

/// The terminal's settings as they were. `Some` while it is raw.
static SAVED: Mutex<Option<Saved>> = Mutex::new(None);

/// The settings of a terminal.
struct Saved {
    before: Termios,
    raw: Termios,
    screen: Screen,
    /// Gives them back if this program is killed.
    guard: Option<Child>,
}

/// The text that a raw terminal is sent besides its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Screen {
    /// At the beginning, and when this program continues after a stop.
    begin: &'static str,
    /// At the end, and when this program is stopped.
    end: &'static str,
}

impl Screen {
    /// The screen with what was printed before.
    pub const SAME: Self = Self { begin: "", end: "" };
    /// The other screen, without a cursor.
    pub const OTHER: Self = Self { begin: "\x1b[?1049h\x1b[?25l", end: "\x1b[?25h\x1b[?1049l" };
}

fn saved() -> MutexGuard<'static, Option<Saved>> {
    SAVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether standard input and output are terminals.
#[must_use]
pub fn is_interactive() -> bool {
    isatty(stdin()) && isatty(stdout())
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TerminalSize {
    /// Its lines.
    pub lines: u16,
    /// Its columns.
    pub columns: u16,
}

impl TerminalSize {
    /// The size of the terminal at standard output, if it reports one.
    #[must_use]
    pub fn of_output() -> Option<Self> {
        let size = tcgetwinsize(stdout()).ok()?;
        (size.ws_row > 0 && size.ws_col > 0).then_some(Self { lines: size.ws_row, columns: size.ws_col })
    }
}

/// The terminal is raw for as long as this lives.
#[derive(Debug)]
pub struct RawMode(());

impl RawMode {
    /// Makes the terminal raw: each key goes through as it is, none makes a signal. The terminal has its settings back while this
    /// program is stopped, and if it is killed. A program in the background is stopped here until it is in the foreground.
    ///
    /// # Errors
    /// If standard input is no terminal, or no shell can bring this program to the foreground.
    pub fn enter(screen: Screen) -> std::io::Result<Self> {
        // Until then the settings are those of the shell's line editor.
        retry_on_intr(|| tcdrain(stdin()))?;
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        let guard = guard(screen.end);
        *saved() = Some(Saved { before, raw: raw.clone(), screen, guard });
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            hook(info);
        }));
        follow_stops()?;
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        send(screen.begin);
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Sends text to the terminal at standard output, which may be gone.
fn send(text: &str) {
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// From now on, the terminal has its settings back while this program is stopped by SIGTSTP, and is raw again when it continues.
///
/// After SIGSTOP, which no program can handle, the shell sets the terminal.
fn follow_stops() -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTSTP, SIGCONT])?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let saved = saved();
            let Some(Saved { before, raw, screen, .. }) = &*saved else { return };
            if signal == SIGTSTP {
                send(screen.end);
                let _ = tcsetattr(stdin(), OptionalActions::Now, before);
                drop(saved);
                let _ = raise(SIGSTOP);
            } else if tcgetpgrp(stdin()) == Ok(getpgrp()) {
                let _ = tcsetattr(stdin(), OptionalActions::Now, raw);
                send(screen.begin);
            }
        }
    });
    Ok(())
}

/// Starts the process that gives the terminal its settings back if this program is killed; `None` if that cannot be.
fn guard(last: &str) -> Option<Child> {
    let settings = Command::new("stty").arg("-g").stdin(Stdio::inherit()).stderr(Stdio::null()).output().ok()?;
    let settings = String::from_utf8(settings.stdout).ok().filter(|_| settings.status.success())?;
    let terminal = stdin().as_fd().try_clone_to_owned().ok()?;
    let mut command = Command::new("sh");
    command.args(["-c", GUARD, "sh", settings.trim(), last]);
    command.stdin(Stdio::piped()).stdout(terminal).stderr(Stdio::null()).spawn().ok()
}

/// Gives the terminal its settings back.
fn restore() {
    if let Some(Saved { before, screen, guard, .. }) = saved().take() {
        if let Some(mut guard) = guard {
            let _ = guard.kill().and_then(|()| guard.wait());
        }
        send(screen.end);
        // A terminal that is gone needs no settings.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

/// From now on, a signal that ends this program gives the terminal its settings back first.
///
/// # Errors
/// If handlers cannot be set.
pub fn restore_at_signals() -> std::io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    std::thread::spawn(move || signals.forever().next().map(|signal| give_up(signal)));
    Ok(())
}

/// Gives the terminal its settings back, and ends this program as a signal does.
pub(crate) fn give_up(signal: i32) -> ! {
    leave(signal_status(signal))
}

/// Gives the terminal its settings back, and ends this program with a status.
pub(crate) fn leave(status: u8) -> ! {
    restore();
    std::process::exit(status.into())
}

/// The exit status for a signal, as in shells.
#[must_use]
pub fn signal_status(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Prints a line on standard error, without control characters ([`shown`]). A terminal that is gone is not an error.
pub fn say(line: &str) {
    let is_raw = saved().is_some();
    // A raw terminal does not return to the first column by itself.
    let end = if is_raw && isatty(stderr()) { "\r\n" } else { "\n" };
    let _ = write!(stderr(), "{}{end}", shown(line).replace('\n', end));
}

/// Passes standard input to `take`, up to `most` bytes at a time, until the input ends or `take` returns false.
pub(crate) fn read_input(most: usize, mut take: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; most];
    loop {
        match stdin().read(&mut buffer) {
            Ok(0) => return,
            Ok(count) if take(&buffer[..count]) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => return,
        }
    }
}
