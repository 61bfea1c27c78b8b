//! The dirty log of a live migration: the pages that have changed since they were last *collected*.
//!
//! The table is the log. While it is on, a leaf of the VM's own has W (D, if that is the hardware's) exactly if the page may have changed since;
//! collecting it takes W away, and the next store is a fault that gives it back ([`AddressSpace::resolve`]). Every way in which Gnomon makes a
//! leaf gives it W, so a page with new contents shows without a list that would have to be kept. The rest of what is to be known:
//!
//! | entry | the page |
//! |---|---|
//! | 0, of anonymous memory | holds zeroes, whatever it held before |
//! | 0 or a leaf, of an image | is as it began; it has changed if it is in `reverted`: it was the VM's own, and was given back |
//! | idle | changed if the leaf has W |
//! | out | changed if the entry has D: the page had W when it went |
//!
//! A leaf of 2 MiB loses W as a whole; the first store splits it, if there is a frame for the table, so 4 KiB have changed and not 2 MiB. One whose D
//! is the hardware's is split when it is collected.
//! No 4 KiB leaves are promoted meanwhile. Where the hardware writes to guest memory without asking the G-stage ([`Images::Private`]), the log is of
//! no use unless the caller keeps the hardware from that.
//!
//! [`Images::Private`]: super::Images::Private

use super::edit;
use super::kept::{Kept, OUT_CHANGED};
use super::policy::{Ad, OWNED};
use super::region::{Object, Region};
use super::space::{AddressSpace, How, Resolved, around, arrival};
use crate::frames::{Frames, Run, Use};
use crate::stale::Stale;
use crate::walk::Slot;
use alloc::collections::BTreeSet;
use core::ops::Range;
use rv::{Addr, Entry, Hpa, Leaf, Level, Pfn, PhysMem, Pte, PteFlags, Space};

/// The change of pages since they were last collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The pages are as they were.
    None,
    /// The pages hold zeroes, and held them before or not.
    Zero,
    /// The pages may have changed.
    Some,
}

/// The finding at a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirt<In: Space> {
    /// The change of all pages from `first` to `next`.
    pub change: Change,
    /// The page that was asked about; or the first one of the leaf around it, if that [is marked](Dirt::is_marked).
    pub first: Pfn<In>,
    /// The first page behind them.
    pub next: Pfn<In>,
    /// Set if [`AddressSpace::withhold_dirty`] has something to take away.
    pub is_marked: bool,
}

impl<In: Space> AddressSpace<In> {
    /// Begins the log. The first time, all pages are to be collected ([`AddressSpace::dirt`] with `is_first`).
    pub const fn begin_log(&mut self) {
        self.is_logged = true;
        // A promotion under way ends: it would give W to what has been collected.
        self.moving = None;
    }

    /// Ends the log. Leaves get W back at the next store.
    pub fn end_log(&mut self) {
        self.is_logged = false;
        self.reverted = BTreeSet::new();
    }

    /// Notes that pages are about to become untouched: what is an image's again has changed.
    pub(super) fn log_revert(&mut self, range: &Range<u64>) {
        if !self.is_logged {
            return;
        }
        let images = self.regions.iter().filter(|region| region.object != Object::Anonymous);
        for region in images {
            self.reverted.extend(region.start.raw().max(range.start)..region.end().min(range.end));
        }
    }

    /// Returns whether the log is on.
    #[must_use]
    pub const fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// The mark of a changed page, in a leaf.
    pub(super) const fn mark(&self) -> PteFlags {
        match self.policy.ad {
            Ad::Hardware => PteFlags::D,
            Ad::AsNeeded | Ad::Faults => PteFlags::W.union(PteFlags::D),
        }
    }

    /// Returns the change at `page` and behind it, as far as one entry tells, or a row of 4 KiB leaves that have no mark. `is_first`: since the beginning of all, so that everything but zeroes
    /// has changed.
    #[must_use]
    pub fn dirt(&self, page: Pfn<In>, is_first: bool, mem: &impl PhysMem) -> Dirt<In> {
        let same = |next| Dirt { change: Change::None, first: page, next, is_marked: false };
        let Some(region) = self.region_of(page) else { return same(page.add(1)) };
        let Some(slot) = self.slot(page.base(), mem) else { return same(page.add(1)) };
        let start = page.align_down(slot.level.pages());
        let behind = start.add(slot.level.pages());
        let reverted = self.reverted.range(page.raw()..next_of(behind, region)).next().copied();
        let is_dirty = |flags: PteFlags| flags.contains(self.mark());
        let (is_marked, is_zero) = match (slot.entry, Kept::of(slot.pte, slot.level)) {
            (Entry::Leaf(leaf), _) => (leaf.flags.contains(OWNED) && is_dirty(leaf.flags), false),
            (_, Kept::Idle(leaf)) => (is_dirty(leaf.flags), false),
            (_, Kept::Out(_)) => (slot.pte.flags().contains(OUT_CHANGED), false),
            (_, Kept::Nothing) => (false, region.object == Object::Anonymous),
        };
        if let Some(reverted) = reverted.filter(|_| !is_marked) {
            let is_here = reverted == page.raw();
            let change = if is_here || is_first { Change::Some } else { Change::None };
            let next = if is_here { page.add(1) } else { Pfn::new(reverted) };
            return Dirt { change, first: page, next, is_marked: is_here };
        }
        let change = match (is_zero, is_marked || is_first) {
            (true, _) => Change::Zero,
            (false, true) => Change::Some,
            (false, false) => Change::None,
        };
        // A leaf of the VM's own may map the end of an image, and what is behind it.
        let next = match slot.entry {
            _ if is_marked => behind,
            Entry::Leaf(_) if change == Change::None && slot.level == Level::PAGE => {
                self.unmarked_from(page, slot.at, region, mem)
            }
            _ => Pfn::new(next_of(behind, region)),
        };
        Dirt { change, first: if is_marked { start } else { page }, next, is_marked }
    }

    /// Returns the first page behind `page`, whose 4 KiB leaf is at `at`, that is not told by a leaf without a mark in the same table.
    fn unmarked_from(&self, page: Pfn<In>, at: Addr<Hpa>, region: &Region<In>, mem: &impl PhysMem) -> Pfn<In> {
        let table = page.align_down(Level::MEGA.pages()).add(Level::MEGA.pages());
        let end = next_of(table, region);
        let end = self.reverted.range(page.raw()..end).next().copied().unwrap_or(end);
        let marked = OWNED.union(self.mark());
        let is_unmarked = |next: &u64| {
            let flags = Pte(mem.read_u64(at.wrapping_add(8 * (next - page.raw())))).flags();
            flags.contains(PteFlags::V) && !flags.contains(marked)
        };
        let behind = page.raw() + 1;
        Pfn::new((behind..end).find(|next| !is_unmarked(next)).unwrap_or(end.max(behind)))
    }

    /// Takes the mark of a change from the entry at `page`, so that the next store shows. The change is in force once the result is fenced, and
    /// only then may the contents be read. A leaf of 1 GiB is broken into those of 2 MiB first; if there is no frame for that, it keeps the mark.
    pub fn withhold_dirty(&mut self, page: Pfn<In>, frames: &Frames, mem: &mut impl PhysMem) -> Stale<In> {
        let mut stale = Stale::none();
        let Some(mut slot) = self.slot(page.base(), mem) else { return stale };
        if slot.level > Level::MEGA && matches!(slot.entry, Entry::Leaf(_)) {
            let Ok(table) = frames.alloc(self.owner, Use::Table, 0) else { return stale };
            stale = self.break_giga_into(page, table, mem);
            let Some(below) = self.slot(page.base(), mem) else { return stale };
            slot = below;
        }
        let start = page.align_down(slot.level.pages()).raw();
        match (slot.entry, Kept::of(slot.pte, slot.level)) {
            // Hardware may set D until the exchange: such a store is seen with what is collected now.
            (Entry::Leaf(leaf), _) if leaf.flags.contains(OWNED) => {
                let kept = Leaf { flags: leaf.flags.difference(self.mark()), ..leaf };
                // No fault will tell which part of it has changed the next time.
                let table = match (self.policy.ad, slot.level) {
                    (Ad::Hardware, Level::MEGA) => frames.alloc(self.owner, Use::Table, 0).ok(),
                    _ => None,
                };
                match table {
                    Some(table) => stale = stale.join(self.split_mega(page.base(), (&slot, &kept), table, mem)),
                    None => {
                        let (_, debt) = edit::exchange(slot.at, Entry::Leaf(kept).encode(), mem);
                        stale.owe(debt, around(page.base(), slot.level));
                    }
                }
            }
            // No hart knows these.
            (_, Kept::Idle(_)) => edit::fill(slot.at, Pte(slot.pte.0 & !self.mark().bits()), mem),
            (_, Kept::Out(_)) => edit::fill(slot.at, Pte(slot.pte.0 & !OUT_CHANGED.bits()), mem),
            _ => {
                self.reverted.remove(&page.raw());
                return stale;
            }
        }
        // All of it is collected, whatever was there before.
        let pages = start..start + slot.level.pages();
        while let Some(reverted) = self.reverted.range(pages.clone()).next().copied() {
            self.reverted.remove(&reverted);
        }
        // The hardware's D has told so far that the swap device's copy is out of date.
        self.forgo_copies(&pages);
        stale
    }

    /// The guest stores to a part of a leaf that was collected: the leaf is split, and that part alone gets W back. If there is no frame for a
    /// table, all of it does.
    #[cold]
    pub(super) fn dirty_part(
        &mut self,
        gpa: Addr<In>,
        (slot, leaf): (&Slot<Hpa>, &Leaf<Hpa>),
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Resolved<In> {
        let mut stale = Stale::none();
        let (mut slot, mut leaf) = (*slot, *leaf);
        while slot.level > Level::PAGE
            && let Ok(table) = frames.alloc(self.owner, Use::Table, 0)
        {
            stale = stale.join(match slot.level {
                Level::MEGA => self.split_mega(gpa, (&slot, &self.part_of(&leaf)), table, mem),
                _ => self.break_giga_into(gpa.pfn(), table, mem),
            });
            let Some(below) = self.slot(gpa, mem) else { unreachable!("it was found before") };
            let Entry::Leaf(part) = below.entry else { unreachable!("a part of a leaf is one") };
            (slot, leaf) = (below, part);
        }
        self.dirty_whole(gpa, (&slot, &leaf), mem);
        Resolved::Mapped { hpa: arrival(&leaf, slot.level, gpa), how: How::Spurious, stale, publish: None }
    }

    /// The leaf whose parts are to be written in its place. The hardware may set D in it until it is exchanged: so its parts have D.
    pub(super) const fn part_of(&self, leaf: &Leaf<Hpa>) -> Leaf<Hpa> {
        let mut part = *leaf;
        if matches!(self.policy.ad, Ad::Hardware) && leaf.flags.contains(PteFlags::W) {
            part.flags = part.flags.union(PteFlags::D);
        }
        part
    }

    /// Replaces a leaf of 2 MiB by a table of equal 4 KiB leaves.
    pub(super) fn split_mega(
        &mut self,
        gpa: Addr<In>,
        (slot, leaf): (&Slot<Hpa>, &Leaf<Hpa>),
        table: Run,
        mem: &mut impl PhysMem,
    ) -> Stale<In> {
        Self::write_split(&table, leaf, mem, |_| None);
        let mut stale = Stale::none();
        let (_, debt) = edit::exchange(slot.at, Entry::Table(table.into_entry()).encode(), mem);
        stale.owe(debt, around(gpa, Level::MEGA));
        self.counters.splits += 1;
        self.counters.tables += 1;
        stale
    }
}

/// The end of what an entry tells of a region's pages.
fn next_of<In: Space>(behind: Pfn<In>, region: &Region<In>) -> u64 {
    behind.raw().min(region.end())
}
