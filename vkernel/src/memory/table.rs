//! Sv39 tables of programs' spaces. An entry of a program's page has a reference to the frame.
#![expect(unsafe_code, reason = "tables are memory by its address")]

use super::frames::{Frame, PAGE};
use crate::machine::{direct, kernel_root};
use bitflags::bitflags;
use core::sync::atomic::{AtomicU64, Ordering};
use rv::PteFlags;

/// The end of programs' addresses: the lower half of Sv39.
pub const USER_END: u64 = 1 << 38;
const PAGE_U64: u64 = PAGE as u64;

bitflags! {
    /// Rights of a program to a page.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Rights: u64 {
        /// Loads.
        const R = PteFlags::R.bits();
        /// Stores.
        const W = PteFlags::W.bits();
        /// Fetches.
        const X = PteFlags::X.bits();
    }
}

/// Set in every leaf, A and D so that the hart never has to set them.
const LEAF: u64 = VALID | PteFlags::U.union(PteFlags::A).union(PteFlags::D).bits();
const VALID: u64 = PteFlags::V.bits();
const RIGHTS: u64 = Rights::all().bits();
const PPN: u64 = (1 << 44) - 1;

/// A leaf: a page of a program's and the rights to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The frame's physical address.
    pub pa: u64,
    /// The rights. A leaf without rights is not there for the hart, and has its frame nevertheless.
    pub rights: Rights,
}

/// Marks an entry that has a frame and no rights: V is 0.
const HELD: u64 = PteFlags::RSW0.bits();

impl Leaf {
    fn encode(self) -> u64 {
        let place = (self.pa / PAGE_U64) << 10;
        if self.rights.is_empty() { place | HELD } else { place | LEAF | self.rights.bits() }
    }

    fn decode(entry: u64) -> Option<Self> {
        let rights = Rights::from_bits_truncate(entry & RIGHTS);
        let is_there = entry & VALID != 0 || entry & HELD != 0;
        is_there.then_some(Self { pa: (entry >> 10 & PPN) * PAGE_U64, rights })
    }
}

/// The tables of a space.
#[derive(Debug)]
pub struct Table {
    root: Frame,
}

fn entries(pa: u64) -> &'static [AtomicU64; 512] {
    // SAFETY: tables are made of whole frames, which stay while their `Table` does; every pattern is a valid word.
    unsafe { &*direct(pa).cast() }
}

/// Entries that are looked at together, because most tables are nearly empty.
const AT_ONCE: usize = 16;

fn index(va: u64, level: u32) -> usize {
    (va >> (12 + 9 * level)) as usize % 512
}

impl Table {
    /// Makes an empty one, which maps the kernel; `None` if there is no memory.
    #[must_use]
    pub fn new() -> Option<Self> {
        let root = Frame::zeroed()?;
        if kernel_root() != 0 {
            let (own, kernel) = (direct(root.pa()), direct(kernel_root()));
            // SAFETY: two tables; the new one has no other user, and the kernel's upper half does not change.
            unsafe { own.add(PAGE / 2).copy_from_nonoverlapping(kernel.add(PAGE / 2), PAGE / 2) };
        }
        Some(Self { root })
    }

    /// Returns the physical address of the root.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.root.pa()
    }

    /// Finds the table that has the entry of a page. Makes tables on the way if `grow`, as far as there is memory.
    fn leaves(&self, va: u64, grow: bool) -> Option<&'static [AtomicU64; 512]> {
        debug_assert!(va < USER_END);
        let mut table = entries(self.root.pa());
        for level in [2, 1] {
            let entry = &table[index(va, level)];
            let mut value = entry.load(Ordering::Relaxed);
            if value & VALID == 0 {
                if !grow {
                    return None;
                }
                value = (Frame::zeroed()?.into_pa() / PAGE_U64) << 10 | VALID;
                entry.store(value, Ordering::Release);
            }
            table = entries((value >> 10 & PPN) * PAGE_U64);
        }
        Some(table)
    }

    /// Finds the entry of a page, in the same way.
    fn entry(&self, va: u64, grow: bool) -> Option<&'static AtomicU64> {
        Some(&self.leaves(va, grow)?[index(va, 0)])
    }

    /// Returns the leaf of a page.
    #[must_use]
    pub fn leaf(&self, va: u64) -> Option<Leaf> {
        Leaf::decode(self.entry(va, false)?.load(Ordering::Relaxed))
    }

    /// Maps a page. Returns the frame that was mapped there before.
    ///
    /// # Errors
    /// The frame itself, if there is no memory for a table.
    pub fn map(&mut self, va: u64, frame: Frame, rights: Rights) -> Result<Option<Frame>, Frame> {
        let Some(entry) = self.entry(va, true) else { return Err(frame) };
        let old = Leaf::decode(entry.load(Ordering::Relaxed));
        entry.store(Leaf { pa: frame.into_pa(), rights }.encode(), Ordering::Release);
        // SAFETY: the entry had the reference until now.
        Ok(old.map(|leaf| unsafe { Frame::from_pa(leaf.pa) }))
    }

    /// Changes the rights to a page that is mapped.
    pub fn protect(&mut self, va: u64, rights: Rights) {
        if let Some(entry) = self.entry(va, false)
            && let Some(leaf) = Leaf::decode(entry.load(Ordering::Relaxed))
        {
            entry.store(Leaf { rights, ..leaf }.encode(), Ordering::Release);
        }
    }

    /// Unmaps a page. Returns its frame.
    pub fn unmap(&mut self, va: u64) -> Option<Frame> {
        let entry = self.entry(va, false)?;
        let leaf = Leaf::decode(entry.load(Ordering::Relaxed))?;
        entry.store(0, Ordering::Release);
        // SAFETY: the entry had the reference until now.
        Some(unsafe { Frame::from_pa(leaf.pa) })
    }

    /// Returns another reference to a page's frame, with the rights to it.
    #[must_use]
    pub fn frame(&self, va: u64) -> Option<(Frame, Rights)> {
        let leaf = self.leaf(va)?;
        // SAFETY: the entry keeps its reference while the table is borrowed.
        Some((unsafe { Frame::another(leaf.pa) }, leaf.rights))
    }

    /// Calls `then` with the entries of each range of pages, as far as there is a table for it: those of all pages of the range in one table of
    /// leaves, in order.
    fn each_table(&self, start: u64, end: u64, mut then: impl FnMut(u64, &'static [AtomicU64])) {
        let mut va = start;
        while va < end {
            let mut table = entries(self.root.pa());
            let mut level = 2;
            let skipped = loop {
                if level == 0 {
                    break None;
                }
                let value = table[index(va, level)].load(Ordering::Relaxed);
                if value & VALID == 0 {
                    break Some(PAGE_U64 << (9 * level));
                }
                table = entries((value >> 10 & PPN) * PAGE_U64);
                level -= 1;
            };
            if let Some(bytes) = skipped {
                va = (va & !(bytes - 1)) + bytes;
                continue;
            }
            let last = end.min((va & !(PAGE_U64 * 512 - 1)) + PAGE_U64 * 512);
            let first = index(va, 0);
            then(va, &table[first..first + ((last - va) / PAGE_U64) as usize]);
            va = last;
        }
    }

    /// Calls `then` for each page that is mapped in a range, in order.
    pub fn each(&self, start: u64, end: u64, mut then: impl FnMut(u64, Leaf)) {
        self.each_table(start, end, |va, entries| {
            for (va, entry) in (va..).step_by(PAGE).zip(entries) {
                if let Some(leaf) = Leaf::decode(entry.load(Ordering::Relaxed)) {
                    then(va, leaf);
                }
            }
        });
    }

    /// Maps the pages of a range in another space, which has none of them, without the right `but` in either. Returns the first and the last page
    /// whose right was taken.
    ///
    /// # Errors
    /// There is no memory for a table. What was mapped stays.
    pub fn share(
        &mut self,
        (start, end): (u64, u64),
        but: Rights,
        with: &mut Self,
    ) -> Result<Option<(u64, u64)>, NoTable> {
        let (mut lost, mut result) = (None, Ok(()));
        self.each_table(start, end, |first, all| {
            let mut others = None;
            for (at, own) in all.iter().enumerate().step_by(AT_ONCE).flat_map(|(at, _)| {
                let part = &all[at..all.len().min(at + AT_ONCE)];
                (at..).zip(if holds_any(part) { part } else { &[] })
            }) {
                let value = own.load(Ordering::Relaxed);
                let (Some(leaf), Ok(())) = (Leaf::decode(value), &result) else { continue };
                if others.is_none() {
                    others = with.leaves(first, true).map(|leaves| &leaves[index(first, 0)..]);
                }
                let Some(other) = others.map(|others| &others[at]) else { return result = Err(NoTable) };
                let va = first + at as u64 * PAGE_U64;
                // SAFETY: the entry keeps its reference while the table is borrowed; the copy has the other one.
                let _ = unsafe { Frame::another(leaf.pa) }.into_pa();
                if leaf.rights.intersects(but) {
                    let entry = Leaf { rights: leaf.rights - but, ..leaf }.encode();
                    own.store(entry, Ordering::Release);
                    other.store(entry, Ordering::Release);
                    lost = Some((lost.map_or(va, |(first, _)| first), va));
                } else {
                    other.store(value, Ordering::Release);
                }
            }
        });
        result.map(|()| lost)
    }
}

/// There is no memory for a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTable;

/// Returns whether any of the entries is not 0.
fn holds_any(entries: &[AtomicU64]) -> bool {
    entries.iter().fold(0, |any, entry| any | entry.load(Ordering::Relaxed)) != 0
}

impl Drop for Table {
    fn drop(&mut self) {
        /// Drops all that a table of the level has references to.
        fn clear(pa: u64, level: u32, entries_used: usize) {
            let parts = entries(pa)[..entries_used].chunks_exact(AT_ONCE);
            for entry in parts.filter(|part| holds_any(part)).flatten() {
                let value = entry.load(Ordering::Relaxed);
                let below = (value >> 10 & PPN) * PAGE_U64;
                if level == 0 {
                    if let Some(leaf) = Leaf::decode(value) {
                        // SAFETY: the entry had the reference, and is not read again.
                        drop(unsafe { Frame::from_pa(leaf.pa) });
                    }
                } else if value & VALID != 0 {
                    clear(below, level - 1, 512);
                    // SAFETY: as above.
                    drop(unsafe { Frame::from_pa(below) });
                }
            }
        }
        clear(self.root.pa(), 2, 256);
    }
}
