//! Host RAM, by frames, each with an owner and a use.
//!
//! [`store`] finds naturally aligned runs of 2^order frames; [`tags`] hold the owner and the use of each frame,
//! [`ledger`] the number of frames of each owner and its limit (ACCOUNTED). All are atomic words: every hart has a
//! [`Frames`] of its own, all of one machine, and none waits for another.
//!
//! A [`Run`] is the right to a run of frames. It is made by [`Frames::alloc`] and ended by [`Frames::free`]; between
//! them it may be split in halves, and an engine may keep it in the form of a page-table entry that it wrote itself.
//! Frees are checked against the per-frame owners: freeing a run that is free, or not all of one owner and use, is a
//! bug of ours and panics.

mod block;
mod giga;
mod ledger;
mod loan;
mod originals;
mod owner;
mod places;
mod run;
mod shared;
mod store;
mod tags;
mod zeroed;

pub use giga::Giga;
pub use loan::{Loan, Piece};
pub use originals::{Neglect, Original, Originals};
pub use owner::{AllocError, MOST_OWNERS, Owner, Usage, Use};
pub use run::{Ahead, MEGA_ORDER, Row, Run};
pub use tags::Tags;
pub use zeroed::MOST_ZEROED;
#[cfg(feature = "sabotage")]
pub use zeroed::PoolSabotage;

use alloc::sync::Arc;
use alloc::vec::Vec;
use block::Block;
use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use giga::GIGA_ORDER;
use rv::{Hpa, Pfn, PhysMem};
use shared::Shared;
use store::ORDERS;
use tags::{BLOCK, Tag, TagsOfBlock};

/// All host RAM that is handed out by the frame, as one hart sees it.
#[derive(Debug)]
pub struct Frames {
    shared: Arc<Shared>,
    /// Which hart it is, to the store.
    hart: usize,
}

/// Frames that are free for each of a run of zeroes: what is kept so is a small part of what is free.
const FREE_FOR_ZEROED: u64 = 16;
/// Frames that are cleared at a time: some 10,000 instructions, 40,000 where a cache block cannot be cleared at once.
const CLEARED_AT_ONCE: u64 = 64;

impl Default for Frames {
    fn default() -> Self {
        Self::new()
    }
}

impl Frames {
    /// No RAM yet, for one hart.
    #[must_use]
    pub fn new() -> Self {
        Self { shared: Arc::new(Shared::default()), hart: 0 }
    }

    /// Adds `pages` frames from `first`, all free. Costs a little more than 4 bytes of heap per frame.
    ///
    /// # Panics
    /// If some are known already, or other harts share the frames already.
    pub fn add(&mut self, first: Pfn<Hpa>, pages: u64) {
        self.add_tagged(first, pages, TagsOfBlock::in_heap);
    }

    /// Like [`Frames::add`], with separate memory for the frames' tags: the next ones of `tags` for each 2 MiB that
    /// such a frame lies in, if none did before ([`Frames::tags_for`]). Costs 100 bytes of heap for each 2 MiB. The
    /// initial values of the tags make no difference; they are not read before a frame of those 2 MiB is taken.
    ///
    /// # Panics
    /// If some frames are known already, or other harts share the frames already; if there are too few tags.
    pub fn add_with(&mut self, first: Pfn<Hpa>, pages: u64, tags: &mut impl Iterator<Item = &'static Tags>) {
        self.add_tagged(first, pages, || TagsOfBlock::Apart(tags.next().expect("tags for each 2 MiB of RAM")));
    }

    /// Adds the frames of images that may go to a swap device: those in these ranges, by their order. They are the host's until they
    /// are freed ([`Originals::release`]). Costs 12 bytes of heap for each.
    ///
    /// # Panics
    /// If some frames are known already, there are images already, or other harts share the frames already.
    pub fn add_images(&mut self, homes: &[Range<u64>]) {
        let shared = Arc::get_mut(&mut self.shared).expect("RAM is added before harts share it");
        assert!(shared.originals.end() == 0, "images are added once");
        let tag = Tag::new(Owner::Host, Use::Image);
        for range in homes {
            let pages = range.end - range.start;
            assert!(shared.store.add_taken(range.clone(), tag), "{range:x?}: RAM added twice");
            shared.ledger.add(pages);
            shared.ledger.charge_beyond(Owner::Host, Use::Image, pages);
        }
        shared.originals = Originals::new(homes);
    }

    /// The images' pages that may go: none without a swap device.
    #[inline]
    #[must_use]
    pub fn originals(&self) -> &Originals {
        &self.shared.originals
    }

    /// Returns how many [`Tags`] `pages` frames need, at most.
    #[must_use]
    pub fn tags_for(first: Pfn<Hpa>, pages: u64) -> u64 {
        let numbers = store::numbers(first.raw(), pages);
        numbers.end - numbers.start
    }

    fn add_tagged(&mut self, first: Pfn<Hpa>, pages: u64, tags: impl FnMut() -> TagsOfBlock) {
        if pages == 0 {
            return;
        }
        let shared = Arc::get_mut(&mut self.shared).expect("RAM is added before harts share it");
        assert!(shared.store.add(first, pages, tags), "{first:?} +{pages} pages: RAM added twice");
        shared.ledger.add(pages);
    }

    /// Returns a handle of the same frames for each of `harts` harts.
    ///
    /// # Panics
    /// If harts share them already.
    #[must_use]
    pub fn share(mut self, harts: usize) -> Vec<Frames> {
        let shared = Arc::get_mut(&mut self.shared).expect("shared once");
        shared.store.set_harts(harts);
        (0..harts).map(|hart| Frames { shared: Arc::clone(&self.shared), hart }).collect()
    }

    /// Lets `owner` have `frames` at most, from now on. What it has beyond that it keeps. Without
    /// this, there is no limit.
    pub fn set_limit(&self, owner: Owner, frames: u64) {
        self.shared.ledger.set_limit(owner, frames);
    }

    /// Lets `owner` have `frames` at most for guest memory, beside the limit for all uses. So guest memory cannot take the frames
    /// that tables need. What it has beyond that it keeps. Without this, there is no such limit.
    pub fn set_guest_limit(&self, owner: Owner, frames: u64) {
        self.shared.ledger.set_guest_limit(owner, frames);
    }

    /// Returns whether the limits of `owner` let it take so many frames, whatever for.
    #[must_use]
    pub fn has_room(&self, owner: Owner, frames: u64) -> bool {
        self.shared.ledger.has_room(owner, frames)
    }

    /// From now on 2 MiB are taken ahead only while so many frames stay free beside them: where memory is short they would only have
    /// to be broken again.
    pub fn keep(&self, frames: u64) {
        self.shared.kept.store(frames, Relaxed);
    }

    /// Returns the most frames that `owner` may have; `u64::MAX` if no limit was set.
    #[must_use]
    pub fn limit(&self, owner: Owner) -> u64 {
        self.shared.ledger.limit(owner)
    }

    /// Takes 2^order frames, aligned to their number, and charges them to `owner`. Their contents are undefined: clear
    /// them before a guest sees them.
    ///
    /// # Errors
    /// The cause, the owner's limit or the host's memory; nothing has changed then.
    pub fn alloc(&self, owner: Owner, for_: Use, order: u8) -> Result<Run, AllocError> {
        let Shared { ledger, store, .. } = &*self.shared;
        let pages = 1u64.checked_shl(order.into()).filter(|_| usize::from(order) < ORDERS);
        let pages = pages.ok_or(AllocError::OutOfMemory)?;
        ledger.charge(owner, for_, pages)?;
        let Some((block, first)) = store.take(self.hart, order) else {
            ledger.discharge(owner, for_, pages);
            return Err(AllocError::OutOfMemory);
        };
        store.set_tag(block, first, pages, Tag::new(owner, for_));
        Ok(Run::new(Pfn::new(first), order))
    }

    /// Takes frames that are not charged to an owner yet, so that they can be made ready before it is known whether
    /// they are needed. They count as free.
    ///
    /// Returns `None` if there is no such run; or if memory is so short that all harts together, each with such a run,
    /// could leave too little for another request.
    #[must_use]
    pub fn take_ahead(&self, order: u8) -> Option<Ahead> {
        let pages = 1u64.checked_shl(order.into()).filter(|_| usize::from(order) < ORDERS)?;
        if !self.may_take_ahead(order, pages) {
            return None;
        }
        let (_, first) = self.shared.store.take(self.hart, order)?;
        self.shared.ahead.fetch_add(pages, Relaxed);
        Some(Ahead { first: Pfn::new(first), order })
    }

    /// Looks for 1 GiB of free frames, aligned, that ends at `end` or below. A portion: some 30,000 instructions.
    #[must_use]
    pub fn find_giga(&self, end: Pfn<Hpa>) -> Giga {
        let Shared { ledger, store, kept, .. } = &*self.shared;
        let left = ledger.free_count().saturating_sub(1 << GIGA_ORDER);
        if left < (store.harts() + 1) * BLOCK + kept.load(Relaxed) {
            return Giga::None;
        }
        store.find_giga(end.raw())
    }

    /// Like [`Frames::take_ahead`] for 2 MiB, but takes those that begin at `first`.
    #[must_use]
    pub fn take_ahead_at(&self, first: Pfn<Hpa>) -> Option<Ahead> {
        let taken = self.may_take_ahead(MEGA_ORDER, BLOCK) && self.shared.store.take_at(self.hart, first.raw());
        taken.then(|| {
            self.shared.ahead.fetch_add(BLOCK, Relaxed);
            Ahead { first, order: MEGA_ORDER }
        })
    }

    fn may_take_ahead(&self, order: u8, pages: u64) -> bool {
        let Shared { ledger, store, kept, .. } = &*self.shared;
        let kept = if order == MEGA_ORDER { kept.load(Relaxed) } else { 0 };
        ledger.free_count() >= (store.harts() + 1).saturating_mul(pages) + kept
    }

    /// Like [`Frames::take_ahead`] for 2 MiB, but takes a run that holds zeroes already ([`Frames::make_zeroed`]), if
    /// there is one.
    #[must_use]
    pub fn take_zeroed(&self) -> Option<Ahead> {
        let Shared { store, ahead, zeroed, .. } = &*self.shared;
        if store.zeroed.count() == 0 || !self.may_take_ahead(MEGA_ORDER, BLOCK) {
            return None;
        }
        let first = store.zeroed.take_ready()?;
        ahead.fetch_add(BLOCK, Relaxed);
        zeroed.taken.fetch_add(1, Relaxed);
        Some(Ahead { first: Pfn::new(first), order: MEGA_ORDER })
    }

    /// Does a portion, some 40,000 instructions, of the work that keeps runs of 2 MiB of zeroes ready for
    /// [`Frames::take_zeroed`]: `most`, but no more than [`MOST_ZEROED`], nor than a small part of the free frames.
    /// They stay free: an allocation that finds no other frames uses them. Returns whether something was done; if not,
    /// there is nothing to do now.
    pub fn make_zeroed(&self, most: u64, mem: &mut impl PhysMem) -> bool {
        let Shared { store, zeroed, .. } = &*self.shared;
        let most = self.zeroed_target(most);
        if store.zeroed.count() > most {
            return store.give_back_zeroed(self.hart);
        }
        store.clear_some(self.hart, most, |first, cleared| {
            let pages = CLEARED_AT_ONCE.min(BLOCK - cleared);
            mem.zero_frames(Pfn::new(first + cleared), pages);
            zeroed.made.fetch_add(u64::from(cleared + pages == BLOCK), Relaxed);
            cleared + pages
        })
    }

    /// Returns whether no more than half of the runs of zeroes are left that there should be, so that some should be
    /// made soon.
    #[must_use]
    pub fn lacks_zeroed(&self, most: u64) -> bool {
        let most = self.zeroed_target(most);
        most != 0 && self.shared.store.zeroed.count() <= most / 2
    }

    fn zeroed_target(&self, most: u64) -> u64 {
        let spare = self.at_hand().saturating_sub(self.shared.kept.load(Relaxed));
        most.min(MOST_ZEROED).min(spare / (FREE_FOR_ZEROED * BLOCK))
    }

    /// Makes all runs of zeroes frames like any others.
    pub fn give_back_zeroed(&self) {
        let mut left = MOST_ZEROED;
        while left > 0 && self.shared.store.give_back_zeroed(self.hart) {
            left -= 1;
        }
    }

    /// The counters of 2 MiB of zeroes, by name: the runs that there are, that were made, and that were taken as
    /// zeroes.
    #[must_use]
    pub fn each_zeroed(&self) -> [(&'static str, u64); 3] {
        let Shared { store, zeroed, .. } = &*self.shared;
        [
            ("zeroed.ready", store.zeroed.count()),
            ("zeroed.made", zeroed.made.load(Relaxed)),
            ("zeroed.taken", zeroed.taken.load(Relaxed)),
        ]
    }

    /// Breaks the pool of zeroes.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&self, how: PoolSabotage) {
        self.shared.store.zeroed.sabotage(how);
    }

    /// Charges the frames to `owner`, and makes them its own.
    ///
    /// # Errors
    /// If that would exceed its limit. The frames are given back.
    pub fn claim(&self, ahead: Ahead, owner: Owner, for_: Use) -> Result<Run, AllocError> {
        match self.shared.ledger.charge(owner, for_, ahead.pages()) {
            Ok(()) => Ok(self.assign(ahead, owner, for_)),
            Err(error) => {
                self.put_back(ahead);
                Err(error)
            }
        }
    }

    /// Like [`Frames::claim`], even beyond the owner's limit: for a table by which it will give other frames back.
    pub fn claim_beyond(&self, ahead: Ahead, owner: Owner, for_: Use) -> Run {
        self.shared.ledger.charge_beyond(owner, for_, ahead.pages());
        self.assign(ahead, owner, for_)
    }

    /// Writes the owner and the use of frames that have been charged already.
    fn assign(&self, ahead: Ahead, owner: Owner, for_: Use) -> Run {
        self.shared.ahead.fetch_sub(ahead.pages(), Relaxed);
        let (store, first) = (&self.shared.store, ahead.first.raw());
        store.set_tag(&store.blocks_of(first, 1)[0], first, ahead.pages(), Tag::new(owner, for_));
        Run::new(ahead.first, ahead.order)
    }

    /// Gives them back.
    pub fn put_back(&self, ahead: Ahead) {
        self.shared.ahead.fetch_sub(ahead.pages(), Relaxed);
        let (store, first) = (&self.shared.store, ahead.first.raw());
        store.give(self.hart, store.blocks_of(first, ahead.pages()), first, ahead.pages());
    }

    /// Gives back what is left of some.
    pub fn put_back_row(&self, mut row: Row) {
        while let Some(ahead) = row.take_run() {
            self.put_back(ahead);
        }
    }

    /// Gives frames back. No table and no TLB may lead to them any more: runs that one did come here by way of
    /// [`crate::Stale`]. Frames on [loan](Loan) become free later.
    ///
    /// # Panics
    /// If they are not all of one owner and one use: they were given back before, or never taken.
    pub fn free(&self, run: Run) {
        let Shared { ledger, store, .. } = &*self.shared;
        let (first, pages) = (run.first().raw(), run.pages());
        let blocks = store.blocks_of(first, pages);
        let part = store::within(first, pages);
        let tag = blocks[0].tag_of(part.clone());
        let is_one = tag.is_some() && blocks[1..].iter().all(|block| block.tag_of(part.clone()) == tag);
        let Some(tag) = tag.filter(|tag| is_one && !tag.is_lent()) else { return self.free_unlike(&run, blocks, part) };
        let Some((owner, for_)) = tag.owner() else { panic!("{run:?} freed twice, or not RAM of ours") };
        blocks.iter().for_each(|block| block.set_tag(part.clone(), Tag::FREE));
        ledger.discharge(owner, for_, pages);
        store.give(self.hart, blocks, first, pages);
    }

    /// Like [`Frames::free`], if tags differ: some of the frames may be on loan.
    #[cold]
    #[inline(never)]
    fn free_unlike(&self, run: &Run, blocks: &[Block], part: Range<usize>) {
        let tag = blocks[0].tag_of(part.start..part.start + 1).map_or(Tag::FREE, Tag::not_lent);
        assert!(blocks.iter().all(|block| block.are(part.clone(), tag)), "{run:?} is not of one owner and use");
        let Some((owner, for_)) = tag.owner() else { panic!("{run:?} freed twice, or not RAM of ours") };
        self.shared.ledger.discharge(owner, for_, run.pages());
        self.shared.free_lent(self.hart, run.first().raw(), run.pages());
    }

    /// A loan of nothing yet, of `most` pieces at most.
    #[must_use]
    pub fn lend(&self, most: usize) -> Loan {
        Loan::of(Arc::clone(&self.shared), self.hart, most)
    }

    /// Returns the number of late frames: they become free as soon as their last loan ends.
    #[must_use]
    pub fn late_count(&self) -> u64 {
        self.shared.late.load(SeqCst)
    }

    /// Returns the number of frames that `owner` has, by use.
    #[must_use]
    pub fn usage(&self, owner: Owner) -> Usage {
        self.shared.ledger.usage(owner)
    }

    /// Returns the number of free frames.
    #[must_use]
    pub fn free_count(&self) -> u64 {
        self.shared.ledger.free_count()
    }

    /// Returns the number of free frames that an allocation can have now: those that are not taken ahead.
    #[must_use]
    pub fn at_hand(&self) -> u64 {
        self.free_count().saturating_sub(self.shared.ahead.load(Relaxed))
    }

    /// Frames in all.
    #[must_use]
    pub fn total_count(&self) -> u64 {
        self.shared.ledger.total_count()
    }

    /// Returns the owner and the use of `frame`, or `None` if it is free or not among ours.
    #[must_use]
    pub fn owner_of(&self, frame: Pfn<Hpa>) -> Option<(Owner, Use)> {
        let block = self.shared.store.block_of(frame.raw()).filter(|block| !block.is_untouched())?;
        block.tag_of(store::within(frame.raw(), 1))?.owner()
    }
}

#[cfg(test)]
mod tests;
