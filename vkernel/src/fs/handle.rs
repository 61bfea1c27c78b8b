//! Open files that stand for a process (`pidfd_open`).

use super::{IN, Kind, Ready, Status, Stream, new_id};
use crate::task::Process;
use alloc::sync::Arc;
use core::task::Waker;

/// A process as an open file. It can be read from when the process has ended.
#[derive(Debug)]
pub struct Handle {
    number: u64,
    process: Arc<Process>,
}

impl Handle {
    /// Makes one.
    #[must_use]
    pub fn new(process: &Arc<Process>) -> Arc<Self> {
        Arc::new(Self { number: new_id(), process: Arc::clone(process) })
    }
}

impl Stream for Handle {
    fn ready(&self, waker: Option<&Waker>) -> Ready {
        if let Some(waker) = waker {
            self.process.moves.add(waker);
        }
        if self.process.is_dead() { IN } else { 0 }
    }

    fn status(&self) -> Status {
        Status::plain((0, self.number), Kind::File, 0o600)
    }

    fn as_process(&self) -> Option<&Arc<Process>> {
        Some(&self.process)
    }
}
