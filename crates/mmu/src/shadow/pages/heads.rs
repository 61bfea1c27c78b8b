//! For each frame of guest RAM, what leads to it and what it is: where the lists of leaves begin, and the shadows that it
//! has as a table.

use crate::frames::Run;
use crate::shadow::pages::{Id, Ref};
use alloc::vec::Vec;
use rv::{Addr, Gpa, Hpa, Level, Pfn, PhysMem};

impl Chunk {
    /// Nothing leads there. The frame is clear.
    pub const fn new(words: Run) -> Self {
        Self { words, mega: Ref::NONE, protected: 0 }
    }

    /// Ends it: the frame that it took.
    pub fn into_frame(self) -> Run {
        self.words
    }
}

/// Frames of guest RAM in one chunk.
const CHUNK: u64 = Heads::CHUNK;

/// A word of 8 bytes for each frame, in frames of the VM's: the head of the list of leaves in the low half, the first
/// shadow page's number plus 1 in the high half.
pub struct Heads {
    first: Pfn<Gpa>,
    pages: u64,
    chunks: Vec<Chunk>,
}

/// The record of 2 MiB of guest RAM.
pub struct Chunk {
    words: Run,
    /// The head of the list of leaves that lead to all of it.
    mega: Ref,
    /// The number of frames that are write-protected tables.
    protected: u16,
}

impl Heads {
    /// Frames of guest RAM in one chunk: those of a 2 MiB leaf, whose words fill a frame.
    pub const CHUNK: u64 = Level::MEGA.pages();

    /// Frames that [`Heads::new`] needs.
    pub const fn frames_for(pages: u64) -> u64 {
        pages.div_ceil(CHUNK)
    }

    /// Those of RAM that begins at a multiple of [`Heads::CHUNK`].
    pub const fn new(first: Pfn<Gpa>, pages: u64, chunks: Vec<Chunk>) -> Self {
        Self { first, pages, chunks }
    }

    pub const fn contains(&self, gfn: Pfn<Gpa>) -> bool {
        gfn.raw().wrapping_sub(self.first.raw()) < self.pages
    }

    /// Returns whether the shadow knows nothing of the frame: nothing leads there, and it is no table.
    pub fn is_unknown(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        !self.contains(gfn) || mem.read_own(self.at(gfn)) == 0 && self.megas(gfn).entry().is_none()
    }

    fn at(&self, gfn: Pfn<Gpa>) -> Addr<Hpa> {
        let offset = gfn.raw() - self.first.raw();
        self.chunks[(offset / CHUNK) as usize].words.first().at(offset % CHUNK * 8)
    }

    fn chunk_mut(&mut self, gfn: Pfn<Gpa>) -> &mut Chunk {
        &mut self.chunks[((gfn.raw() - self.first.raw()) / CHUNK) as usize]
    }

    /// The head of the list of 4 KiB leaves that lead to the frame.
    pub fn leaves(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> Ref {
        Ref(mem.read_own(self.at(gfn)) as u32)
    }

    /// Makes `head` that head, and returns the old one.
    #[inline(always)]
    pub fn swap_leaves(&self, gfn: Pfn<Gpa>, head: Ref, mem: &mut impl PhysMem) -> Ref {
        let at = self.at(gfn);
        let word = mem.read_own(at);
        mem.write_own(at, word >> 32 << 32 | u64::from(head.0));
        Ref(word as u32)
    }

    /// The head of the list of 2 MiB leaves that lead to the frame and those around it.
    pub fn megas(&self, gfn: Pfn<Gpa>) -> Ref {
        self.chunks[((gfn.raw() - self.first.raw()) / CHUNK) as usize].mega
    }

    pub fn swap_megas(&mut self, gfn: Pfn<Gpa>, head: Ref) -> Ref {
        core::mem::replace(&mut self.chunk_mut(gfn).mega, head)
    }

    /// The first shadow of the frame as a table, if it is in RAM.
    pub fn tables(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> Option<Id> {
        if !self.contains(gfn) {
            return None;
        }
        ((mem.read_own(self.at(gfn)) >> 32) as u32).checked_sub(1)
    }

    pub fn set_tables(&self, gfn: Pfn<Gpa>, first: Option<Id>, mem: &mut impl PhysMem) {
        let at = self.at(gfn);
        let high = first.map_or(0, |id| u64::from(id) + 1);
        mem.write_own(at, high << 32 | mem.read_own(at) & 0xffff_ffff);
    }

    /// Protected tables in the 2 MiB around `gfn`.
    pub fn protected_around(&mut self, gfn: Pfn<Gpa>) -> &mut u16 {
        &mut self.chunk_mut(gfn).protected
    }

    /// Returns the number of protected tables in the 2 MiB around `gfn`.
    #[cfg(feature = "sabotage")]
    pub fn count_protected_around(&self, gfn: Pfn<Gpa>) -> u16 {
        self.chunks[((gfn.raw() - self.first.raw()) / CHUNK) as usize].protected
    }

    /// Returns whether there are protected tables in the 2 MiB around `gfn`.
    pub fn has_protected_around(&self, gfn: Pfn<Gpa>) -> bool {
        self.contains(gfn) && self.chunks[((gfn.raw() - self.first.raw()) / CHUNK) as usize].protected != 0
    }

    /// All frames.
    #[cfg(feature = "sabotage")]
    pub fn all(&self) -> impl Iterator<Item = Pfn<Gpa>> + use<> {
        let first = self.first;
        (0..self.pages).map(move |n| first.add(n))
    }

    /// Ends it: the frames that it took.
    pub fn into_frames(self) -> impl Iterator<Item = Run> {
        self.chunks.into_iter().map(Chunk::into_frame)
    }
}
