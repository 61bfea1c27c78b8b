//! The tables that are to become quiet (`quiet`): those that fences have found unchanged often enough.

use alloc::vec::Vec;
use rv::{Gpa, Level, Pfn};

/// The most tables that wait to become quiet, so that they share a flush.
pub const MOST: usize = 32;
/// The most leaves of 2 MiB that are in pieces for quiet tables.
const MOST_SPLIT: usize = 16;
/// The number of tables that do not wait for others.
const ENOUGH: usize = 8;
/// The number of wide fences after which a table no longer waits for others.
const LONG: u64 = 32;

/// The tables that wait.
pub struct Candidates {
    frames: Vec<Pfn<Gpa>>,
    /// The number of wide fences before the first of them came.
    since: u64,
    /// 2 MiB for which there was one leaf, which is in pieces now.
    split: Vec<Pfn<Gpa>>,
}

impl Candidates {
    /// None. `None` if there is no room on the heap.
    pub fn new() -> Option<Self> {
        let (mut frames, mut split) = (Vec::new(), Vec::new());
        frames.try_reserve_exact(MOST).ok()?;
        split.try_reserve_exact(MOST_SPLIT).ok()?;
        Some(Self { frames, since: 0, split })
    }

    /// Notes that the leaf for the 2 MiB around `gfn` is about to go to pieces. Returns whether it may.
    pub fn may_split(&mut self, gfn: Pfn<Gpa>, splits: &mut u64) -> bool {
        let chunk = gfn.align_down(Level::MEGA.pages());
        let is_known = self.split.contains(&chunk);
        if !is_known && self.split.len() < MOST_SPLIT {
            self.split.push(chunk);
            *splits += 1;
            return true;
        }
        is_known
    }

    /// 2 MiB that are in pieces, which are to be put together.
    pub fn next_split(&self) -> Option<Pfn<Gpa>> {
        self.split.last().copied()
    }

    /// Notes that the 2 MiB of [`Candidates::next_split`] are whole again.
    pub fn is_whole(&mut self) {
        self.split.pop();
    }

    /// Adds a table, after that many wide fences, if there is room.
    pub fn add(&mut self, gfn: Pfn<Gpa>, fences: u64) {
        if self.frames.is_empty() {
            self.since = fences;
        }
        if self.frames.len() < MOST && !self.frames.contains(&gfn) {
            self.frames.push(gfn);
        }
    }

    /// Returns whether they have waited enough.
    pub fn are_due(&self, fences: u64) -> bool {
        self.frames.len() >= ENOUGH || !self.frames.is_empty() && fences - self.since >= LONG
    }

    /// Takes all of them.
    pub fn take(&mut self) -> Vec<Pfn<Gpa>> {
        core::mem::take(&mut self.frames)
    }

    /// Puts back those that are left of them.
    pub fn put_back(&mut self, frames: Vec<Pfn<Gpa>>) {
        self.frames = frames;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_wait_for_others_but_not_for_long() {
        let mut waiting = Candidates::new().unwrap();
        assert!(!waiting.are_due(1000));
        waiting.add(Pfn::new(7), 1000);
        waiting.add(Pfn::new(8), 1020);
        assert!(!waiting.are_due(1031) && waiting.are_due(1032));
        (0..100).for_each(|n| waiting.add(Pfn::new(n), 1020));
        assert!(waiting.are_due(1020));
        let mut all = waiting.take();
        assert_eq!(all.len(), MOST);
        all.clear();
        waiting.put_back(all);
        assert!(!waiting.are_due(2000));
    }
}
