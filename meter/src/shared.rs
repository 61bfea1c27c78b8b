//! The state that all harts share.

use crate::args::{Args, Level};
use crate::core::Core;
use crate::mode::Mode;
use crate::tables::Tables;
use std::collections::HashSet;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A moment that guest software has marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A region begins, with a label.
    Begin(u64),
    /// The region ends, with a label.
    End(u64),
    /// The machine was told to power off: what it still does until it stops depends on the host.
    PowerOff,
}

/// More marks are not kept, but counted.
const MOST_MARKS: usize = 4096;

/// A trap, as the log has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trap {
    /// The mode it came from.
    pub from: Mode,
    /// The mode that took it.
    pub to: Mode,
    /// The cause register.
    pub cause: u64,
    /// The program counter to return to.
    pub epc: u64,
    /// The trap value.
    pub tval: u64,
}

impl Trap {
    /// Returns whether it is an interrupt.
    #[must_use]
    pub const fn is_interrupt(&self) -> bool {
        self.cause >> 63 != 0
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, cause, epc, tval } = self;
        let (kind, code) = if self.is_interrupt() { ("i", cause << 1 >> 1) } else { ("", *cause) };
        write!(f, "{} {} {kind}{code} {epc:#x} {tval:#x}", from.name(), to.name())
    }
}

/// The file that traps are written to.
struct TrapLog(Mutex<Box<dyn Write + Send>>);

impl fmt::Debug for TrapLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrapLog")
    }
}

/// The state that all harts share.
#[derive(Debug)]
pub struct Shared {
    /// The amount of counting.
    pub level: Level,
    /// The cores that are modelled.
    pub cores: Vec<Core>,
    tables: Tables,
    marks: Mutex<Vec<Mark>>,
    mark_count: AtomicUsize,
    lost_marks: AtomicUsize,
    is_over: AtomicBool,
    trap_log: OnceLock<TrapLog>,
    vectors: Mutex<Vectors>,
}

#[derive(Debug, Default)]
struct Vectors {
    /// Addresses at which traps arrive on any hart.
    known: HashSet<u64>,
    /// Other addresses at which blocks are to be looked at.
    wanted: HashSet<u64>,
    /// The first addresses of a mode's blocks that are not examined each time they run.
    unwatched: HashSet<(u64, Mode)>,
    /// Vectors of a mode at which such a block of that mode had been translated before.
    late: HashSet<(u64, Mode)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The settings from the arguments.
    #[must_use]
    pub fn new(args: &Args) -> Self {
        Self {
            level: args.level,
            cores: args.cores.clone(),
            tables: Tables::new(args.level),
            marks: Mutex::default(),
            mark_count: AtomicUsize::new(0),
            lost_marks: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            trap_log: OnceLock::new(),
            vectors: Mutex::default(),
        }
    }

    /// Tells where RAM is. Until then no tables are known.
    pub fn set_ram(&self, base: u64, bytes: u64) {
        self.tables.set_ram(base, bytes);
    }

    /// The tables, once RAM is known.
    #[must_use]
    pub fn tables(&self) -> Option<&Tables> {
        self.tables.has_ram().then_some(&self.tables)
    }

    /// The epoch, from [`Tables::epoch`].
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.tables.epoch()
    }

    /// The number of marks so far.
    #[must_use]
    pub fn mark_count(&self) -> usize {
        self.mark_count.load(Ordering::Acquire)
    }

    /// Adds a mark. `false`: there are too many, or the machine is powered off.
    pub fn mark(&self, mark: Mark) -> bool {
        let mut marks = lock(&self.marks);
        if self.is_over() {
            return false;
        }
        if marks.len() >= MOST_MARKS && mark != Mark::PowerOff {
            self.lost_marks.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        marks.push(mark);
        self.is_over.store(mark == Mark::PowerOff, Ordering::Release);
        self.mark_count.store(marks.len(), Ordering::Release);
        true
    }

    /// All marks.
    #[must_use]
    pub fn marks(&self) -> Vec<Mark> {
        lock(&self.marks).clone()
    }

    /// The number of marks that were not kept.
    #[must_use]
    pub fn lost_marks(&self) -> usize {
        self.lost_marks.load(Ordering::Relaxed)
    }

    /// Returns whether the machine was told to power off.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Writes each trap to `log` from now on, in a line: the modes it came from and went to, the cause
    /// (interrupts: `i5`), the program counter, the trap value.
    pub fn log_traps_to(&self, log: impl Write + Send + 'static) {
        self.trap_log.get_or_init(|| TrapLog(Mutex::new(Box::new(log))));
    }

    /// Logs a trap, if traps are logged and the machine is not powered off. Errors come to light in [`Shared::finish_log`].
    pub fn log_trap(&self, trap: &Trap) {
        if let Some(TrapLog(log)) = self.trap_log.get().filter(|_| !self.is_over()) {
            let _ = writeln!(lock(log), "{trap}");
        }
    }

    /// Writes what is still to be written of the log.
    ///
    /// # Errors
    /// Those of the log's writer.
    pub fn finish_log(&self) -> std::io::Result<()> {
        self.trap_log.get().map_or(Ok(()), |TrapLog(log)| lock(log).flush())
    }

    /// A block of a mode is translated that starts at an address. Says whether it has to be looked at each time
    /// it runs: traps arrive there, or it begins as trap handlers do.
    pub fn watches(&self, start: u64, mode: Mode, looks_like_handler: bool) -> bool {
        let mut vectors = lock(&self.vectors);
        if looks_like_handler || vectors.known.contains(&start) || vectors.wanted.contains(&start) {
            return true;
        }
        vectors.unwatched.insert((start, mode));
        false
    }

    /// Blocks that start at an address are to be looked at each time they run. Those that are translated
    /// already are not.
    pub fn watch(&self, start: u64) {
        lock(&self.vectors).wanted.insert(start);
    }

    /// A hart has a new trap vector, of a mode.
    pub fn add_vector(&self, vector: u64, mode: Mode) {
        let mut vectors = lock(&self.vectors);
        let base = vector & !3;
        vectors.known.insert(base);
        if vectors.unwatched.contains(&(base, mode)) {
            vectors.late.insert((base, mode));
        }
        if vector & 1 != 0 {
            // Vectored: interrupts arrive at four bytes for each cause.
            vectors.known.extend((1..32).map(|cause| base + 4 * cause));
        }
    }

    /// The number of vectors that were translated before they became vectors. Traps to those, out of their own page and
    /// mode, may have been overlooked.
    #[must_use]
    pub fn late_vectors(&self) -> u64 {
        lock(&self.vectors).late.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_watched() {
        let shared = Shared::new(&Args::default());
        let watches = |start| shared.watches(start, Mode::S, false);
        assert!(!watches(0x1000) && shared.watches(0x2000, Mode::S, true));
        shared.add_vector(0x2000, Mode::S);
        assert_eq!(shared.late_vectors(), 0);
        shared.add_vector(0x3001, Mode::M);
        assert!(watches(0x3000) && watches(0x3014) && !watches(0x3100));
        shared.watch(0x5000);
        assert!(watches(0x5000) && !watches(0x5004));
        // What ran there was of another mode, and in another address space.
        shared.add_vector(0x1000, Mode::VS);
        assert_eq!(shared.late_vectors(), 0);
        shared.add_vector(0x1000, Mode::S);
        shared.add_vector(0x1000, Mode::S);
        assert_eq!(shared.late_vectors(), 1);
    }

    #[test]
    fn marks_have_a_bound() {
        let shared = Shared::new(&Args::default());
        (0..MOST_MARKS as u64 + 3).for_each(|label| {
            shared.mark(Mark::Begin(label));
        });
        assert_eq!((shared.mark_count(), shared.lost_marks()), (MOST_MARKS, 3));
        assert!(shared.mark(Mark::PowerOff) && shared.is_over());
        shared.mark(Mark::Begin(0));
        assert_eq!(shared.lost_marks(), 3);
    }

    #[test]
    fn traps_are_lines() {
        let trap = Trap { from: Mode::VU, to: Mode::VS, cause: 1 << 63 | 5, epc: 0x1000, tval: 0 };
        assert_eq!(trap.to_string(), "VU VS i5 0x1000 0x0");
        assert_eq!(Trap { cause: 13, tval: 0xff, ..trap }.to_string(), "VU VS 13 0x1000 0xff");
    }

    #[test]
    fn nothing_is_marked_after_power_off() {
        let shared = Shared::new(&Args::default());
        assert!(shared.mark(Mark::Begin(3)) && shared.mark(Mark::PowerOff) && !shared.mark(Mark::End(3)));
        assert_eq!((shared.mark_count(), shared.marks()), (2, vec![Mark::Begin(3), Mark::PowerOff]));
    }
}
