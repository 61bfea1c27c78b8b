//! 2 MiB at once: where one leaf may map them, what they hold, and how it comes in place of 4 KiB leaves.

use super::edit;
use super::kept::Kept;
use super::policy::{OWNED, Superpages};
use super::ready::{COPIED_AT_ONCE, Content, Ready, Supplies};
use super::region::{Object, Region, Regions};
use super::space::{AddressSpace, Taken};
use crate::frames::{Frames, Owner, Run};
use crate::stale::Stale;
use crate::walk::Slot;
use alloc::vec::Vec;
use core::ops::Range;
use rv::{Addr, Caps, Entry, FenceScope, Hpa, Level, Pfn, PhysMem, Pte, PteFlags, Space};

/// Faults of a VM that go without 2 MiB after a search for them found none, until there is another one.
const DENIED_FOR: u64 = 64;

/// The answer to a resolution that gets no 2 MiB.
pub(super) enum NoMega {
    /// 2 MiB are still to be made ready.
    Wanted(Content),
    /// No 2 MiB: 4 KiB will have to do.
    Denied,
}

/// A table of 4 KiB leaves that one leaf is to replace.
pub(super) struct Small {
    /// The entry that leads to it.
    pub at: Addr<Hpa>,
    table: Pfn<Hpa>,
    /// The pages of the VM's own, by their numbers in the table.
    own: Vec<(u64, Pfn<Hpa>)>,
}

/// Pages of the VM's own that are copied at once, with the VM's lock held: some 80,000 instructions (BOUNDED).
pub(super) const MOST_TAKEN: usize = COPIED_AT_ONCE as usize;

/// The 2 MiB around `page` and what they hold, if regions of equal protection cover them all.
pub(super) fn mega_in<In: Space>(regions: &Regions<In>, page: Pfn<In>) -> Option<(Pfn<In>, Content)> {
    let first = page.align_down(Level::MEGA.pages());
    let mut regions = regions.from(first);
    let known = regions.next()?;
    let (mut region, mut content) = (known, Content::EMPTY);
    loop {
        let start = region.start.raw().max(first.raw());
        let end = (region.end() - first.raw()).min(Level::MEGA.pages());
        let from = match region.object {
            Object::Anonymous => None,
            Object::Image { first } => Some(first.add(start - region.start.raw())),
        };
        content = content.with(end, from)?;
        if end == Level::MEGA.pages() {
            return Some((first, content));
        }
        region = regions.next().filter(|next| next.start.raw() == region.end() && next.prot == known.prot)?;
    }
}

/// Returns the frames of a leaf of 2 MiB below an entry of `level`, if they are ready. `denied` is how often the owner has gone without.
pub(super) fn take_mega(
    wanted: Content,
    (owner, denied): (Owner, u64),
    level: Level,
    ready: &mut Ready,
    frames: &Frames,
) -> Result<Supplies, NoMega> {
    let tables = level.number().saturating_sub(Level::MEGA.number());
    let supplies = match core::mem::replace(ready, Ready::Nothing) {
        Ready::Mega { run, content, filled, epoch } if content == wanted && filled == run.pages() => {
            if content.has_image() && frames.originals().epoch() != epoch {
                // What was copied may have been another page already. Memory is short: 4 KiB will do.
                frames.put_back(run);
                None
            } else {
                Supplies::with(frames, owner, tables, run).ok()
            }
        }
        Ready::Denied => {
            // That there were none in one piece says less and less about now.
            if !(denied + 1).is_multiple_of(DENIED_FOR) {
                *ready = Ready::Denied;
            }
            None
        }
        Ready::Never => {
            *ready = Ready::Never;
            None
        }
        other => {
            // Not yet, or not this: another hart was here meanwhile.
            *ready = other;
            return Err(NoMega::Wanted(wanted));
        }
    };
    supplies.ok_or(NoMega::Denied)
}

impl<In: Space> AddressSpace<In> {
    /// The 2 MiB around `page` and what they hold, if one leaf may map them all: by policy, and because regions of equal
    /// protection cover them.
    pub(super) fn mega_around(&self, page: Pfn<In>) -> Option<(Pfn<In>, Content)> {
        if self.policy.superpages == Superpages::Never {
            return None;
        }
        mega_in(&self.regions, page)
    }

    /// Returns the frames of a leaf of 2 MiB, if they are ready.
    pub(super) fn mega(
        &mut self,
        wanted: Content,
        slot: &Slot<Hpa>,
        ready: &mut Ready,
        frames: &Frames,
    ) -> Result<Supplies, NoMega> {
        let taken = take_mega(wanted, (self.owner, self.counters.mega_denied), slot.level, ready, frames);
        self.counters.mega_denied += u64::from(matches!(taken, Err(NoMega::Denied)));
        taken
    }

    /// The table of 4 KiB leaves around `page`, if one leaf may replace it: all that it keeps is in memory, and nothing is on the
    /// swap device, and there are not too many pages whose contents have to be taken over.
    pub(super) fn small(&self, page: Pfn<In>, mem: &impl PhysMem) -> Option<Small> {
        let first = page.align_down(Level::MEGA.pages());
        if self.has_copies(first) {
            return None;
        }
        let (at, table) = self.table_at(first, mem)?;
        let mut own = Vec::new();
        for index in 0..Level::MEGA.pages() {
            let pte = Pte(mem.read_u64(table.at(8 * index)));
            if !pte.flags().contains(PteFlags::V) {
                if Kept::of(pte, Level::PAGE) != Kept::Nothing {
                    return None;
                }
            } else if pte.flags().contains(OWNED) {
                if own.len() == MOST_TAKEN {
                    return None;
                }
                own.push((index, pte.pfn()));
            }
        }
        Some(Small { at, table, own })
    }

    /// The table of 4 KiB leaves around `page`, if there is one, and the entry that leads to it.
    pub(crate) fn table_at(&self, page: Pfn<In>, mem: &impl PhysMem) -> Option<(Addr<Hpa>, Pfn<Hpa>)> {
        self.table_above(page, Level::MEGA, mem)
    }

    /// The table around `page` that an entry of `above` leads to, if it does.
    pub(super) fn table_above(&self, page: Pfn<In>, above: Level, mem: &impl PhysMem) -> Option<(Addr<Hpa>, Pfn<Hpa>)> {
        let (mut table, mut level) = (self.root(), self.format.root_level());
        loop {
            let at = table.at(8 * self.format.index(page.base(), level) as u64);
            let Entry::Table(next) = Pte(mem.read_u64(at)).decode(level, Caps::default()) else { return None };
            if level == above {
                return Some((at, next));
            }
            (table, level) = (next, level.down()?);
        }
    }

    /// Takes a table away that the entry at `at` leads to, for a leaf in its place. The entry is invalid until what is stale is fenced.
    pub(super) fn unlink(at: Addr<Hpa>, table: Pfn<Hpa>, mem: &mut impl PhysMem) -> Stale<In> {
        let mut stale = Stale::none();
        let (_, debt) = edit::exchange(at, Pte::INVALID, mem);
        stale.owe(debt, FenceScope::Everything);
        stale.retire(Run::from_entry(table, 0));
        stale
    }

    /// Takes the table away, for a leaf of `run` to be published in its place. Returns the translations to fence before
    /// the leaf is published, and the pages to copy after the fence: before the fence the guest may still write to them.
    pub(super) fn replace(&mut self, small: Small, run: Pfn<Hpa>, mem: &mut impl PhysMem) -> (Stale<In>, Vec<Taken>) {
        let Small { at, table, own } = small;
        let mut stale = Self::unlink(at, table, mem);
        own.iter().for_each(|(_, frame)| stale.retire(Run::from_entry(*frame, 0)));
        self.counters.promoted += 1;
        (stale, own.into_iter().map(|(index, from)| Taken { from, to: run.add(index) }).collect())
    }

    /// Returns the content of the 2 MiB that replace 4 KiB leaves on a store to that page of an image, and these
    /// leaves; `None` if they stay.
    pub(super) fn mega_for_small(&self, page: Pfn<In>, mem: &impl PhysMem) -> Option<(Content, Small)> {
        let (_, content) = self.mega_around(page)?;
        Some((content, self.small(page, mem)?))
    }

    /// The pages that lead to other frames once the guest has stored to `gpa`, if what is mapped there is to be copied.
    ///
    /// # Errors
    /// What is to be made ready first.
    pub(crate) fn moved_by_store(
        &self,
        gpa: Addr<In>,
        ready: &Ready,
        mem: &impl PhysMem,
    ) -> Result<Range<u64>, Content> {
        let page = gpa.pfn();
        let none = page.raw()..page.raw();
        let Some(slot) = self.region_of(page).and_then(|region| self.copied_slot(page, region, mem)) else {
            return Ok(none);
        };
        let content = match (slot.entry, slot.level) {
            (Entry::Leaf(_), Level::MEGA) => self.mega_around(page).map(|(_, content)| content),
            (_, Level::PAGE) => self.mega_for_small(page, mem).map(|(content, _)| content),
            _ => return Ok(none),
        };
        match content {
            Some(content) if !ready.is_all_for(content) => Err(content),
            Some(_) if !ready.is_denied() => {
                let first = page.align_down(Level::MEGA.pages()).raw();
                Ok(first..first + Level::MEGA.pages())
            }
            _ => Ok(page.raw()..page.raw() + 1),
        }
    }

    /// The entry for a page of an image that is not the VM's own yet.
    fn copied_slot(&self, page: Pfn<In>, region: &Region<In>, mem: &impl PhysMem) -> Option<Slot<Hpa>> {
        let slot = self.slot(page.base(), mem)?;
        let is_image = region.object != Object::Anonymous;
        let is_own = matches!(slot.entry, Entry::Leaf(leaf) if leaf.flags.contains(OWNED));
        (is_image && !is_own && Kept::of(slot.pte, slot.level) == Kept::Nothing).then_some(slot)
    }
}
