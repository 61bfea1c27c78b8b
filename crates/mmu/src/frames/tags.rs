//! Whose each frame of a block is, and what for.

use super::owner::{Owner, Use};
use alloc::boxed::Box;
use core::array;
use core::ops::{Deref, Range};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// log2 of the frames of a block.
pub(super) const BLOCK_ORDER: u8 = 9;
/// Frames of a block.
pub(super) const BLOCK: u64 = 1 << BLOCK_ORDER;

/// A word for each frame of 2 MiB. What they say before the first frame is taken makes no difference.
pub type Tags = [AtomicU32; BLOCK as usize];

/// Owner and use of one frame, in 4 bytes: the use in the two lowest bits; above them 0: free, 1: the host, n + 2: VM n.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag(u32);

impl Tag {
    pub const FREE: Tag = Tag(0);
    /// There is no such frame.
    pub const ABSENT: Tag = Tag(u32::MAX);
    /// It was freed while it was lent ([`super::loan`]).
    pub const LATE: Tag = Tag(u32::MAX - 1);

    pub const fn new(owner: Owner, for_: Use) -> Tag {
        let owner = match owner {
            Owner::Host => 1,
            Owner::Vm(n) => n as u32 + 2,
        };
        Tag(owner << 2 | for_ as u32)
    }

    pub const fn owner(self) -> Option<(Owner, Use)> {
        let owner = match self.0 >> 2 {
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

/// Where the tags of a block are.
pub(super) enum TagsOfBlock {
    /// In memory that somebody has set apart for them.
    Apart(&'static Tags),
    /// In the heap.
    Heap(Box<Tags>),
}

impl TagsOfBlock {
    pub fn in_heap() -> Self {
        Self::Heap(Box::new(array::from_fn(|_| AtomicU32::new(Tag::FREE.0))))
    }

    /// Writes down whose a part of the block is.
    #[inline(always)]
    pub fn set(&self, part: Range<usize>, tag: Tag) {
        // Eight at a time: of 2 MiB there are 512.
        let (eights, rest) = self[part].as_chunks::<8>();
        eights.iter().for_each(|words| words.each_ref().into_iter().for_each(|word| word.store(tag.0, Relaxed)));
        rest.iter().for_each(|word| word.store(tag.0, Relaxed));
    }

    /// What is written of all of that part, or `None` if it is not the same.
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
}
