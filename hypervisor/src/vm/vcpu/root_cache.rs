//! The page that a vCPU's kernel shares with Gnomon ([`abi::root_cache`]): what is in it.
//!
//! It names roots that the [lane](../../../../docs/lane.md) changes to. Gnomon reads nothing of it after it was shared, and the lane never: a kernel
//! that writes something else there, or what it was told long ago, gets what its `satp` then asks for, as any does.

use abi::root_cache::{FLAGS_AT, MOST_PLACES, PLACE_BYTES, TAGGED, bytes};
use abi::snapshot::RootCacheState;
use alloc::vec::Vec;
use rv::{Addr, Gpa};

/// The page that a vCPU's kernel shares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootCache {
    at: Addr<Gpa>,
    is_tagged: bool,
    /// The roots in its places, at most [`MOST_PLACES`]; 0, which is none, where one is free.
    roots: Vec<u64>,
    /// The index that the next root goes to if none is free: round robin, as in *Paravirtualized KVM with a CR3 cache*.
    next: usize,
}

impl RootCache {
    /// Makes a page with so many places, all free; at most [`MOST_PLACES`].
    #[must_use]
    pub fn new(at: Addr<Gpa>, places: usize, is_tagged: bool) -> Self {
        assert!(places <= MOST_PLACES, "{places} places");
        Self { at, is_tagged, roots: alloc::vec![0; places], next: 0 }
    }

    /// Returns the initial content of the page behind the kernel's size, and its address.
    #[must_use]
    pub fn begin(&self) -> (Addr<Gpa>, Vec<u8>) {
        let mut rest = alloc::vec![0; (bytes(self.roots.len()) - FLAGS_AT) as usize];
        let words = [if self.is_tagged { TAGGED } else { 0 }, self.roots.len() as u32];
        rest[..8].copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
        (self.at.wrapping_add(FLAGS_AT), rest)
    }

    /// Returns the cache after the kernel has written `root` to `satp`, given the roots that the lane loads. The cache
    /// then has `root`, if the lane loads it, and no root that the lane does not load. `None` if nothing changes.
    #[must_use]
    pub fn after(&self, root: u64, is_loaded: impl Fn(u64) -> bool) -> Option<Self> {
        let is_gone = |known: &u64| *known != 0 && !is_loaded(*known);
        let comes = !self.roots.is_empty() && is_loaded(root) && !self.roots.contains(&root);
        if !comes && !self.roots.iter().any(is_gone) {
            return None;
        }
        let mut next = self.clone();
        next.roots.iter_mut().filter(|known| is_gone(known)).for_each(|known| *known = 0);
        if comes {
            let at = next.roots.iter().position(|known| *known == 0).unwrap_or(self.next);
            next.roots[at] = root;
            next.next = (at + 1) % next.roots.len();
        }
        Some(next)
    }

    /// Returns the places that differ from `before`, from the first to the last: their address, and their bytes.
    #[must_use]
    pub fn differing(&self, before: &Self) -> (Addr<Gpa>, Vec<u8>) {
        let differs = |at: &usize| self.roots[*at] != before.roots[*at];
        let first = (0..self.roots.len()).find(differs).unwrap_or(0);
        let end = (0..self.roots.len()).rfind(differs).map_or(first, |last| last + 1);
        // The lane takes what the kernel writes for itself. That is good in mode `adaptive`, too, where a kernel may be behind its
        // G-stage by the time that it writes it.
        let places = self.roots[first..end].iter().flat_map(|root| [*root; PLACE_BYTES as usize / size_of::<u64>()]);
        (self.at.wrapping_add(bytes(first)), places.flat_map(u64::to_le_bytes).collect())
    }

    /// Returns the state for a snapshot.
    #[must_use]
    pub fn save(&self) -> RootCacheState {
        RootCacheState { at: self.at.raw(), places: self.roots.len() as u32, is_tagged: self.is_tagged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 8 << 60 | 0x8_0000;

    #[test]
    fn roots_come_by_turns_and_go_when_the_lane_has_them_no_more() {
        let mut cache = RootCache::new(Addr::new(0x8000_0000), 3, true);
        let all = |_| true;
        for n in 0..4 {
            cache = cache.after(FIRST + n, all).expect("it is new");
        }
        assert_eq!(cache.roots, [FIRST + 3, FIRST + 1, FIRST + 2]);
        assert_eq!(cache.after(FIRST + 1, all), None, "it is there");
        let without = cache.after(FIRST + 1, |root| root != FIRST + 1).expect("the lane has one no more");
        assert_eq!(without.roots, [FIRST + 3, 0, FIRST + 2]);
        assert_eq!(without.after(FIRST + 9, |root| root != FIRST + 9), None, "nor has it the new one");
        let (at, text) = without.differing(&cache);
        assert_eq!((at.raw(), text), (0x8000_0050, [0; 16].to_vec()));
        let filled = without.after(FIRST + 4, all).expect("it is new");
        assert_eq!(filled.roots, [FIRST + 3, FIRST + 4, FIRST + 2], "a free place comes first");
        let (at, text) = filled.differing(&RootCache::new(Addr::new(0x8000_0000), 3, true));
        let places = [3, 4, 2].map(|n| [(FIRST + n).to_le_bytes(); 2]);
        assert_eq!((at.raw(), text.as_slice()), (0x8000_0040, places.as_flattened().as_flattened()));
    }

    #[test]
    fn a_page_begins_with_free_places() {
        for is_tagged in [true, false] {
            let (at, rest) = RootCache::new(Addr::new(0x8000_0000), 4, is_tagged).begin();
            assert_eq!((at.raw(), rest.len()), (0x8000_000c, 128 - 12));
            assert_eq!(rest[..8], [u8::from(is_tagged), 0, 0, 0, 4, 0, 0, 0]);
            assert!(rest[8..].iter().all(|byte| *byte == 0));
        }
    }
}
