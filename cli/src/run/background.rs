//! A run in the background: it has no terminal, writes its VMs' output to logs, and tells the command that has started it when its machine
//! has booted.
//!
//! ```text
//!  gnomon run -d ──── spawn, with a socket as standard input ───► gnomon run --supervised
//!        │                                                               │ prepares; messages on the terminal
//!        │◄───────────────────── the run's name ─────────────────────────┤ Gnomon has booted
//!        ├───────────────────────── LET_GO ─────────────────────────────►│ VMs have started: messages go to the log
//!        │◄────────────────────── end of file ───────────────────────────┤
//!     exits                                                              ▼
//! ```
//!
//! If one side ends before that, so does the other.

use nix::unistd::{dup2_stderr, dup2_stdin};
use rustix::process::{Signal, kill_current_process_group, setsid};
use std::fs::File;
use std::io::{Read, Write, stdin};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The byte by which the command that has started the run lets it go.
pub const LET_GO: u8 = b'.';

/// The link of a run in the background to the command that has started it.
#[derive(Clone, Debug)]
pub struct Background {
    starter: Arc<UnixStream>,
    /// The file for the run's messages, once there is one.
    messages: Arc<Mutex<Option<File>>>,
}

impl Background {
    /// Goes to the background: this process has a session of its own, and no input. It ends if the command that has started it ends too
    /// early.
    ///
    /// # Errors
    /// If standard input is not a socket, or what the system refuses.
    pub fn enter() -> std::io::Result<Self> {
        // It is the first process of a group already if it was started by a shell, for example in a test.
        let _ = setsid();
        let starter = UnixStream::from(stdin().as_fd().try_clone_to_owned()?);
        starter.peer_addr()?;
        dup2_stdin(File::open("/dev/null")?)?;
        let this = Self { starter: Arc::new(starter), messages: Arc::default() };
        let watch = this.clone();
        thread::spawn(move || watch.follow());
        Ok(this)
    }

    /// Sets the file for the run's messages after that.
    pub(super) fn set_messages(&self, file: File) {
        *self.messages.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    }

    /// Waits for the command that has started this run.
    fn follow(&self) {
        let mut byte = [0];
        match (&*self.starter).read(&mut byte) {
            Ok(1) if byte[0] == LET_GO => {
                let file = self.messages.lock().unwrap_or_else(PoisonError::into_inner).take();
                // Without a file the messages are lost, as the terminal may be.
                if let Some(file) = file.or_else(|| File::create("/dev/null").ok()) {
                    let _ = dup2_stderr(file);
                }
                let _ = self.starter.shutdown(std::net::Shutdown::Both);
            }
            // With all that it has started for its preparation.
            _ => _ = kill_current_process_group(Signal::TERM),
        }
    }

    /// Tells the run's name: its machine has booted.
    pub(super) fn tell(&self, name: &str) {
        // If the other side has ended, so does this one.
        let _ = (&*self.starter).write_all(format!("{name}\n").as_bytes());
    }
}
