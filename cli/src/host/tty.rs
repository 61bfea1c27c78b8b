//! The user's terminal: raw while a console is attached to it, and restored on every way out.

use crate::machine::process::{Input, Stopped, Stopper};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{Read, Write, stderr, stdin, stdout};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The key that Gnomon listens to; see `docs/console.md`.
pub(crate) const PREFIX: u8 = 0x01;
/// After the prefix: end everything.
const END_KEY: u8 = b'x';
/// How many pieces of input wait for the machine at most: from a pipe, and from a terminal.
const MOST_CHUNKS: usize = 16;
const MOST_KEYS: usize = 1 << 16;
/// How long Gnomon may take to end everything.
const PATIENCE: Duration = Duration::from_secs(5);

/// The terminal's settings as they were. `Some` while it is raw.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// Whether a person sits at both ends of this program.
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
    /// That of the terminal that this program writes to, if it is one that knows.
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
    /// Makes the terminal raw: each key goes through as it is, none makes a signal.
    ///
    /// # Errors
    /// If standard input is no terminal.
    pub fn enter() -> std::io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            hook(info);
        }));
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal its settings back.
fn restore() {
    if let Some(before) = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // A terminal that is gone needs no settings.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

/// From now on, a signal that ends this program stops the machine, so that all is cleared away and said. The second one,
/// or patience that ends (whoever should read our output may not), ends this program at once; QEMU ends with us.
///
/// # Errors
/// If handlers cannot be set.
pub fn handle_signals(stopper: Stopper) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    std::thread::spawn(move || {
        let mut signals = signals.forever();
        let Some(first) = signals.next() else { return };
        stopper.stop(Stopped::Signal(first));
        std::thread::spawn(move || {
            std::thread::sleep(PATIENCE);
            give_up(first);
        });
        if let Some(second) = signals.next() {
            give_up(second);
        }
    });
    Ok(())
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

fn give_up(signal: i32) -> ! {
    restore();
    std::process::exit(signal_status(signal).into())
}

/// The exit status that tells of a signal, as shells have it.
#[must_use]
pub fn signal_status(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Says something in a line of its own on standard error. A terminal that is gone is no reason to fail.
pub fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// Passes what is typed, or piped in, on to the machine, from threads of their own, until the input ends. It is passed on
/// when the sender that this returns has been used: before that, firmware would lose some. The keys that end everything are
/// noticed at once, even if the machine takes no input any more.
#[must_use]
pub fn forward_input(input: Input, stopper: Stopper) -> Sender<()> {
    let (begin, begins) = channel();
    // Keys are few, and are never to wait for the machine; what is piped in is to.
    let most = if isatty(stdin()) { MOST_KEYS } else { MOST_CHUNKS };
    let (chunks, typed) = sync_channel::<Vec<u8>>(most);
    std::thread::spawn(move || {
        if begins.recv().is_ok() {
            for chunk in typed {
                if input.write(&chunk).is_err() {
                    return;
                }
            }
            if !isatty(stdin()) {
                say("gnomon: standard input has ended, the VMs run on (--exec runs commands and powers off)");
            }
        }
    });
    std::thread::spawn(move || {
        let mut keys = Keys::default();
        read_input(4096, |bytes| {
            if keys.is_end(bytes) {
                let stopper = stopper.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(PATIENCE);
                    stopper.stop(Stopped::Deaf);
                });
            }
            chunks.send(bytes.to_vec()).is_ok()
        });
    });
    begin
}

/// Reads what is typed, up to so many bytes at a time, until it ends or nobody takes it any more.
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

/// Follows the keys, to notice the wish to end everything.
#[derive(Debug, Default)]
struct Keys {
    after_prefix: bool,
}

impl Keys {
    fn is_end(&mut self, bytes: &[u8]) -> bool {
        let mut is_end = false;
        for byte in bytes {
            is_end |= self.after_prefix && *byte == END_KEY;
            self.after_prefix = !self.after_prefix && *byte == PREFIX;
        }
        is_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_key_is_noticed() {
        for (typed, is_end) in [
            (&b"ls\n"[..], false),
            (b"\x01x", true),
            (b"\x01\x01x", false),
            (b"x\x01sx", false),
            (b"\x01\x01\x01x", true),
        ] {
            assert_eq!(Keys::default().is_end(typed), is_end, "{typed:?}");
            let mut keys = Keys::default();
            assert_eq!(typed.iter().any(|byte| keys.is_end(&[*byte])), is_end, "{typed:?}");
        }
    }
}
