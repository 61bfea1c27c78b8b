//! The pages of L2's that stages below have been used for.

use alloc::vec::Vec;
use rv::{L2Gpa, Level, Pfn};

/// The pages that stages have been used for, of all contexts: some of what was made of their entries may be there still. A set of
/// bounded size: where it has no room, it contains everything.
#[derive(Debug)]
pub struct Used {
    chunks: Vec<Chunk>,
    /// Pages are missing in it.
    is_all: bool,
}

/// Pages of 2 MiB: the number of those with the context above it, 0 for none; and a bit for each page.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    tag: u64,
    pages: [u64; 8],
}

impl Used {
    /// Places that a chunk may be at, from the first one on.
    const NEAR: usize = 16;
    /// Bits of the number of a chunk, of 50 bits of addresses.
    const NUMBER: u32 = 29;

    /// Makes an empty one for a VM with that many pages of RAM. `None`: there is no room on the heap.
    pub fn new(ram_pages: u64) -> Option<Self> {
        let places = (2 * ram_pages / Level::MEGA.pages()).next_power_of_two().max(64) as usize;
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(places).ok()?;
        chunks.resize(places, Chunk { tag: 0, pages: [0; 8] });
        Some(Self { chunks, is_all: false })
    }

    /// Returns the tag of the chunk that the page is in.
    pub fn tag(page: Pfn<L2Gpa>, context: u32) -> u64 {
        let number = (page.raw() / Level::MEGA.pages()) & ((1 << Self::NUMBER) - 1);
        // The highest bit: no tag is 0.
        1 << 63 | u64::from(context) << Self::NUMBER | number
    }

    fn places(&self, tag: u64) -> impl Iterator<Item = usize> + use<> {
        let (mask, first) = (self.chunks.len() - 1, tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
        (0..Self::NEAR).map(move |n| (first as usize).wrapping_add(n) & mask)
    }

    /// Notes that an entry of that level maps the page, and that something may be made of it.
    pub fn note(&mut self, page: Pfn<L2Gpa>, level: Level, context: u32) {
        if level > Level::MEGA {
            self.is_all = true;
        }
        if self.is_all {
            return;
        }
        let tag = Self::tag(page, context);
        let place = self.places(tag).find(|at| matches!(self.chunks[*at].tag, 0) || self.chunks[*at].tag == tag);
        let Some(chunk) = place.map(|at| &mut self.chunks[at]) else {
            self.is_all = true;
            return;
        };
        chunk.tag = tag;
        let index = page.raw() % Level::MEGA.pages();
        match level {
            // A fence may name any address of the superpage.
            Level::MEGA => chunk.pages = [u64::MAX; 8],
            _ => chunk.pages[(index / 64) as usize] |= 1 << (index % 64),
        }
    }

    /// Returns whether something may have been made by the stage's entry for the page.
    pub fn contains(&self, page: Pfn<L2Gpa>, context: u32) -> bool {
        let tag = Self::tag(page, context);
        let index = page.raw() % Level::MEGA.pages();
        let mut places = self.places(tag).map(|at| &self.chunks[at]);
        let has = |chunk: &Chunk| chunk.pages[(index / 64) as usize] >> (index % 64) & 1 == 1;
        self.is_all || places.find(|chunk| chunk.tag == tag).is_some_and(has)
    }
}
