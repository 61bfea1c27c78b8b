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

use super::console::whose;
use super::prepare::Prepared;
use crate::control::ControlError;
use crate::control::kept::{Kept, Life, Log};
use crate::machine::stream::Parts;
use abi::record::VmEnd;
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
    fn tell(&self, name: &str) {
        // If the other side has ended, so does this one.
        let _ = (&*self.starter).write_all(format!("{name}\n").as_bytes());
    }
}

/// The record of a run in the background, while it lives.
#[derive(Debug)]
pub struct Recorder {
    kept: Kept,
    logs: Vec<(String, Log)>,
    /// Lines of several VMs' output.
    lines: Parts,
    /// The VM, by its place, of a line of which a part has come.
    current: Option<usize>,
    background: Background,
    messages: File,
    _life: Life,
}

impl Recorder {
    /// Begins the record of a run of that name.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn begin(background: &Background, name: &str, prepared: &Prepared) -> Result<Self, ControlError> {
        let (kept, life) = Kept::begin(name, &prepared.vms)?;
        let messages = kept.messages()?;
        if let Ok(file) = messages.try_clone() {
            *background.messages.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        }
        let logs = prepared.vms.iter().map(|vm| (vm.clone(), kept.log(vm))).collect();
        let (lines, current, background) = (Parts::default(), None, background.clone());
        Ok(Self { kept, logs, lines, current, background, messages, _life: life })
    }

    /// Tells that the machine has booted.
    pub fn booted(&self) {
        self.background.tell(&self.kept.name);
    }

    /// Writes output to the logs. Of several VMs each line names its VM; other lines are Gnomon's.
    pub fn text(&mut self, bytes: &[u8]) {
        if let [(_, log)] = &mut self.logs[..] {
            return log.write(bytes);
        }
        for part in self.lines.push(bytes) {
            let end: &[u8] = if part.ends { b"\n" } else { b"" };
            let (place, content) = if part.begins {
                let names = self.logs.iter().map(|(name, _)| name.as_str());
                whose(&part.bytes, names).map_or((None, &part.bytes[..]), |(place, content)| (Some(place), content))
            } else {
                (self.current, &part.bytes[..])
            };
            let line = [content, end].concat();
            match place {
                Some(place) => self.logs[place].1.write(&line),
                // As many as there are events in the lives of VMs.
                None => _ = self.messages.write_all(&line),
            }
            self.current = place;
        }
    }

    /// Notes the end of a VM.
    pub fn vm_ended(&self, end: &VmEnd) {
        let status = if end.reason.is_wanted() { 0 } else { super::report::STATUS_VM };
        self.kept.end_vm(&end.vm, status);
    }

    /// Notes the end of the run.
    pub fn ended(&self, status: u8) {
        self.kept.end(status);
    }
}
