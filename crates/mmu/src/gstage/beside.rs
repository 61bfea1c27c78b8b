//! First touches of several harts at once, each with a *share* of the lock that guards the [`AddressSpace`]: a readers-writer lock.
//!
//! A share is enough for a fault that is a first touch of anonymous memory, or that another hart has resolved already. Such a fault
//! writes at most one linked entry, from 0 to a leaf or to a table that holds the leaf, by compare-and-exchange. So any
//! number of harts may fill one table at once.
//! All other faults and all removals need the lock exclusively: while the lock is shared, no table page is freed and no leaf changes.
//!
//! Frames are allocated and cleared before the exchange. If the exchange fails, they are freed and the walk starts anew.

use super::edit;
use super::mega::{NoMega, mega_in, take_mega};
use super::policy::Superpages;
use super::ready::{Ready, Supplies, Unresolved};
use super::region::{Object, Region};
use super::space::{AddressSpace, How, ResolveError};
use crate::frames::{Frames, Run};
use crate::table;
use core::sync::atomic::Ordering::Relaxed;
use rv::{Access, Addr, Entry, Hpa, Level, PhysMem, Pte, PteFlags, Space};

/// The entry at which a walk ended.
struct Found {
    at: Addr<Hpa>,
    level: Level,
    pte: Pte,
}

/// The result of [`AddressSpace::fill`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// The access is allowed now. No translation became stale.
    Mapped {
        /// The host address of the access.
        hpa: Addr<Hpa>,
        /// The resolution of the fault; never [`How::Copied`].
        how: How,
    },
    /// The fault is one for [`AddressSpace::resolve_with`]. Nothing has changed.
    Elsewhere,
}

impl<In: Space> AddressSpace<In> {
    /// Resolves a fault of `access` at `gpa`, if it only fills an invalid entry. The caller shares the lock of the address space, and discards what is left in
    /// `ready` in the end.
    ///
    /// # Errors
    /// [`Unresolved::Wants`]: the caller must make 2 MiB ready first.
    pub fn fill(
        &self,
        gpa: Addr<In>,
        access: Access,
        ready: &mut Ready,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Filled, Unresolved<ResolveError<In>>> {
        let Some(region) = self.regions.get(gpa.pfn()) else { return Ok(Filled::Elsewhere) };
        if !region.prot.allows(access) {
            return Ok(Filled::Elsewhere);
        }
        loop {
            let slot = self.descend_beside(gpa, mem);
            let flags = slot.pte.flags();
            if flags.contains(PteFlags::V) {
                let needed = if access == Access::Store { PteFlags::W | PteFlags::D } else { PteFlags::V };
                if !flags.contains(needed) {
                    return Ok(Filled::Elsewhere);
                }
                self.counts.spurious.fetch_add(1, Relaxed);
                let hpa = slot.pte.pfn().at(gpa.raw() & (slot.level.bytes() - 1));
                return Ok(Filled::Mapped { hpa, how: How::Spurious });
            }
            if slot.pte.0 != 0 || region.object != Object::Anonymous {
                return Ok(Filled::Elsewhere);
            }
            let Some((level, supplies)) = self.supplies_beside(gpa, &slot, ready, frames, mem)? else {
                return Ok(Filled::Elsewhere);
            };
            if let Some(hpa) = self.link_beside((gpa, access), (region, &slot, level), supplies, frames, mem) {
                return Ok(Filled::Mapped { hpa, how: How::Filled });
            }
            // Another hart was faster.
        }
    }

    /// Walks the table to the entry that translates `gpa`.
    // Not by `walk::descend`: with a second user it would not be inlined into `AddressSpace::slot`.
    fn descend_beside(&self, gpa: Addr<In>, mem: &impl PhysMem) -> Found {
        let (mut table, mut level) = (self.root(), self.format.root_level());
        loop {
            let at = table.at(8 * self.format.index(gpa, level) as u64);
            let pte = Pte(mem.read_u64(at));
            if !pte.is_pointer() {
                return Found { at, level, pte };
            }
            (table, level) = (pte.pfn(), level.down().expect("a pointer is above level 0"));
        }
    }

    /// Allocates the frames of a leaf in or below `slot`, and clears them. Returns the level of the leaf; `None` if no frame is free, or if the 2 MiB
    /// hold parts of an image.
    fn supplies_beside(
        &self,
        gpa: Addr<In>,
        slot: &Found,
        ready: &mut Ready,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Option<(Level, Supplies)>, Unresolved<ResolveError<In>>> {
        if slot.level >= Level::MEGA
            && self.policy.superpages != Superpages::Never
            && let Some((_, content)) = mega_in(&self.regions, gpa.pfn())
        {
            if content.has_image() {
                return Ok(None);
            }
            let denied = self.counts.mega_denied.load(Relaxed);
            match take_mega(content, (self.owner, denied), slot.level, ready, frames) {
                Ok(supplies) => return Ok(Some((Level::MEGA, supplies))),
                Err(NoMega::Wanted(content)) => return Err(Unresolved::Wants(content)),
                Err(NoMega::Denied) => _ = self.counts.mega_denied.fetch_add(1, Relaxed),
            }
        }
        // The holder of the lock finds out why there is none. It is not to wish for 2 MiB again, which were just refused.
        let supplies = Supplies::take(frames, self.owner, slot.level.number(), Some(0)).ok();
        if supplies.is_none() && *ready == Ready::Nothing {
            *ready = Ready::Denied;
        }
        if let Some(page) = supplies.as_ref().and_then(|supplies| supplies.data.as_ref()) {
            mem.zero_frames(page.first(), 1);
        }
        Ok(supplies.map(|supplies| (Level::PAGE, supplies)))
    }

    /// Links a leaf of `level` in or below `slot`. Frees all frames and returns `None` if the entry is not invalid any more.
    fn link_beside(
        &self,
        (gpa, access): (Addr<In>, Access),
        (region, slot, level): (&Region<In>, &Found, Level),
        Supplies { tables, data }: Supplies,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Option<Addr<Hpa>> {
        let data = data.expect("taken with the tables");
        let leaf = self.policy.first_leaf(data.first(), (region.prot, access), self.is_logged);
        let entry_at = |at: usize| tables.get(at).map_or(leaf, |table| Entry::Table(table.first()).encode());
        let mut below = slot.level;
        for (at, table) in tables.iter().enumerate() {
            below = below.down().expect("one table for each level below the slot's");
            mem.zero_frames(table.first(), 1);
            let index = self.format.index(gpa, below) as u64;
            table::write_unlinked(table.first().at(8 * index), entry_at(at + 1), mem);
        }
        let Some(debt) = edit::compare_exchange(slot.at, Pte::INVALID, entry_at(0), mem) else {
            tables.into_iter().chain([data]).for_each(|run| frames.free(run));
            return None;
        };
        // The entry was invalid.
        let _ = debt.paid();
        self.counts.tables.fetch_add(tables.len() as u64, Relaxed);
        let count = if level == Level::MEGA { &self.counts.anonymous_2m } else { &self.counts.anonymous_4k };
        count.fetch_add(1, Relaxed);
        // The entries own them now.
        tables.into_iter().for_each(|table| _ = Run::into_entry(table));
        Some(data.into_entry().at(gpa.raw() & (level.bytes() - 1)))
    }
}
