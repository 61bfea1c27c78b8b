//! Originals: the pages of images, which VMs share read-only. The boot loader leaves each in a frame of its own, its
//! *home*, which is its permanent name in regions. If there is a swap device, an original may go there, and come back
//! into any frame.
//!
//! ```text
//!         lapse            settle          release
//!   used ──────► lapsing ─────────► idle ──────────► out
//!    ▲  find        │      find      │ ▲   restore    │
//!    └──────────────┴────────────────┘ └──────────────┘ in another frame
//! ```
//!
//! Code that is about to map an original, or to read it, asks for its frame ([`Originals::find`]), which makes the
//! original used. It holds the lock of its VM's memory from then until it has finished. To free originals, a hart has
//! them lapse ([`Originals::lapse`]), then takes the lock of each VM in turn and removes its mappings of them; then
//! those that have not been found meanwhile are idle ([`Originals::settle`]). An idle original is neither mapped nor
//! read: it may be released, and its frame is memory like any other (OWNERSHIP).
//!
//! Code that copies without a lock, as [`crate::gstage::Ready`] does, notes the [`epoch`](Originals::epoch) before, and
//! uses the copy only if the epoch is the same in the end: no original has gone meanwhile.

use super::run::Run;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::fence;
use rv::{Hpa, Pfn, PhysMem};

/// The word of an original that is not in memory.
const OUT: u64 = 0;
/// Set if the original is in memory: its frame's number is above [`FLAGS`].
const IN: u64 = 1;
/// Set if the original has been found since it lapsed.
const USED: u64 = 1 << 1;
/// Set if the page stays: it is among images, but part of none.
const FIXED: u64 = 1 << 2;
/// Set if the original has not been found since it lapsed, but may still be mapped.
const LAPSING: u64 = 1 << 3;
const FLAGS: u32 = 4;

/// Originals that are broken on purpose ([`crate::shadow::Sabotage`] has more of that kind).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Neglect {
    /// A find leaves no trace: the original goes while a VM maps it.
    ForgetsUse = 1,
    /// One that comes back is looked for at home.
    ComesHome,
    /// The epoch stays the same.
    ForgetsEpoch,
}

/// The state of an original.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Original {
    /// Stays in its frame.
    Fixed,
    /// Not in memory.
    Out,
    /// In memory, and found since it lapsed, or possibly still mapped.
    Used,
    /// In memory in this frame, and not mapped.
    Idle(Pfn<Hpa>),
}

/// All originals of a machine that may go: those of one bundle, by number from its first image on.
#[derive(Default)]
pub struct Originals {
    /// The home of number 0.
    first: u64,
    words: Vec<AtomicU64>,
    /// The number of originals that may go.
    count: u64,
    /// The number of times that an original has gone.
    gone: AtomicU64,
    #[cfg(feature = "sabotage")]
    neglect: core::sync::atomic::AtomicU8,
}

impl fmt::Debug for Originals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Originals").field("first", &self.first).field("count", &self.count).finish_non_exhaustive()
    }
}

impl Originals {
    /// The originals whose homes are in these ranges of frames, in their order: all used, at home.
    pub(super) fn new(homes: &[Range<u64>]) -> Self {
        let (Some(first), Some(last)) = (homes.first(), homes.last()) else { return Self::default() };
        let mut words = Vec::new();
        words.reserve_exact((last.end - first.start) as usize);
        for home in first.start..last.end {
            let fixed = if homes.iter().any(|range| range.contains(&home)) { 0 } else { FIXED };
            words.push(AtomicU64::new(home << FLAGS | IN | USED | fixed));
        }
        let count = homes.iter().map(|range| range.end - range.start).sum();
        Self { first: first.start, words, count, ..Self::default() }
    }

    /// Breaks them.
    #[cfg(feature = "sabotage")]
    pub fn neglect(&self, what: Neglect) {
        self.neglect.store(what as u8, core::sync::atomic::Ordering::SeqCst);
    }

    #[cfg(feature = "sabotage")]
    fn neglects(&self, what: Neglect) -> bool {
        self.neglect.load(core::sync::atomic::Ordering::SeqCst) == what as u8
    }

    #[cfg(not(feature = "sabotage"))]
    #[expect(clippy::unused_self, reason = "in tests it is used")]
    const fn neglects(&self, _: Neglect) -> bool {
        false
    }

    /// Returns the number of originals that may go.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the end of the range of their numbers.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.words.len() as u64
    }

    /// Returns the home of an original.
    #[must_use]
    pub const fn home(&self, number: u64) -> Pfn<Hpa> {
        Pfn::new(self.first + number)
    }

    /// Returns the number of the original with that home, which may not be one of these.
    #[must_use]
    pub const fn number(&self, home: Pfn<Hpa>) -> u64 {
        home.raw().wrapping_sub(self.first)
    }

    /// Returns the state of an original.
    #[must_use]
    pub fn state(&self, number: u64) -> Original {
        match self.words[number as usize].load(SeqCst) {
            OUT => Original::Out,
            word if word & FIXED != 0 => Original::Fixed,
            word if word & (USED | LAPSING) != 0 => Original::Used,
            word => Original::Idle(Pfn::new(word >> FLAGS)),
        }
    }

    /// Returns the frame of the original with that home, which is used from now on; `home` itself if it is the home of
    /// none of these. `None`: the original has to be brought in first.
    #[inline]
    #[must_use]
    pub fn find(&self, home: Pfn<Hpa>) -> Option<Pfn<Hpa>> {
        // Without a swap device there are none.
        match self.words.get(self.number(home) as usize) {
            None => Some(home),
            Some(word) => self.find_in(word),
        }
    }

    #[inline(never)]
    fn find_in(&self, word: &AtomicU64) -> Option<Pfn<Hpa>> {
        let mut now = word.load(Acquire);
        while now != OUT && now & USED == 0 && !self.neglects(Neglect::ForgetsUse) {
            match word.compare_exchange(now, now & !LAPSING | USED, AcqRel, Acquire) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        (now != OUT).then(|| Pfn::new(now >> FLAGS))
    }

    /// Returns whether all originals of a run are at home, and so contiguous. If so, all of them are used from now on.
    #[must_use]
    pub fn find_run(&self, first: Pfn<Hpa>, pages: u64) -> bool {
        self.words.is_empty() || (0..pages).map(|n| first.add(n)).all(|home| self.find(home) == Some(home))
    }

    /// Copies originals from that home on. Returns whether all of them were in memory; if not, the copy is to be
    /// discarded.
    #[must_use]
    pub fn copy(&self, home: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64, mem: &mut impl PhysMem) -> bool {
        if self.words.is_empty() {
            mem.copy_frames(home, to, pages);
            return true;
        }
        (0..pages).all(|n| match self.find(home.add(n)) {
            Some(frame) => {
                mem.copy_frames(frame, to.add(n), 1);
                true
            }
            None => false,
        })
    }

    /// Changes when an original goes. Loads before this are done before it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        fence(Acquire);
        self.gone.load(SeqCst)
    }

    /// Makes an original lapse, if it is used: its mappings are about to be removed. Calls must not overlap.
    pub fn lapse(&self, number: u64) {
        let word = &self.words[number as usize];
        let now = word.load(SeqCst);
        if now & USED != 0 {
            // A find that sees it used meanwhile changes nothing.
            word.store(now & !USED | LAPSING, SeqCst);
        }
    }

    /// Makes an original idle that has lapsed, unless it has been found since. All mappings from before it lapsed have
    /// been removed.
    pub fn settle(&self, number: u64) {
        self.words[number as usize].fetch_and(!LAPSING, SeqCst);
    }

    /// Makes an idle original used again.
    pub fn keep(&self, number: u64) {
        _ = self.find_in(&self.words[number as usize]);
    }

    /// Releases an original, if it is idle: it is not mapped, and its contents are on the swap device. Returns its
    /// frame, which is to be freed.
    pub fn release(&self, number: u64) -> Option<Run> {
        let word = &self.words[number as usize];
        let now = word.load(SeqCst);
        if now == OUT || now & (USED | LAPSING | FIXED) != 0 || word.compare_exchange(now, OUT, SeqCst, SeqCst).is_err()
        {
            return None;
        }
        // Before the frame has another owner.
        self.gone.fetch_add(u64::from(!self.neglects(Neglect::ForgetsEpoch)), SeqCst);
        Some(Run::from_entry(Pfn::new(now >> FLAGS), 0))
    }

    /// Puts an original that is out into memory again, idle. `frame` is the host's, for images. No hart that may map it
    /// still holds other instructions of that frame (`fence.i`).
    ///
    /// # Panics
    /// If it is not out.
    pub fn restore(&self, number: u64, frame: Run) {
        let frame = frame.into_entry();
        let frame = if self.neglects(Neglect::ComesHome) { self.home(number) } else { frame };
        let word = frame.raw() << FLAGS | IN;
        let before = self.words[number as usize].swap(word, SeqCst);
        assert!(before == OUT, "original {number} is in memory twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_goes_when_it_is_idle_and_comes_back_elsewhere() {
        let originals = Originals::new(&[100..102, 103..105]);
        assert_eq!((originals.count(), originals.end()), (4, 5));
        let home = Pfn::new(101);
        let number = originals.number(home);
        assert_eq!((originals.state(number), originals.release(number)), (Original::Used, None));
        originals.lapse(number);
        // Some VM may map it still.
        assert_eq!((originals.state(number), originals.release(number)), (Original::Used, None));
        // A VM that finds it keeps it.
        assert_eq!(originals.find(home), Some(home));
        originals.settle(number);
        assert_eq!((originals.state(number), originals.release(number)), (Original::Used, None));
        originals.lapse(number);
        originals.settle(number);
        assert_eq!(originals.state(number), Original::Idle(home));
        let epoch = originals.epoch();
        let frame = originals.release(number).unwrap();
        assert_eq!((frame.first(), originals.find(home), originals.state(number)), (home, None, Original::Out));
        assert!(originals.epoch() != epoch && !originals.find_run(Pfn::new(100), 2));
        originals.restore(number, Run::from_entry(Pfn::new(7), 0));
        assert_eq!((originals.state(number), originals.find(home)), (Original::Idle(Pfn::new(7)), Some(Pfn::new(7))));
        // It is there, but not in one piece with the others.
        assert!(!originals.find_run(Pfn::new(100), 2) && originals.find_run(Pfn::new(103), 2));
    }

    #[test]
    fn what_is_no_image_stays() {
        let originals = Originals::new(&[100..102, 103..105]);
        originals.lapse(2);
        originals.settle(2);
        assert_eq!((originals.state(2), originals.release(2)), (Original::Fixed, None));
        for home in [99, 102, 105] {
            assert_eq!(originals.find(Pfn::new(home)), Some(Pfn::new(home)));
        }
        let none = Originals::new(&[]);
        assert_eq!((none.find(Pfn::new(5)), none.find_run(Pfn::new(5), 512)), (Some(Pfn::new(5)), true));
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn it_is_in_memory_once() {
        Originals::new(core::slice::from_ref(&(1..2))).restore(0, Run::from_entry(Pfn::new(9), 0));
    }
}
