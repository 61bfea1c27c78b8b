//! The common parts of the micro-benchmarks: a window of pages, mapped one by one, and random numbers that are the same
//! in every run.

use crate::paging::{self, RW, Space, TEST_VA, leaf};
use crate::{access, board};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use rv::format::SV39;
use rv::{Level, PAGE_BYTES};

/// Pages of the window, as in the paper.
pub const PAGES: u64 = 1024;
/// The ASID of the address space.
pub const ASID: u64 = 1;

/// An address space with [`PAGES`] pages at [`TEST_VA`]. Behind each are `sides` frames of its own, one of
/// which it maps. The first doubleword of a frame is the frame's address.
#[derive(Debug)]
pub struct Window {
    space: Space,
    frames: u64,
    sides: u64,
}

impl Window {
    /// Makes it, with each page on side 0, and translates by it from now on. Every frame was written and
    /// every page was read when this returns: no first touch is left to be counted.
    ///
    /// # Panics
    /// If there is not enough RAM for the frames.
    #[must_use]
    pub fn enter(sides: u64) -> Self {
        let (from, to) = board().largest_free();
        assert!(to - from >= PAGES * sides * PAGE_BYTES, "not enough RAM: {} bytes", board().ram_bytes);
        let window = Self { space: Space::new(&SV39, ASID), frames: from, sides };
        for page in 0..PAGES {
            (0..sides).for_each(|side| access::poke(window.frame(page, side), window.frame(page, side)));
            window.space.map(address(page), window.frame(page, 0), RW);
        }
        window.space.enter();
        window.read_all();
        window
    }

    /// The frame of a page on a side.
    #[must_use]
    pub fn frame(&self, page: u64, side: u64) -> u64 {
        self.frames + (page * self.sides + side) * PAGE_BYTES
    }

    /// The page's entry.
    #[must_use]
    pub fn slot(&self, page: u64) -> &'static AtomicU64 {
        self.space.slot(address(page), Level::PAGE)
    }

    /// Lets a page map a side, and fences its address.
    pub fn turn(&self, page: u64, side: u64) {
        self.slot(page).store(leaf(self.frame(page, side), RW), Relaxed);
        paging::fence_page_asid(address(page), ASID);
    }

    /// Reads every page once.
    pub fn read_all(&self) {
        for page in 0..PAGES {
            core::hint::black_box(access::peek(address(page)));
        }
    }
}

/// The virtual address of a page of the window.
#[must_use]
pub const fn address(page: u64) -> u64 {
    TEST_VA + page * PAGE_BYTES
}

/// Random numbers: xorshift64, from a fixed seed.
#[derive(Debug)]
pub struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x2545_f491_4f6c_dd1d)
    }
}

impl Random {
    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The low bits of a xorshift are the weakest.
        (self.0 >> 16) % end
    }
}
