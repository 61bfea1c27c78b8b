//! The run's input, and the keys and signals that end it.

use crate::host::tty::{PREFIX, give_up, read_input, say};
use crate::machine::process::{Input, Stopped, Stopper};
use rustix::termios::isatty;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::stdin;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::time::Duration;

/// After the prefix: end everything.
const END_KEY: u8 = b'x';
/// The most pieces of input that wait for the machine: from a pipe, and from a terminal.
const MOST_CHUNKS: usize = 16;
const MOST_KEYS: usize = 1 << 16;
/// The time limit for Gnomon to end everything.
const PATIENCE: Duration = Duration::from_secs(5);

/// Installs handlers: a signal that ends this program stops the machine, so that files are removed and the end is reported. A second signal,
/// or the end of the time limit (the reader of the output may block), ends this program at once; QEMU ends with it.
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
                say("gnomon: standard input has ended; the VMs keep running (--exec runs commands and powers off)");
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
