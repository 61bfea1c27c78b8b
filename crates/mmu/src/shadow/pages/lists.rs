//! The frames that an engine has for its lists, by the RAM of its VM: they are many, and made ready in portions.

use crate::frames::{AllocError, Frames, Owner, Use};
use crate::shadow::pages::{Chunk, Heads};
use alloc::vec::Vec;
use rv::{Gpa, Pfn, PhysMem};

/// The lists of an engine that is to be, for so much RAM.
#[must_use = "dropping it leaks its frames"]
pub struct Lists {
    first: Pfn<Gpa>,
    pages: u64,
    chunks: Vec<Chunk>,
}

impl Lists {
    /// Those of a VM whose RAM is `pages` pages from `first`: no frame is taken yet.
    ///
    /// # Panics
    /// If `first` is not a multiple of 2 MiB.
    pub const fn new(first: Pfn<Gpa>, pages: u64) -> Self {
        assert!(first.is_aligned(Heads::CHUNK), "guest RAM begins at a multiple of 2 MiB");
        Self { first, pages, chunks: Vec::new() }
    }

    /// Takes up to `count` more frames, and clears them. Returns whether all are there.
    ///
    /// # Errors
    /// If there is no frame.
    pub fn prepare(
        &mut self,
        count: u64,
        owner: Owner,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<bool, AllocError> {
        let missing = self.missing();
        // At once, and the last step only moves it: it is megabytes for a VM of many gibibytes.
        self.chunks.try_reserve_exact(missing as usize).map_err(|_| AllocError::OutOfMemory)?;
        for _ in 0..missing.min(count) {
            let run = frames.alloc(owner, Use::Table, 0)?;
            mem.zero_frames(run.first(), 1);
            self.chunks.push(Chunk::new(run));
        }
        Ok(missing <= count)
    }

    /// Gives what it has taken back.
    pub fn release(self, frames: &Frames) {
        self.chunks.into_iter().for_each(|chunk| frames.free(chunk.into_frame()));
    }

    /// Pages of RAM.
    pub(crate) const fn pages(&self) -> u64 {
        self.pages
    }

    fn missing(&self) -> u64 {
        Heads::frames_for(self.pages) - self.chunks.len() as u64
    }

    pub(crate) fn into_heads(self) -> Heads {
        assert!(self.missing() == 0, "all frames of the lists are there");
        Heads::new(self.first, self.pages, self.chunks)
    }
}
