//! Host RAM, by frames, each with an owner and a use.
//!
//! The buddy system of `buddy_system_allocator` finds naturally aligned runs of 2^order frames; this
//! module adds who owns each frame, what for, and how much each owner may have (ACCOUNTED).
//!
//! A [`Run`] is the right to a run of frames. It is made by [`Frames::alloc`] and ended by
//! [`Frames::free`]; between them it may be split in halves, and an engine may keep it in the form of
//! a page-table entry that it wrote itself. Frees are checked against the per-frame owners: freeing
//! what is free, or somebody else's, is a bug of ours and panics.

use alloc::vec;
use alloc::vec::Vec;
use buddy_system_allocator::FrameAllocator;
use core::fmt;
use rv::{Hpa, Pfn};

/// Run orders are below this: the largest run is 2^23 frames, 32 GiB.
const ORDERS: usize = 24;

/// The order of a 2 MiB run.
pub const MEGA_ORDER: u8 = 9;

/// Who pays for a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// The hypervisor itself; images shared by VMs, too.
    Host,
    /// A VM, by number.
    Vm(u16),
}

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Use {
    /// Guest memory.
    Guest,
    /// Page tables.
    Table,
    /// Images: kernels, initial RAM disks, firmware.
    Image,
    /// Anything else.
    Other,
}

/// Why no frames are given: because of the owner, or because of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// The owner would exceed its limit. Its own doing.
    OverLimit {
        /// Who asked.
        owner: Owner,
        /// Its limit, in frames.
        limit: u64,
    },
    /// No run of that size is free, whoever asks.
    OutOfMemory,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::OverLimit { owner, limit } => write!(f, "{owner:?} has reached its limit of {limit} frames"),
            AllocError::OutOfMemory => write!(f, "the host is out of memory"),
        }
    }
}

/// What an owner has, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Guest memory.
    pub guest: u64,
    /// Page tables.
    pub table: u64,
    /// Images.
    pub image: u64,
    /// Anything else.
    pub other: u64,
}

impl Usage {
    /// All of it.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.guest + self.table + self.image + self.other
    }

    fn of(&mut self, for_: Use) -> &mut u64 {
        match for_ {
            Use::Guest => &mut self.guest,
            Use::Table => &mut self.table,
            Use::Image => &mut self.image,
            Use::Other => &mut self.other,
        }
    }
}

/// The right to 2^order frames, aligned to their number. Neither `Clone` nor `Copy`: it is given
/// back once. Dropping it leaks the frames.
#[must_use = "dropping a run leaks its frames"]
#[derive(PartialEq, Eq)]
pub struct Run {
    /// The first frame's number above the order's 6 bits: one word, because the end of a VM may
    /// hold one run for each of its pages.
    packed: u64,
}

const ORDER_BITS: u32 = 6;
const _: () = assert!(ORDERS <= 1 << ORDER_BITS && size_of::<Run>() == 8);

impl Run {
    const fn new(first: Pfn<Hpa>, order: u8) -> Run {
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

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} +{} frames", self.first(), self.pages())
    }
}

/// Owner and use of one frame, in 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tag {
    /// The use in the two lowest bits; above them 0: free, 1: the host, n + 2: VM n.
    owner_and_use: u32,
}

impl Tag {
    const FREE: Tag = Tag { owner_and_use: 0 };

    const fn new(owner: Owner, for_: Use) -> Tag {
        Tag { owner_and_use: (account(owner) as u32 + 1) << 2 | for_ as u32 }
    }

    const fn owner(self) -> Option<(Owner, Use)> {
        let owner = match self.owner_and_use >> 2 {
            0 => return None,
            1 => Owner::Host,
            n => Owner::Vm((n - 2) as u16),
        };
        let for_ = match self.owner_and_use & 3 {
            0 => Use::Guest,
            1 => Use::Table,
            2 => Use::Image,
            _ => Use::Other,
        };
        Some((owner, for_))
    }
}

const _: () = assert!(size_of::<Tag>() == 4);

/// The index of an owner's account.
const fn account(owner: Owner) -> usize {
    match owner {
        Owner::Host => 0,
        Owner::Vm(n) => n as usize + 1,
    }
}

#[derive(Clone, Copy)]
struct Account {
    usage: Usage,
    limit: u64,
}

const UNUSED: Account = Account { usage: Usage { guest: 0, table: 0, image: 0, other: 0 }, limit: u64::MAX };

/// A stretch of RAM and its frames' tags.
struct Bank {
    first: Pfn<Hpa>,
    tags: Vec<Tag>,
}

impl Bank {
    fn end(&self) -> u64 {
        self.first.raw() + self.tags.len() as u64
    }
}

/// All host RAM that is handed out by the frame.
#[derive(Default)]
pub struct Frames {
    buddy: FrameAllocator<ORDERS>,
    /// By address. A machine has one to a few.
    banks: Vec<Bank>,
    accounts: Vec<Account>,
    free_count: u64,
    /// Single frames taken from the buddy system ahead of need, and given back to it in excess.
    /// Copy-on-write takes one frame at a fault, and the buddy system's trees cost more than all the
    /// rest of the fault.
    singles: Vec<u64>,
}

/// Single frames fetched at once.
const SINGLES_AT_ONCE: u64 = 16;
/// Single frames kept at most.
const SINGLES_MOST: usize = 64;

impl Frames {
    /// No RAM yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            buddy: FrameAllocator::new(),
            banks: Vec::new(),
            accounts: Vec::new(),
            free_count: 0,
            singles: Vec::new(),
        }
    }

    /// Adds `pages` frames from `first`, all free. Costs 4 bytes of heap per frame.
    ///
    /// # Panics
    /// If some are known already.
    pub fn add(&mut self, first: Pfn<Hpa>, pages: u64) {
        if pages == 0 {
            return;
        }
        let end = first.raw() + pages;
        let at = self.banks.partition_point(|bank| bank.first < first);
        let clear_below = at == 0 || self.banks[at - 1].end() <= first.raw();
        let clear_above = self.banks.get(at).is_none_or(|bank| end <= bank.first.raw());
        assert!(clear_below && clear_above, "{first:?} +{pages} pages: RAM added twice");
        // The buddy system joins neighbours as they become free, whoever added them. So that a run
        // never spans banks, banks that touch become one.
        let mut tags = vec![Tag::FREE; pages as usize];
        if self.banks.get(at).is_some_and(|above| above.first.raw() == end) {
            tags.append(&mut self.banks.remove(at).tags);
        }
        if at > 0 && self.banks[at - 1].end() == first.raw() {
            self.banks[at - 1].tags.append(&mut tags);
        } else {
            self.banks.insert(at, Bank { first, tags });
        }
        self.buddy.add_frame(first.raw() as usize, end as usize);
        self.free_count += pages;
    }

    /// Lets `owner` have `frames` at most, from now on. What it has beyond that it keeps. Without
    /// this, there is no limit.
    pub fn set_limit(&mut self, owner: Owner, frames: u64) {
        self.account_mut(owner).limit = frames;
    }

    /// The most frames that `owner` may have; `u64::MAX` if nobody set a limit.
    #[must_use]
    pub fn limit(&self, owner: Owner) -> u64 {
        self.accounts.get(account(owner)).unwrap_or(&UNUSED).limit
    }

    /// Takes 2^order frames, aligned to their number, and charges them to `owner`. Their contents
    /// are whatever they were: clear them before a guest sees them.
    ///
    /// # Errors
    /// Who is to blame; nothing has changed then.
    pub fn alloc(&mut self, owner: Owner, for_: Use, order: u8) -> Result<Run, AllocError> {
        let pages = 1u64 << order;
        let account = self.account_mut(owner);
        let limit = account.limit;
        if account.usage.total().saturating_add(pages) > limit {
            return Err(AllocError::OverLimit { owner, limit });
        }
        if usize::from(order) >= ORDERS {
            return Err(AllocError::OutOfMemory);
        }
        let first = if order == 0 { self.take_single() } else { self.take_run(pages) };
        let run = Run::new(Pfn::new(first.ok_or(AllocError::OutOfMemory)?), order);
        *self.account_mut(owner).usage.of(for_) += pages;
        self.free_count -= pages;
        self.tags_of(&run).fill(Tag::new(owner, for_));
        Ok(run)
    }

    /// Gives frames back. No table and no TLB may lead to them any more: runs that one did come
    /// here by way of [`crate::Stale`].
    ///
    /// # Panics
    /// If they are not all of one owner and one use: they were given back before, or never taken.
    pub fn free(&mut self, run: Run) {
        let tags = self.tags_of(&run);
        let tag = tags[0];
        assert!(tags.iter().all(|t| *t == tag), "{run:?} is not of one owner and use");
        let Some((owner, for_)) = tag.owner() else { panic!("{run:?} freed twice") };
        tags.fill(Tag::FREE);
        *self.account_mut(owner).usage.of(for_) -= run.pages();
        self.free_count += run.pages();
        if run.order() == 0 && self.singles.len() < SINGLES_MOST {
            self.singles.push(run.first().raw());
        } else {
            self.buddy.dealloc(run.first().raw() as usize, run.pages() as usize);
        }
    }

    fn take_single(&mut self) -> Option<u64> {
        if self.singles.is_empty() {
            match self.buddy.alloc(SINGLES_AT_ONCE as usize) {
                // The lowest last, so that it is taken first.
                Some(first) => self.singles.extend((first as u64..first as u64 + SINGLES_AT_ONCE).rev()),
                None => return self.buddy.alloc(1).map(|first| first as u64),
            }
        }
        self.singles.pop()
    }

    fn take_run(&mut self, pages: u64) -> Option<u64> {
        let first = self.buddy.alloc(pages as usize).or_else(|| {
            // The single frames set aside may be what is missing.
            for single in self.singles.drain(..) {
                self.buddy.dealloc(single as usize, 1);
            }
            self.buddy.alloc(pages as usize)
        });
        first.map(|first| first as u64)
    }

    /// What `owner` has.
    #[must_use]
    pub fn usage(&self, owner: Owner) -> Usage {
        self.accounts.get(account(owner)).unwrap_or(&UNUSED).usage
    }

    /// Frames that nobody has.
    #[must_use]
    pub const fn free_count(&self) -> u64 {
        self.free_count
    }

    /// Frames in all.
    #[must_use]
    pub fn total_count(&self) -> u64 {
        self.banks.iter().map(|bank| bank.tags.len() as u64).sum()
    }

    /// Who has `frame` and what for, or `None` if it is free or not among ours.
    #[must_use]
    pub fn owner_of(&self, frame: Pfn<Hpa>) -> Option<(Owner, Use)> {
        let bank = &self.banks[self.bank_of(frame)?];
        bank.tags[(frame.raw() - bank.first.raw()) as usize].owner()
    }

    fn bank_of(&self, frame: Pfn<Hpa>) -> Option<usize> {
        let at = self.banks.partition_point(|bank| bank.first <= frame).checked_sub(1)?;
        (frame.raw() < self.banks[at].end()).then_some(at)
    }

    fn tags_of(&mut self, run: &Run) -> &mut [Tag] {
        let at = self.bank_of(run.first()).unwrap_or_else(|| panic!("{run:?} is not RAM of ours"));
        let bank = &mut self.banks[at];
        let start = (run.first().raw() - bank.first.raw()) as usize;
        &mut bank.tags[start..start + run.pages() as usize]
    }

    fn account_mut(&mut self, owner: Owner) -> &mut Account {
        let index = account(owner);
        if index >= self.accounts.len() {
            self.accounts.resize(index + 1, UNUSED);
        }
        &mut self.accounts[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: Owner = Owner::Vm(3);

    fn frames(first: u64, pages: u64) -> Frames {
        let mut frames = Frames::new();
        frames.add(Pfn::new(first), pages);
        frames
    }

    #[test]
    fn a_run_is_aligned_charged_and_given_back() {
        let mut frames = frames(0x8_0001, 2000);
        let run = frames.alloc(VM, Use::Guest, 9).unwrap();
        assert!(run.first().is_aligned(512));
        assert_eq!((frames.usage(VM).guest, frames.usage(VM).total(), frames.free_count()), (512, 512, 1488));
        assert_eq!(frames.owner_of(run.first().add(511)), Some((VM, Use::Guest)));
        assert_eq!(frames.owner_of(run.first().add(512)), None);
        frames.free(run);
        assert_eq!((frames.usage(VM).total(), frames.free_count()), (0, 2000));
    }

    #[test]
    fn the_blame_is_the_owners_or_the_hosts() {
        let mut frames = frames(0, 4);
        frames.set_limit(VM, 2);
        let run = frames.alloc(VM, Use::Table, 1).unwrap();
        assert_eq!(frames.alloc(VM, Use::Guest, 0), Err(AllocError::OverLimit { owner: VM, limit: 2 }));
        assert_eq!(frames.alloc(Owner::Host, Use::Other, 2), Err(AllocError::OutOfMemory));
        assert_eq!(frames.alloc(Owner::Host, Use::Other, 60), Err(AllocError::OutOfMemory));
        assert_eq!((frames.usage(VM).table, frames.usage(Owner::Host).total(), frames.free_count()), (2, 0, 2));
        frames.free(run);
    }

    #[test]
    fn halves_of_a_run_are_freed_on_their_own_and_join_again() {
        let mut frames = frames(0, 8);
        let run = frames.alloc(VM, Use::Guest, 3).unwrap();
        let (low, high) = run.split().unwrap();
        assert_eq!((low.first().raw(), high.first().raw(), low.pages()), (0, 4, 4));
        frames.free(low);
        assert_eq!(frames.usage(VM).guest, 4);
        frames.free(high);
        let whole = frames.alloc(VM, Use::Guest, 3).unwrap();
        let single = Run::from_entry(whole.into_entry(), 0);
        assert!(single.split().is_err());
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_second_free_is_a_bug() {
        let mut frames = frames(0, 8);
        let run = frames.alloc(VM, Use::Guest, 0).unwrap();
        let again = Run::from_entry(run.first(), 0);
        frames.free(run);
        frames.free(again);
    }

    #[test]
    #[should_panic(expected = "not of one owner")]
    fn freeing_beyond_the_run_is_a_bug() {
        let mut frames = frames(0, 8);
        let run = frames.alloc(VM, Use::Guest, 0).unwrap();
        frames.free(Run::from_entry(run.first(), 1));
    }

    #[test]
    #[should_panic(expected = "added twice")]
    fn ram_is_added_once() {
        frames(10, 10).add(Pfn::new(19), 1);
    }

    #[test]
    fn a_run_may_lie_in_ram_added_piecewise() {
        let mut frames = frames(4, 4);
        frames.add(Pfn::new(0), 4);
        frames.add(Pfn::new(16), 2);
        frames.add(Pfn::new(8), 8);
        assert_eq!((frames.banks.len(), frames.total_count()), (1, 18));
        // Freed one by one, the frames join across what were borders.
        let all: Vec<Run> = (0..18).map(|_| frames.alloc(VM, Use::Other, 0).unwrap()).collect();
        all.into_iter().for_each(|run| frames.free(run));
        let run = frames.alloc(VM, Use::Other, 4).unwrap();
        assert_eq!(frames.owner_of(run.first().add(15)), Some((VM, Use::Other)));
        frames.free(run);
    }

    #[test]
    fn every_owner_and_use_has_its_own_tag() {
        for owner in [Owner::Host, Owner::Vm(0), Owner::Vm(1), Owner::Vm(u16::MAX)] {
            for for_ in [Use::Guest, Use::Table, Use::Image, Use::Other] {
                assert_eq!(Tag::new(owner, for_).owner(), Some((owner, for_)));
            }
        }
        assert_eq!(Tag::FREE.owner(), None);
    }
}
