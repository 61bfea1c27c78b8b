//! The page that a vCPU's kernel shares with Gnomon ([`abi::root_cache`]): what is in it.
//!
//! It names roots that the [lane](../../../../docs/lane.md) changes to. Gnomon reads nothing of it after it was shared, and the lane never: a kernel
//! that writes something else there, or what it was told long ago, gets what its `satp` then asks for, as any does.

use abi::root_cache::{FIRST_PLACE_AT, FLAGS_AT, MOST_PLACES, PLACE_BYTES, TAGGED, bytes};
use abi::snapshot::RootCacheState;
use alloc::vec::Vec;
use rv::{Addr, Gpa};

/// The page that a vCPU's kernel shares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootCache {
    at: Addr<Gpa>,
    is_tagged: bool,
    /// How many places there are, at most [`MOST_PLACES`].
    places: usize,
    /// The roots in them; 0, which is none, where one is free.
    roots: [u64; MOST_PLACES],
    /// Where the next goes: round robin, as in *Paravirtualized KVM with a CR3 cache*.
    next: usize,
}

impl RootCache {
    /// A page with so many places, all free; from 1 to [`MOST_PLACES`].
    #[must_use]
    pub fn new(at: Addr<Gpa>, places: usize, is_tagged: bool) -> Self {
        assert!((1..=MOST_PLACES).contains(&places), "{places} places");
        Self { at, is_tagged, places, roots: [0; MOST_PLACES], next: 0 }
    }

    /// What is behind the kernel's size at first, and where.
    #[must_use]
    pub fn begin(&self) -> (Addr<Gpa>, Vec<u8>) {
        let mut rest = alloc::vec![0; (bytes(self.places) - FLAGS_AT) as usize];
        let words = [if self.is_tagged { TAGGED } else { 0 }, self.places as u32];
        rest[..8].copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
        (self.at.wrapping_add(FLAGS_AT), rest)
    }

    /// Puts in what the kernel has written to `satp` now, if it is to be there; takes out what is not any more. Says whether anything has
    /// changed.
    pub fn follow(&mut self, root: u64, is_loaded: impl Fn(u64) -> bool) -> bool {
        let mut has_changed = false;
        for known in &mut self.roots[..self.places] {
            if *known != 0 && !is_loaded(*known) {
                *known = 0;
                has_changed = true;
            }
        }
        if is_loaded(root) && !self.roots.contains(&root) {
            self.roots[self.next] = root;
            self.next = (self.next + 1) % self.places;
            has_changed = true;
        }
        has_changed
    }

    /// What its places have, and where they begin.
    #[must_use]
    pub fn contents(&self) -> (Addr<Gpa>, Vec<u8>) {
        // The lane takes what the kernel writes for itself. That is good in mode `adaptive`, too, where a kernel may be behind its
        // G-stage by the time that it writes it.
        let places = self.roots[..self.places].iter().flat_map(|root| [*root; PLACE_BYTES as usize / size_of::<u64>()]);
        (self.at.wrapping_add(FIRST_PLACE_AT), places.flat_map(u64::to_le_bytes).collect())
    }

    /// What a snapshot says of it.
    #[must_use]
    pub fn save(&self) -> RootCacheState {
        RootCacheState { at: self.at.raw(), places: self.places as u32, is_tagged: self.is_tagged }
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
        assert!((0..4).all(|n| cache.follow(FIRST + n, all)));
        assert_eq!(cache.roots[..4], [FIRST + 3, FIRST + 1, FIRST + 2, 0]);
        assert!(!cache.follow(FIRST + 1, all), "it is there");
        assert!(cache.follow(FIRST + 1, |root| root != FIRST + 2), "one is the lane's no more");
        assert_eq!(cache.roots[..3], [FIRST + 3, FIRST + 1, 0]);
        assert!(!cache.follow(FIRST + 9, |root| root != FIRST + 9), "nor is the new one");
        let (at, text) = cache.contents();
        assert_eq!(at.raw(), 0x8000_0040);
        assert_eq!(text.len(), 48);
        assert_eq!(text[..16], [(FIRST + 3).to_le_bytes(), (FIRST + 3).to_le_bytes()].as_flattened()[..]);
        assert!(text[32..].iter().all(|byte| *byte == 0));
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
