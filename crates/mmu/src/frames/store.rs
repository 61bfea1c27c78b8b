//! The free frames: a bit for each, in words that all harts change concurrently.
//!
//! There is no lock, because its holder may be a hart that its host has suspended. A frame is taken by clearing its bit
//! and given by setting it, each in one atomic step, so adjacent free frames are a run again without being joined.
//!
//! - RAM is in [`Block`]s of 2 MiB. Each hart takes small runs from a block of its own choice, until nothing is left
//!   there.
//! - It chooses one that is in use already, if there is one nearby, so that others stay whole for runs of 2 MiB.
//! - A block is untouched until something of it is taken: the start of a machine costs a few words for each, and its
//!   tags nothing.
//! - [`Places`] have a bit for each block that is worth a look, so that a search in a terabyte is short.
//! - A run of many words is taken word by word. If one is not free, those before it are given back. Meanwhile they
//!   count as taken.
//! - Runs of 2 MiB of zeroes are kept apart ([`Zeroed`]); a search that finds nothing gives them back first.
//! - A hart that finds nothing looks again if any frame was given meanwhile, because it may have been given where the
//!   search had already been. If none was, all that it saw taken was taken at one moment, the end of its search. It
//!   looks again, too, while another hart hides free frames, which happens for a few instructions when a hart opens a
//!   block or removes a place.

use super::block::{Block, Turn, WORD_ORDER, WORDS};
use super::giga::{GIGA_ORDER, Giga};
use super::places::Places;
use super::tags::{BLOCK, BLOCK_ORDER, Tag, TagsOfBlock};
use super::zeroed::Zeroed;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize};
use crate::sync::spin_loop;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use rv::{Hpa, Pfn};

/// Run orders are below this: the largest run is 2^23 frames, 32 GiB.
pub(super) const ORDERS: usize = 24;
/// The number of blocks that are searched for one that is in use, but has room, before a whole one is begun.
const NEARBY: usize = 64;
/// The number of free frames that count as room: fewer are not worth a change of blocks.
const ROOM: u64 = 64;

/// The starting points of a hart's searches.
#[derive(Default)]
struct Cursor {
    /// The word that it takes small runs from, counted through all blocks.
    word: AtomicUsize,
    /// The block where the search for a whole one starts.
    whole: AtomicUsize,
    /// The number of times that it has given frames.
    given: AtomicU64,
}

pub(super) struct Store {
    /// By number. Most follow their predecessor's.
    blocks: Vec<Block>,
    cursors: Vec<Cursor>,
    /// Blocks of which all frames are free, at least.
    whole_count: AtomicIsize,
    /// Blocks of which all frames may be free.
    whole: Places,
    /// Blocks of which some may be.
    some: Places,
    /// Harts that hide free frames for a moment.
    hiding: AtomicUsize,
    /// Runs of zeroes.
    pub zeroed: Zeroed,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = (self.blocks.len(), &self.whole_count);
        f.debug_struct("Store").field("blocks", &fields.0).field("whole", fields.1).finish_non_exhaustive()
    }
}

impl Default for Store {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            cursors: alloc::vec![Cursor::default()],
            whole_count: AtomicIsize::new(0),
            whole: Places::default(),
            some: Places::default(),
            hiding: AtomicUsize::new(0),
            zeroed: Zeroed::default(),
        }
    }
}

/// The blocks that frames lie in, by their numbers.
pub(super) fn numbers(first: u64, pages: u64) -> Range<u64> {
    first >> BLOCK_ORDER..(first + pages).div_ceil(BLOCK)
}

/// The parts of a range of frames that are in one block each: the first frame, and how many.
pub(super) fn by_block(frames: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    numbers(frames.start, frames.end - frames.start).map(move |number| {
        let first = frames.start.max(number << BLOCK_ORDER);
        (first, frames.end.min((number + 1) << BLOCK_ORDER) - first)
    })
}

impl Store {
    /// Lets so many harts take frames, each in a part of RAM of its own to begin with.
    pub fn set_harts(&mut self, harts: usize) {
        let place = |hart: usize| AtomicUsize::new(self.blocks.len() * hart / harts);
        let word = |hart| AtomicUsize::new(place(hart).into_inner() * WORDS);
        let cursor = |hart| Cursor { word: word(hart), whole: place(hart), given: AtomicU64::new(0) };
        self.cursors = (0..harts).map(cursor).collect();
    }

    /// Returns the number of harts that take frames.
    pub fn harts(&self) -> u64 {
        self.cursors.len() as u64
    }

    /// Adds free frames. Returns whether none of them was known. `tags` are those of the next block.
    pub fn add(&mut self, first: Pfn<Hpa>, pages: u64, mut tags: impl FnMut() -> TagsOfBlock) -> bool {
        let (first, end) = (first.raw(), first.raw() + pages);
        let numbers = numbers(first, pages);
        let mut place = self.blocks.partition_point(|block| block.number < numbers.start);
        // No more than is needed: that of a terabyte is megabytes.
        self.blocks.reserve_exact((numbers.end - numbers.start) as usize);
        for (part, count) in by_block(first..end) {
            let number = part >> BLOCK_ORDER;
            let is_there = self.blocks.get(place).is_some_and(|block| block.number == number);
            let block = if count == BLOCK && !is_there {
                *self.whole_count.get_mut() += 1;
                Block::untouched(number, tags())
            } else {
                if !is_there {
                    self.blocks.insert(place, Block::absent(number, tags()));
                }
                if !self.blocks[place].appear(within(part, count)) {
                    return false;
                }
                place += 1;
                continue;
            };
            if place == self.blocks.len() {
                self.blocks.push(block)
            } else {
                self.blocks.insert(place, block)
            }
            place += 1;
        }
        // A search takes out those that are not worth it.
        self.whole.insert_below(self.blocks.len());
        self.some.insert_below(self.blocks.len());
        self.give_part(first..end.min((numbers.start + 1) << BLOCK_ORDER));
        if numbers.end - numbers.start > 1 {
            self.give_part((numbers.end - 1) << BLOCK_ORDER..end);
        }
        true
    }

    /// Adds frames that are in use already, with tags in the heap for each 2 MiB of them. Returns whether none of them
    /// was known.
    pub fn add_taken(&mut self, frames: Range<u64>, tag: Tag) -> bool {
        for (first, count) in by_block(frames) {
            let number = first >> BLOCK_ORDER;
            let place = self.blocks.partition_point(|block| block.number < number);
            if self.blocks.get(place).is_none_or(|block| block.number != number) {
                self.blocks.insert(place, Block::absent(number, TagsOfBlock::in_heap()));
            }
            let part = within(first, count);
            if !self.blocks[place].appear(part.clone()) {
                return false;
            }
            self.blocks[place].set_tag(part, tag);
            // A search takes it out of the list while nothing of it is free.
            self.blocks[place].list();
        }
        self.whole.insert_below(self.blocks.len());
        self.some.insert_below(self.blocks.len());
        true
    }

    /// Gives a part of a block, if it is not untouched.
    fn give_part(&self, part: Range<u64>) {
        let mut at = part.start;
        let blocks = self.blocks_of(at, 1);
        while at < part.end && !blocks[0].is_untouched() {
            // The largest run that is aligned there and not too long.
            let pages = (1 << at.trailing_zeros().min(BLOCK_ORDER.into())).min(1 << (part.end - at).ilog2());
            self.give(0, blocks, at, pages);
            at += pages;
        }
    }

    /// Takes 2^order frames; returns the first one's block and number, or `None` if there is no such run.
    #[inline(always)]
    pub fn take(&self, hart: usize, order: u8) -> Option<(&Block, u64)> {
        let at_hand = if order == 0 { self.take_at_hand(hart) } else { None };
        at_hand.or_else(|| self.search(hart, order))
    }

    #[inline(never)]
    fn search(&self, hart: usize, order: u8) -> Option<(&Block, u64)> {
        self.find(hart, order).or_else(|| {
            self.zeroed.seekers.fetch_add(1, SeqCst);
            let found = self.seek(hart, order);
            self.zeroed.seekers.fetch_sub(1, SeqCst);
            found
        })
    }

    /// One look at all there is.
    fn find(&self, hart: usize, order: u8) -> Option<(&Block, u64)> {
        if order < BLOCK_ORDER { self.find_small(hart, order) } else { self.find_blocks(hart, order) }
    }

    /// Looks until there is one, or none anywhere at one moment.
    fn seek(&self, hart: usize, order: u8) -> Option<(&Block, u64)> {
        loop {
            let before = self.given();
            let found = self.find(hart, order);
            if found.is_some() {
                return found;
            }
            if self.give_back_zeroed(hart) {
                continue;
            }
            // In this order: a hart that no longer hides frames has already counted those that it gave.
            if self.hiding.load(SeqCst) == 0 && self.given() == before {
                return None;
            }
            spin_loop();
        }
    }

    /// Gives a run of zeroes back, if there is one.
    pub fn give_back_zeroed(&self, hart: usize) -> bool {
        // A hart that hides frames makes other searches repeat: not for nothing.
        self.zeroed.count() != 0
            && self.while_hiding(hart, || {
                let first = self.zeroed.take_any();
                first.inspect(|first| self.give(hart, self.blocks_of(*first, BLOCK), *first, BLOCK)).is_some()
            })
    }

    /// Takes a run of zeroes of which a part is still to be cleared, or a run of which all is; calls `clear` to clear
    /// some of it, which returns the number of frames that hold zeroes then; and keeps the run. Returns whether there
    /// was something to do: not for more than `most` runs, and no new one while a hart looks for frames and finds none.
    pub fn clear_some(&self, hart: usize, most: u64, clear: impl FnOnce(u64, u64) -> u64) -> bool {
        let mut has_done = false;
        self.while_hiding(hart, || {
            let begun = self.zeroed.take_out(|cleared| cleared < BLOCK);
            let run = begun.or_else(|| {
                if self.zeroed.count() >= most || self.zeroed.seekers.load(SeqCst) != 0 {
                    return None;
                }
                let (_, first) = self.find_blocks(hart, BLOCK_ORDER)?;
                self.zeroed.begin();
                Some((first, 0))
            });
            let Some((first, cleared)) = run else { return false };
            has_done = true;
            if !self.zeroed.put(first, clear(first, cleared)) {
                self.give(hart, self.blocks_of(first, BLOCK), first, BLOCK);
            }
            self.zeroed.says_so()
        });
        has_done
    }

    /// Gives frames, aligned to their number, a power of two: those of [`Store::blocks_of`].
    #[inline(always)]
    pub fn give(&self, hart: usize, blocks: &[Block], first: u64, pages: u64) {
        for block in blocks {
            let pages = pages.min(BLOCK);
            let turn = block.count_free(pages);
            if turn.unlisted || turn.whole {
                self.turned(block, turn);
            }
            block.set(first % BLOCK, pages);
        }
        self.cursors[hart].given.fetch_add(1, Release);
    }

    /// Gives those of up to 64 frames from `first` on, all of one word, whose bits are set.
    pub fn give_some(&self, hart: usize, block: &Block, first: u64, bits: u64) {
        if bits == 0 {
            return;
        }
        let turn = block.count_free(bits.count_ones().into());
        if turn.unlisted || turn.whole {
            self.turned(block, turn);
        }
        block.set_some(first % BLOCK, bits);
        self.cursors[hart].given.fetch_add(1, Release);
    }

    /// Lists a block that has free frames again, or only free frames.
    #[inline(never)]
    fn turned(&self, block: &Block, turn: Turn) {
        let at = self.place_of(block.number);
        if turn.unlisted {
            self.some.insert(at);
            block.list();
        }
        if turn.whole {
            self.whole_count.fetch_add(1, Relaxed);
            self.whole.insert(at);
        }
    }

    /// Takes back the places of a block that has no longer only free frames, or none at all.
    #[inline(never)]
    fn unplace(&self, hart: usize, at: usize) {
        let block = &self.blocks[at];
        let is_whole = || block.free_now() >= BLOCK;
        if self.whole.contains(at) && !is_whole() {
            self.while_hiding(hart, || self.whole.remove_unless(at, is_whole));
        }
        if block.free_now() == 0 {
            self.while_hiding(hart, || block.unlist() && self.some.remove_unless(at, || block.free_now() != 0));
        }
    }

    /// Runs `act`, which hides free frames from other harts for a moment. `act` and this return whether some turned out
    /// to be free.
    fn while_hiding(&self, hart: usize, act: impl FnOnce() -> bool) -> bool {
        self.hiding.fetch_add(1, SeqCst);
        let has_given = act();
        if has_given {
            self.cursors[hart].given.fetch_add(1, Release);
        }
        self.hiding.fetch_sub(1, SeqCst);
        has_given
    }

    /// Grows whenever frames are given.
    fn given(&self) -> u64 {
        self.cursors.iter().map(|cursor| cursor.given.load(Acquire)).sum()
    }

    /// The blocks that a run lies in.
    ///
    /// # Panics
    /// If the first is none of ours.
    #[inline(always)]
    pub fn blocks_of(&self, first: u64, pages: u64) -> &[Block] {
        let at = self.place_of(first >> BLOCK_ORDER);
        &self.blocks[at..at + pages.div_ceil(BLOCK) as usize]
    }

    /// The block of a frame, if there is one.
    pub fn block_of(&self, frame: u64) -> Option<&Block> {
        let at = self.blocks.binary_search_by_key(&(frame >> BLOCK_ORDER), |block| block.number).ok()?;
        Some(&self.blocks[at])
    }

    #[inline(always)]
    fn place_of(&self, number: u64) -> usize {
        let guess = number.wrapping_sub(self.blocks.first().map_or(0, |block| block.number)) as usize;
        match self.blocks.get(guess) {
            Some(block) if block.number == number => guess,
            _ => self.search_place_of(number),
        }
    }

    #[inline(never)]
    fn search_place_of(&self, number: u64) -> usize {
        let found = self.blocks.binary_search_by_key(&number, |block| block.number);
        found.unwrap_or_else(|_| panic!("the 2 MiB from frame {:#x} on are not RAM of ours", number << BLOCK_ORDER))
    }

    /// Sets the tag of a run that has been taken. `block` is its first.
    #[inline(always)]
    pub fn set_tag(&self, block: &Block, first: u64, pages: u64, tag: Tag) {
        if pages <= BLOCK {
            block.set_tag(within(first, pages), tag);
        } else {
            self.blocks_of(first, pages).iter().for_each(|block| block.set_tag(0..BLOCK as usize, tag));
        }
    }

    /// A frame from the word that the hart took the last one from.
    #[inline(always)]
    fn take_at_hand(&self, hart: usize) -> Option<(&Block, u64)> {
        let word = self.cursors[hart].word.load(Relaxed);
        let block = self.blocks.get(word / WORDS)?;
        let place = block.clear_in_word(word % WORDS, 0)?;
        Some(self.taken(hart, word / WORDS, block, (place, 1)))
    }

    /// A part of a search for a GiB that is free, downwards from frame `end`: sixteen of them.
    pub fn find_giga(&self, end: u64) -> Giga {
        const EACH: u64 = 1 << (GIGA_ORDER - BLOCK_ORDER);
        let above = self.blocks.last().map_or(0, |block| block.number + 1);
        let mut number = above.min(end >> BLOCK_ORDER) / EACH * EACH;
        for _ in 0..16 {
            let Some(first) = number.checked_sub(EACH) else { return Giga::None };
            number = first;
            let at = self.blocks.partition_point(|block| block.number < first);
            let run = self.blocks.get(at..at + EACH as usize).unwrap_or_default();
            let is_run = |run: &[Block]| run[0].number == first && run[EACH as usize - 1].number == first + EACH - 1;
            if !run.is_empty() && is_run(run) && run.iter().all(|block| block.free() >= BLOCK) {
                return Giga::Found(Pfn::new(first << BLOCK_ORDER));
            }
        }
        Giga::Below(Pfn::new(number << BLOCK_ORDER))
    }

    /// Takes the block that begins with that frame, if it is free.
    pub fn take_at(&self, hart: usize, first: u64) -> bool {
        let at = self.blocks.binary_search_by_key(&(first >> BLOCK_ORDER), |block| block.number);
        at.is_ok_and(|at| self.blocks[at].free() >= BLOCK && self.take_from(hart, at, BLOCK_ORDER).is_some())
    }

    /// A run that is smaller than a block.
    fn find_small(&self, hart: usize, order: u8) -> Option<(&Block, u64)> {
        let cursor = &self.cursors[hart];
        let from = cursor.word.load(Relaxed) / WORDS;
        let in_use = |at: &usize| (ROOM..BLOCK).contains(&self.blocks[*at].free());
        let near = (from..self.blocks.len()).chain(0..from).take(NEARBY).filter(in_use);
        let own = (from..self.blocks.len()).take(1);
        own.chain(near).chain(self.some.round(from)).find_map(|at| {
            let (block, first) = self.take_from(hart, at, order)?;
            cursor.word.store(((first % BLOCK) >> WORD_ORDER) as usize + at * WORDS, Relaxed);
            Some((block, first))
        })
    }

    fn take_from(&self, hart: usize, at: usize, order: u8) -> Option<(&Block, u64)> {
        let block = self.blocks.get(at)?;
        if block.free() < 1 << order {
            self.unplace(hart, at);
            return None;
        }
        if block.is_untouched() && !self.while_hiding(hart, || block.open()) {
            return None;
        }
        match block.clear(order) {
            Ok(place) => Some(self.taken(hart, at, block, (place, 1 << order))),
            Err(restored) => {
                if restored {
                    self.cursors[hart].given.fetch_add(1, Release);
                }
                None
            }
        }
    }

    /// Counts a run whose bits have been cleared; returns its block and the first one's number.
    #[inline(always)]
    fn taken<'a>(&self, hart: usize, at: usize, block: &'a Block, (place, pages): (u64, u64)) -> (&'a Block, u64) {
        if block.count_taken(pages) {
            self.whole_count.fetch_sub(1, Relaxed);
            self.unplace(hart, at);
        }
        (block, block.number << BLOCK_ORDER | place)
    }

    /// A run of one or more blocks.
    fn find_blocks(&self, hart: usize, order: u8) -> Option<(&Block, u64)> {
        let blocks = 1 << (order - BLOCK_ORDER);
        if self.whole_count.load(Relaxed) < blocks as isize {
            return None;
        }
        let cursor = &self.cursors[hart];
        self.whole.round(cursor.whole.load(Relaxed)).find_map(|at| {
            let found = self.take_blocks(hart, at, blocks)?;
            cursor.whole.store((at + blocks) % self.blocks.len(), Relaxed);
            Some(found)
        })
    }

    /// Takes so many blocks, the first one at that place, if they are there, aligned, and whole.
    fn take_blocks(&self, hart: usize, at: usize, blocks: usize) -> Option<(&Block, u64)> {
        let run = self.blocks.get(at..at + blocks)?;
        let number = run[0].number;
        let is_run = number.is_multiple_of(blocks as u64) && run[blocks - 1].number - number == blocks as u64 - 1;
        if !is_run || run.iter().any(|block| block.free() < BLOCK) {
            self.unplace(hart, at);
            return None;
        }
        for taken in 0..blocks {
            if self.take_from(hart, at + taken, BLOCK_ORDER).is_none() {
                let each =
                    |block: &Block| self.give(hart, core::slice::from_ref(block), block.number << BLOCK_ORDER, BLOCK);
                run[..taken].iter().for_each(each);
                return None;
            }
        }
        Some((&run[0], number << BLOCK_ORDER))
    }
}

/// Returns the part of its first block that a run is in.
#[inline(always)]
pub(super) fn within(first: u64, pages: u64) -> Range<usize> {
    let place = (first % BLOCK) as usize;
    place..place + pages.min(BLOCK) as usize
}
