//! Where free frames are: in the buddy system, behind the one lock, and single ones at the hand of each hart.
//!
//! A hand has a lock, too, which its hart alone takes, until memory is out: then whoever needs frames collects what lies
//! at all hands. A hand is filled when it runs low and nobody holds the buddy system; a hart waits for that only
//! when its hand is empty.

use alloc::vec::Vec;
use buddy_system_allocator::FrameAllocator;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use rv::{Hpa, Pfn};
use spin::{Mutex, MutexGuard};

/// Run orders are below this: the largest run is 2^23 frames, 32 GiB.
pub(super) const ORDERS: usize = 24;
/// Frames fetched for a hand at once.
const FETCHED: usize = 16;
/// A hand with fewer frames is filled when that needs no waiting.
const LOW: usize = 8;
/// Frames that lie at a hand at most.
const MOST: usize = 64;

type Buddy = FrameAllocator<ORDERS>;

pub(super) struct Store {
    buddy: Mutex<Buddy>,
    hands: Vec<Mutex<Vec<u64>>>,
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
            self.collect();
        }
        self.hands.clear();
        self.hands.resize_with(harts, || Mutex::new(Vec::with_capacity(MOST)));
    }

    pub fn add(&mut self, first: Pfn<Hpa>, pages: u64) {
        self.buddy.get_mut().add_frame(first.raw() as usize, (first.raw() + pages) as usize);
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

    pub fn take_single(&self, hand: usize) -> Option<u64> {
        let mut frames = self.hands[hand].lock();
        if frames.is_empty() {
            fetch(&mut frames, &mut self.buddy());
        } else if frames.len() < LOW
            && let Some(mut buddy) = self.buddy.try_lock()
        {
            fetch(&mut frames, &mut buddy);
        }
        let taken = frames.pop();
        drop(frames);
        taken.or_else(|| {
            self.collect();
            self.buddy().alloc(1).map(|first| first as u64)
        })
    }

    pub fn give_single(&self, hand: usize, frame: u64) {
        let mut frames = self.hands[hand].lock();
        if frames.len() == MOST {
            let mut buddy = self.buddy();
            frames.drain(..FETCHED).for_each(|frame| buddy.dealloc(frame as usize, 1));
        }
        frames.push(frame);
    }

    pub fn take_run(&self, pages: u64) -> Option<u64> {
        // Two statements: the first lock is given back before `collect` takes it.
        let first = self.buddy().alloc(pages as usize);
        let first = first.or_else(|| {
            // The single frames at hand may be what is missing.
            self.collect();
            self.buddy().alloc(pages as usize)
        });
        first.map(|first| first as u64)
    }

    pub fn give_run(&self, first: u64, pages: u64) {
        self.buddy().dealloc(first as usize, pages as usize);
    }

    /// Gives what lies at all hands back to the buddy system.
    fn collect(&self) {
        for hand in &self.hands {
            let frames = core::mem::replace(&mut *hand.lock(), Vec::with_capacity(MOST));
            let mut buddy = self.buddy();
            frames.into_iter().for_each(|frame| buddy.dealloc(frame as usize, 1));
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
