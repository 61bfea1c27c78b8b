//! What a wide fence has to compare of a part of the shadow that many roots share, as a kernel's half is: laid out in a row. To go
//! down there table by table takes some 300 instructions for each, and a kernel has four or five for one whose entries may differ.
//!
//! ```text
//!  roots of processes                  a digest
//!   ┌──┐ ┌──┐ ┌──┐                     words:  where the guest's entry is, and what it was     (of all live entries of A, B)
//!   └┬─┘ └┬─┘ └┬─┘                     uppers: A, B
//!    └────┼────┘                       tables: C, D, and the entries that lead there
//!       ┌─▼─┐ A, the top
//!       └─┬─┘
//!       ┌─▼─┐ B
//!       └┬─┬┘
//!     ┌──▼┐┌▼──┐ C, D: level 0
//! ```
//!
//! It says the same as the tables as long as no upper page of it gets an entry or loses one: [`super::index::Index`] sees to that.

use super::page::{At, Id};
use alloc::vec::Vec;
use rv::{Addr, Hpa, Space};

const MOST: usize = 6;
pub(super) const MOST_WORDS: usize = 128;
pub(super) const MOST_UPPERS: usize = 16;
pub(super) const MOST_TABLES: usize = 32;

/// One of them.
pub(super) struct Digest<S: Space> {
    pub top: Id,
    pub words: Vec<(Addr<Hpa>, u64)>,
    pub uppers: Vec<Id>,
    pub tables: Vec<(At, Id, Addr<S>)>,
}

/// All of an engine: their memory is taken when it begins.
pub(super) struct Digests<S: Space> {
    pub all: Vec<Option<Digest<S>>>,
    /// The next one is laid out there.
    pub spare: Option<Digest<S>>,
    pub hand: usize,
}

fn room<T>(most: usize) -> Option<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(most).ok()?;
    Some(room)
}

impl<S: Space> Digests<S> {
    /// Six, or none if they are not used. `None` if there is no room on the heap.
    pub fn new(are_used: bool) -> Option<Self> {
        let one = || {
            let (words, uppers, tables) = (room(MOST_WORDS)?, room(MOST_UPPERS)?, room(MOST_TABLES)?);
            Some(Digest { top: 0, words, uppers, tables })
        };
        if !are_used {
            return Some(Self { all: Vec::new(), spare: None, hand: 0 });
        }
        let all = (0..MOST).map(|_| Some(Some(one()?))).collect::<Option<_>>()?;
        Some(Self { all, spare: Some(one()?), hand: 0 })
    }
}
