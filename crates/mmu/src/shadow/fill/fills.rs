//! The log of entries that vCPUs fill with a share of the lock, and that the engine learns later.

use crate::shadow::pages::At;
use alloc::boxed::Box;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use rv::Pte;

/// A filled entry: its page and index, the guest's entry that it was made from, and what it became.
#[derive(Default)]
pub struct Line {
    pub page: AtomicU32,
    pub index: AtomicU32,
    pub mirror: AtomicU64,
    pub leaf: AtomicU64,
}

/// The lines of one vCPU, which alone writes them, while it shares the lock.
pub struct Log {
    pub lines: Box<[Line]>,
    pub count: AtomicUsize,
    /// Entries that were filled and were in their lists before.
    pub known: AtomicU64,
}

/// The entries that vCPUs have filled with a share of the lock, and that the engine has not learned yet.
#[derive(Default)]
pub struct Fills {
    pub logs: Box<[Log]>,
    /// Some log is not empty.
    pub is_pending: AtomicBool,
}

impl Fills {
    /// Lines of all vCPUs together, at least [`Fills::LEAST`] each: to learn as many takes some 60,000 instructions (BOUNDED).
    const LINES: usize = 768;
    const LEAST: usize = 16;

    /// Makes logs for so many vCPUs.
    pub fn for_vcpus(vcpus: usize) -> Self {
        let log = |_| Log {
            lines: (0..(Self::LINES / vcpus).max(Self::LEAST)).map(|_| Line::default()).collect(),
            count: AtomicUsize::new(0),
            known: AtomicU64::new(0),
        };
        Self { logs: (0..vcpus).map(log).collect(), is_pending: AtomicBool::new(false) }
    }

    /// Returns whether there is something to be learned.
    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        self.is_pending.load(Relaxed)
    }

    /// Notes that there is.
    pub fn note(&self) {
        // Mostly it is noted: vCPUs do not write the same line of the cache then.
        if !self.is_pending() {
            self.is_pending.store(true, Relaxed);
        }
    }
}

impl Log {
    /// Adds a line. There is room for it.
    pub fn write(&self, (page, index): At, mirror: Pte, leaf: Pte) {
        let count = self.count.load(Relaxed);
        let line = &self.lines[count];
        line.page.store(page, Relaxed);
        line.index.store(index as u32, Relaxed);
        line.mirror.store(mirror.0, Relaxed);
        line.leaf.store(leaf.0, Relaxed);
        self.count.store(count + 1, Relaxed);
    }
}
