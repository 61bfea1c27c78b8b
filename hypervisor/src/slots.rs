//! Slots: a fixed number of places, each of which is used again when its tenant has left.
//!
//! A tenant is named by a [`Handle`]. Its slot is soon used by another tenant; its number never is. So the handle of a
//! tenant that has left finds nothing, rather than the tenant that came after it.

use crate::sync::Mutex;
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::SeqCst;
use alloc::vec::Vec;

/// Names one tenant for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    /// Its slot, as long as it is there.
    pub slot: usize,
    /// Its number: no other tenant has it, at any time.
    pub number: u64,
}

/// A table of slots, each with a lock of its own.
pub struct Slots<T> {
    slots: Vec<Mutex<Option<(u64, T)>>>,
    taken: AtomicUsize,
    most: AtomicUsize,
}

impl<T> Slots<T> {
    /// Makes `count` slots, all free.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(count, Mutex::default);
        Self { slots, taken: AtomicUsize::new(0), most: AtomicUsize::new(0) }
    }

    /// Puts a tenant into the first free slot, made when that is known; `None` if none is free. No other tenant, past or to
    /// come, may have the same number.
    pub fn put(&self, number: u64, make: impl FnOnce(Handle) -> T) -> Option<Handle> {
        for (slot, place) in self.slots.iter().enumerate() {
            let mut place = place.lock();
            if place.is_none() {
                let handle = Handle { slot, number };
                *place = Some((number, make(handle)));
                self.most.fetch_max(self.taken.fetch_add(1, SeqCst) + 1, SeqCst);
                return Some(handle);
            }
        }
        None
    }

    /// Does something with a tenant, under its slot's lock; `None` if it has left.
    pub fn with<R>(&self, handle: Handle, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        match &mut *self.slots.get(handle.slot)?.lock() {
            Some((number, tenant)) if *number == handle.number => Some(act(tenant)),
            _ => None,
        }
    }

    /// Calls `act` on the tenant of a slot.
    pub fn at<R>(&self, slot: usize, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.slots.get(slot)?.lock().as_mut().map(|(_, tenant)| act(tenant))
    }

    /// Does something with each tenant in turn.
    pub fn each<R>(&self, mut act: impl FnMut(&mut T) -> R) -> impl Iterator<Item = R> {
        (0..self.slots.len()).filter_map(move |slot| self.at(slot, &mut act))
    }

    /// Lets a tenant leave: its slot is free. `None` if it has left already.
    pub fn take(&self, handle: Handle) -> Option<T> {
        let mut place = self.slots.get(handle.slot)?.lock();
        let (_, tenant) = place.take_if(|(number, _)| *number == handle.number)?;
        self.taken.fetch_sub(1, SeqCst);
        Some(tenant)
    }

    /// Returns the largest number of slots that were taken at a time.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    fn put(slots: &Slots<u64>, number: u64) -> Option<usize> {
        slots.put(number, |handle| handle.number).map(|handle| handle.slot)
    }

    fn take(slots: &Slots<u64>, slot: usize, number: u64) -> Option<u64> {
        slots.take(Handle { slot, number })
    }

    #[test]
    fn the_first_free_slot_is_taken_and_given_back() {
        let slots = Slots::new(3);
        assert_eq!([0, 1, 2, 3].map(|number| put(&slots, number)), [Some(0), Some(1), Some(2), None]);
        assert_eq!((take(&slots, 1, 1), take(&slots, 1, 1)), (Some(1), None), "it leaves once");
        assert_eq!((put(&slots, 4), put(&slots, 5)), (Some(1), None));
        assert_eq!(slots.each(|number| *number).collect::<Vec<_>>(), [0, 4, 2]);
        assert_eq!((slots.at(2, |number| *number), slots.at(3, |number| *number)), (Some(2), None));
    }

    #[test]
    fn a_handle_never_finds_another_tenant() {
        let slots = Slots::new(2);
        let mut gone = Vec::new();
        for number in 0..100 {
            let handle = slots.put(number, |_| number).unwrap();
            assert_eq!(handle.slot, 0);
            assert_eq!(slots.with(handle, |tenant| *tenant), Some(number));
            for old in &gone {
                assert_eq!((slots.with(*old, |tenant| *tenant), slots.take(*old)), (None, None), "{old:?}");
            }
            if number < 99 {
                assert_eq!(slots.take(handle), Some(number));
                gone.push(handle);
            }
        }
        assert_eq!((slots.at(0, |tenant| *tenant), slots.most()), (Some(99), 1), "one slot, for a hundred");
        let elsewhere = [Handle { slot: 1, number: 99 }, Handle { slot: 2, number: 99 }];
        assert_eq!(elsewhere.map(|handle| slots.take(handle)), [None, None]);
    }

    #[test]
    fn the_most_is_of_those_that_were_there_at_a_time() {
        let slots = Slots::new(4);
        assert_eq!(slots.most(), 0);
        (0..3).for_each(|number| assert!(put(&slots, number).is_some()));
        (0..3).for_each(|number| assert!(take(&slots, number as usize, number).is_some()));
        (3..9).for_each(|number| assert!(put(&slots, number).is_some_and(|slot| take(&slots, slot, number).is_some())));
        assert_eq!(slots.most(), 3);
    }

    #[test]
    fn harts_that_come_and_go_at_once_never_share_a_slot() {
        let slots = Slots::new(3);
        let numbers = core::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let number = numbers.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
                        let Some(handle) = slots.put(number, |handle| handle.number) else { continue };
                        assert_eq!(slots.with(handle, |tenant| *tenant), Some(number));
                        assert_eq!(slots.take(handle), Some(number));
                        assert_eq!(slots.with(handle, |_| ()), None);
                    }
                });
            }
        });
        assert_eq!((slots.each(|_| ()).count(), slots.taken.load(SeqCst)), (0, 0));
        assert!((1..=3).contains(&slots.most()));
    }
}
