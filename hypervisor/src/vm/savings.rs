//! The snapshots that are taken of a VM ([`crate::life::snapshot::take`]).

use alloc::vec::Vec;

/// The snapshots of a VM.
#[derive(Debug, Default)]
pub struct Savings {
    /// The number of the last one.
    pub(crate) last: u32,
    /// The one that is being taken.
    pub(crate) now: Option<Saving>,
    /// Set while the VM is another machine's, as far as is known here: until it is resumed or ends.
    pub(crate) is_given_away: bool,
    /// The part of its state that has come from another machine ([`crate::life::snapshot`]).
    pub(crate) arrived: Vec<u8>,
}

impl Savings {
    /// Returns whether a snapshot is being taken.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.now.is_some()
    }
}

/// A snapshot that is being taken.
#[derive(Debug)]
pub(crate) struct Saving {
    /// Its number.
    pub id: u32,
    /// Set if the VM ran before.
    pub was_running: bool,
    /// The encoded state, once it is there. Until then the VM may not stand still.
    pub state: Option<Vec<u8>>,
    /// Set once a part of the snapshot was given out: a client knows its number.
    pub is_given: bool,
}
