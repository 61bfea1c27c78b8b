//! The one serial port of the host, shared by the guests' consoles, Gnomon's own messages and records.
//! The key sequences are described in `docs/console.md`: the screen turns them into commands ([`Command`]), and the binary's
//! hart that handles the port's interrupt carries those out.
//!
//! ```text
//!  guest 0 ──► ring 0 ─┐                                       each ring has a lock of its own;
//!  guest 1 ──► ring 1 ─┼─► the screen: lines, prefixes ─► out ─► port     a hart that finds the screen
//!  Gnomon: messages, records ──────────────────────────► out     free prints for all, with a budget
//! ```
//!
//! A hart that has output puts it into its VM's ring and prints, unless another hart is printing: that one looks again
//! before it goes. So no hart waits for another VM's output, and none waits for the port either: when that has no room, its
//! interrupt says when to go on.

mod port;
mod ring;
mod screen;
#[cfg(test)]
mod tests;

pub use port::{Listen, Port};
pub use screen::{Command, ESCAPE, Step};

use crate::slots::Handle;
use crate::sync::Mutex;
use crate::sync::TicketMutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use abi::bundle::{ConsoleMode, MAX_VMS};
use abi::control::Output;
use abi::record::Record;
use alloc::vec::Vec;
use ring::Ring;
use screen::{Done, Screen};

/// Bytes that a ring holds: what is not printed yet, or of a detached console what was missed.
const RING: usize = 16 << 10;
/// The most that a guest with output prints, of all guests' output, in bytes, before it goes on.
const BUDGET: usize = 512;
/// The most that a hart prints, in bytes, for guests that it does not run.
const FAVOUR: usize = 64;
/// The size, in bytes, up to which Gnomon's own output may pile up before a hart that adds to it waits for the port.
const PILE: usize = 64 << 10;

/// The rest when a hart stops printing.
#[must_use = "a hart has to print what is left"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Nothing; or another hart prints; or the port will interrupt.
    Nothing,
    /// There is more to print: a hart has to print again soon.
    More,
}

/// The console.
pub struct Console {
    port: &'static dyn Port,
    mode: ConsoleMode,
    /// By slot.
    rings: Vec<Mutex<Ring>>,
    /// The guest whose console is attached, in `Attached` mode: the others' rings forget their oldest bytes.
    attached: AtomicUsize,
    /// A fair lock: a hart with a message comes before those that print in a loop.
    screen: TicketMutex<Screen>,
    /// Set when output was added since the hart that prints, or printed last, looked.
    is_dirty: AtomicBool,
    /// Input is left in the port until a guest has room for it.
    is_held: AtomicBool,
}

impl Console {
    /// Makes a console without guests. `has_names`: if all guests' lines are shown, each begins with its guest's name.
    #[must_use]
    pub fn new(port: &'static dyn Port, mode: ConsoleMode, has_names: bool) -> Self {
        Self {
            port,
            mode,
            rings: (0..MAX_VMS).map(|_| Mutex::default()).collect(),
            attached: AtomicUsize::new(0),
            screen: TicketMutex::new(Screen::new(mode, has_names)),
            is_dirty: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
        }
    }

    /// Gives a guest the console of its slot. Output of its predecessor there that was not shown stays.
    pub fn open(&self, guest: Handle, name: &str) {
        self.add(|screen| {
            screen.open(guest, name);
            self.rings[guest.slot].lock().open(guest.number);
            self.attached.store(screen.attached(), Ordering::SeqCst);
        });
        self.release_input();
    }

    /// Takes output of the guest in slot `guest`: returns the number of bytes taken, from the first on. The other bytes
    /// are to be offered again. A detached console takes all.
    pub fn write(&self, guest: usize, bytes: &[u8]) -> (usize, Left) {
        let taken = self.put(guest, bytes);
        // Checked again: a hart that has attached the console meanwhile may have found the ring empty.
        if self.is_detached(guest) {
            return (taken, Left::Nothing);
        }
        self.is_dirty.store(true, Ordering::SeqCst);
        (taken, self.print_some(BUDGET))
    }

    fn put(&self, guest: usize, bytes: &[u8]) -> usize {
        let mut ring = self.rings[guest].lock();
        if self.is_detached(guest) {
            let excess = (ring.len() + bytes.len()).saturating_sub(RING);
            ring.forget(excess);
        }
        let taken = bytes.len().min(RING.saturating_sub(ring.len()));
        ring.extend(&bytes[..taken]);
        taken
    }

    /// Takes as much of a guest's output as there is room for, and leaves the printing to others.
    pub fn leave(&self, guest: usize, bytes: &[u8]) -> usize {
        let taken = self.put(guest, bytes);
        self.is_dirty.store(true, Ordering::SeqCst);
        taken
    }

    /// Takes the last few bytes of a guest's output, even if its ring is full. They are printed with what comes next.
    pub fn append(&self, guest: usize, bytes: &[u8]) {
        let mut ring = self.rings[guest].lock();
        ring.extend(bytes);
        if self.is_detached(guest) {
            let excess = ring.len().saturating_sub(RING);
            ring.forget(excess);
        }
    }

    /// Returns whether output of a guest would be taken.
    #[must_use]
    pub fn has_room(&self, guest: usize) -> bool {
        self.is_detached(guest) || self.rings[guest].lock().len() < RING
    }

    fn is_detached(&self, guest: usize) -> bool {
        self.mode == ConsoleMode::Attached && guest != self.attached.load(Ordering::SeqCst)
    }

    /// Returns whether some output may be waiting for a hart that prints it.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Relaxed)
    }

    /// Prints some of the output of all guests in turn, unless another hart is printing.
    pub fn print(&self) -> Left {
        self.print_some(FAVOUR)
    }

    fn print_some(&self, mut budget: usize) -> Left {
        // A hart that adds to a ring sets `is_dirty` before it tries the screen's lock; the lock's holder drops the
        // lock before it reads `is_dirty`.
        while self.is_dirty.load(Ordering::SeqCst) {
            let Some(mut screen) = self.screen.try_lock() else { return Left::Nothing };
            self.is_dirty.store(false, Ordering::SeqCst);
            match screen.print(&self.rings, self.port, &mut budget) {
                Done::All => {}
                done => {
                    self.is_dirty.store(true, Ordering::SeqCst);
                    let comes_by_itself = done == Done::NoRoom && self.port.interrupts();
                    return if comes_by_itself { Left::Nothing } else { Left::More };
                }
            }
        }
        Left::Nothing
    }

    /// Adds to the screen what Gnomon itself has to say, and prints.
    fn add(&self, what: impl FnOnce(&mut Screen)) {
        {
            let mut screen = self.screen.lock();
            what(&mut screen);
            screen.flush(self.port, PILE);
        }
        self.is_dirty.store(true, Ordering::SeqCst);
        // What others add meanwhile is theirs to print.
        for _ in 0..PILE / BUDGET {
            if self.print_some(BUDGET) == Left::Nothing {
                break;
            }
        }
    }

    /// Prints a message of Gnomon's own, on a line of its own.
    pub fn say(&self, message: &str) {
        self.add(|screen| screen.say(message));
    }

    /// Prints a record, for programs to read.
    pub fn record(&self, record: &Record) {
        self.add(|screen| screen.record(record));
    }

    /// Prints a message about a guest, after all its output so far. If it `ends`, it makes no more.
    pub fn say_of(&self, guest: usize, message: &str, ends: bool) {
        self.add(|screen| {
            screen.settle(guest, &mut self.rings[guest].lock(), ends);
            screen.say(message);
            self.attached.store(screen.attached(), Ordering::SeqCst);
        });
        self.release_input();
    }

    /// Returns the output of the VM of that number, from byte `from` of all output that its slot ever had on, up to
    /// `most` bytes; without `from`, the last screenful that is kept. `None` if the VM has no console any more, or not
    /// yet.
    #[must_use]
    pub fn read(&self, number: u64, from: Option<u64>, most: usize) -> Option<Output> {
        self.rings.iter().find_map(|ring| ring.lock().read(number, from, most))
    }

    /// Prints all that there is, waiting for the port.
    pub fn flush(&self) {
        let mut screen = self.screen.lock();
        let mut budget = usize::MAX;
        while screen.print(&self.rings, self.port, &mut budget) == Done::NoRoom {
            core::hint::spin_loop();
        }
    }

    /// Returns the next byte from the outside, if there is one.
    #[must_use]
    pub fn receive(&self) -> Option<u8> {
        self.port.receive()
    }

    /// Returns the guest that a key would go to now; `None` if the next key is Gnomon's own, or no guest listens.
    #[must_use]
    pub fn listener(&self) -> Option<Handle> {
        self.screen.lock().listener()
    }

    /// Handles a key from the outside; returns its command.
    pub fn key(&self, byte: u8) -> Option<Command> {
        let mut command = None;
        self.add(|screen| {
            command = screen.key(byte);
            self.attached.store(screen.attached(), Ordering::SeqCst);
        });
        command
    }

    /// Leaves input in the port from now on, which passes that on to the sender.
    pub fn hold_input(&self) {
        let mut screen = self.screen.lock();
        self.is_held.store(true, Ordering::SeqCst);
        screen.listen(self.port, |wanted| wanted.input = false);
    }

    /// Takes input again, if it was held: there may be room for it now, or another guest listens.
    pub fn release_input(&self) {
        if self.is_held.load(Ordering::SeqCst) {
            let mut screen = self.screen.lock();
            self.is_held.store(false, Ordering::SeqCst);
            screen.listen(self.port, |wanted| wanted.input = true);
        }
    }
}
