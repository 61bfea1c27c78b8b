//! A set of places that all harts change at once: where it is worth to look. One look sees 64 of them, so that a search through all
//! RAM of a large machine is short.

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::SeqCst;
use alloc::vec::Vec;

#[derive(Default)]
pub(super) struct Places {
    words: Vec<AtomicU64>,
}

impl Places {
    /// Inserts all places below `end`, and makes room for them.
    pub fn insert_below(&mut self, end: usize) {
        self.words.clear();
        self.words.resize_with(end / 64, || AtomicU64::new(u64::MAX));
        self.words.push(AtomicU64::new((1 << (end % 64)) - 1));
    }

    pub fn insert(&self, place: usize) {
        if !self.contains(place) {
            self.words[place / 64].fetch_or(1 << (place % 64), SeqCst);
        }
    }

    /// Removes a place that is not worth a look, unless it has become worth one. A hart that makes it so does that
    /// *before* it inserts the place, so one of both sees the other. Returns whether the place is back.
    pub fn remove_unless(&self, place: usize, is_worth_it: impl Fn() -> bool) -> bool {
        let (word, bit) = (&self.words[place / 64], 1 << (place % 64));
        let is_back = word.fetch_and(!bit, SeqCst) & bit != 0 && is_worth_it();
        if is_back {
            word.fetch_or(bit, SeqCst);
        }
        is_back
    }

    pub fn contains(&self, place: usize) -> bool {
        self.words[place / 64].load(SeqCst) & 1 << (place % 64) != 0
    }

    /// All of them, from `from` on and round.
    pub fn round(&self, from: usize) -> impl Iterator<Item = usize> {
        let bits = |at: usize, mask: u64| {
            let mut left = self.words.get(at).map_or(0, |word| word.load(SeqCst) & mask);
            core::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(64 * at + bit as usize)
            })
        };
        let (first, below) = (from / 64, (1_u64 << (from % 64)) - 1);
        let behind = (first + 1..self.words.len()).flat_map(move |at| bits(at, u64::MAX));
        let before = (0..first).flat_map(move |at| bits(at, u64::MAX));
        // Each word is looked at when it is its turn.
        let once = move |mask| core::iter::once(mask).flat_map(move |mask| bits(first, mask));
        once(!below).chain(behind).chain(before).chain(once(below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_found_once_from_anywhere_on() {
        let mut places = Places::default();
        places.insert_below(300);
        assert!(places.round(77).eq((77..300).chain(0..77)));
        (0..300).for_each(|place| assert!(!places.remove_unless(place, || false)));
        for place in [0, 5, 63, 64, 130, 299] {
            places.insert(place);
        }
        assert_eq!(places.round(64).collect::<Vec<_>>(), [64, 130, 299, 0, 5, 63]);
        assert_eq!(places.round(6).collect::<Vec<_>>(), [63, 64, 130, 299, 0, 5]);
        let back = [(130, false), (5, true), (6, true)].map(|(place, is)| places.remove_unless(place, || is));
        assert_eq!(back, [false, true, false]);
        assert_eq!(places.round(1000).collect::<Vec<_>>(), [0, 5, 63, 64, 299]);
    }
}
