//! The pages of L2's that stages below have been used for.

use alloc::vec::Vec;
use rv::{Gpa, L2Gpa, Level, Pfn};

/// The pages that stages have been used for, of all contexts: some of what was made of their entries may be there still. A set of
/// bounded size: where it has no room, it contains everything.
#[derive(Debug)]
pub struct Used {
    chunks: Vec<Chunk>,
    /// For each page of the chunks of which that is noted [`UNUSED`], the number of the frame where each use found it, or [`VARIOUS`].
    frames: Vec<u32>,
    /// The number of those chunks.
    noted: u32,
    /// Pages are missing in it.
    is_all: bool,
}

/// Pages of 2 MiB: the number of those with the context above it, 0 for none; and a bit for each page.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    tag: u64,
    pages: [u64; 8],
    /// The number of the chunk in [`Used::frames`], if that is noted of it.
    noted: Option<u32>,
}

const UNUSED: u32 = u32::MAX;
const VARIOUS: u32 = u32::MAX - 1;
/// Most chunks of which it is noted: 2 KiB of the heap each, at most 1/1024 of the VM's RAM.
const MOST_NOTED: usize = 256;

impl Chunk {
    const NONE: Self = Self { tag: 0, pages: [0; 8], noted: None };

    /// Returns what is noted of its page of that index.
    fn place(&self, index: u64) -> Option<usize> {
        Some(self.noted? as usize * CHUNK + index as usize)
    }
}

/// Pages of a chunk.
const CHUNK: usize = Level::MEGA.pages() as usize;

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
        chunks.resize(places, Chunk::NONE);
        let noted = CHUNK * (ram_pages as usize).div_ceil(CHUNK).min(MOST_NOTED);
        let mut frames = Vec::new();
        frames.try_reserve_exact(noted).ok()?;
        frames.resize(noted, UNUSED);
        Some(Self { chunks, frames, noted: 0, is_all: false })
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

    /// Notes that an entry of that level maps the page to the frame, and that something may be made of it.
    pub fn note(&mut self, (page, frame): (Pfn<L2Gpa>, Pfn<Gpa>), level: Level, context: u32) {
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
        let index = page.raw() % Level::MEGA.pages();
        if chunk.tag == 0 && (self.noted as usize) < self.frames.len() / CHUNK {
            chunk.noted = Some(self.noted);
            self.noted += 1;
        }
        chunk.tag = tag;
        match level {
            // A fence may name any address of the superpage.
            Level::MEGA => {
                chunk.pages = [u64::MAX; 8];
                chunk.noted = None;
            }
            _ => {
                chunk.pages[(index / 64) as usize] |= 1 << (index % 64);
                if let Some(known) = chunk.place(index).map(|at| &mut self.frames[at]) {
                    let frame = u32::try_from(frame.raw()).unwrap_or(VARIOUS).min(VARIOUS);
                    *known = if *known == UNUSED || *known == frame { frame } else { VARIOUS };
                }
            }
        }
    }

    fn chunk(&self, page: Pfn<L2Gpa>, context: u32) -> Option<&Chunk> {
        let tag = Self::tag(page, context);
        self.places(tag).map(|at| &self.chunks[at]).find(|chunk| chunk.tag == tag)
    }

    /// Returns whether something may have been made by the stage's entry for the page.
    pub fn contains(&self, page: Pfn<L2Gpa>, context: u32) -> bool {
        let index = page.raw() % Level::MEGA.pages();
        let has = |chunk: &Chunk| chunk.pages[(index / 64) as usize] >> (index % 64) & 1 == 1;
        self.is_all || self.chunk(page, context).is_some_and(has)
    }

    /// Returns the frame where all uses have found the page, if that is known and one. All that was made by the entry for the page leads there.
    pub fn frame(&self, page: Pfn<L2Gpa>, context: u32) -> Option<Pfn<Gpa>> {
        let index = page.raw() % Level::MEGA.pages();
        let known = self.frames[self.chunk(page, context).filter(|_| !self.is_all)?.place(index)?];
        (known < VARIOUS).then(|| Pfn::new(known.into()))
    }
}
