//! A block: 2 MiB of RAM, with the free bits and the tags of its frames.

use super::tags::{BLOCK, BLOCK_ORDER, Tag, TagsOfBlock};
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::ops::Range;

/// log2 of the frames of a word.
pub(super) const WORD_ORDER: u8 = 6;
/// Words of a block.
pub(super) const WORDS: usize = 1 << (BLOCK_ORDER - WORD_ORDER);
/// Beside the number of free frames: the block is in the list of those that may have some.
const LISTED: u64 = 1 << 10;
/// In place of that number: all are free, as they were when the block was added, and neither the words nor the
/// tags say so yet.
const UNTOUCHED: u64 = 1 << 32;
/// Some hart is about to make them say so.
const OPENING: u64 = UNTOUCHED + 1;

/// A block, or the part of it that there is. The bits and tags of its frames are made when the first of them is taken.
pub(super) struct Block {
    /// The number of its first frame divided by that of its frames.
    pub number: u64,
    /// By frame: whether it is free.
    words: [AtomicU64; WORDS],
    /// An upper bound of the free frames: it grows before bits are set, and shrinks after they are cleared. With
    /// [`LISTED`], which a hart that gives frames makes sure of before it sets bits.
    free: AtomicU64,
    tags: TagsOfBlock,
}

/// The updates that giving frames to a block requires.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// Set if the block must be put into the list of those that may have free frames.
    pub unlisted: bool,
    /// Set if all of the block is free.
    pub whole: bool,
}

impl Block {
    /// A block of which all frames are present and free.
    pub fn untouched(number: u64, tags: TagsOfBlock) -> Self {
        Self { number, words: Default::default(), free: AtomicU64::new(UNTOUCHED), tags }
    }

    /// A block of which no frame is present.
    pub fn absent(number: u64, tags: TagsOfBlock) -> Self {
        tags.set(0..BLOCK as usize, Tag::ABSENT);
        Self { number, words: Default::default(), free: AtomicU64::new(0), tags }
    }

    /// Marks absent frames as present. Returns whether all of them were absent.
    pub fn appear(&self, part: Range<usize>) -> bool {
        if self.is_untouched() || self.tags.of(part.clone()) != Some(Tag::ABSENT) {
            return false;
        }
        self.tags.set(part, Tag::FREE);
        true
    }

    pub fn is_untouched(&self) -> bool {
        self.free.load(Acquire) >= UNTOUCHED
    }

    /// Makes the words and the tags of an untouched block. Returns false if another hart does it, or has done it.
    pub fn open(&self) -> bool {
        let is_mine = self.free.compare_exchange(UNTOUCHED, OPENING, AcqRel, Acquire).is_ok();
        if is_mine {
            self.tags.set(0..BLOCK as usize, Tag::FREE);
            self.free.store(LISTED | BLOCK, Release);
            self.words.iter().for_each(|word| word.store(u64::MAX, Release));
        }
        is_mine
    }

    /// Returns an upper bound of the free frames; for an untouched block, more than it has.
    #[inline(always)]
    pub fn free(&self) -> u64 {
        self.free.load(Acquire) & !LISTED
    }

    /// Like [`Block::free`], but in one total order with all operations on [`super::places::Places`].
    pub fn free_now(&self) -> u64 {
        self.free.load(SeqCst) & !LISTED
    }

    /// Counts frames as free before their bits are set. Returns the updates to make before that.
    #[inline(always)]
    pub fn count_free(&self, pages: u64) -> Turn {
        let before = self.free.fetch_add(pages, SeqCst);
        Turn { unlisted: before & LISTED == 0, whole: before & !LISTED == BLOCK - pages }
    }

    /// Marks the block as put into the list.
    pub fn list(&self) {
        self.free.fetch_or(LISTED, SeqCst);
    }

    /// Marks the block as taken out of the list if no frame of it is free, and returns whether it did. If so, the next
    /// hart to give frames puts it back.
    pub fn unlist(&self) -> bool {
        self.free.compare_exchange(LISTED, 0, SeqCst, SeqCst).is_ok()
    }

    /// Counts frames as taken after their bits are cleared. Returns whether all of the block was free before. The block
    /// is listed.
    #[inline(always)]
    pub fn count_taken(&self, pages: u64) -> bool {
        self.free.fetch_sub(pages, Relaxed) == LISTED | BLOCK
    }

    /// Returns the tag of a part, or `None` if its frames have different tags.
    #[inline(always)]
    pub fn tag_of(&self, part: Range<usize>) -> Option<Tag> {
        self.tags.of(part)
    }

    #[inline(always)]
    pub fn set_tag(&self, part: Range<usize>, tag: Tag) {
        self.tags.set(part, tag);
    }

    /// Counts a loan of each frame of a part, as [`TagsOfBlock::lend`] does. No frame of an untouched block has an
    /// owner.
    pub fn lend(&self, part: Range<usize>) -> Result<(), usize> {
        self.tags.lend(part)
    }

    /// Ends a loan of a frame. Returns whether the frame was freed before, and is to be given now.
    pub fn end_loan(&self, place: usize) -> bool {
        self.tags.end_loan(place)
    }

    /// Returns whether all frames of a part have `tag`, on loan or not.
    pub fn are(&self, part: Range<usize>, tag: Tag) -> bool {
        self.tags.are(part, tag)
    }

    /// Tags a frame as free unless it is on loan, and returns whether it did.
    #[inline(always)]
    pub fn free_unless_lent(&self, place: usize) -> bool {
        self.tags.free_unless_lent(place)
    }

    /// Tags a frame as free, or as late if it is on loan. Returns whether it is free, and to be given.
    pub fn free_or_late(&self, place: usize) -> bool {
        self.tags.free_or_late(place)
    }

    /// Clears the bits of a run of 2^order frames, at most all; returns the first one's place. The error is true if
    /// bits that had been cleared for a run that was not free have been set again.
    pub fn clear(&self, order: u8) -> Result<u64, bool> {
        match order.checked_sub(WORD_ORDER) {
            None => (0..WORDS).find_map(|at| self.clear_in_word(at, order)).ok_or(false),
            Some(words) => {
                let mut restored = false;
                for first in (0..WORDS).step_by(1 << words) {
                    match clear_words(&self.words[first..first + (1 << words)]) {
                        Ok(()) => return Ok((first as u64) << WORD_ORDER),
                        Err(again) => restored |= again,
                    }
                }
                Err(restored)
            }
        }
    }

    /// Like [`Block::clear`], in one word, for a smaller run.
    #[inline(always)]
    pub fn clear_in_word(&self, at: usize, order: u8) -> Option<u64> {
        let word = &self.words[at];
        let ones = (1_u64 << (1 << order)) - 1;
        // Where an aligned run may begin.
        let places = u64::MAX / ones;
        let mut bits = word.load(Relaxed);
        loop {
            // A bit stays if the run that begins there is free.
            let runs = (0..order).fold(bits, |runs, n| runs & runs >> (1 << n)) & places;
            if runs == 0 {
                return None;
            }
            let lowest = runs & runs.wrapping_neg();
            match word.compare_exchange_weak(bits, bits & !(ones * lowest), AcqRel, Relaxed) {
                Ok(_) => return Some((at as u64) << WORD_ORDER | u64::from(lowest.trailing_zeros())),
                Err(now) => bits = now,
            }
        }
    }

    /// Sets those bits of the word in which `place` is, from there on.
    pub fn set_some(&self, place: u64, bits: u64) {
        self.words[(place >> WORD_ORDER) as usize].fetch_or(bits << (place % 64), Release);
    }

    /// Sets the bits of a run that begins at `place`.
    #[inline(always)]
    pub fn set(&self, place: u64, pages: u64) {
        if pages < 1 << WORD_ORDER {
            let ones = (1 << pages) - 1;
            self.words[(place >> WORD_ORDER) as usize].fetch_or(ones << (place % 64), Release);
        } else {
            let (first, words) = ((place >> WORD_ORDER) as usize, (pages >> WORD_ORDER) as usize);
            self.words[first..first + words].iter().for_each(|word| word.store(u64::MAX, Release));
        }
    }
}

/// Clears words if all of their bits are set. Otherwise clears none, and returns whether some were clear for a moment:
/// only if another hart has taken one of the words since the check. So of searches that fail because of each other, one
/// succeeds.
fn clear_words(words: &[AtomicU64]) -> Result<(), bool> {
    if words.iter().any(|word| word.load(Relaxed) != u64::MAX) {
        return Err(false);
    }
    for (at, word) in words.iter().enumerate() {
        if word.compare_exchange(u64::MAX, 0, AcqRel, Acquire).is_err() {
            words[..at].iter().for_each(|word| word.store(u64::MAX, Release));
            return Err(at > 0);
        }
    }
    Ok(())
}
