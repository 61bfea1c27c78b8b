//! Frames of RAM: a buddy allocator, and counts of references.
//!
//! Each frame has a word: the number of references to it while it is in use, or [`FREE`] and the order of the block if it begins a free
//! block. The links of a free block's list are in the block itself.
#![expect(unsafe_code, reason = "frames are memory by their number")]

use crate::machine::{self, direct};
use crate::sync::{Mutex, Once};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Bytes of a frame, and of a page.
pub const PAGE: usize = 4096;
/// The order of the largest blocks: 4 MiB.
const TOP: u32 = 10;
/// The word of a frame that begins a free block, less its order.
const FREE: u32 = 0xffff_ff00;
/// Ranges of free RAM at the start, at most.
const MOST_RANGES: usize = 8;
/// No frame.
const NONE: u32 = u32::MAX;
/// Frames that programs leave to the kernel: one part of so many of all.
const RESERVE_PART: usize = 64;

/// Free frames.
#[derive(Debug)]
struct Lists {
    /// The first free block of each order.
    first: [u32; TOP as usize + 1],
    /// Ranges that were never used. They join the blocks a piece at a time, so that RAM which is not needed is never touched.
    fresh: ArrayVec<(u32, u32), MOST_RANGES>,
}

/// All frames.
#[derive(Debug)]
struct Frames {
    /// The number of the first one: its physical address / [`PAGE`].
    first: u32,
    /// A word for each.
    words: &'static [AtomicU32],
    lists: Mutex<Lists>,
    free: AtomicUsize,
    /// Those that were free at the start.
    usable: usize,
    reserve: usize,
}

static FRAMES: Once<Frames> = Once::new();

fn frames() -> &'static Frames {
    FRAMES.get().expect("frames are known from the start")
}

/// A reference to a frame. The frame is free when its last reference is dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame(u32);

/// Makes RAM available, all of it but ranges that are used already: physical addresses, ranges in ascending order. The words of the frames
/// take the first room that is enough.
///
/// # Safety
/// The rest of the range is RAM that is not otherwise used, for ever. Called once.
///
/// # Panics
/// Without room for the words.
pub unsafe fn start(ram: (u64, u64), used: &[(u64, u64)]) {
    let page = PAGE as u64;
    let count = ((ram.1 - ram.0) / page) as usize;
    let table = (count * size_of::<AtomicU32>()).next_multiple_of(PAGE) as u64;
    // Free ranges, of whole pages.
    let mut free = ArrayVec::<(u64, u64), MOST_RANGES>::new();
    let mut at = ram.0;
    for (start, end) in used.iter().filter(|(start, end)| start < end).chain([&(ram.1, ram.1)]) {
        let (first, last) = (at.next_multiple_of(page), start.min(&ram.1) & !(page - 1));
        if first < last {
            free.push((first, last));
        }
        at = at.max(*end);
    }
    let place = free.iter_mut().find(|(start, end)| end - start >= table).expect("room for the words of all frames");
    let words = place.0;
    place.0 += table;
    // SAFETY: by the caller's promise; every pattern is a valid word.
    let words = unsafe {
        direct(words).write_bytes(0, table as usize);
        core::slice::from_raw_parts(direct(words).cast::<AtomicU32>(), count)
    };
    let first = (ram.0 / page) as u32;
    let fresh: ArrayVec<_, MOST_RANGES> =
        free.iter().map(|(start, end)| ((start / page) as u32, (end / page) as u32)).collect();
    let usable: u32 = fresh.iter().map(|(start, end)| end - start).sum();
    let lists = Mutex::new(Lists { first: [NONE; TOP as usize + 1], fresh });
    let reserve = count / RESERVE_PART;
    FRAMES.call_once(|| Frames {
        first,
        words,
        lists,
        free: AtomicUsize::new(usable as usize),
        usable: usable as usize,
        reserve,
    });
}

/// Returns the address of a frame's first byte.
#[must_use]
pub fn address(frame: u32) -> *mut u8 {
    direct(u64::from(frame) * PAGE as u64)
}

impl Frames {
    fn word(&self, frame: u32) -> &AtomicU32 {
        &self.words[(frame - self.first) as usize]
    }

    /// The links of a free block: the next one of its list, and the one before.
    fn links(&self, frame: u32) -> *mut [u32; 2] {
        debug_assert!(self.word(frame).load(Ordering::Relaxed) >= FREE);
        address(frame).cast()
    }

    fn free_block(&self, mut frame: u32, mut order: u32) {
        let mut lists = self.lists.lock();
        self.free.fetch_add(1 << order, Ordering::Relaxed);
        while order < TOP {
            let buddy = frame ^ 1 << order;
            let is_known = buddy >= self.first && ((buddy - self.first) as usize) < self.words.len();
            if !is_known || self.word(buddy).load(Ordering::Relaxed) != FREE | order {
                break;
            }
            self.unlink(&mut lists, buddy, order);
            frame = frame.min(buddy);
            order += 1;
        }
        self.link(&mut lists, frame, order);
    }

    fn link(&self, lists: &mut Lists, frame: u32, order: u32) {
        self.word(frame).store(FREE | order, Ordering::Relaxed);
        let next = lists.first[order as usize];
        // SAFETY: free blocks are the allocator's, under its lock.
        unsafe {
            *self.links(frame) = [next, NONE];
            if next != NONE {
                (*self.links(next))[1] = frame;
            }
        }
        lists.first[order as usize] = frame;
    }

    fn unlink(&self, lists: &mut Lists, frame: u32, order: u32) {
        // SAFETY: free blocks are the allocator's, under its lock.
        unsafe {
            let [next, before] = *self.links(frame);
            if next != NONE {
                (*self.links(next))[1] = before;
            }
            if before == NONE {
                lists.first[order as usize] = next;
            } else {
                (*self.links(before))[0] = next;
            }
        }
        self.word(frame).store(0, Ordering::Relaxed);
    }

    /// Makes the next frames that were never used a block; `None` if there are none.
    fn add_fresh(&self, lists: &mut Lists) -> Option<()> {
        let (start, end) = lists.fresh.first_mut()?;
        let (at, order) = (*start, start.trailing_zeros().min((*end - *start).ilog2()).min(TOP));
        *start += 1 << order;
        if start == end {
            lists.fresh.remove(0);
        }
        self.link(lists, at, order);
        Some(())
    }

    /// Takes a block, if more frames than `keep` stay free.
    fn take(&self, order: u32, keep: usize) -> Option<u32> {
        let mut lists = self.lists.lock();
        if self.free.load(Ordering::Relaxed) < keep + (1 << order) {
            return None;
        }
        let mut found = loop {
            match (order..=TOP).find(|order| lists.first[*order as usize] != NONE) {
                Some(found) => break found,
                None => self.add_fresh(&mut lists)?,
            }
        };
        let frame = lists.first[found as usize];
        self.unlink(&mut lists, frame, found);
        while found > order {
            found -= 1;
            self.link(&mut lists, frame + (1 << found), found);
        }
        self.free.fetch_sub(1 << order, Ordering::Relaxed);
        Some(frame)
    }
}

/// Takes a block of 2^`order` frames for the kernel itself, for ever. Its content is undefined.
#[must_use]
pub fn take_block(order: u32) -> Option<u32> {
    if order > TOP { None } else { frames().take(order, 0) }
}

/// Returns the number of free frames, and of all.
#[must_use]
pub fn free_and_all() -> (usize, usize) {
    (frames().free.load(Ordering::Relaxed), frames().usable)
}

/// Returns the bytes of all frames that were free at the start; without a bound where frames are not known.
#[must_use]
pub fn bytes() -> usize {
    FRAMES.get().map_or(usize::MAX, |frames| frames.usable * PAGE)
}

/// Returns whether the kernel itself may soon be without memory. Calls that make something fail then.
#[must_use]
pub fn is_short() -> bool {
    frames().free.load(Ordering::Relaxed) < frames().reserve / 2
}

/// Frames for later, so that they can be dropped when no hart uses them any more.
pub type Freed = Vec<Frame>;

impl Frame {
    /// Takes a free frame of undefined content for a program.
    #[must_use]
    fn take() -> Option<Self> {
        let all = frames();
        let frame = all.take(0, all.reserve)?;
        all.word(frame).store(1, Ordering::Relaxed);
        Some(Self(frame))
    }

    /// Takes a free frame, and zeroes it.
    #[must_use]
    pub fn zeroed() -> Option<Self> {
        let frame = Self::take()?;
        // SAFETY: the frame has no other user.
        unsafe { machine::zero_page(address(frame.0)) };
        Some(frame)
    }

    /// Takes a free frame with the content of another one.
    #[must_use]
    pub fn copied(from: &Self) -> Option<Self> {
        let frame = Self::take()?;
        // SAFETY: the new frame has no other user. Programs may write the old one meanwhile, as with any copy of shared memory.
        unsafe { address(frame.0).copy_from_nonoverlapping(address(from.0), PAGE) };
        Some(frame)
    }

    /// Returns its physical address.
    #[must_use]
    pub fn pa(&self) -> u64 {
        u64::from(self.0) * PAGE as u64
    }

    /// Returns the address of its first byte in the kernel.
    #[must_use]
    pub fn at(&self) -> *mut u8 {
        address(self.0)
    }

    /// Copies bytes into it.
    ///
    /// # Panics
    /// If they are not all within the frame.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= PAGE);
        // SAFETY: within the frame. Programs may access it meanwhile, as with any shared memory.
        unsafe { self.at().add(offset).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies bytes out of it.
    ///
    /// # Panics
    /// If they are not all within the frame.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= PAGE);
        // SAFETY: as for `write`.
        unsafe { self.at().add(offset).copy_to(to.as_mut_ptr(), to.len()) };
    }

    /// Zeroes its bytes from an offset on.
    pub fn clear_from(&self, offset: usize) {
        // SAFETY: within the frame.
        unsafe { self.at().add(offset.min(PAGE)).write_bytes(0, PAGE - offset.min(PAGE)) };
    }

    /// Returns the number of references.
    #[must_use]
    pub fn references(&self) -> u32 {
        frames().word(self.0).load(Ordering::Acquire)
    }

    /// Makes a table's entry its owner: the frame's number, without a drop.
    #[must_use]
    pub fn into_pa(self) -> u64 {
        let pa = self.pa();
        core::mem::forget(self);
        pa
    }

    /// Takes a reference back from a table's entry.
    ///
    /// # Safety
    /// The entry had it by [`Frame::into_pa`], and has it no longer.
    #[must_use]
    pub unsafe fn from_pa(pa: u64) -> Self {
        Self((pa / PAGE as u64) as u32)
    }

    /// Returns another reference to the frame that an entry has.
    ///
    /// # Safety
    /// The entry has a reference, and keeps it meanwhile.
    #[must_use]
    pub unsafe fn another(pa: u64) -> Self {
        let frame = (pa / PAGE as u64) as u32;
        frames().word(frame).fetch_add(1, Ordering::Relaxed);
        Self(frame)
    }
}

impl Clone for Frame {
    fn clone(&self) -> Self {
        frames().word(self.0).fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let all = frames();
        if all.word(self.0).fetch_sub(1, Ordering::AcqRel) == 1 {
            all.free_block(self.0, 0);
        }
    }
}
