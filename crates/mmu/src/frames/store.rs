//! Where free frames are: a bit for each, in words that all harts change at once.
//!
//! There is no lock, because whoever holds one may be a hart that its host has suspended. A frame is taken by clearing its bit and
//! given by setting it, each in one atomic step, so neighbours that are free are a run again without anybody joining them.
//!
//! - RAM is in [`Block`]s of 2 MiB. Each hart takes small runs from a block of its own choice, until nothing is left there.
//! - It chooses one that is in use already, if there is one nearby, so that others stay whole for runs of 2 MiB.
//! - A run of many words is taken word by word. If one is not free, those before it are given back. Meanwhile they count as
//!   taken.
//! - A hart that finds nothing looks again if any frame was given meanwhile: it may have been given behind its back. If
//!   none was, all that it saw taken was taken at one moment, the end of its search.

use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize};
use alloc::vec::Vec;
use core::fmt;
use rv::{Hpa, Pfn};

/// Run orders are below this: the largest run is 2^23 frames, 32 GiB.
pub(super) const ORDERS: usize = 24;
/// log2 of the frames of a word.
const WORD_ORDER: u8 = 6;
/// log2 of the frames of a block.
const BLOCK_ORDER: u8 = 9;
const BLOCK: u64 = 1 << BLOCK_ORDER;
const WORDS: usize = 1 << (BLOCK_ORDER - WORD_ORDER);
/// So many blocks are looked at for one that is in use, but has room, before a whole one is begun.
const NEARBY: usize = 64;
/// What room means, in frames: less is not worth to change blocks for.
const ROOM: u64 = 64;

/// 2 MiB of RAM, or the part of it that there is.
struct Block {
    /// The number of its first frame divided by that of its frames.
    number: u64,
    /// By frame: whether it is free.
    words: [AtomicU64; WORDS],
    /// Free frames, at least: it grows before bits are set, and shrinks after they are cleared.
    free: AtomicU64,
}

impl Block {
    fn new(number: u64) -> Self {
        Self { number, words: Default::default(), free: AtomicU64::new(0) }
    }

    /// Clears the bits of a run of 2^order frames, at most all; returns the first one's place. Its other result says whether
    /// bits that had been cleared for a run that was not free are set again.
    fn clear(&self, order: u8) -> Result<u64, bool> {
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

    /// The same in one word, for a run that is smaller.
    #[inline(always)]
    fn clear_in_word(&self, at: usize, order: u8) -> Option<u64> {
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

    /// Sets the bits of a run that begins at `place`.
    fn set(&self, place: u64, pages: u64) {
        if pages < 1 << WORD_ORDER {
            let ones = (1 << pages) - 1;
            self.words[(place >> WORD_ORDER) as usize].fetch_or(ones << (place % 64), Release);
        } else {
            let (first, words) = ((place >> WORD_ORDER) as usize, (pages >> WORD_ORDER) as usize);
            self.words[first..first + words].iter().for_each(|word| word.store(u64::MAX, Release));
        }
    }
}

/// Clears words of which all bits are set; else none, and says whether some were cleared meanwhile: only if another hart
/// has taken one of them since they were looked at. So of those who search because of each other, one gets somewhere.
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

/// Where a hart looks first.
#[derive(Default)]
struct Cursor {
    /// Which word it takes small runs from, counted through all blocks.
    word: AtomicUsize,
    /// Which block it looks at first for a whole one.
    whole: AtomicUsize,
    /// How often it has given frames.
    given: AtomicU64,
}

pub(super) struct Store {
    /// By number. Most follow their predecessor's.
    blocks: Vec<Block>,
    cursors: Vec<Cursor>,
    /// Blocks of which all frames are free, at least.
    whole: AtomicIsize,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("blocks", &self.blocks.len()).field("whole", &self.whole).finish_non_exhaustive()
    }
}

impl Default for Store {
    fn default() -> Self {
        Self { blocks: Vec::new(), cursors: alloc::vec![Cursor::default()], whole: AtomicIsize::new(0) }
    }
}

impl Store {
    /// Lets so many harts take frames, each in a part of RAM of its own to begin with.
    pub fn set_harts(&mut self, harts: usize) {
        let place = |hart: usize| AtomicUsize::new(self.blocks.len() * hart / harts);
        let word = |hart| AtomicUsize::new(place(hart).into_inner() * WORDS);
        let cursor = |hart| Cursor { word: word(hart), whole: place(hart), given: AtomicU64::new(0) };
        self.cursors = (0..harts).map(cursor).collect();
    }

    /// How many harts take frames.
    pub fn harts(&self) -> u64 {
        self.cursors.len() as u64
    }

    /// Adds free frames that are not known yet.
    pub fn add(&mut self, first: Pfn<Hpa>, pages: u64) {
        let (mut at, end) = (first.raw(), first.raw() + pages);
        while at < end {
            let number = at >> BLOCK_ORDER;
            if let Err(place) = self.blocks.binary_search_by_key(&number, |block| block.number) {
                self.blocks.insert(place, Block::new(number));
            }
            // The largest run that is aligned there, in its block, and not too long.
            let pages = (1 << at.trailing_zeros().min(BLOCK_ORDER.into())).min(1 << (end - at).ilog2());
            self.give(0, at, pages);
            at += pages;
        }
    }

    /// Takes 2^order frames; returns the first one's number, or `None` if there is no such run.
    #[inline(always)]
    pub fn take(&self, hart: usize, order: u8) -> Option<u64> {
        let at_hand = if order == 0 { self.take_at_hand(hart) } else { None };
        at_hand.or_else(|| self.search(hart, order))
    }

    #[inline(never)]
    fn search(&self, hart: usize, order: u8) -> Option<u64> {
        loop {
            let before = self.given();
            let found = if order < BLOCK_ORDER { self.find_small(hart, order) } else { self.find_blocks(hart, order) };
            if found.is_some() || self.given() == before {
                return found;
            }
        }
    }

    /// Gives frames: aligned to their number, a power of two.
    pub fn give(&self, hart: usize, first: u64, pages: u64) {
        let at = self.place_of(first >> BLOCK_ORDER);
        for block in &self.blocks[at..at + pages.div_ceil(BLOCK) as usize] {
            let pages = pages.min(BLOCK);
            if block.free.fetch_add(pages, Relaxed) + pages == BLOCK {
                self.whole.fetch_add(1, Relaxed);
            }
            block.set(first % BLOCK, pages);
        }
        self.cursors[hart].given.fetch_add(1, Release);
    }

    /// Grows whenever frames are given.
    fn given(&self) -> u64 {
        self.cursors.iter().map(|cursor| cursor.given.load(Acquire)).sum()
    }

    fn place_of(&self, number: u64) -> usize {
        let guess = (number - self.blocks[0].number) as usize;
        if self.blocks.get(guess).is_some_and(|block| block.number == number) {
            return guess;
        }
        let found = self.blocks.binary_search_by_key(&number, |block| block.number);
        found.unwrap_or_else(|_| panic!("block {number} is not RAM of ours"))
    }

    /// All blocks' places, from `from` on and round.
    fn round(&self, from: usize) -> impl Iterator<Item = usize> {
        (from..self.blocks.len()).chain(0..from)
    }

    /// A frame from the word that the hart took the last one from.
    #[inline(always)]
    fn take_at_hand(&self, hart: usize) -> Option<u64> {
        let word = self.cursors[hart].word.load(Relaxed);
        let block = self.blocks.get(word / WORDS)?;
        let place = block.clear_in_word(word % WORDS, 0)?;
        Some(self.taken(block, place, 1))
    }

    /// A run that is smaller than a block.
    fn find_small(&self, hart: usize, order: u8) -> Option<u64> {
        let cursor = &self.cursors[hart];
        let from = cursor.word.load(Relaxed) / WORDS;
        let in_use = |at: &usize| (ROOM..BLOCK).contains(&self.blocks[*at].free.load(Relaxed));
        let nearby = self.round(from).take(NEARBY).filter(in_use);
        let own = (from..self.blocks.len()).take(1);
        own.chain(nearby).chain(self.round(from)).find_map(|at| {
            let first = self.take_from(hart, &self.blocks[at], order)?;
            cursor.word.store(((first % BLOCK) >> WORD_ORDER) as usize + at * WORDS, Relaxed);
            Some(first)
        })
    }

    fn take_from(&self, hart: usize, block: &Block, order: u8) -> Option<u64> {
        if block.free.load(Relaxed) < 1 << order {
            return None;
        }
        match block.clear(order) {
            Ok(place) => Some(self.taken(block, place, 1 << order)),
            Err(restored) => {
                if restored {
                    self.cursors[hart].given.fetch_add(1, Release);
                }
                None
            }
        }
    }

    /// Counts a run whose bits have been cleared; returns the first one's number.
    #[inline(always)]
    fn taken(&self, block: &Block, place: u64, pages: u64) -> u64 {
        if block.free.fetch_sub(pages, Relaxed) == BLOCK {
            self.whole.fetch_sub(1, Relaxed);
        }
        block.number << BLOCK_ORDER | place
    }

    /// A run of one or more blocks.
    fn find_blocks(&self, hart: usize, order: u8) -> Option<u64> {
        let blocks = 1 << (order - BLOCK_ORDER);
        if self.whole.load(Relaxed) < blocks as isize {
            return None;
        }
        let cursor = &self.cursors[hart];
        self.round(cursor.whole.load(Relaxed)).find_map(|at| {
            let first = self.take_blocks(hart, at, blocks)?;
            cursor.whole.store((at + blocks) % self.blocks.len(), Relaxed);
            Some(first)
        })
    }

    /// Takes so many blocks, the first one at that place, if they are there, aligned, and whole.
    fn take_blocks(&self, hart: usize, at: usize, blocks: usize) -> Option<u64> {
        let run = self.blocks.get(at..at + blocks)?;
        let number = run[0].number;
        let is_run = number.is_multiple_of(blocks as u64) && run[blocks - 1].number - number == blocks as u64 - 1;
        if !is_run || run.iter().any(|block| block.free.load(Relaxed) < BLOCK) {
            return None;
        }
        for (taken, block) in run.iter().enumerate() {
            if self.take_from(hart, block, BLOCK_ORDER).is_none() {
                (run[..taken].iter()).for_each(|block| self.give(hart, block.number << BLOCK_ORDER, BLOCK));
                return None;
            }
        }
        Some(number << BLOCK_ORDER)
    }
}
