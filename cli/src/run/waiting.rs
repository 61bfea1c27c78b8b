//! Lines about the commands of `--exec` that have not begun, while guests boot.

use crate::host::tty;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The time before the first line; a usual boot is shorter.
const FIRST: Duration = Duration::from_secs(8);
/// The time between two lines.
const BEAT: Duration = Duration::from_secs(10);

/// Lines about guests that boot, until it is dropped.
#[derive(Debug)]
pub struct Waiting {
    vms: Sender<Vec<String>>,
    last: Vec<String>,
}

impl Waiting {
    /// Waits for the commands in these VMs.
    #[must_use]
    pub fn start(vms: Vec<String>) -> Self {
        Self::with(vms, [FIRST, BEAT], |line| tty::say(&line))
    }

    fn with(vms: Vec<String>, [first, beat]: [Duration; 2], say: impl Fn(String) + Send + 'static) -> Self {
        let (sender, receiver) = channel::<Vec<String>>();
        let last = vms.clone();
        thread::spawn(move || {
            let (started, mut vms, mut due) = (Instant::now(), vms, Instant::now() + first);
            loop {
                match receiver.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Ok(now) => vms = now,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        due = Instant::now() + beat;
                        if !vms.is_empty() {
                            say(line(&vms, started.elapsed()));
                        }
                    }
                }
            }
        });
        Self { vms: sender, last }
    }

    /// The commands in these VMs have not begun yet.
    pub fn update<'a>(&mut self, vms: impl Iterator<Item = &'a str>) {
        let now: Vec<_> = vms.map(str::to_owned).collect();
        if now != self.last {
            self.last.clone_from(&now);
            // The thread ends with this value only.
            let _ = self.vms.send(now);
        }
    }
}

fn line(vms: &[String], elapsed: Duration) -> String {
    let (names, seconds) = (vms.join(", "), elapsed.as_secs());
    format!("gnomon: waiting for the commands in {names} to begin: {seconds} s so far (--verbose shows the boot)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_boot_is_said_until_the_commands_begin() {
        let (sender, said) = channel();
        let spans = [Duration::from_millis(20), Duration::from_millis(20)];
        let mut waiting = Waiting::with(vec!["a".into(), "b".into()], spans, move |line| drop(sender.send(line)));
        let first = said.recv_timeout(Duration::from_secs(20)).expect("a line");
        assert!(first.starts_with("gnomon: waiting for the commands in a, b to begin: 0 s so far"), "{first}");
        waiting.update(["b"].into_iter());
        let is_of_b = |line: String| line.starts_with("gnomon: waiting for the commands in b to begin");
        assert!((0..9).any(|_| said.recv_timeout(Duration::from_secs(20)).is_ok_and(is_of_b)));
        drop(waiting);
        while said.recv_timeout(Duration::from_secs(20)).is_ok() {}
        assert!(said.recv().is_err(), "it has ended");
    }
}
