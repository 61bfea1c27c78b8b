//! Threads and processes, and the harts that run them.
//!
//! Each thread is an asynchronous task: it runs its program until that traps, handles the trap, and begins again. A system call that
//! has to wait is a future that is pending, so a thread that waits has no stack. The kernel runs with interrupts off and is never preempted:
//! programs are.

pub mod alarm;
pub mod credentials;
pub mod executor;
pub mod exit;
pub mod futex;
pub mod process;
pub mod run;
pub mod schedule;
pub mod signal;
pub mod signal_frame;
pub mod timers;
pub mod wait;

pub use process::{Process, Thread};
pub use run::Task;
