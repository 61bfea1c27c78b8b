//! Signals: their actions, and those that are pending.

use super::{Process, Thread};
use crate::sync::Mutex;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// The number of a signal, from 1 to 64.
pub type Signal = u32;

/// The greatest number of a signal.
pub const LAST: Signal = 64;

/// Numbers of signals.
#[allow(missing_docs, reason = "signal(7) has them")]
pub mod number {
    use linux_raw_sys::general as linux;
    pub const HUP: u32 = linux::SIGHUP;
    pub const INT: u32 = linux::SIGINT;
    pub const QUIT: u32 = linux::SIGQUIT;
    pub const ILL: u32 = linux::SIGILL;
    pub const TRAP: u32 = linux::SIGTRAP;
    pub const BUS: u32 = linux::SIGBUS;
    pub const FPE: u32 = linux::SIGFPE;
    pub const KILL: u32 = linux::SIGKILL;
    pub const SEGV: u32 = linux::SIGSEGV;
    pub const PIPE: u32 = linux::SIGPIPE;
    pub const ALRM: u32 = linux::SIGALRM;
    pub const CHLD: u32 = linux::SIGCHLD;
    pub const CONT: u32 = linux::SIGCONT;
    pub const STOP: u32 = linux::SIGSTOP;
    pub const TSTP: u32 = linux::SIGTSTP;
    pub const TTIN: u32 = linux::SIGTTIN;
    pub const TTOU: u32 = linux::SIGTTOU;
    pub const URG: u32 = linux::SIGURG;
    pub const WINCH: u32 = linux::SIGWINCH;
    pub const SYS: u32 = linux::SIGSYS;
}

/// Returns the bit of a signal in a mask.
#[must_use]
pub const fn bit(signal: Signal) -> u64 {
    1 << (signal - 1)
}

/// Signals that cannot be caught, blocked or ignored.
pub const UNBLOCKABLE: u64 = bit(number::KILL) | bit(number::STOP);
const STOPS: u64 = bit(number::STOP) | bit(number::TSTP) | bit(number::TTIN) | bit(number::TTOU);
const IGNORED: u64 = bit(number::CHLD) | bit(number::URG) | bit(number::WINCH) | bit(number::CONT);
/// Signals of faults, which are delivered before others.
const FAULTS: u64 =
    bit(number::SEGV) | bit(number::BUS) | bit(number::ILL) | bit(number::TRAP) | bit(number::FPE) | bit(number::SYS);

/// The action of a process for a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Action {
    /// The handler's address; 0 for the default, 1 to ignore the signal.
    pub handler: u64,
    /// `SA_` flags.
    pub flags: u64,
    /// Signals that are blocked while the handler runs.
    pub mask: u64,
}

impl Action {
    const IGNORE: u64 = 1;
}

/// The actions of a process.
pub type Actions = [Action; LAST as usize];

/// The effect of a signal on a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// None.
    Ignore,
    /// The process ends.
    End,
    /// The process stops.
    Stop,
    /// A handler runs.
    Handle(Action),
}

/// Returns the effect of a signal by an action.
#[must_use]
pub fn effect(signal: Signal, action: &Action) -> Effect {
    let is_caught = bit(signal) & UNBLOCKABLE == 0;
    match action.handler {
        Action::IGNORE if is_caught => Effect::Ignore,
        handler if handler > Action::IGNORE && is_caught => Effect::Handle(*action),
        _ if bit(signal) & STOPS != 0 => Effect::Stop,
        _ if bit(signal) & IGNORED != 0 => Effect::Ignore,
        _ => Effect::End,
    }
}

/// A signal with its cause, as programs get it in `siginfo_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// The signal.
    pub signal: Signal,
    /// `si_code`.
    pub code: i32,
    /// The sender, or the child.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// `si_status`, `si_value`, or the address of a fault.
    pub value: u64,
}

impl Info {
    /// A signal from the kernel.
    #[must_use]
    pub const fn kernel(signal: Signal) -> Self {
        Self { signal, code: linux::SI_KERNEL as i32, pid: 0, uid: 0, value: 0 }
    }

    /// A signal that a process sends.
    #[must_use]
    pub fn from(process: &Process, signal: Signal) -> Self {
        Self { signal, code: 0, pid: process.pid, uid: process.credentials().users.real, value: 0 }
    }

    /// The signal of a fault at an address.
    #[must_use]
    pub const fn fault(signal: Signal, code: u32, at: u64) -> Self {
        Self { signal, code: code as i32, pid: 0, uid: 0, value: at }
    }

    /// Returns the bytes of the `siginfo_t`.
    #[must_use]
    pub fn encode(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        set(0, &self.signal.to_le_bytes());
        set(8, &self.code.to_le_bytes());
        if bit(self.signal) & FAULTS != 0 && self.code > 0 {
            set(16, &self.value.to_le_bytes());
        } else {
            set(16, &self.pid.to_le_bytes());
            set(20, &self.uid.to_le_bytes());
            set(24, &self.value.to_le_bytes());
        }
        bytes
    }
}

/// Signals that wait to be delivered.
#[derive(Debug, Default)]
pub struct Pending {
    bits: AtomicU64,
    infos: Mutex<VecDeque<Info>>,
}

impl Pending {
    /// Returns a mask of them.
    #[must_use]
    pub fn bits(&self) -> u64 {
        self.bits.load(Ordering::SeqCst)
    }

    /// Adds a signal. A standard one that is pending already is not added again.
    pub fn add(&self, info: Info) {
        const FIRST_REALTIME: Signal = 32;
        const MOST: usize = 1024;
        let mut infos = self.infos.lock();
        let is_there = self.bits() & bit(info.signal) != 0;
        if is_there && (info.signal < FIRST_REALTIME || infos.len() >= MOST) {
            return;
        }
        infos.push_back(info);
        self.bits.fetch_or(bit(info.signal), Ordering::SeqCst);
    }

    /// Returns whether a signal of that timer's is pending.
    pub fn has_timer(&self, number: u32) -> bool {
        let infos = self.infos.lock();
        infos.iter().any(|info| info.code == linux::SI_TIMER && info.pid == number)
    }

    /// Takes a signal of a set: one of a fault first, then the least number.
    pub fn take(&self, set: u64) -> Option<Info> {
        let mut infos = self.infos.lock();
        let ready = self.bits() & set;
        let signal = match (ready & FAULTS, ready) {
            (_, 0) => return None,
            (0, all) => all.trailing_zeros() + 1,
            (faults, _) => faults.trailing_zeros() + 1,
        };
        let at = infos.iter().position(|info| info.signal == signal)?;
        let info = infos.remove(at);
        if !infos.iter().any(|info| info.signal == signal) {
            self.bits.fetch_and(!bit(signal), Ordering::SeqCst);
        }
        info
    }

    /// Discards the signals of a set.
    pub fn discard(&self, set: u64) {
        let mut infos = self.infos.lock();
        infos.retain(|info| bit(info.signal) & set == 0);
        self.bits.fetch_and(!set, Ordering::SeqCst);
    }
}

/// The stack that handlers may run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AltStack {
    /// The least address.
    pub at: u64,
    /// Its size.
    pub bytes: u64,
    /// `SS_` flags.
    pub flags: u32,
}

impl AltStack {
    /// None.
    pub const NONE: Self = Self { at: 0, bytes: 0, flags: linux::SS_DISABLE };

    /// Returns whether a stack pointer lies on it.
    #[must_use]
    pub const fn has(&self, sp: u64) -> bool {
        self.flags & linux::SS_DISABLE == 0 && sp > self.at && sp - self.at <= self.bytes
    }
}

/// Does what a signal does to a process even before it is delivered.
fn prepare(process: &Process, signal: Signal) {
    if signal == number::CONT {
        process.discard_signals(STOPS);
    }
    if signal == number::CONT || signal == number::KILL {
        process.go_on();
    }
    if bit(signal) & STOPS != 0 {
        process.discard_signals(bit(number::CONT));
    }
}

/// Sends a signal to a process: to a thread that has it unblocked, if there is one.
pub fn send(process: &Arc<Process>, info: Info) {
    prepare(process, info.signal);
    if is_ignored(process, info.signal) {
        return;
    }
    process.pending.add(info);
    process.signalled.wake();
    let threads = process.threads.lock();
    let ready = threads.values().find(|thread| thread.mask() & bit(info.signal) == 0);
    if let Some(thread) = ready.or_else(|| threads.values().next()) {
        thread.notify();
    }
    if info.signal == number::KILL {
        threads.values().for_each(|thread| thread.notify());
    }
}

/// Sends a signal to a thread.
pub fn send_to_thread(thread: &Arc<Thread>, info: Info) {
    prepare(&thread.process, info.signal);
    if is_ignored(&thread.process, info.signal) {
        return;
    }
    thread.pending.add(info);
    thread.process.signalled.wake();
    thread.notify();
}

/// Returns whether a signal would have no effect, and no thread waits for it with it blocked.
fn is_ignored(process: &Process, signal: Signal) -> bool {
    let is_blocked = process.threads.lock().values().any(|thread| thread.mask() & bit(signal) != 0);
    let action = process.actions.lock()[signal as usize - 1];
    !is_blocked && effect(signal, &action) == Effect::Ignore
}

/// Sends a thread the signal of a fault of its own. If it blocks or ignores that, the signal ends it.
pub fn force(thread: &Arc<Thread>, info: Info) {
    {
        let actions = &thread.process.actions;
        let mut actions = actions.lock();
        let action = &mut actions[info.signal as usize - 1];
        if action.handler == Action::IGNORE || thread.mask() & bit(info.signal) != 0 {
            *action = Action::default();
        }
    }
    thread.set_mask(thread.mask() & !bit(info.signal));
    thread.pending.add(info);
    thread.notify();
}

/// Sends a signal to all processes of a group.
pub fn send_to_group(group: u32, info: Info) {
    super::process::members(group).for_each(|process| send(&process, info));
}
