//! The priority of processes that work for one VM, beside QEMU, whose threads run all VMs.
//!
//! Guests choose how much a passt, a share's server and the relay have to do. Without control groups, which a plain user cannot set up,
//! the scheduler divides a processor by niceness alone.

use rustix::process::{Pid, getpriority_process, setpriority_process};
use std::process::Child;

/// The niceness of these processes above that of QEMU. Where both want one processor, QEMU has 1024 parts of it and such a process 110.
const NICER: i32 = 10;
/// The greatest niceness.
const NICEST: i32 = 19;

/// Lowers the priority of a process that has just been started: of its only thread, and of all that it starts.
pub(super) fn lower(child: &Child) {
    set(Some(Pid::from_child(child)));
}

/// Lowers the priority of the calling thread.
pub(super) fn lower_own() {
    // The system takes no number for the thread, not for the process.
    set(None);
}

fn set(whose: Option<Pid>) {
    let own = getpriority_process(None).unwrap_or(0);
    // A user may always have less. The process may have ended.
    let _ = setpriority_process(whose, (own + NICER).min(NICEST));
}
