//! Runs of frames.

use super::store::ORDERS;
use core::fmt;
use rv::{Hpa, Pfn};

/// The order of a 2 MiB run.
pub const MEGA_ORDER: u8 = 9;

/// The right to 2^order frames, aligned to their number. Neither `Clone` nor `Copy`: it is given
/// back once. Dropping it leaks the frames.
#[must_use = "dropping a run leaks its frames"]
#[derive(PartialEq, Eq)]
pub struct Run {
    /// The first frame's number above the order's 6 bits: one word, because there may be
    /// many.
    packed: u64,
}

const ORDER_BITS: u32 = 6;
const _: () = assert!(ORDERS <= 1 << ORDER_BITS && size_of::<Run>() == 8);

impl Run {
    pub(super) const fn new(first: Pfn<Hpa>, order: u8) -> Run {
        Run { packed: first.raw() << ORDER_BITS | order as u64 }
    }

    /// The first frame.
    #[must_use]
    pub const fn first(&self) -> Pfn<Hpa> {
        Pfn::new(self.packed >> ORDER_BITS)
    }

    /// log2 of the number of frames.
    #[must_use]
    pub const fn order(&self) -> u8 {
        (self.packed & ((1 << ORDER_BITS) - 1)) as u8
    }

    /// The number of frames.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        1 << self.order()
    }

    /// The two halves, the lower first, or the run itself if it is a single frame. Each half may be
    /// freed on its own.
    ///
    /// # Errors
    /// The run itself, unchanged, if it is a single frame.
    pub fn split(self) -> Result<(Run, Run), Run> {
        match self.order().checked_sub(1) {
            Some(order) => Ok((Run::new(self.first(), order), Run::new(self.first().add(1 << order), order))),
            None => Err(self),
        }
    }

    /// Puts the run into the form of its first frame's number, for a page-table entry to keep.
    pub(crate) fn into_entry(self) -> Pfn<Hpa> {
        self.first()
    }

    /// Takes a run back out of a page-table entry that kept it (or a part of it: frames of a split
    /// 2 MiB leaf). The caller must have removed the entry, or the run would exist twice.
    pub(crate) const fn from_entry(first: Pfn<Hpa>, order: u8) -> Run {
        Run::new(first, order)
    }
}

/// 2^order frames that a hart has taken ahead of need, and that have no owner yet. Dropping it leaks the frames.
#[must_use = "dropping it leaks its frames"]
#[derive(PartialEq, Eq, Debug)]
pub struct Ahead {
    pub(super) first: Pfn<Hpa>,
    pub(super) order: u8,
}

impl Ahead {
    /// The first frame.
    #[must_use]
    pub const fn first(&self) -> Pfn<Hpa> {
        self.first
    }

    /// The number of frames.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        1 << self.order
    }
}

/// The rest of a run that was taken ahead, and is used frame by frame. Dropping it leaks the frames.
#[must_use = "dropping it leaks its frames"]
#[derive(PartialEq, Eq, Debug)]
pub struct Row {
    next: Pfn<Hpa>,
    left: u64,
}

impl Row {
    /// All of them.
    pub const fn of(ahead: Ahead) -> Self {
        Self { next: ahead.first, left: ahead.pages() }
    }

    /// The next one, if any is left.
    #[must_use]
    pub const fn take(&mut self) -> Option<Ahead> {
        if self.left == 0 {
            return None;
        }
        let first = self.next;
        (self.next, self.left) = (first.add(1), self.left - 1);
        Some(Ahead { first, order: 0 })
    }

    /// Takes the largest aligned run that begins with the next frame, if any is left.
    pub(super) const fn take_run(&mut self) -> Option<Ahead> {
        if self.left == 0 {
            return None;
        }
        let (first, left) = (self.next, self.left);
        let (aligned, most) = (first.raw().trailing_zeros(), left.ilog2());
        let order = if aligned < most { aligned } else { most };
        (self.next, self.left) = (first.add(1 << order), left - (1 << order));
        Some(Ahead { first, order: order as u8 })
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} +{} frames", self.first(), self.pages())
    }
}
