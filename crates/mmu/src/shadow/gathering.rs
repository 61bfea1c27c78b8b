//! Where the search for what may be coalesced is (`gather`), and what it has begun.

use crate::frames::{Frames, Row};
use crate::shadow::Shadowed;
use crate::shadow::pages::Id;
use core::mem::take;
use rv::Addr;

/// What a portion has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gathered {
    /// There is more to look at, or to move.
    More,
    /// All that the root leads to has been looked at since this was said last.
    Round {
        /// Whether anything has come of it, or has changed meanwhile.
        has_found: bool,
        /// When the first leaves that have not been as they are for long enough will have been.
        settles: Option<u64>,
    },
}

impl Gathered {
    /// Nothing is there to be looked at.
    pub const NOTHING: Self = Self::Round { has_found: false, settles: None };
}

/// Where the search is, and what it has begun.
pub(super) struct Gathering<S: Shadowed> {
    /// The root that it goes through, by its serial, and the next address.
    pub root: u64,
    pub next: Addr<S>,
    /// Whether something has come of this round.
    pub has_found: bool,
    /// When the first of the leaves that it has passed have been as they are for long enough.
    settles: Option<u64>,
    pub moving: Option<Moving>,
}

/// Pages on their way to 2 MiB.
pub(super) struct Moving {
    /// The shadow page that leads to them.
    pub id: Id,
    pub serial: u64,
    /// The frames that are left; none are taken before it has been seen that all pages may be moved.
    pub row: Option<Row>,
    /// Pages that may be moved, as far as has been seen.
    pub seen: usize,
    /// Pages that have moved.
    pub done: usize,
    /// Portions that it may still take: some only make room for others.
    pub left: u32,
}

impl Moving {
    /// Gives back what it has taken.
    pub fn end(self, frames: &Frames) {
        if let Some(row) = self.row {
            frames.put_back_row(row);
        }
    }
}

impl<S: Shadowed> Gathering<S> {
    pub const fn new() -> Self {
        Self { root: 0, next: Addr::new(0), has_found: false, settles: None, moving: None }
    }

    /// It goes through that root, by its serial, from the beginning on.
    pub fn begin(&mut self, root: u64) {
        (self.root, self.next, self.has_found, self.settles) = (root, Addr::new(0), false, None);
    }

    /// Leaves that it passes have been as they are for long enough at that time.
    pub fn settles_at(&mut self, time: u64) {
        self.settles = Some(self.settles.map_or(time, |first| first.min(time)));
    }

    /// The round ends, and another begins.
    pub fn end_round(&mut self) -> Gathered {
        self.next = Addr::new(0);
        Gathered::Round { has_found: take(&mut self.has_found), settles: self.settles.take() }
    }
}
