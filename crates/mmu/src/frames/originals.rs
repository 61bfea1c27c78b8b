//! Originals: the pages of images, which VMs share and nobody writes. The boot loader leaves each in a frame of its own, its *home*,
//! by which regions name it for ever. Where there is a swap device it may go there, and come back into any frame.
//!
//! ```text
//!         lapse            settle          release
//!   used ──────► lapsing ─────────► idle ──────────► out
//!    ▲  find        │      find      │ ▲   restore    │
//!    └──────────────┴────────────────┘ └──────────────┘ in another frame
//! ```
//!
//! Whoever is about to map an original, or to read it, asks for its frame ([`Originals::find`]), which makes it used, and holds
//! the lock of its VM's memory from then until that is done. Whoever lets originals go has them lapse ([`Originals::lapse`]), then
//! takes each VM's lock in turn, and the mappings of its that there are; then what nobody has asked for meanwhile is idle
//! ([`Originals::settle`]). Nobody maps it, and nobody reads it: it may be released, and its frame is memory like any other
//! (OWNERSHIP).
//!
//! Who copies without a lock, as [`crate::gstage::Ready`] does, notes the [`epoch`](Originals::epoch) before, and believes what it
//! has read only if that is the same in the end: no original has gone meanwhile.

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
/// It is in memory: its frame's number is above [`FLAGS`].
const IN: u64 = 1;
/// Somebody has asked for it since it lapsed.
const USED: u64 = 1 << 1;
/// It stays: no image's, but among images.
const FIXED: u64 = 1 << 2;
/// Nobody has asked for it, but somebody may map it still.
const LAPSING: u64 = 1 << 3;
const FLAGS: u32 = 4;

/// Originals that are broken on purpose ([`crate::shadow::Sabotage`] has more of that kind).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Neglect {
    /// Who asks for one leaves no trace: it goes while somebody maps it.
    ForgetsUse = 1,
    /// One that comes back is looked for at home.
    ComesHome,
    /// The epoch stays the same.
    ForgetsEpoch,
}

/// What an original is found to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Original {
    /// It stays where it is.
    Fixed,
    /// It is not in memory.
    Out,
    /// It is there, and somebody has asked for it since it lapsed, or may map it still.
    Used,
    /// It is there, and nobody maps it.
    Idle(Pfn<Hpa>),
}

/// All originals of a machine that may go: those of one bundle, by number from its first image on.
#[derive(Default)]
pub struct Originals {
    /// The home of number 0.
    first: u64,
    words: Vec<AtomicU64>,
    /// Those that may go.
    count: u64,
    /// How often one has gone.
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
    /// Those whose homes are in these ranges of frames, in their order: all used, at home.
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

    /// How many there are that may go.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Their numbers are below this.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.words.len() as u64
    }

    /// The home of one.
    #[must_use]
    pub const fn home(&self, number: u64) -> Pfn<Hpa> {
        Pfn::new(self.first + number)
    }

    /// The number of the one with that home, which may not be one of these.
    #[must_use]
    pub const fn number(&self, home: Pfn<Hpa>) -> u64 {
        home.raw().wrapping_sub(self.first)
    }

    /// What one is now.
    #[must_use]
    pub fn state(&self, number: u64) -> Original {
        match self.words[number as usize].load(SeqCst) {
            OUT => Original::Out,
            word if word & FIXED != 0 => Original::Fixed,
            word if word & (USED | LAPSING) != 0 => Original::Used,
            word => Original::Idle(Pfn::new(word >> FLAGS)),
        }
    }

    /// The frame of the original with that home, which is used from now on; the home itself, where none of these has it. `None`: it
    /// has to be brought in first.
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

    /// Whether all of a run of originals are at home, and so in one piece. Then all of them are used from now on.
    #[must_use]
    pub fn find_run(&self, first: Pfn<Hpa>, pages: u64) -> bool {
        self.words.is_empty() || (0..pages).map(|n| first.add(n)).all(|home| self.find(home) == Some(home))
    }

    /// Copies originals from that home on. Says whether all of them were in memory; if not, what is copied is for nothing.
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

    /// It lapses, if it is used: who may map it is about to lose it. One at a time does that.
    pub fn lapse(&self, number: u64) {
        let word = &self.words[number as usize];
        let now = word.load(SeqCst);
        if now & USED != 0 {
            // Whoever finds it used meanwhile changes nothing.
            word.store(now & !USED | LAPSING, SeqCst);
        }
    }

    /// Nobody maps it any more who has not asked for it since it lapsed: it is idle, if nobody has.
    pub fn settle(&self, number: u64) {
        self.words[number as usize].fetch_and(!LAPSING, SeqCst);
    }

    /// It is not idle after all.
    pub fn keep(&self, number: u64) {
        _ = self.find_in(&self.words[number as usize]);
    }

    /// An original goes, if it is idle: nobody maps it, and its contents are on the swap device. Its frame is to be freed.
    pub fn release(&self, number: u64) -> Option<Run> {
        let word = &self.words[number as usize];
        let now = word.load(SeqCst);
        if now == OUT || now & (USED | LAPSING | FIXED) != 0 || word.compare_exchange(now, OUT, SeqCst, SeqCst).is_err()
        {
            return None;
        }
        // Before the frame is anybody else's.
        self.gone.fetch_add(u64::from(!self.neglects(Neglect::ForgetsEpoch)), SeqCst);
        Some(Run::from_entry(Pfn::new(now >> FLAGS), 0))
    }

    /// One that is out is in memory again, idle. `frame` is the host's, for images; no hart that may map it remembers other code there.
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
        // Who asks for it keeps it.
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
