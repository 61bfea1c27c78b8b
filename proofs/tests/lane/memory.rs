//! Words of memory by their addresses. Thousands of scenes are copied and compared, so these are cheap.

use std::ops::Range;

/// Memory: words that are there one by one, and stretches that are all there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Ascending.
    at: Vec<u64>,
    words: Vec<u64>,
    /// The ranges in which unnamed words are zero.
    zeroes: [Range<u64>; 2],
    /// The address and the values of words that never change.
    constants: (u64, &'static [u64]),
}

impl Memory {
    /// Memory that is zero in two stretches, and has these words in another.
    pub const fn new(zeroes: [Range<u64>; 2], constants: (u64, &'static [u64])) -> Self {
        Self { at: Vec::new(), words: Vec::new(), zeroes, constants }
    }

    /// The word at an address, if there is memory.
    pub fn get(&self, at: u64) -> Option<u64> {
        if let Ok(index) = self.at.binary_search(&at) {
            return Some(self.words[index]);
        }
        if !at.is_multiple_of(8) {
            return None;
        }
        let (first, constants) = self.constants;
        let constant = usize::try_from(at.wrapping_sub(first) / 8).ok().and_then(|index| constants.get(index).copied());
        constant.or(self.zeroes.iter().any(|zeroes| zeroes.contains(&at)).then_some(0))
    }

    /// The word at an address that is known to be there.
    pub fn word(&self, at: u64) -> u64 {
        self.get(at).unwrap_or_else(|| panic!("no memory at {at:#x}"))
    }

    /// Makes the word at an address this.
    pub fn set(&mut self, at: u64, word: u64) {
        match self.at.binary_search(&at) {
            Ok(index) => self.words[index] = word,
            Err(index) => {
                self.at.insert(index, at);
                self.words.insert(index, word);
            }
        }
    }
}
