//! Processes and threads, and the table of all processes.

use super::alarm::Alarm;
use super::credentials::Credentials;
use super::schedule::Schedule;
use super::signal::{Action, Actions, AltStack, Info, LAST, Pending, UNBLOCKABLE, number};
use super::wait::WaitQueue;
use crate::call::Timer;
use crate::errno::{Errno, Result};
use crate::fs::descriptors::Descriptors;
use crate::fs::path::Position;
use crate::machine;
use crate::memory::space::Space;
use crate::share::Ledger;
use crate::sync::Mutex;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::task::Waker;
use linux_raw_sys::general as linux;

/// The number of the kernel itself, as a process.
pub const KERNEL: u32 = 1;
/// The most threads that there may be: each takes memory of the kernel's.
const MOST_THREADS: usize = 4096;

/// The end of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// The process has ended with this status.
    Exited(u8),
    /// A signal has ended it.
    Killed(u32),
}

impl ExitStatus {
    /// Returns the status as `wait4` encodes it.
    #[must_use]
    pub const fn encode(self) -> u32 {
        match self {
            Self::Exited(status) => (status as u32) << 8,
            Self::Killed(signal) => signal,
        }
    }
}

/// A change of a child's state that its parent has not waited for yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The process has ended.
    Ended(ExitStatus),
    /// A signal has stopped it.
    Stopped(u32),
    /// The process runs again.
    Continued,
}

/// Limits of a process, by the numbers of `RLIMIT_`: current ones and maxima.
pub type Limits = [(u64, u64); linux::RLIM_NLIMITS as usize];

fn default_limits() -> Limits {
    const INFINITE: u64 = u64::MAX;
    let mut limits = [(INFINITE, INFINITE); linux::RLIM_NLIMITS as usize];
    limits[linux::RLIMIT_STACK as usize] = (8 << 20, INFINITE);
    limits[linux::RLIMIT_CORE as usize] = (0, INFINITE);
    limits[linux::RLIMIT_NOFILE as usize] = (1024, 4096);
    limits[linux::RLIMIT_NICE as usize] = (0, 0);
    limits[linux::RLIMIT_RTPRIO as usize] = (0, 0);
    limits[linux::RLIMIT_MEMLOCK as usize] = (8 << 20, 8 << 20);
    limits[linux::RLIMIT_NPROC as usize] = (MOST_THREADS as u64, MOST_THREADS as u64);
    limits
}

/// The program that a process runs.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The path of its file.
    pub path: String,
    /// Its arguments, each with a zero byte behind it.
    pub arguments: Vec<u8>,
}

/// A process.
#[derive(Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    parent: Mutex<Weak<Process>>,
    /// The parent's number, so that it can be read without the lock.
    parent_pid: AtomicU32,
    /// Children that have not been waited for.
    pub children: Mutex<BTreeMap<u32, Arc<Process>>>,
    /// Threads that have not ended.
    pub threads: Mutex<BTreeMap<u32, Arc<Thread>>>,
    /// The address space; none when it has ended.
    pub space: Mutex<Option<Arc<Space>>>,
    /// The program.
    pub image: Mutex<Image>,
    /// Its users, groups and capabilities.
    credentials: Mutex<Arc<Credentials>>,
    /// Woken when a signal becomes pending.
    pub signalled: WaitQueue,
    /// Its timers, by their numbers.
    pub timers: Mutex<BTreeMap<u32, Arc<Timer>>>,
    /// Its policy and priorities.
    pub schedule: Mutex<Schedule>,
    /// Its limits.
    pub limits: Mutex<Limits>,
    group: AtomicU32,
    session: AtomicU32,
    /// Signals for any thread.
    pub pending: Pending,
    /// Actions of signals, which spaces with `CLONE_SIGHAND` share.
    pub actions: Arc<Mutex<Actions>>,
    /// The signal for the parent at the end.
    pub exit_signal: AtomicU32,
    /// Set when the process is to end, with its status.
    ending: Mutex<Option<ExitStatus>>,
    is_ending: AtomicBool,
    is_dead: AtomicBool,
    is_stopped: AtomicBool,
    /// Woken when it goes on, or a thread ends.
    pub moves: WaitQueue,
    /// The change for the parent.
    pub change: Mutex<Option<Change>>,
    /// Woken when a child's state changes.
    pub child_changed: WaitQueue,
    /// Woken when the process has its own space, after a `vfork`.
    pub released: WaitQueue,
    is_released: AtomicBool,
    /// Ticks in its programs, and those of its children that were waited for.
    pub ticks: AtomicU64,
    /// See above.
    pub child_ticks: AtomicU64,
    /// The real-time interval timer: the moment, and the interval, in nanoseconds; 0 is off.
    pub interval: Mutex<(u64, u64)>,
    /// The alarm of that timer.
    pub alarm: Arc<Alarm>,
    /// Set by the first `execve`: then `setpgid` of the parent is refused.
    pub has_executed: AtomicBool,
}

/// A thread.
#[derive(Debug)]
pub struct Thread {
    /// Its number; that of the process for the first one.
    pub tid: u32,
    /// Its process.
    pub process: Arc<Process>,
    /// Open files, which threads with `CLONE_FILES` share.
    pub files: Mutex<Arc<Mutex<Descriptors>>>,
    /// The current and the root directory, which threads with `CLONE_FS` share.
    pub position: Mutex<Arc<Mutex<Position>>>,
    /// Blocked signals.
    mask: AtomicU64,
    /// Signals for this thread.
    pub pending: Pending,
    /// The stack for handlers.
    pub alt_stack: Mutex<AltStack>,
    /// The address of a word that is zeroed and woken when the thread ends; 0 is none.
    pub clear_at_exit: AtomicU64,
    /// The address of the list of robust futexes; 0 is none.
    pub robust_list: AtomicU64,
    /// The name, of 15 bytes at most.
    pub name: Mutex<String>,
    /// Operations of its call on shares.
    pub host: Arc<Ledger>,
    waker: Mutex<Option<Waker>>,
    is_ending: AtomicBool,
    /// The index of the hart that runs it, plus 1; 0 is none.
    hart: AtomicU32,
}

static PROCESSES: Mutex<BTreeMap<u32, Arc<Process>>> = Mutex::new(BTreeMap::new());
static LAST_ID: AtomicU32 = AtomicU32::new(0);
static THREADS: Mutex<usize> = Mutex::new(0);

/// Returns all processes, also those that have ended and were not waited for.
#[must_use]
pub fn all() -> Vec<Arc<Process>> {
    PROCESSES.lock().values().cloned().collect()
}

/// Returns the process with a number.
#[must_use]
pub fn find(pid: u32) -> Option<Arc<Process>> {
    PROCESSES.lock().get(&pid).cloned()
}

/// Returns the members of a group that have not ended.
pub fn members(group: u32) -> impl Iterator<Item = Arc<Process>> {
    all().into_iter().filter(move |process| process.group() == group && process.pid != KERNEL && !process.is_dead())
}

/// Returns the thread with a number.
#[must_use]
pub fn find_thread(tid: u32) -> Option<Arc<Thread>> {
    // The first thread's process has its number.
    if let Some(thread) = find(tid).and_then(|process| process.threads.lock().get(&tid).cloned()) {
        return Some(thread);
    }
    all().into_iter().find_map(|process| process.threads.lock().get(&tid).cloned())
}

/// Removes a process that was waited for.
pub fn remove(pid: u32) {
    PROCESSES.lock().remove(&pid);
}

/// Returns the number of threads.
#[must_use]
pub fn thread_count() -> usize {
    *THREADS.lock()
}

/// Takes a number for a thread or a process.
///
/// # Errors
/// `EAGAIN` if there are as many threads as there may be.
pub fn new_id() -> Result<u32> {
    const MOST_ID: u32 = 1 << 22;
    let mut threads = THREADS.lock();
    if *threads >= MOST_THREADS {
        return Err(Errno::AGAIN);
    }
    *threads += 1;
    loop {
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed) % MOST_ID + 1;
        let processes = PROCESSES.lock();
        let is_used = processes.values().any(|process| {
            process.pid == id
                || process.group() == id
                || process.session() == id
                || process.threads.lock().contains_key(&id)
        });
        if !is_used {
            return Ok(id);
        }
    }
}

/// Gives back the number of a thread that has ended, or never began.
pub fn give_back_id() {
    *THREADS.lock() -= 1;
}

impl Process {
    /// The kernel itself, as the parent of processes without one. It has number [`KERNEL`], and waits for every child.
    #[must_use]
    pub fn kernel() -> Arc<Self> {
        let _ = new_id();
        let process = Self::make(KERNEL, &Weak::new(), None, default_actions(), KERNEL, KERNEL);
        process.image.lock().path = crate::NAME.into();
        PROCESSES.lock().insert(KERNEL, Arc::clone(&process));
        process
    }

    fn make(
        pid: u32,
        parent: &Weak<Self>,
        space: Option<Arc<Space>>,
        actions: Arc<Mutex<Actions>>,
        group: u32,
        session: u32,
    ) -> Arc<Self> {
        Arc::new(Self {
            pid,
            parent: Mutex::new(parent.clone()),
            parent_pid: AtomicU32::new(parent.upgrade().map_or(0, |parent| parent.pid)),
            children: Mutex::default(),
            threads: Mutex::default(),
            space: Mutex::new(space),
            image: Mutex::default(),
            credentials: Mutex::default(),
            signalled: WaitQueue::new(),
            timers: Mutex::default(),
            schedule: Mutex::default(),
            limits: Mutex::new(default_limits()),
            group: AtomicU32::new(group),
            session: AtomicU32::new(session),
            pending: Pending::default(),
            actions,
            exit_signal: AtomicU32::new(number::CHLD),
            ending: Mutex::default(),
            is_ending: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            moves: WaitQueue::new(),
            change: Mutex::default(),
            child_changed: WaitQueue::new(),
            released: WaitQueue::new(),
            is_released: AtomicBool::new(false),
            ticks: AtomicU64::new(0),
            child_ticks: AtomicU64::new(0),
            interval: Mutex::default(),
            alarm: Arc::default(),
            has_executed: AtomicBool::new(false),
        })
    }

    /// Makes a child of a process.
    #[must_use]
    pub fn child(parent: &Arc<Self>, pid: u32, space: Arc<Space>, actions: Arc<Mutex<Actions>>) -> Arc<Self> {
        let weak = Arc::downgrade(parent);
        let process = Self::make(pid, &weak, Some(space), actions, parent.group(), parent.session());
        *process.image.lock() = parent.image.lock().clone();
        process.set_credentials(parent.credentials());
        *process.schedule.lock() = parent.schedule.lock().of_child();
        *process.limits.lock() = *parent.limits.lock();
        PROCESSES.lock().insert(pid, Arc::clone(&process));
        parent.children.lock().insert(pid, Arc::clone(&process));
        process
    }

    /// Returns the parent.
    #[must_use]
    pub fn parent(&self) -> Option<Arc<Self>> {
        self.parent.lock().upgrade()
    }

    /// Returns the parent's number.
    #[must_use]
    pub fn parent_pid(&self) -> u32 {
        self.parent_pid.load(Ordering::Relaxed)
    }

    /// Gives the process another parent.
    pub fn set_parent(&self, parent: &Arc<Self>) {
        *self.parent.lock() = Arc::downgrade(parent);
        self.parent_pid.store(parent.pid, Ordering::Relaxed);
    }

    /// Returns the number of its group.
    #[must_use]
    pub fn group(&self) -> u32 {
        self.group.load(Ordering::Relaxed)
    }

    /// Moves it to a group.
    pub fn set_group(&self, group: u32) {
        self.group.store(group, Ordering::Relaxed);
    }

    /// Returns the number of its session.
    #[must_use]
    pub fn session(&self) -> u32 {
        self.session.load(Ordering::Relaxed)
    }

    /// Makes it the leader of a session of its own.
    pub fn begin_session(&self) {
        self.session.store(self.pid, Ordering::Relaxed);
        self.set_group(self.pid);
    }

    /// Makes the process end with a status, unless it is ending already.
    pub fn end(&self, status: ExitStatus) {
        self.ending.lock().get_or_insert(status);
        self.is_ending.store(true, Ordering::SeqCst);
        self.go_on();
        self.threads.lock().values().for_each(|thread| thread.notify());
    }

    /// Returns whether the process is to end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Returns the status with which it ends.
    #[must_use]
    pub fn ending(&self) -> Option<ExitStatus> {
        *self.ending.lock()
    }

    /// Returns whether all of it has ended.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Records that all of it has ended.
    pub fn set_dead(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
    }

    /// Returns whether a signal has stopped it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Stops the process, and tells its parent.
    pub fn stop(&self, signal: u32) {
        if !self.is_ending() && !self.is_stopped.swap(true, Ordering::SeqCst) {
            self.threads.lock().values().for_each(|thread| thread.notify());
            self.report(Change::Stopped(signal));
        }
    }

    /// Ends a stop, and tells the parent.
    pub fn go_on(&self) {
        if self.is_stopped.swap(false, Ordering::SeqCst) {
            self.report(Change::Continued);
            self.moves.wake();
        }
    }

    /// Records a change for the parent, and wakes it.
    pub fn report(&self, change: Change) {
        *self.change.lock() = Some(change);
        let Some(parent) = self.parent() else { return };
        let signal = match change {
            Change::Ended(_) => self.exit_signal.load(Ordering::Relaxed),
            _ => number::CHLD,
        };
        // A number that is no signal's is sent to nobody.
        if (1..=super::signal::LAST).contains(&signal) && parent.pid != KERNEL {
            super::signal::send(&parent, Info { signal, ..self.info(change) });
        }
        parent.child_changed.wake();
    }

    /// Returns the signal by which a parent learns of a change.
    #[must_use]
    pub fn info(&self, change: Change) -> Info {
        let (code, value) = match change {
            Change::Ended(ExitStatus::Exited(status)) => (linux::CLD_EXITED, u64::from(status)),
            Change::Ended(ExitStatus::Killed(signal)) => (linux::CLD_KILLED, u64::from(signal)),
            Change::Stopped(signal) => (linux::CLD_STOPPED, u64::from(signal)),
            Change::Continued => (linux::CLD_CONTINUED, u64::from(number::CONT)),
        };
        Info { signal: number::CHLD, code: code as i32, pid: self.pid, uid: self.credentials().users.real, value }
    }

    /// Discards pending signals of a set, of the process and of all threads.
    pub fn discard_signals(&self, set: u64) {
        self.pending.discard(set);
        self.threads.lock().values().for_each(|thread| thread.pending.discard(set));
    }

    /// Returns the action of a signal.
    #[must_use]
    pub fn action(&self, signal: u32) -> Action {
        self.actions.lock()[signal as usize - 1]
    }

    /// Records that the process uses its parent's space no longer.
    pub fn release(&self) {
        self.is_released.store(true, Ordering::SeqCst);
        self.released.wake();
    }

    /// Returns whether the process uses its parent's space no longer.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.is_released.load(Ordering::SeqCst)
    }

    /// Returns its credentials.
    #[must_use]
    pub fn credentials(&self) -> Arc<Credentials> {
        Arc::clone(&self.credentials.lock())
    }

    /// Gives it other credentials.
    pub fn set_credentials(&self, credentials: Arc<Credentials>) {
        *self.credentials.lock() = credentials;
    }

    /// Gives it credentials that differ from its own by a change.
    ///
    /// # Errors
    /// The change's; then the old ones stay.
    pub fn change_credentials(&self, change: impl FnOnce(&mut Credentials) -> Result<()>) -> Result<()> {
        let mut credentials = self.credentials.lock();
        let mut new = Credentials::clone(&credentials);
        change(&mut new)?;
        *credentials = Arc::new(new);
        Ok(())
    }

    /// Returns the current limit of a kind.
    #[must_use]
    pub fn limit(&self, kind: u32) -> u64 {
        self.limits.lock()[kind as usize].0
    }
}

/// Returns the actions of a process that has set none.
#[must_use]
pub fn default_actions() -> Arc<Mutex<Actions>> {
    Arc::new(Mutex::new([Action::default(); LAST as usize]))
}

impl Thread {
    /// Makes a thread of a process.
    #[must_use]
    pub fn new(
        tid: u32,
        process: &Arc<Process>,
        files: Arc<Mutex<Descriptors>>,
        position: Arc<Mutex<Position>>,
        mask: u64,
    ) -> Arc<Self> {
        let thread = Arc::new(Self {
            tid,
            process: Arc::clone(process),
            files: Mutex::new(files),
            position: Mutex::new(position),
            mask: AtomicU64::new(mask),
            pending: Pending::default(),
            alt_stack: Mutex::new(AltStack::NONE),
            clear_at_exit: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            name: Mutex::default(),
            host: Arc::default(),
            waker: Mutex::default(),
            is_ending: AtomicBool::new(false),
            hart: AtomicU32::new(0),
        });
        process.threads.lock().insert(tid, Arc::clone(&thread));
        thread
    }

    /// Returns the blocked signals.
    #[must_use]
    pub fn mask(&self) -> u64 {
        self.mask.load(Ordering::Relaxed)
    }

    /// Sets the blocked signals.
    pub fn set_mask(&self, mask: u64) {
        self.mask.store(mask & !UNBLOCKABLE, Ordering::SeqCst);
    }

    /// Returns whether the thread has to do anything but go on in its program: a signal, a stop, its end.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let ready = (self.pending.bits() | self.process.pending.bits()) & !self.mask();
        ready != 0 || self.process.is_ending() || self.process.is_stopped() || self.is_ending()
    }

    /// Wakes the thread, so that it sees its signals. One that runs on another hart is interrupted there.
    pub fn notify(&self) {
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
        match self.hart.load(Ordering::SeqCst) {
            0 => {}
            hart if hart as usize == machine::hart_index() + 1 => {}
            hart => machine::interrupt_harts(1 << (hart - 1)),
        }
    }

    /// Records that this hart runs the thread from now on. It looks for work behind this, so that none is missed.
    pub fn begin_turn(&self) {
        self.hart.store(machine::hart_index() as u32 + 1, Ordering::SeqCst);
    }

    /// Records that no hart runs the thread.
    pub fn end_turn(&self) {
        self.hart.store(0, Ordering::SeqCst);
    }

    /// Returns whether this hart runs the thread.
    #[must_use]
    pub fn is_on_this_hart(&self) -> bool {
        self.hart.load(Ordering::SeqCst) as usize == machine::hart_index() + 1
    }

    /// Records the waker of the thread's task.
    pub fn set_waker(&self, waker: &Waker) {
        let mut known = self.waker.lock();
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    /// Makes this thread alone end.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.notify();
    }

    /// Returns whether this thread alone is to end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Takes a pending signal that is not blocked.
    #[must_use]
    pub fn take_signal(&self) -> Option<Info> {
        let set = !self.mask();
        self.pending.take(set).or_else(|| self.process.pending.take(set))
    }
}
