//! Requests of a snapshot of a VM.
//!
//! A snapshot is begun, which pauses the VM; then the state is fetched, and RAM, in pieces; and it is ended. Until then
//! the VM stands still, and so do its devices. A request that resumes or stops the VM ends the snapshot as well.

use crate::snapshot::bytes::Bytes;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Most pages in an answer.
pub const MOST_PAGES: usize = 16;
/// Most bytes of the state in an answer.
pub const MOST_STATE: usize = 64 << 10;

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
    /// Begin or end the dirty log of a VM, for a migration while it runs: [`super::Answer::Done`]. It is refused where hardware would write to memory
    /// unseen.
    Log(bool),
    /// Collect pages that have changed since they were last collected, from that one on; the first time all that are not zero. The log must be on:
    /// [`super::Answer::Changed`], or [`super::Answer::Later`].
    Changed {
        /// The first page.
        from: u64,
        /// True in the first round.
        is_first: bool,
    },
    /// Pages of RAM of a VM whose log is on that are not zero: as [`Save::Pages`].
    Look {
        /// The first page.
        from: u64,
        /// The page behind the last.
        end: u64,
    },
    /// These pages of RAM of a VM whose log is on, in ascending order, without those that are zero; numbers that no page has are passed over:
    /// [`super::Answer::Pages`], or [`super::Answer::Later`].
    Fetch([u64; MOST_PAGES]),
    /// The snapshot's VM is given to another machine: it stays paused though the command goes: [`super::Answer::Done`]. A request that resumes it is
    /// the only way back.
    Give(u32),
}

/// Most runs of pages in an answer.
pub const MOST_RUNS: usize = 256;

/// Pages that have changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Changed {
    /// The page to continue from.
    pub next: u64,
    /// Runs of pages that may have changed: the first one, and how many. The first run may begin before the page that was asked for.
    pub changed: Vec<(u64, u64)>,
    /// Runs of pages that are zero now.
    pub zero: Vec<(u64, u64)>,
}

/// A request about a VM that arrives from another machine ([`crate::bundle::VmConfig::incoming`]). It may be repeated while the VM has not started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Load {
    /// Pages of RAM, at most [`MOST_PAGES`]: [`super::Answer::Done`], or [`super::Answer::Later`].
    Pages(Pages),
    /// Pages that are zero: [`super::Answer::Pages`], whose `next` says how far it has come.
    Zero {
        /// The first one.
        from: u64,
        /// The page behind the last.
        end: u64,
    },
    /// The state from that byte on, at most [`MOST_STATE`] bytes; from 0 on it begins anew: [`super::Answer::Done`].
    State {
        /// The first byte.
        from: u32,
        /// The bytes.
        bytes: Bytes,
    },
    /// All is there: check whether the VM can go on: [`super::Answer::Done`].
    Check,
    /// Go on: [`super::Answer::Done`]. From then on the VM runs here.
    Start,
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
