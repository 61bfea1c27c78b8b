//! The tags of a block's frames: the owner and the use of each.

use super::owner::{Owner, Use};
use alloc::boxed::Box;
use core::array;
use core::ops::{Deref, Range};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// log2 of the frames of a block.
pub(super) const BLOCK_ORDER: u8 = 9;
/// Frames of a block.
pub(super) const BLOCK: u64 = 1 << BLOCK_ORDER;

/// A word for each frame of 2 MiB. The values before the first frame is taken make no difference.
pub type Tags = [AtomicU32; BLOCK as usize];

/// One loan of a frame ([`super::loan`]): they are counted in the upper 12 bits of its tag.
const LOAN: u32 = 1 << 20;
/// Bits below that count.
const OWNER: u32 = LOAN - 1;

/// Owner and use of one frame, in 4 bytes: the use in the two lowest bits; above them 0: free, 1: the host, n + 2: VM n; and above that how
/// many loans there are of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag(u32);

impl Tag {
    pub const FREE: Tag = Tag(0);
    /// An absent frame.
    pub const ABSENT: Tag = Tag(OWNER);
    /// A frame that was freed while it was on loan.
    const LATE: Tag = Tag(OWNER - 1);

    pub const fn new(owner: Owner, for_: Use) -> Tag {
        let owner = match owner {
            Owner::Host => 1,
            Owner::Vm(n) => n as u32 + 2,
        };
        Tag(owner << 2 | for_ as u32)
    }

    /// Returns the tag without its loans.
    pub const fn not_lent(self) -> Tag {
        Tag(self.0 & OWNER)
    }

    /// Returns whether the frame is on loan.
    pub const fn is_lent(self) -> bool {
        self.0 >= LOAN
    }

    pub const fn owner(self) -> Option<(Owner, Use)> {
        let owner = match (self.0 & OWNER) >> 2 {
            0 => return None,
            1 => Owner::Host,
            n if n - 2 <= u16::MAX as u32 => Owner::Vm((n - 2) as u16),
            _ => return None,
        };
        let for_ = match self.0 & 3 {
            0 => Use::Guest,
            1 => Use::Table,
            2 => Use::Image,
            _ => Use::Other,
        };
        Some((owner, for_))
    }
}

/// The tags of a block.
pub(super) enum TagsOfBlock {
    /// In memory that was set apart for them.
    Apart(&'static Tags),
    /// In the heap.
    Heap(Box<Tags>),
}

impl TagsOfBlock {
    pub fn in_heap() -> Self {
        Self::Heap(Box::new(array::from_fn(|_| AtomicU32::new(Tag::FREE.0))))
    }

    /// Sets the tags of a part of the block.
    #[inline(always)]
    pub fn set(&self, part: Range<usize>, tag: Tag) {
        // Eight at a time: of 2 MiB there are 512.
        let (eights, rest) = self[part].as_chunks::<8>();
        eights.iter().for_each(|words| words.each_ref().into_iter().for_each(|word| word.store(tag.0, Relaxed)));
        rest.iter().for_each(|word| word.store(tag.0, Relaxed));
    }

    /// Counts a loan of each frame of a part. If a frame has as many loans as can be counted, returns the number of
    /// frames before it, whose loans have been counted.
    pub fn lend(&self, part: Range<usize>) -> Result<(), usize> {
        let lend = |word: &AtomicU32| word.fetch_update(Relaxed, Relaxed, |tag| tag.checked_add(LOAN)).is_ok();
        self[part].iter().position(|word| !lend(word)).map_or(Ok(()), Err)
    }

    /// Ends a loan of a frame. Returns whether the frame was late, and is free now.
    pub fn end_loan(&self, place: usize) -> bool {
        let late = Tag::LATE.0 | LOAN;
        let end = |tag| Some(if tag == late { Tag::FREE.0 } else { tag - LOAN });
        self[place].fetch_update(AcqRel, Acquire, end) == Ok(late)
    }

    /// Frees the frame unless it is on loan, and returns whether it was freed. The caller owns the frame, so no new
    /// loan can start.
    #[inline(always)]
    pub fn free_unless_lent(&self, place: usize) -> bool {
        let word = &self[place];
        let is_free = !Tag(word.load(Acquire)).is_lent();
        if is_free {
            word.store(Tag::FREE.0, Relaxed);
        }
        is_free
    }

    /// Returns whether all frames of a part have `tag`, on loan or not.
    pub fn are(&self, part: Range<usize>, tag: Tag) -> bool {
        self[part].iter().all(|word| Tag(word.load(Relaxed)).not_lent() == tag)
    }

    /// Makes a frame free, or late if it is on loan. Returns whether it is free.
    pub fn free_or_late(&self, place: usize) -> bool {
        let free = |tag| if Tag(tag).is_lent() { tag & !OWNER | Tag::LATE.0 } else { Tag::FREE.0 };
        let before = self[place].fetch_update(AcqRel, Acquire, |tag| Some(free(tag)));
        before.is_ok_and(|tag| !Tag(tag).is_lent())
    }

    /// Returns whether a frame of a part is on loan.
    #[cfg(test)]
    pub fn is_lent(&self, part: Range<usize>) -> bool {
        self[part].iter().any(|word| Tag(word.load(Acquire)).is_lent())
    }

    /// Returns the tag of a part, or `None` if its frames have different tags.
    #[inline(always)]
    pub fn of(&self, part: Range<usize>) -> Option<Tag> {
        let tags = &self[part];
        let first = tags[0].load(Relaxed);
        tags[1..].iter().all(|word| word.load(Relaxed) == first).then_some(Tag(first))
    }
}

impl Deref for TagsOfBlock {
    type Target = Tags;

    #[inline(always)]
    fn deref(&self) -> &Tags {
        match self {
            TagsOfBlock::Apart(tags) => tags,
            TagsOfBlock::Heap(tags) => tags,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_and_use_has_its_own_tag() {
        for owner in [Owner::Host, Owner::Vm(0), Owner::Vm(1), Owner::Vm(u16::MAX)] {
            for for_ in [Use::Guest, Use::Table, Use::Image, Use::Other] {
                assert_eq!(Tag::new(owner, for_).owner(), Some((owner, for_)));
            }
        }
        assert_eq!([Tag::FREE, Tag::ABSENT, Tag::LATE].map(Tag::owner), [None; 3]);
    }

    #[test]
    fn loans_are_counted_beside_the_owner() {
        let tags = TagsOfBlock::in_heap();
        for tag in [Tag::new(Owner::Vm(u16::MAX), Use::Other), Tag::new(Owner::Host, Use::Image)] {
            tags.set(0..512, tag);
            let most = (0..).take_while(|_| tags.lend(3..4).is_ok()).count();
            assert_eq!((most, tags.lend(0..8), tags.is_lent(4..8)), (4095, Err(3), false));
            assert_eq!(tags.of(3..4).map(|of| (of.owner(), of.not_lent())), Some((tag.owner(), tag)));
            assert!(!tags.free_or_late(3) && tags.of(3..4).and_then(Tag::owner).is_none());
            assert!((1..most).all(|_| !tags.end_loan(3)) && tags.end_loan(3) && tags.of(3..4) == Some(Tag::FREE));
        }
    }
}
