//! A kernel's side of the root cache (docs/root-cache.md): how it changes between address spaces without ASIDs, with a page that it shares
//! with Gnomon and without.
#![expect(unsafe_code, reason = "satp")]

use crate::paging::Page;
use crate::sbi;
use abi::root_cache::{self as page, EXTENSION, NO_PAGE, SET_PAGE};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use metal::{csr, fence};

/// A page that this hart's kernel shares.
#[derive(Clone, Copy, Debug)]
pub struct RootCache {
    page: &'static Page,
}

/// The doubleword of the page that has that offset.
const fn word(page: &'static Page, at: u64) -> &'static AtomicU64 {
    &page.0[at as usize / 8]
}

impl RootCache {
    /// Shares a page on this hart, for so many bytes of it, as a kernel that was made for `version`.
    ///
    /// # Errors
    /// The SBI's error.
    pub fn share(page: &'static Page, version: u32, size: u32) -> Result<Self, i64> {
        word(page, page::GUEST_VERSION_AT).store(version.into(), Relaxed);
        word(page, page::SIZE_AT).store(size.into(), Relaxed);
        match Self::ask([page.address(), 0, 0]) {
            sbi::SUCCESS => Ok(Self { page }),
            error => Err(error),
        }
    }

    /// Makes the call. Returns its error.
    #[must_use]
    pub fn ask([low, high, flags]: [u64; 3]) -> i64 {
        sbi::call(EXTENSION, SET_PAGE, [low, high, flags, 0, 0, 0]).0
    }

    /// Shares none any more.
    #[must_use]
    pub fn end() -> i64 {
        Self::ask([NO_PAGE, NO_PAGE, 0])
    }

    /// The version that Gnomon says, in whatever page.
    #[must_use]
    pub fn host_version(page: &'static Page) -> u32 {
        (word(page, page::GUEST_VERSION_AT).load(Relaxed) >> 32) as u32
    }

    /// The flags.
    #[must_use]
    pub fn flags(self) -> u32 {
        (word(self.page, page::SIZE_AT).load(Relaxed) >> 32) as u32
    }

    /// Returns whether changes need no fence.
    #[must_use]
    pub fn is_tagged(self) -> bool {
        self.flags() & page::TAGGED != 0
    }

    /// The number of places.
    #[must_use]
    pub fn places(self) -> usize {
        word(self.page, page::PLACES_AT).load(Relaxed) as u32 as usize
    }

    /// The value to write for a root of the kernel's, if the page has it.
    #[must_use]
    pub fn find(self, root: u64) -> Option<u64> {
        let first = page::FIRST_PLACE_AT as usize / 8;
        let mut places = self.page.0[first..][..2 * self.places()].chunks_exact(2);
        places.find(|place| place[0].load(Relaxed) == root).map(|place| place[1].load(Relaxed))
    }

    /// Changes to the address space of a root, with what fences that takes. Says whether the page had it.
    pub fn change(self, root: u64) -> bool {
        let found = self.find(root);
        // SAFETY: every space maps Rust's memory and the devices to themselves.
        unsafe { csr::satp::write(found.unwrap_or(root)) };
        if !self.is_tagged() {
            fence::sfence_all();
        }
        found.is_some()
    }
}
