//! The swap device: what Gnomon asks of it, and which of its pages are free.

use crate::backend::disks::{IoError, NotBegun, Token};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use mmu::gstage::SwapSlot;
use rv::{Hpa, Pfn};

/// Which way a page goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the device to a frame.
    In,
    /// From a frame to the device.
    Out,
}

/// A swap device: pages of 4 KiB, by number.
pub trait Disk: Send {
    /// Returns the number of pages of the device.
    fn pages(&self) -> u64;

    /// Begins to read or to write a page. The frame is the device's until the request is finished.
    ///
    /// # Errors
    /// Why not. Nothing has happened then.
    fn begin(&mut self, way: Way, slot: SwapSlot, frame: Pfn<Hpa>) -> Result<Token, NotBegun>;

    /// Returns a request that has been finished since the last time, and its result.
    fn finished(&mut self) -> Option<(Token, Result<(), IoError>)>;
}

/// Which pages of the device are free: a bit for each.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    free: Vec<u64>,
    count: u64,
    /// The word where the search goes on.
    at: usize,
    /// The pages that the device did not give back: they are used no more.
    bad: BTreeSet<u64>,
    /// The pages that the device did not take: they are tried again some time ([`Writes`]).
    refused: BTreeSet<u64>,
    /// The number of those that may be taken when no other is free.
    forgiven: usize,
}

impl Slots {
    /// Makes a set of `pages` slots, all free.
    pub fn new(pages: u64) -> Self {
        let mut free = Vec::new();
        free.resize((pages / 64) as usize, u64::MAX);
        if !pages.is_multiple_of(64) {
            free.push((1 << (pages % 64)) - 1);
        }
        Self { free, count: pages, at: 0, bad: BTreeSet::new(), refused: BTreeSet::new(), forgiven: 0 }
    }

    /// Refused pages that are tried again at a time.
    const AT_ONCE: usize = 64;

    /// Returns the number of free slots.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Takes one: those that are taken one after another follow each other, where they can.
    pub fn take(&mut self) -> Option<SwapSlot> {
        self.take_free().or_else(|| self.take_forgiven())
    }

    /// Takes one that the device did not take before.
    fn take_forgiven(&mut self) -> Option<SwapSlot> {
        self.forgiven = self.forgiven.checked_sub(1)?;
        self.refused.pop_first().map(SwapSlot)
    }

    fn take_free(&mut self) -> Option<SwapSlot> {
        let (before, after) = self.free.split_at(self.at);
        let found = after.iter().chain(before).position(|word| *word != 0)?;
        self.at = (self.at + found) % self.free.len();
        let word = &mut self.free[self.at];
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        self.count -= 1;
        Some(SwapSlot(64 * self.at as u64 + u64::from(bit)))
    }

    /// Marks a taken page at which the device has failed: it stays taken. If that was a write, until [`Slots::forgive`].
    pub fn spoil(&mut self, SwapSlot(number): SwapSlot, way: Way) {
        match way {
            Way::In => self.bad.insert(number),
            Way::Out => self.refused.insert(number),
        };
    }

    /// Lets pages that the device did not take be tried again, up to [`Slots::AT_ONCE`], when no other is free.
    pub const fn forgive(&mut self) {
        self.forgiven = Self::AT_ONCE;
    }

    /// Returns the number of pages that the device did not take.
    pub fn refused(&self) -> u64 {
        self.refused.len() as u64
    }

    /// Gives one back.
    ///
    /// # Panics
    /// If it is free.
    pub fn give(&mut self, SwapSlot(number): SwapSlot) {
        if self.bad.contains(&number) || self.refused.contains(&number) {
            return;
        }
        let word = &mut self.free[(number / 64) as usize];
        assert!(*word >> (number % 64) & 1 == 0, "page {number} of the swap device is given back twice");
        *word |= 1 << (number % 64);
        self.count += 1;
    }
}

/// Writes that the device refuses, such as those to a file on a full file system. There may be room again later, so writes
/// are tried again after a pause, which doubles from one second to [`Writes::LONGEST`].
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// Failed writes since the last one that has not failed.
    failed: u32,
    /// The host time of the next try.
    due: u64,
    /// The number of tries before, as far as pauses depend on it.
    tries: u32,
    /// Set if the device was given up, until it works again.
    is_given_up: bool,
}

impl Writes {
    /// Writes that fail one after another, after which none is begun until the next try: each may take long.
    const MOST_FAILED: u32 = 8;
    /// The longest pause, in seconds, as a power of two.
    const LONGEST: u32 = 4;

    /// Returns whether writes may begin.
    pub const fn may_begin(&self) -> bool {
        self.failed < Self::MOST_FAILED
    }

    /// Returns whether the device was given up, and has taken nothing since.
    pub const fn are_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Notes a failed write, at the host time `now`, with `second` ticks a second. Returns true if the device is given up
    /// because of it.
    pub fn fail(&mut self, now: u64, second: u64) -> bool {
        if now > self.due.saturating_add(second << Self::LONGEST) {
            self.tries = 0;
        }
        if now >= self.due {
            self.due = now.saturating_add(second << self.tries);
            self.tries = (self.tries + 1).min(Self::LONGEST);
        }
        self.failed = (self.failed + 1).min(Self::MOST_FAILED);
        !self.may_begin() && !core::mem::replace(&mut self.is_given_up, true)
    }

    /// Notes a write that has not failed. Returns true if the device had been given up.
    pub const fn succeed(&mut self) -> bool {
        self.failed = 0;
        core::mem::replace(&mut self.is_given_up, false)
    }

    /// Begins a try if it is time, with pages that were refused: the first write that fails ends it.
    pub fn try_again(&mut self, slots: &mut Slots, now: u64) {
        if (self.may_begin() && slots.refused() == 0) || now < self.due {
            return;
        }
        self.failed = self.failed.min(Self::MOST_FAILED - 1);
        slots.forgive();
    }
}

/// The places on the device of the originals that have been there.
#[derive(Default)]
pub(crate) struct Shelf {
    /// The pages, by number; the list ends with the last one that was put there.
    slots: Vec<u32>,
    count: u64,
}

impl Shelf {
    const NOWHERE: u32 = u32::MAX;

    /// Returns the number of originals there.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the page of the device that has an original.
    pub fn of(&self, number: u64) -> Option<SwapSlot> {
        let slot = self.slots.get(number as usize).copied().filter(|slot| *slot != Self::NOWHERE)?;
        Some(SwapSlot(slot.into()))
    }

    /// Records that an original is on that page of the device.
    pub fn put(&mut self, number: u64, SwapSlot(slot): SwapSlot) {
        let needed = (number as usize + 1).max(self.slots.len());
        self.slots.resize(needed, Self::NOWHERE);
        self.slots[number as usize] = slot as u32;
        self.count += 1;
    }

    /// Returns whether the shelf can record an original on that page.
    pub const fn may_have(SwapSlot(slot): SwapSlot) -> bool {
        slot < Self::NOWHERE as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_taken_once() {
        for pages in [0, 1, 63, 64, 65, 200] {
            let mut slots = Slots::new(pages);
            let mut all: Vec<u64> = core::iter::from_fn(|| slots.take()).map(|slot| slot.0).collect();
            all.sort_unstable();
            assert_eq!(all, (0..pages).collect::<Vec<_>>());
            assert_eq!(slots.count(), 0);
            for number in (0..pages).step_by(3) {
                slots.give(SwapSlot(number));
            }
            assert_eq!(slots.count(), pages.div_ceil(3));
            assert!(slots.take().is_none_or(|slot| slot.0 % 3 == 0));
        }
    }

    #[test]
    fn what_is_spoilt_is_not_taken_again_unless_it_was_a_write() {
        let mut slots = Slots::new(3);
        let [read, written, other] = [0, 1, 2].map(|_| slots.take().unwrap());
        slots.spoil(read, Way::In);
        slots.spoil(written, Way::Out);
        [read, written, other].into_iter().for_each(|slot| slots.give(slot));
        assert_eq!((slots.count(), slots.take(), slots.take()), (1, Some(other), None));
        slots.forgive();
        slots.give(other);
        assert_eq!((slots.take(), slots.refused(), slots.count()), (Some(other), 1, 0), "the last choice");
        assert_eq!((slots.take(), slots.refused(), slots.take()), (Some(written), 0, None));
        // It may be given back now.
        slots.give(written);
        assert_eq!((slots.count(), slots.take()), (1, Some(written)));
    }

    #[test]
    fn pauses_between_tries_double_and_have_a_bound() {
        const SECOND: u64 = 10;
        let (mut writes, mut slots) = (Writes::default(), Slots::new(8));
        let refuse = |writes: &mut Writes, slots: &mut Slots, now| {
            let slot = slots.take().unwrap();
            slots.spoil(slot, Way::Out);
            writes.fail(now, SECOND)
        };
        let mut now = 1000;
        let told: Vec<bool> = (0..8).map(|_| refuse(&mut writes, &mut slots, now)).collect();
        assert_eq!((told, slots.take()), ([[false; 7].as_slice(), &[true]].concat(), None));
        for pause in [1, 2, 4, 8, 16, 16] {
            slots.forgiven = 0;
            writes.try_again(&mut slots, now + pause * SECOND - 1);
            assert!(!writes.may_begin() && slots.take().is_none(), "{pause}");
            now += pause * SECOND;
            writes.try_again(&mut slots, now);
            // One that fails ends the try, without a further message.
            assert!(writes.may_begin() && !refuse(&mut writes, &mut slots, now) && !writes.may_begin(), "{pause}");
        }
        now += 16 * SECOND;
        writes.try_again(&mut slots, now);
        assert!(writes.are_given_up() && writes.succeed() && !writes.succeed() && writes.may_begin());
        // After a good while the pause is short again, also for few pages that were refused.
        now += 1000 * SECOND;
        assert!(!refuse(&mut writes, &mut slots, now));
        slots.forgiven = 0;
        writes.try_again(&mut slots, now + SECOND - 1);
        assert_eq!(slots.forgiven, 0);
        writes.try_again(&mut slots, now + SECOND);
        assert_eq!((slots.forgiven, writes.failed), (Slots::AT_ONCE, 1));
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn a_slot_is_given_back_once() {
        Slots::new(10).give(SwapSlot(3));
    }
}
