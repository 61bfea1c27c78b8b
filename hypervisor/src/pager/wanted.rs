//! The pages of a VM that were read because its vCPUs needed them.

use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use rv::{Gpa, Pfn};

/// The last pages that vCPUs of a VM have waited for. The sweep leaves them. While a vCPU waits for another page of the same instruction they
/// look unused, and if nothing else can go, it would take one of the instruction's pages for another, for ever.
#[derive(Debug)]
pub(crate) struct Wanted {
    pages: [AtomicU64; Self::MOST],
    next: AtomicUsize,
}

impl Wanted {
    /// The pages that one instruction may need, and some more: two of its own and two of its data, and the tables of each.
    const MOST: usize = 32;
    /// In place of a page.
    const NONE: u64 = u64::MAX;

    /// Notes that a vCPU waits for a page.
    pub fn note(&self, page: Pfn<Gpa>) {
        if !self.has(page) {
            let at = self.next.fetch_add(1, Relaxed) % Self::MOST;
            self.pages[at].store(page.raw(), Relaxed);
        }
    }

    /// Returns whether a page is among them.
    pub fn has(&self, page: Pfn<Gpa>) -> bool {
        self.pages.iter().any(|wanted| wanted.load(Relaxed) == page.raw())
    }
}

impl Default for Wanted {
    fn default() -> Self {
        Self { pages: core::array::from_fn(|_| AtomicU64::new(Self::NONE)), next: AtomicUsize::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pages_are_wanted() {
        let (wanted, page) = (Wanted::default(), Pfn::new);
        let most = Wanted::MOST as u64;
        (1..=most).chain([1, 2, 1]).for_each(|n| wanted.note(page(n)));
        assert!((1..=most).all(|n| wanted.has(page(n))) && !wanted.has(page(0)));
        wanted.note(page(0));
        assert!(wanted.has(page(0)) && !wanted.has(page(1)) && wanted.has(page(2)));
    }
}
