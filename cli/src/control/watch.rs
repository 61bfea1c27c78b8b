//! Readers of runs' journals ([`super::journal`]).
//!
//! For each run that it reads, a watch also asks for the VMs' states at an interval ([`ASK`]). The answers pass through the run's bridge,
//! which adds their news to the journal, for all readers alike. Events come from the journal alone.

use super::ControlError;
use super::client::Client;
use super::journal::{CONTINUED, Event, Happening};
use super::logs::is_same;
use super::runs::Runs;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// The interval at which a watch asks a run for its VMs' states.
pub const ASK: Duration = Duration::from_millis(100);
/// The interval at which journals are read, and new ones looked for.
const LOOK: Duration = Duration::from_millis(50);
/// The interval after which a run is asked again that refuses a request.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest line of a journal, in bytes.
const MOST_LINE: usize = 64 << 10;
/// The time limit for an answer about states.
const PATIENCE: Duration = Duration::from_secs(10);

/// The threads of this process that ask for states, by the paths of the runs' journals. A thread ends when no tail uses it any more.
static ASKING: Mutex<BTreeMap<PathBuf, Weak<Asking>>> = Mutex::new(BTreeMap::new());

/// The use of a thread that asks a run for its VMs' states.
#[derive(Debug)]
pub(super) struct Asking;

/// A journal that is being read.
#[derive(Debug)]
struct Tail {
    run: String,
    path: PathBuf,
    file: File,
    /// The beginning of a line that is not complete.
    rest: Vec<u8>,
    /// The number of the next event.
    next: u64,
    /// The time of the last event.
    time_ms: u64,
    state: TailState,
    /// Keeps the thread that asks for states.
    asking: Option<Arc<Asking>>,
}

/// The part of a journal that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TailState {
    /// All but new events.
    Open,
    /// All of this file: the journal continues in a new one.
    Continued,
    /// All: the run has ended.
    Ended,
}

/// Returns whether the process that writes a journal is gone. Takes no lock that a run could meet: a new journal is a new file.
fn is_left(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared).is_ok()
}

impl Tail {
    /// Opens the journal of a run that lives; `None` if there is none.
    fn open(runs: &Runs, run: &str) -> Option<Self> {
        let path = runs.journal_path(run);
        let file = File::open(&path).ok().filter(|file| !is_left(file))?;
        let asking = Some(Asking::of(runs, run));
        Some(Self { asking, ..Self::new(run, path, file) })
    }

    fn new(run: &str, path: PathBuf, file: File) -> Self {
        let (run, rest, state) = (run.to_owned(), Vec::new(), TailState::Open);
        Self { run, path, file, rest, next: 0, time_ms: 0, state, asking: None }
    }

    /// Returns whether the path still leads to the file that is being read.
    fn is_there(&self) -> bool {
        File::open(&self.path).is_ok_and(|file| is_same(Some(&file), Some(&self.file)))
    }

    /// Reads the new events. Returns false if `tell` did.
    fn read(&mut self, tell: &mut dyn FnMut(Event) -> bool) -> std::io::Result<bool> {
        loop {
            // In this order: a process writes while it lives.
            let is_left = is_left(&self.file);
            if !self.read_file(tell)? {
                return Ok(false);
            }
            match self.state {
                TailState::Open if is_left => {
                    self.end();
                    let what = Happening::RunEnded { status: None };
                    let (run, number, time_ms) = (self.run.clone(), self.next, self.time_ms);
                    return Ok(tell(Event { run, number, time_ms, what }));
                }
                TailState::Open | TailState::Ended => return Ok(true),
                TailState::Continued => match File::open(&self.path) {
                    Ok(file) if !is_same(Some(&file), Some(&self.file)) => {
                        (self.file, self.state) = (file, TailState::Open);
                        self.rest.clear();
                    }
                    // The run has ended: in this file, or in one that is removed.
                    _ if is_left => self.state = TailState::Open,
                    // The run is about to rename the new file.
                    _ => return Ok(true),
                },
            }
        }
    }

    fn read_file(&mut self, tell: &mut dyn FnMut(Event) -> bool) -> std::io::Result<bool> {
        let mut buffer = [0; 8192];
        while self.state == TailState::Open {
            let count = self.file.read(&mut buffer)?;
            if count == 0 {
                return Ok(true);
            }
            for piece in buffer[..count].split_inclusive(|byte| *byte == b'\n') {
                self.rest.extend_from_slice(piece);
                // A longer line is not one of this program's.
                if self.rest.len() > MOST_LINE {
                    self.rest.clear();
                }
                if piece.ends_with(b"\n") {
                    let line = std::mem::take(&mut self.rest);
                    if !self.line(line.trim_ascii_end(), tell) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    fn line(&mut self, line: &[u8], tell: &mut dyn FnMut(Event) -> bool) -> bool {
        if line == CONTINUED.as_bytes() {
            self.state = TailState::Continued;
            return true;
        }
        // A torn line is an event that is missing.
        let Ok(event) = serde_json::from_slice::<Event>(line) else { return true };
        if event.number > self.next {
            let what = Happening::Lost { count: event.number - self.next };
            if !tell(Event { number: self.next, what, ..event.clone() }) {
                return false;
            }
        }
        (self.next, self.time_ms) = (event.number + 1, event.time_ms);
        if matches!(event.what, Happening::RunEnded { .. }) {
            self.end();
        }
        tell(event)
    }

    /// The run has ended: it is not asked any more.
    fn end(&mut self) {
        self.state = TailState::Ended;
        drop(self.asking.take());
    }
}

impl Asking {
    /// Returns the thread of this process that asks a run, which is started if there is none.
    ///
    /// A run takes few commands at a time, so the number of its readers must not count: they share a thread, which connects anew for each
    /// request.
    pub(super) fn of(runs: &Runs, run: &str) -> Arc<Self> {
        let mut all = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, asking| asking.strong_count() > 0);
        let place = all.entry(runs.journal_path(run)).or_default();
        if let Some(asking) = place.upgrade() {
            return asking;
        }
        let asking = Arc::new(Self);
        *place = Arc::downgrade(&asking);
        let (runs, run, used) = (runs.clone(), run.to_owned(), Arc::downgrade(&asking));
        thread::spawn(move || {
            while used.strong_count() > 0 {
                let stream = runs.connect(&run);
                let asked = stream.and_then(|stream| Client::new(run.clone(), stream, PATIENCE).vms());
                thread::sleep(match asked {
                    // A run that has ended may begin anew under the same name. The journal says whether it has ended.
                    Ok(_) | Err(ControlError::Silent(_) | ControlError::UnknownRun { .. } | ControlError::Gone(_)) => {
                        ASK
                    }
                    Err(_) => AGAIN,
                });
            }
        });
        asking
    }
}

/// Passes the events of the run of that name to `tell`, from its start on, until it has ended. Without a name, passes those of all runs,
/// also of those that start later, without end. Ends early if `tell` returns false, or `is_cancelled` returns true.
///
/// # Errors
/// [`ControlError::UnknownRun`] if no run of that name is active, or [`ControlError::Record`] if a journal cannot be read.
pub fn watch(
    only: Option<&str>,
    is_cancelled: &dyn Fn() -> bool,
    tell: &mut dyn FnMut(Event) -> bool,
) -> Result<(), ControlError> {
    watch_in(&Runs::open()?, only, is_cancelled, tell)
}

/// Like [`watch`], for the runs of a directory.
fn watch_in(
    runs: &Runs,
    only: Option<&str>,
    is_cancelled: &dyn Fn() -> bool,
    tell: &mut dyn FnMut(Event) -> bool,
) -> Result<(), ControlError> {
    let mut tails: Vec<Tail> = Vec::new();
    if let Some(name) = only {
        let Some(tail) = Tail::open(runs, &runs.choose(Some(name))?) else {
            return Err(ControlError::UnknownRun { name: name.into(), known: runs.names()? });
        };
        tails.push(tail);
    }
    while !is_cancelled() {
        if only.is_none() {
            // A journal that was read to its end may stay for a moment, and is not read again.
            tails.retain(|tail| tail.state != TailState::Ended || tail.is_there());
            for name in runs.journals()? {
                if !tails.iter().any(|tail| tail.run == name)
                    && let Some(tail) = Tail::open(runs, &name)
                {
                    tails.push(tail);
                }
            }
        }
        for tail in &mut tails {
            let read = tail.read(tell);
            if !read.map_err(|why| ControlError::Record { path: tail.path.clone(), why })? {
                return Ok(());
            }
        }
        if only.is_some() && tails.iter().all(|tail| tail.state == TailState::Ended) {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Opens a journal at a path, for tests.
#[cfg(test)]
fn tail(path: &std::path::Path) -> Tail {
    Tail::new("x", path.into(), File::open(path).expect("a journal"))
}

#[cfg(test)]
mod tests {
    use super::super::journal::Journal;
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::io::Write;

    fn events(tail: &mut Tail) -> Vec<(u64, Happening)> {
        let mut all = Vec::new();
        let read = tail.read(&mut |event| {
            all.push((event.number, event.what));
            true
        });
        assert!(read.expect("a journal"));
        all
    }

    fn text(n: u64) -> Happening {
        Happening::Message { text: n.to_string() }
    }

    #[test]
    fn events_come_in_order_and_once_until_the_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.events");
        let journal = Journal::begin("x", path.clone()).expect("a journal");
        journal.message("0");
        let mut tail = tail(&path);
        assert_eq!(events(&mut tail), [(0, text(0))]);
        assert_eq!(events(&mut tail), []);
        journal.message("1");
        journal.ended(3);
        journal.message("after the end");
        std::fs::remove_file(&path).expect("a file");
        drop(journal);
        assert_eq!(events(&mut tail), [(1, text(1)), (2, Happening::RunEnded { status: Some(3) })]);
        assert_eq!(tail.state, TailState::Ended);
    }

    #[test]
    fn a_run_that_was_killed_has_ended_without_a_status() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.events");
        let journal = Journal::begin("x", path.clone()).expect("a journal");
        journal.message("0");
        let mut tail = tail(&path);
        drop(journal);
        assert_eq!(events(&mut tail), [(0, text(0)), (1, Happening::RunEnded { status: None })]);
    }

    #[test]
    fn a_long_journal_continues_in_a_new_file_and_late_readers_see_what_is_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.events");
        let journal = Journal::begin("x", path.clone()).expect("a journal").with_most(300);
        let mut early = tail(&path);
        (0..20).for_each(|n| journal.message(&n.to_string()));
        let (mut late, mut seen) = (tail(&path), events(&mut early));
        let found = events(&mut late);
        assert!(matches!(found[0], (0, Happening::Lost { count }) if count == found[1].0), "{found:?}");
        assert_eq!(found.last(), Some(&(19, text(19))));
        // The early reader has missed the files in between as well, and says so.
        let lost = |(_, what): &(u64, Happening)| match what {
            Happening::Lost { count } => *count,
            _ => 1,
        };
        assert_eq!(seen.iter().map(lost).sum::<u64>(), 20, "{seen:?}");
        journal.message("20");
        seen = events(&mut early);
        assert_eq!(seen, [(20, text(20))]);
    }

    #[test]
    fn a_journal_that_stays_after_its_end_is_read_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let runs = Runs::at(dir.path().join("gnomon")).expect("a directory");
        let path = runs.journal_path("x");
        let begin = |text| {
            let journal = Journal::begin("x", path.clone()).expect("a journal");
            journal.message(text);
            journal.ended(0);
            journal
        };
        let looks = Cell::new(0);
        let (mut journal, mut found) = (begin("first"), Vec::new());
        let is_over = || {
            looks.set(looks.get() + 1);
            // Another run of that name takes its place.
            if looks.get() == 4 {
                journal = begin("second");
            }
            looks.get() > 7
        };
        let is_over = RefCell::new(is_over);
        watch_in(&runs, None, &|| (is_over.borrow_mut())(), &mut |event| {
            found.push(event.what);
            true
        })
        .expect("journals");
        let message = |text: &str| Happening::Message { text: text.into() };
        let end = || Happening::RunEnded { status: Some(0) };
        assert_eq!(found, [message("first"), end(), message("second"), end()]);
    }

    #[test]
    fn a_journal_without_room_stays_in_its_file_until_there_is_room() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.events");
        let journal = Journal::begin("x", path.clone()).expect("a journal").with_most(30);
        journal.message("0");
        let mut tail = tail(&path);
        assert_eq!(events(&mut tail), [(0, text(0))]);
        journal.let_write(false);
        journal.message("1");
        assert_eq!(events(&mut tail), [], "the run lives");
        assert!(tail.is_there());
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 1, "no other file is left");
        journal.let_write(true);
        journal.message("2");
        assert_eq!(events(&mut tail), [(1, Happening::Lost { count: 1 }), (2, text(2))]);
        assert!(tail.is_there(), "the new file");
    }

    #[test]
    fn a_reader_waits_for_the_file_in_which_a_journal_continues() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.events");
        let journal = Journal::begin("x", path.clone()).expect("a journal");
        journal.message("0");
        let mut tail = tail(&path);
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("a file");
        file.write_all(format!("{CONTINUED}\n").as_bytes()).expect("written");
        assert_eq!(events(&mut tail), [(0, text(0))]);
        assert_eq!(tail.state, TailState::Continued);
        // It ends without such a file.
        drop(journal);
        assert_eq!(events(&mut tail), [(1, Happening::RunEnded { status: None })]);
    }

    #[test]
    fn a_torn_line_is_an_event_that_is_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.events");
        let journal = Journal::begin("x", path.clone()).expect("a journal");
        journal.message("0");
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("a file");
        file.write_all(b"{\"run\":\"x\",\"num\n").expect("written");
        let mut tail = tail(&path);
        assert_eq!(events(&mut tail), [(0, text(0))]);
    }
}
