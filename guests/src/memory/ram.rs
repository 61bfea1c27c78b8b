//! Free RAM in pages: for tests that need more of it than the pool of [`paging`] has, aligned
//! blocks, or pages at certain places.
#![expect(unsafe_code, reason = "pages at addresses")]

use crate::board;
use crate::paging::{self, Page};
use core::sync::atomic::Ordering::Relaxed;
use core::{ptr, slice};
use spin::{Mutex, Once};

const PAGE: u64 = rv::PAGE_BYTES;
/// Kept free at the end of RAM, for tests that want exactly that place.
const KEPT: u64 = 4 << 20;

/// The first page not handed out yet, and the end; none before the first call.
static REST: Mutex<Option<(u64, u64)>> = Mutex::new(None);

/// Allocates adjacent zero pages, the first aligned to their number (rounded up to a power of two). There is enough for
/// a guest's life, so none is given back.
///
/// # Panics
/// If there is not.
#[must_use]
pub fn pages(count: usize) -> &'static [Page] {
    let mut rest = REST.lock();
    let (at, end) = rest.unwrap_or_else(|| {
        let (from, to) = board().largest_free();
        // The very first page is for tests that want exactly that.
        (from + PAGE, to - KEPT)
    });
    let at = at.next_multiple_of(count.next_power_of_two() as u64 * PAGE);
    let next = at + count as u64 * PAGE;
    assert!(next <= end, "{count} pages are more than the free RAM, up to {end:#x}, has left");
    *rest = Some((next, end));
    drop(rest);
    // SAFETY: free RAM has no other user, these pages are handed out once, any value is a good one.
    let pages = unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<Page>(at as usize), count) };
    pages.iter().flat_map(|page| &page.0).for_each(|word| word.store(0, Relaxed));
    pages
}

/// The page at an address of the pool or of free RAM, handed out by [`pages`] or not.
///
/// # Panics
/// If the address is another's, or not that of a page.
#[must_use]
pub fn page_at(at: u64) -> &'static Page {
    type Ranges = [(u64, u64); 8];
    static FREE: Once<Ranges> = Once::new();
    let free = FREE.call_once(|| {
        let mut ranges = Ranges::default();
        ranges.iter_mut().zip(board().free_ram()).for_each(|(range, found)| *range = found);
        ranges
    });
    let is_free = free.iter().any(|(from, to)| (*from..*to).contains(&at));
    assert!(at.is_multiple_of(PAGE) && (is_free || paging::is_pool(at)), "no page of ours: {at:#x}");
    // SAFETY: such pages hold atomics that are shared by reference only, or nothing at all.
    unsafe { &*ptr::with_exposed_provenance::<Page>(at as usize) }
}
