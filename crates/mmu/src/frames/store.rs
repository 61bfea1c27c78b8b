//! Where free frames are: in the buddy system, behind the one lock, and some at the hand of each hart.
//!
//! No hart waits while there is another way, because whoever holds a lock may be a hart that its host has suspended:
//!
//! 1. A hart takes from its own hand, and fills it when it runs low and nobody holds the buddy system.
//! 2. If it is empty, or in somebody's hands, it takes from another's.
//! 3. Only if there is nothing at any hand it waits for the buddy system, which then counts as one of [`Store::waits`].
//!
//! When memory is out, what lies at all hands is collected first; for a run that is only wanted ahead of need, it is not.

use alloc::vec::Vec;
use buddy_system_allocator::FrameAllocator;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use rv::{Hpa, Pfn};
use spin::{Mutex, MutexGuard};

/// Run orders are below this: the largest run is 2^23 frames, 32 GiB.
pub(super) const ORDERS: usize = 24;
/// Frames fetched for a hand at once.
const FETCHED: usize = 64;
/// A hand with fewer frames is filled when that needs no waiting.
const LOW: usize = 32;
/// Frames that lie at a hand at most.
const MOST: usize = 192;
/// Frames that a full hand gives back at once. Each takes some hundred instructions with the lock held.
const GIVEN: usize = 32;
/// Frames of a run of 2 MiB.
const MEGA: u64 = 512;

type Buddy = FrameAllocator<ORDERS>;

/// What lies at the hand of a hart: numbers of first frames.
struct Hand {
    singles: Vec<u64>,
    /// A run of 2 MiB, if there is plenty.
    mega: Option<u64>,
}

impl Hand {
    fn new() -> Self {
        Self { singles: Vec::with_capacity(MOST), mega: None }
    }
}

pub(super) struct Store {
    buddy: Mutex<Buddy>,
    hands: Vec<Mutex<Hand>>,
    waits: AtomicU64,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("hands", &self.hands.len()).field("waits", &self.waits).finish_non_exhaustive()
    }
}

impl Default for Store {
    fn default() -> Self {
        let mut store = Self { buddy: Mutex::new(Buddy::new()), hands: Vec::new(), waits: AtomicU64::new(0) };
        store.set_hands(1);
        store
    }
}

impl Store {
    /// Makes a hand for each of so many harts. All frames are in the buddy system then.
    pub fn set_hands(&mut self, harts: usize) {
        if !self.hands.is_empty() {
            self.collect(&mut self.buddy());
        }
        self.hands.clear();
        self.hands.resize_with(harts, || Mutex::new(Hand::new()));
    }

    pub fn add(&mut self, first: Pfn<Hpa>, pages: u64) {
        self.buddy.get_mut().add_frame(first.raw() as usize, (first.raw() + pages) as usize);
    }

    /// How many hands there are.
    pub fn hands(&self) -> u64 {
        self.hands.len() as u64
    }

    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    fn buddy(&self) -> MutexGuard<'_, Buddy> {
        self.buddy.try_lock().unwrap_or_else(|| {
            self.waits.fetch_add(1, Relaxed);
            self.buddy.lock()
        })
    }

    /// All hands that nobody holds, from `hand` on.
    fn free_hands(&self, hand: usize) -> impl Iterator<Item = MutexGuard<'_, Hand>> {
        (hand..self.hands.len()).chain(0..hand).filter_map(|n| self.hands[n].try_lock())
    }

    pub fn take_single(&self, hand: usize) -> Option<u64> {
        if let Some(mut own) = self.hands[hand].try_lock() {
            if own.singles.len() < LOW
                && let Some(mut buddy) = self.buddy.try_lock()
            {
                fetch(&mut own.singles, &mut buddy);
            }
            if let Some(frame) = own.singles.pop() {
                return Some(frame);
            }
        }
        self.free_hands(hand).find_map(|mut other| other.singles.pop()).or_else(|| self.take(1))
    }

    pub fn give_single(&self, hand: usize, frame: u64) {
        if let Some(mut to) = self.free_hands(hand).find(|hand| hand.singles.len() < MOST) {
            to.singles.push(frame);
            return;
        }
        let mut buddy = self.buddy();
        buddy.dealloc(frame as usize, 1);
        if let Some(mut own) = self.hands[hand].try_lock() {
            let given = own.singles.len().min(GIVEN);
            own.singles.drain(..given).for_each(|frame| buddy.dealloc(frame as usize, 1));
        }
    }

    /// Takes a run, if there is one. `plenty`: there is so much free memory that 2 MiB more may be kept at hand.
    pub fn take_run(&self, hand: usize, pages: u64, plenty: bool) -> Option<u64> {
        let mut from_hands = self.free_hands(hand).filter(|_| pages == MEGA);
        let taken = from_hands.find_map(|mut hand| hand.mega.take());
        let taken = taken.or_else(|| self.buddy().alloc(pages as usize).map(|first| first as u64));
        if plenty
            && pages == MEGA
            && let Some(mut own) = self.hands[hand].try_lock()
            && own.mega.is_none()
            && let Some(mut buddy) = self.buddy.try_lock()
        {
            own.mega = buddy.alloc(MEGA as usize).map(|first| first as u64);
        }
        taken
    }

    /// Takes a run, whatever it takes.
    pub fn take(&self, pages: u64) -> Option<u64> {
        // Held to the end: what one hart has collected is never out of another's sight while that one finds nothing.
        let mut buddy = self.buddy();
        let first = buddy.alloc(pages as usize).or_else(|| {
            // What lies at the hands may be what is missing.
            self.collect(&mut buddy);
            buddy.alloc(pages as usize)
        });
        first.map(|first| first as u64)
    }

    pub fn give_run(&self, first: u64, pages: u64) {
        self.buddy().dealloc(first as usize, pages as usize);
    }

    /// Gives what lies at all hands back to the buddy system. To wait for a hand with that held is safe: whoever has a hand
    /// only tries for the buddy system.
    fn collect(&self, buddy: &mut Buddy) {
        for hand in &self.hands {
            let Hand { singles, mega } = core::mem::replace(&mut *hand.lock(), Hand::new());
            singles.into_iter().for_each(|frame| buddy.dealloc(frame as usize, 1));
            mega.into_iter().for_each(|first| buddy.dealloc(first as usize, MEGA as usize));
        }
    }
}

/// Frames for a hand: neighbours, the lowest last, so that it is taken first.
fn fetch(frames: &mut Vec<u64>, buddy: &mut Buddy) {
    if let Some(first) = buddy.alloc(FETCHED) {
        let first = first as u64;
        let old = frames.len();
        frames.extend((first..first + FETCHED as u64).rev());
        // What was there is used first.
        frames.rotate_left(old);
    } else if let Some(first) = buddy.alloc(1) {
        frames.push(first as u64);
    }
}
