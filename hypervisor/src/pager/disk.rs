//! The swap device: what Gnomon asks of it, and which of its pages are free.

use crate::backend::disks::{IoError, NotBegun, Token};
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
    /// The pages that the device has failed at: they are used no more.
    bad: Vec<SwapSlot>,
}

impl Slots {
    /// Makes a set of `pages` slots, all free.
    pub fn new(pages: u64) -> Self {
        let mut free = Vec::new();
        free.resize((pages / 64) as usize, u64::MAX);
        if !pages.is_multiple_of(64) {
            free.push((1 << (pages % 64)) - 1);
        }
        Self { free, count: pages, at: 0, bad: Vec::new() }
    }

    /// Returns the number of free slots.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Takes one: those that are taken one after another follow each other, where they can.
    pub fn take(&mut self) -> Option<SwapSlot> {
        let (before, after) = self.free.split_at(self.at);
        let found = after.iter().chain(before).position(|word| *word != 0)?;
        self.at = (self.at + found) % self.free.len();
        let word = &mut self.free[self.at];
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        self.count -= 1;
        Some(SwapSlot(64 * self.at as u64 + u64::from(bit)))
    }

    /// Marks a taken page at which the device has failed: it stays taken.
    pub fn spoil(&mut self, slot: SwapSlot) {
        if !self.bad.contains(&slot) {
            self.bad.push(slot);
        }
    }

    /// Gives one back.
    ///
    /// # Panics
    /// If it is free.
    pub fn give(&mut self, slot: SwapSlot) {
        if self.bad.contains(&slot) {
            return;
        }
        let SwapSlot(number) = slot;
        let word = &mut self.free[(number / 64) as usize];
        assert!(*word >> (number % 64) & 1 == 0, "page {number} of the swap device is given back twice");
        *word |= 1 << (number % 64);
        self.count += 1;
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
    fn what_is_spoilt_is_not_taken_again() {
        let mut slots = Slots::new(2);
        let (first, second) = (slots.take().unwrap(), slots.take().unwrap());
        slots.spoil(first);
        slots.give(first);
        slots.give(second);
        assert_eq!((slots.count(), slots.take(), slots.take()), (1, Some(second), None));
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn a_slot_is_given_back_once() {
        Slots::new(10).give(SwapSlot(3));
    }
}
