//! Requests of a snapshot of a VM.
//!
//! A snapshot is begun, which pauses the VM; then the state is fetched, and RAM, in pieces; and it is ended. Until then
//! the VM stands still, and so do its devices. A request that resumes or stops the VM ends the snapshot as well.

use crate::snapshot::bytes::Bytes;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Most pages in an answer.
pub const MOST_PAGES: usize = 3;
/// Most bytes of the state in an answer.
pub const MOST_STATE: usize = 12 << 10;

/// A snapshot's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Save {
    /// Begin, and pause the VM: [`super::Answer::Saving`], or [`super::Answer::Later`] until it stands still. It is refused while another
    /// snapshot is taken, or a debugger is attached.
    Begin,
    /// The state from that byte on, at most [`MOST_STATE`]: [`super::Answer::State`].
    State {
        /// Which snapshot.
        id: u32,
        /// The first byte.
        from: u32,
    },
    /// Pages of RAM from that one on that are not zero, at most [`MOST_PAGES`]: [`super::Answer::Pages`], or [`super::Answer::Later`].
    Pages {
        /// Which snapshot.
        id: u32,
        /// The first page.
        from: u64,
    },
    /// End it; if [`Save::Begin`] has paused the VM it goes on: [`super::Answer::Done`]. It is refused if the VM went on meanwhile: then
    /// what was given out is worth nothing. [`NOT_YET`] is one of which nothing was given out.
    End(u32),
}

/// The number of a snapshot that the VM does not stand still for yet, or whose own number was lost on the way.
pub const NOT_YET: u32 = 0;

/// A snapshot that is begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Saving {
    /// Which snapshot of the VM this is: the number that is asked with.
    pub id: u32,
    /// Bytes of the state: a [`crate::snapshot::State`].
    pub state_bytes: u32,
    /// Pages of its RAM.
    pub pages: u64,
    /// True if the VM ran before.
    pub was_running: bool,
}

/// Pages of RAM.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Pages {
    /// The page to continue from: all pages before it that are not here are zero.
    pub next: u64,
    /// The numbers of those that are here, ascending.
    pub first: Vec<u64>,
    /// Their bytes, one page behind the other.
    pub bytes: Bytes,
}
