//! The places of entries of the stage below, as the present operation has found them.
//!
//! A comparison composes hundreds of entries. To walk the stage's table for each, whose own frames are found by the VM's table, takes more
//! than a thousand instructions; the entry that decides is near the last one. Only *where* it is, is remembered: what it says is read
//! each time, and so are changes that hardware, or the operation itself, makes there. The way to it is that of the operation's begin: the
//! VM's lock keeps frames where they are, and a change of L1's takes effect by a fence, which is another operation.

use alloc::boxed::Box;
use rv::{Addr, Hpa, L2Gpa, Level, Pfn};

/// Chunks that are remembered.
const PLACES: usize = 64;

/// The places, by chunks of 2 MiB of L2's physical addresses.
#[derive(Debug)]
pub struct Near {
    places: Box<[Place; PLACES]>,
    /// Counts operations.
    operation: u64,
}

/// The entry that maps a chunk, or the first of the table that does.
#[derive(Clone, Copy, Debug)]
struct Place {
    operation: u64,
    tag: u64,
    at: Addr<Hpa>,
    level: Level,
}

impl Near {
    /// Makes an empty one. `None`: there is no room on the heap.
    pub fn new() -> Option<Self> {
        let none = Place { operation: 0, tag: 0, at: Addr::new(0), level: Level::PAGE };
        let mut places = alloc::vec::Vec::new();
        places.try_reserve_exact(PLACES).ok()?;
        places.resize(PLACES, none);
        Some(Self { places: places.into_boxed_slice().try_into().ok()?, operation: 1 })
    }

    /// Another operation begins.
    pub const fn forget(&mut self) {
        self.operation += 1;
    }

    const fn number(page: Pfn<L2Gpa>) -> usize {
        (page.raw() / Level::MEGA.pages()) as usize % PLACES
    }

    /// Returns where the entry is that maps the page, whose chunk has that tag, and its level.
    pub fn entry(&self, page: Pfn<L2Gpa>, tag: u64) -> Option<(Addr<Hpa>, Level)> {
        let place = &self.places[Self::number(page)];
        let index = if place.level == Level::PAGE { page.raw() % Level::MEGA.pages() } else { 0 };
        (place.tag == tag && place.operation == self.operation).then(|| (place.at.wrapping_add(8 * index), place.level))
    }

    /// Remembers that the entry of that level which maps the page is at `at`.
    pub fn note(&mut self, (page, tag): (Pfn<L2Gpa>, u64), at: Addr<Hpa>, level: Level) {
        let index = match level {
            Level::PAGE => page.raw() % Level::MEGA.pages(),
            Level::MEGA => 0,
            _ => return,
        };
        let at = Addr::new(at.raw() - 8 * index);
        self.places[Self::number(page)] = Place { operation: self.operation, tag, at, level };
    }
}
