//! A page moves to another frame: only Gnomon sees it.

use super::edit;
use super::policy::{OWNED, Superpages};
use super::space::{AddressSpace, around};
use crate::frames::{Ahead, Frames, Run, Use};
use crate::stale::Stale;
use core::ops::Range;
use rv::{Addr, Entry, Hpa, Level, Pfn, PhysMem, Pte, PteFlags, Space};

/// A page that has left its frame, and is in no other yet.
#[must_use = "the page stays unmapped until it arrives"]
pub(crate) struct Leaving {
    /// Its entry.
    at: Addr<Hpa>,
    leaf: Pte,
}

/// The 2 MiB in which a page was found last, and their table: the next page is often there, too.
pub(crate) struct Near<In: Space>(Option<(Pfn<In>, Pfn<Hpa>)>);

impl<In: Space> Near<In> {
    /// None yet.
    pub const NONE: Self = Self(None);
}

impl Leaving {
    /// The frame that it leaves.
    pub const fn from(&self) -> Pfn<Hpa> {
        self.leaf.pfn()
    }
}

impl<In: Space> AddressSpace<In> {
    /// Returns whether the VM's memory comes by 2 MiB at all.
    pub(crate) fn may_have_mega(&self) -> bool {
        self.policy.superpages != Superpages::Never
    }

    /// Returns whether a page may be moved: it is the VM's own, and its leaf has R, W and D, so no copy of it is on the
    /// swap device, or on its way there. Pages of 1 GiB leaves may not.
    pub(crate) fn may_move(&self, page: Pfn<In>, mem: &impl PhysMem) -> bool {
        let flags = OWNED | PteFlags::R | PteFlags::W | PteFlags::D;
        let there = self.translate(page.base(), mem);
        there.is_some_and(|there| there.level <= Level::MEGA && there.flags.contains(flags))
            && !self.copies.contains_key(&page.raw())
    }

    /// Takes a page from its frame, if it may be moved; `None` if not, or if there is no frame for a table: nothing has
    /// changed for the guest then. 2 MiB are split for it. Once `stale` is fenced the guest cannot reach the frame any
    /// more, and it is to be copied; then the page arrives ([`AddressSpace::arrive`]), before anything else is
    /// resolved.
    pub(crate) fn leave(
        &mut self,
        page: Pfn<In>,
        (near, stale): (&mut Near<In>, &mut Stale<In>),
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Option<Leaving> {
        const MAY: PteFlags = PteFlags::V.union(OWNED).union(PteFlags::R).union(PteFlags::W).union(PteFlags::D);
        let chunk = page.align_down(Level::MEGA.pages());
        let table = match near.0 {
            Some((known, table)) if known == chunk => table,
            _ => self.table_to_move_in(chunk, stale, frames, mem)?,
        };
        near.0 = Some((chunk, table));
        let at = table.at(8 * (page.raw() - chunk.raw()));
        if !Pte(mem.read_u64(at)).flags().contains(MAY) || self.copies.contains_key(&page.raw()) {
            return None;
        }
        let (leaf, debt) = edit::exchange(at, Pte::INVALID, mem);
        stale.owe(debt, around(page.base(), Level::PAGE));
        stale.retire(Run::from_entry(leaf.pfn(), 0));
        Some(Leaving { at, leaf })
    }

    /// The table of 4 KiB leaves of those 2 MiB, which are split for it if they are one.
    fn table_to_move_in(
        &mut self,
        chunk: Pfn<In>,
        stale: &mut Stale<In>,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Option<Pfn<Hpa>> {
        let slot = self.slot(chunk.base(), mem)?;
        let table = match (slot.level, slot.entry) {
            (Level::PAGE, _) => slot.at.pfn(),
            (Level::MEGA, Entry::Leaf(leaf)) if leaf.flags.contains(OWNED) => {
                let split = frames.alloc(self.owner, Use::Table, 0).ok()?;
                let table = split.first();
                let split = self.split_mega(chunk.base(), (&slot, &self.part_of(&leaf)), split, mem);
                *stale = core::mem::replace(stale, Stale::none()).join(split);
                table
            }
            _ => return None,
        };
        self.disturb(&(chunk.raw()..chunk.raw() + Level::MEGA.pages()));
        self.apart.insert(chunk.raw());
        Some(table)
    }

    /// Of 2 MiB that become untouched as a whole nothing is where addresses wanted it.
    pub(super) fn forget_apart(&mut self, range: &Range<u64>) {
        let first = range.start.next_multiple_of(Level::MEGA.pages());
        let end = range.end - range.end % Level::MEGA.pages();
        while let Some(chunk) = self.apart.range(first..end.max(first)).next().copied() {
            self.apart.remove(&chunk);
        }
    }

    /// Maps a page that has left, where it has been copied to.
    pub(crate) fn arrive(&mut self, page: Leaving, to: Ahead, frames: &Frames, mem: &mut impl PhysMem) {
        // It has both until the old frame is free.
        let frame = frames.claim_beyond(to, self.owner, Use::Guest).into_entry();
        let Leaving { at, leaf } = page;
        edit::fill(at, leaf.leading_to(frame), mem);
    }
}
