//! Takes a snapshot of a VM by the control channel, and writes it.

use super::ControlError;
use super::client::Client;
use super::ports::SILENT;
use crate::host::output::Kind;
use crate::host::tty;
use abi::control::save::{MOST_STATE, Pages, Save, Saving};
use abi::control::{Answer, Request};
use abi::snapshot::file::{MAGIC, MOST_PAGES, PAGE, Writer};
use std::io::{self, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The files of snapshots.
pub const FILE: Kind = Kind { what: "a snapshot", mark: &MAGIC };
/// The time limit for a VM to pause, and for memory to be brought in.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pauses between attempts: the first, and the longest.
const PAUSE: Duration = Duration::from_micros(100);
const MOST_PAUSE: Duration = Duration::from_millis(2);

/// The reason why there is no snapshot.
#[derive(Debug)]
pub enum Unsaved {
    /// The run does not give it.
    Control(ControlError),
    /// The file cannot be written.
    Io(io::Error),
}

impl From<ControlError> for Unsaved {
    fn from(why: ControlError) -> Self {
        Self::Control(why)
    }
}

impl From<io::Error> for Unsaved {
    fn from(why: io::Error) -> Self {
        Self::Io(why)
    }
}

/// The result of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Saved {
    /// Pages that are not zero.
    pub pages: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A VM that is paused for its snapshot. If it is dropped before [`Held::end`], the run resumes the VM when it sees that the command is
/// gone.
pub struct Held<'a> {
    client: &'a mut Client,
    vm: (u64, &'a str),
    saving: Saving,
}

/// The writer of a snapshot file, with the content of its next section.
struct Sections<W> {
    out: W,
    writer: Writer,
    first: u64,
    bytes: Vec<u8>,
    written: Saved,
}

impl<W: Write> Sections<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.bytes.is_empty() {
            let head = self.writer.pages(self.first, &self.bytes);
            let bytes = std::mem::take(&mut self.bytes);
            self.put(&head)?;
            self.put(&bytes)?;
        }
        Ok(())
    }

    fn page(&mut self, number: u64, page: &[u8]) -> io::Result<()> {
        let count = self.bytes.len() / PAGE;
        if count == MOST_PAGES || self.first + count as u64 != number {
            self.flush()?;
        }
        if self.bytes.is_empty() {
            self.first = number;
        }
        self.bytes.extend_from_slice(page);
        self.written.pages += 1;
        Ok(())
    }
}

impl<'a> Held<'a> {
    /// Begins a snapshot of the VM of that number and name: it stands still from then on.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn begin(client: &'a mut Client, vm: (u64, &'a str)) -> Result<Self, ControlError> {
        match ask(client, vm, Save::Begin)? {
            Answer::Saving(saving) => Ok(Self { client, vm, saving }),
            _ => Err(client.nonsense()),
        }
    }

    /// Writes the file. `tell` is told how far it is, in percent of RAM.
    ///
    /// # Errors
    /// [`Unsaved`].
    pub fn write(&mut self, out: impl Write, mut tell: impl FnMut(u64)) -> Result<Saved, Unsaved> {
        let state = self.state()?;
        let (writer, front) = Writer::begin(&state);
        let written = Saved { pages: 0, bytes: 0 };
        let mut file = Sections { out, writer, first: 0, bytes: Vec::new(), written };
        file.put(&front)?;
        let (id, all, mut from) = (self.saving.id, self.saving.pages, 0);
        while from < all {
            let Answer::Pages(Pages { next, first, bytes }) = ask(self.client, self.vm, Save::Pages { id, from })?
            else {
                return Err(self.client.nonsense().into());
            };
            let pages = bytes.0.chunks_exact(PAGE);
            let is_sound = next > from && next <= all && pages.len() == first.len() && bytes.0.len() % PAGE == 0;
            if !is_sound || !first.iter().all(|page| (from..next).contains(page)) {
                return Err(self.client.nonsense().into());
            }
            for (number, page) in first.iter().zip(pages) {
                file.page(*number, page)?;
            }
            from = next;
            tell(100 * from / all);
        }
        file.flush()?;
        let end = file.writer.end();
        file.out.write_all(&end)?;
        file.out.flush()?;
        Ok(Saved { bytes: file.written.bytes + end.len() as u64, ..file.written })
    }

    /// The snapshot that has begun.
    pub(super) const fn saving(&self) -> Saving {
        self.saving
    }

    /// Begins the VM's dirty log. Returns false, with a message on the terminal, if it can have none.
    pub(super) fn begin_log(&mut self) -> Result<bool, ControlError> {
        match ask(self.client, self.vm, Save::Log(true)) {
            Ok(_) => Ok(true),
            // No answer is no refusal.
            Err(ControlError::Refused { why, .. }) if why != SILENT => {
                tty::say(&format!("gnomon: {} stands still while it moves: {why}", self.vm.1));
                Ok(false)
            }
            Err(why) => Err(why),
        }
    }

    /// Fetches the VM's state.
    pub(super) fn state(&mut self) -> Result<Vec<u8>, ControlError> {
        let (id, all) = (self.saving.id, self.saving.state_bytes as usize);
        let mut state = Vec::new();
        while state.len() < all {
            let from = state.len() as u32;
            match ask(self.client, self.vm, Save::State { id, from })? {
                Answer::State(part) if !part.0.is_empty() && part.0.len() <= MOST_STATE => state.extend(part.0),
                _ => return Err(self.client.nonsense()),
            }
        }
        Ok(state)
    }

    /// Resumes the VM if it was running before.
    ///
    /// # Errors
    /// [`ControlError`]: also if it went on meanwhile, so that what was written is worth nothing.
    pub fn end(self) -> Result<(), ControlError> {
        ask(self.client, self.vm, Save::End(self.saving.id)).map(drop)
    }
}

/// Asks, again and again while it is to be later.
pub(super) fn ask(client: &mut Client, (vm, name): (u64, &str), wish: Save) -> Result<Answer, ControlError> {
    patiently(client, &format!("cannot take a snapshot of VM `{name}`"), &Request::Save(vm, wish))
}

/// Asks, again and again while it is to be later.
pub(super) fn patiently(client: &mut Client, what: &str, request: &Request) -> Result<Answer, ControlError> {
    let until = Instant::now() + PATIENCE;
    let mut pause = PAUSE;
    loop {
        match client.ask(what, request)? {
            Answer::Later if Instant::now() >= until => {
                let why = "the VM did not pause, or its memory could not be read".into();
                return Err(ControlError::Refused { run: client.run().into(), what: what.into(), why });
            }
            Answer::Later => {
                sleep(pause);
                pause = MOST_PAUSE.min(pause * 2);
            }
            answer => return Ok(answer),
        }
    }
}
