//! Removal: pages become untouched again, or the address space ends.

use super::edit;
use super::giga;
use super::kept::{self, Kept};
use super::policy::OWNED;
use super::remains::Remains;
use super::space::{AddressSpace, SwapSlot};
use crate::frames::{AllocError, Frames, Run, Use};
use crate::stale::Stale;
use alloc::vec::Vec;
use core::ops::Range;
use rv::{Access, Caps, Entry, Fence, FenceScope, Hpa, Level, Pfn, PhysMem, Pte, Space};

/// The supplies and the results of a removal.
struct Removed<In: Space> {
    /// For leaves that are cut.
    tables: Vec<Run>,
    stale: Stale<In>,
    /// Pages of the swap device that are needed no more.
    slots: Vec<SwapSlot>,
}

/// A table, and the guest pages below it.
#[derive(Clone, Copy)]
struct Table {
    pfn: Pfn<Hpa>,
    level: Level,
    /// The first guest page that its entry 0 leads to.
    start: u64,
}

impl<In: Space> AddressSpace<In> {
    /// Makes the pages untouched again: what the guest wrote to them is gone, anonymous memory
    /// is zero and images are themselves at the next touch. Holes in the range do not matter.
    ///
    /// Frames of the VM are retired into the [`Stale`]. Tables that only led into the range are too,
    /// up to those of 4 KiB leaves; the ones above stay until [`AddressSpace::destroy`].
    ///
    /// # Errors
    /// If a 2 MiB leaf must be split and there is no frame for the table. Nothing has changed then, except that the leaf, if
    /// it was idle, is mapped again.
    pub fn unmap(
        &mut self,
        start: Pfn<In>,
        pages: u64,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Stale<In>, AllocError> {
        let limit = 1 << (self.format.input_bits() - rv::PAGE_SHIFT);
        let range = start.raw().min(limit)..start.raw().saturating_add(pages).min(limit);
        if range.is_empty() {
            return Ok(Stale::none());
        }
        let (mut tables, mut gigas) = (Vec::new(), Vec::new());
        if !self.is_of_one_table(&range, mem) {
            // What is cut is mapped again first, so that there is one way to cut it.
            for page in [range.start, range.end].into_iter().filter(|page| !page.is_multiple_of(Level::MEGA.pages())) {
                self.revive_mega(Pfn::new(page), mem);
            }
            gigas = self.cuts(&range, Level::GIGA, mem);
            for _ in 0..gigas.len() + self.cuts(&range, Level::MEGA, mem).len() {
                match frames.alloc(self.owner, Use::Table, 0) {
                    Ok(run) => tables.push(run),
                    Err(error) => {
                        tables.into_iter().for_each(|run| frames.free(run));
                        return Err(error);
                    }
                }
            }
        }
        // From here on nothing fails.
        self.disturb(&range);
        self.forget_apart(&range);
        self.log_revert(&range);
        let mut stale = Stale::none();
        for page in gigas {
            let table = tables.pop().expect("one table for each leaf that is cut");
            stale = stale.join(self.break_giga_into(page, table, mem));
        }
        self.counters.splits += tables.len() as u64;
        self.counters.tables += tables.len() as u64;
        let mut removed = Removed { tables, stale, slots: Vec::new() };
        let top = Table { pfn: self.root(), level: self.format.root_level(), start: 0 };
        self.clear(top, &range, &mut removed, mem);
        assert!(removed.tables.is_empty(), "as many splits as were counted");
        self.forgone.append(&mut removed.slots);
        self.forgo_copies(&range);
        Ok(removed.stale)
    }

    /// Ends the address space: all TLBs are fenced, and what remains of it, the root included, is to be given back.
    ///
    /// No hart may have the root in `hgatp` any more; TLBs may still hold translations.
    pub fn destroy(self, hw: &mut impl Fence<In>) -> Remains {
        hw.fence(FenceScope::Everything);
        Remains::below(self.root, self.format, self.copies)
    }

    /// Returns whether the range lies in what one table of 4 KiB leaves translates: no leaf is cut there. A page that goes alone is such a
    /// range, and this look-up is the only one for it [1,000 of 4,500 instructions for a page that a guest's guest uses].
    fn is_of_one_table(&self, range: &Range<u64>, mem: &impl PhysMem) -> bool {
        let pages = Level::MEGA.pages();
        range.start / pages == (range.end - 1) / pages
            && self.slot(Pfn::new(range.start).base(), mem).is_some_and(|slot| slot.level == Level::PAGE)
    }

    /// The leaves of `level` that are partly in the range, or parts of larger ones that will be such: at its ends, two at most. A page of
    /// each.
    fn cuts(&self, range: &Range<u64>, level: Level, mem: &impl PhysMem) -> Vec<Pfn<In>> {
        let is_cut = |page: &u64| {
            let slot = self.slot(Pfn::new(*page).base(), mem);
            !page.is_multiple_of(level.pages())
                && slot.is_some_and(|s| s.level >= level && matches!(s.entry, Entry::Leaf(_)))
        };
        let mut cuts: Vec<u64> = [range.start, range.end].into_iter().filter(is_cut).collect();
        cuts.dedup_by_key(|page| *page / level.pages());
        cuts.into_iter().map(Pfn::new).collect()
    }

    /// Removes the leaves below `table` that lie in `range`.
    fn clear(&self, table: Table, range: &Range<u64>, removed: &mut Removed<In>, mem: &mut impl PhysMem) {
        let Table { pfn, level, start } = table;
        let first = range.start.max(start) - start;
        let end = (range.end - start).min(self.format.entries(level) as u64 * level.pages());
        for index in first / level.pages()..end.div_ceil(level.pages()) {
            let at = pfn.at(8 * index);
            let pte = Pte(mem.read_u64(at));
            let entry = pte.decode::<Hpa>(level, Caps::default());
            let from = start + index * level.pages();
            let part = from.max(range.start)..(from + level.pages()).min(range.end);
            let is_whole = part.end - part.start == level.pages();
            let scope = FenceScope::Range {
                start: Pfn::new(part.start).base(),
                bytes: (part.end - part.start) * rv::PAGE_BYTES,
            };
            let stale = &mut removed.stale;
            match entry {
                Entry::Invalid => {
                    if removed.forget(pte, level, scope) {
                        edit::fill(at, Pte::INVALID, mem);
                    }
                }
                Entry::Leaf(leaf) => {
                    let whole_or_split = if is_whole {
                        Pte::INVALID
                    } else {
                        let split = removed.tables.pop().expect("one table for each leaf that is cut");
                        let is_cleared = |i| part.contains(&(from + i)).then_some(Pte::INVALID);
                        Self::write_split(&split, &leaf, mem, is_cleared);
                        Entry::Table(split.into_entry()).encode()
                    };
                    let (_, debt) = edit::exchange(at, whole_or_split, mem);
                    stale.owe(debt, scope);
                    match leaf.flags.contains(OWNED) {
                        true if is_whole => giga::runs(&leaf, level).for_each(|run| stale.retire(run)),
                        true => part.for_each(|page| stale.retire(Run::from_entry(leaf.pfn.add(page - from), 0))),
                        false => {}
                    }
                }
                Entry::Table(next) if is_whole && level == Level::MEGA => {
                    let (_, debt) = edit::exchange(at, Pte::INVALID, mem);
                    stale.owe(debt, scope);
                    removed.forget_leaves((next, from), mem);
                    removed.stale.retire(Run::from_entry(next, 0));
                }
                Entry::Table(next) => {
                    let below = level.down().expect("a pointer is above level 0");
                    self.clear(Table { pfn: next, level: below, start: from }, range, removed, mem);
                }
                Entry::Reserved(why) => panic!("{at}: {why:?} in a G-stage table"),
            }
        }
    }

    /// Maps idle 2 MiB again, if `page` lies in them.
    fn revive_mega(&mut self, page: Pfn<In>, mem: &mut impl PhysMem) {
        if let Some(slot) = self.slot(page.base(), mem)
            && slot.level == Level::MEGA
            && let Kept::Idle(leaf) = Kept::of(slot.pte, slot.level)
        {
            let _ = self.revive((page.base(), Access::Load), (&slot, &leaf), mem);
        }
    }
}

impl<In: Space> Removed<In> {
    /// Forgets the page that an invalid entry of `level` keeps, which translates `scope`. Returns whether it kept one.
    fn forget(&mut self, pte: Pte, level: Level, scope: FenceScope<In>) -> bool {
        match Kept::of(pte, level) {
            Kept::Nothing => return false,
            Kept::Idle(leaf) => {
                // No TLB knows it; but then it need not be told apart from what they do know.
                self.stale.widen(scope);
                self.stale.retire(kept::run_of(&leaf, level));
            }
            Kept::Out(slot) => self.slots.push(slot),
        }
        true
    }

    /// Retires all that a table of 4 KiB leaves from guest page `start` on, no longer in use, leads to, but not the table itself.
    fn forget_leaves(&mut self, (table, start): (Pfn<Hpa>, u64), mem: &impl PhysMem) {
        for index in 0..Level::MEGA.pages() {
            let at = table.at(8 * index);
            let pte = Pte(mem.read_u64(at));
            match pte.decode::<Hpa>(Level::PAGE, Caps::default()) {
                Entry::Leaf(leaf) if leaf.flags.contains(OWNED) => self.stale.retire(Run::from_entry(leaf.pfn, 0)),
                Entry::Leaf(_) => {}
                Entry::Invalid => {
                    let page = FenceScope::Range { start: Pfn::new(start + index).base(), bytes: rv::PAGE_BYTES };
                    _ = self.forget(pte, Level::PAGE, page);
                }
                Entry::Table(_) | Entry::Reserved(_) => panic!("{at} of a table of leaves is none"),
            }
        }
    }
}
