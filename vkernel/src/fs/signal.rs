//! Open files from which pending signals are read (`signalfd`).

use super::{IN, Kind, Ready, Status, Stream, new_id};
use crate::errno::{Errno, Result};
use crate::task::process::{self, Thread};
use crate::task::run;
use crate::task::signal::Info;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Waker;

/// Bytes of a `signalfd_siginfo`.
const RECORD: usize = 128;

/// Signals that are read instead of delivered. They are those of the process and the thread that read.
#[derive(Debug)]
pub struct Signals {
    number: u64,
    set: AtomicU64,
}

impl Signals {
    /// Makes a file for a set of signals.
    #[must_use]
    pub fn new(set: u64) -> Arc<Self> {
        Arc::new(Self { number: new_id(), set: AtomicU64::new(set) })
    }

    /// Changes the set.
    pub fn set(&self, set: u64) {
        self.set.store(set, Ordering::Relaxed);
    }

    /// The thread that this hart runs.
    fn reader() -> Option<Arc<Thread>> {
        let process = process::find(run::current()?)?;
        let threads = process.threads.lock();
        threads.values().find(|thread| thread.is_on_this_hart()).cloned()
    }
}

/// Returns the record of a signal.
fn encode(info: &Info) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    let mut set = |at: usize, value: &[u8]| record[at..at + value.len()].copy_from_slice(value);
    set(0, &info.signal.to_le_bytes());
    set(8, &info.code.to_le_bytes());
    set(12, &info.pid.to_le_bytes());
    set(16, &info.uid.to_le_bytes());
    set(40, &(info.value as u32).to_le_bytes());
    set(44, &(info.value as u32).to_le_bytes());
    set(48, &info.value.to_le_bytes());
    record
}

impl Stream for Signals {
    fn read(&self, to: &mut [u8]) -> Result<usize> {
        if to.len() < RECORD {
            return Err(Errno::INVAL);
        }
        let thread = Self::reader().ok_or(Errno::AGAIN)?;
        let set = self.set.load(Ordering::Relaxed);
        let mut count = 0;
        for place in to.chunks_exact_mut(RECORD) {
            let Some(info) = thread.pending.take(set).or_else(|| thread.process.pending.take(set)) else { break };
            place.copy_from_slice(&encode(&info));
            count += RECORD;
        }
        if count == 0 { Err(Errno::AGAIN) } else { Ok(count) }
    }

    fn ready(&self, waker: Option<&Waker>) -> Ready {
        let Some(thread) = Self::reader() else { return 0 };
        if let Some(waker) = waker {
            thread.process.signalled.add(waker);
        }
        let pending = thread.pending.bits() | thread.process.pending.bits();
        if pending & self.set.load(Ordering::Relaxed) != 0 { IN } else { 0 }
    }

    fn status(&self) -> Status {
        Status::plain((0, self.number), Kind::File, 0o600)
    }

    fn as_signals(&self) -> Option<&Signals> {
        Some(self)
    }
}
