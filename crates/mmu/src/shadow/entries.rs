//! The one place where entries of shadow tables change: with each goes its mirror, the list that it is in, and what it owes.
//!
//! **Races.** The caller holds the VM's lock; hardware walkers and the lane (`docs/lane.md`) do not. In `lazy` the lane
//! only ever replaces a level-0 entry by an invalid one that was never there before ([`crate::table`]). So a leaf is filled
//! by: read the shadow entry, *then* the guest's, then exchange the shadow entry if it is the same as before. If
//! a fence passed between, the exchange fails. In `steered` the gate keeps the lane out meanwhile (`lane`).

use super::config::{Budget, Host};
use super::engine::Shadow;
use super::index::{Index, List};
use super::page::{At, CAPS, Id, NO_PTE, PARTS, Page, Role, permissions};
use super::passed::Mappings;
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use crate::gstage::{AddressSpace, Translation};
use crate::table::{self, Debt, Owed, State, Writer};
use core::sync::atomic::{Ordering, fence};
use rv::{Addr, Entry, Gpa, Hpa, Leaf, Level, Pfn, PhysMem, Pte, PteFlags};

/// What a fill goes by: an entry of the shadow, and then the one of the guest that is behind it.
#[derive(Clone, Copy)]
pub(super) struct Both {
    /// The shadow's entry.
    pub ours: Pte,
    /// The guest's behind it; [`NO_PTE`] if there is none; `None` if its frame cannot be found at once.
    pub guests: Option<Pte>,
}

impl<S: Shadowed> Shadow<S> {
    /// Reads an entry and the guest's behind it, in the order that a fill needs.
    #[inline(always)]
    pub(super) fn look(&mut self, (id, index): At, space: &AddressSpace, mem: &impl PhysMem) -> Both {
        Self::look_at(self.index.page_mut(id), index, space, mem)
    }

    /// The same for an entry of that page.
    #[inline(always)]
    pub(super) fn look_at(page: &mut Page, index: usize, space: &AddressSpace, mem: &impl PhysMem) -> Both {
        let ours = Pte(mem.read_u64(page.entry_at(index)));
        // The guest's entry is read after ours: see above.
        fence(Ordering::SeqCst);
        let frame = match (page.guest, page.key.role) {
            (_, Role::Direct(_) | Role::Bare) => return Both { ours, guests: Some(NO_PTE) },
            (Some(frame), Role::Table) => frame,
            (None, Role::Table) => match space.translate(page.key.gfn.base(), mem) {
                Some(there) => {
                    page.guest = Some(there.hpa.pfn());
                    there.hpa.pfn()
                }
                None => return Both { ours, guests: None },
            },
        };
        let guests = Some(Pte(mem.read_u64(frame.at(8 * index as u64))));
        Both { ours, guests }
    }

    /// The parts of 64 entries of the shadow of a table in which some may be out of step with the guest's: a bit for each.
    #[inline]
    pub(super) fn parts_behind<M: PhysMem, H>(&self, id: Id, mappings: Mappings, host: &mut Host<'_, M, H>) -> u8 {
        let page = self.index.page(id);
        match page.guest {
            Some(frame) if self.has_all_mirrors(page) => {
                host.budget.spend(PARTS as u32 * Budget::COMPARE);
                let mut among = page.concerned(mappings);
                if mappings == Mappings::Private && self.is_sabotaged(Sabotage::SettlesForEver) {
                    among = !page.written();
                }
                host.mem.differing_parts((frame, page.body.mirror.first()), page.written(), among)
            }
            None if self.has_all_mirrors(page) => u8::MAX,
            _ => {
                host.budget.spend(1);
                page.live_parts()
            }
        }
    }

    /// Of 64 entries of the shadow of a table, the live ones that are out of step with the guest's: a bit for each. All live ones
    /// if the guest's cannot be read at once.
    #[inline]
    pub(super) fn behind<M: PhysMem, H>(&self, id: Id, part: usize, host: &mut Host<'_, M, H>) -> u64 {
        let page = self.index.page(id);
        let mirror = page.body.mirror.first();
        if self.has_all_mirrors(page) {
            host.budget.spend(Budget::COMPARE);
            let at = 512 * part as u64;
            return page.guest.map_or(u64::MAX, |frame| host.mem.differing_of_64(frame.at(at), mirror.at(at)));
        }
        let live = page.live_in(part);
        host.budget.spend(1 + live.count_ones());
        page.guest.map_or(live, |frame| host.mem.differing((frame, mirror), part, live))
    }

    /// Whether all entries have a mirror, live or not.
    pub(super) fn has_all_mirrors(&self, page: &Page) -> bool {
        self.steers() && page.key.level == Level::PAGE
    }

    /// Writes an entry, unless it is no longer `old`. Returns what that owes, if it did.
    #[inline(always)]
    fn write(&self, (at, level): (Addr<Hpa>, Level), old: Pte, new: Pte, mem: &mut impl PhysMem) -> Option<Debt> {
        debug_assert!(State::of(new).may_be_made_by(Writer::Engine, level));
        debug_assert!(self.is_alone());
        if self.is_sabotaged(Sabotage::StoresBlindly) {
            mem.write_u64(at, new.0);
            Some(Debt::of(old, new))
        } else {
            table::compare_exchange(at, old, new, mem)
        }
    }

    /// Adds to what the operation owes.
    #[inline]
    pub(super) fn owe<M, H>(&mut self, debt: Debt, host: &mut Host<'_, M, H>) {
        if debt.owes(Owed::POINTERS) && !self.is_sabotaged(Sabotage::RemembersWalks) {
            self.walks.forget_all();
        }
        if self.is_sabotaged(Sabotage::ForgetsDebt) {
            let _ = debt.waive();
        } else {
            host.debt.add(debt);
        }
    }

    /// Forgets an entry that is in a list: it is in none, and invalid or poison. TLBs may remember it.
    pub(super) fn drop_entry<M: PhysMem, H>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        let (id, index) = at;
        if !self.index.page(id).is_listed(index) {
            return;
        }
        host.budget.spend(Budget::DROP);
        let Some(mirror) = self.index.page(id).mirror(index, host.mem) else {
            return self.index.unpark(at, host.mem);
        };
        self.split(id, host);
        self.emptied += 1;
        let page = self.index.page(id);
        let (old, debt) = table::exchange(page.entry_at(index), self.unfilled(page, mirror), host.mem);
        self.index.unlist(at, page.is_pointer(old), host.mem);
        self.owe(debt, host);
    }

    /// A fence passes over a live entry: a leaf of 4 KiB stays in its list, where the next fault finds it; others go.
    pub(super) fn invalidate<M: PhysMem, H>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        self.counters.invalidated += 1;
        let page = self.index.page(at.0);
        if page.key.level == Level::PAGE {
            let (_, debt) = table::exchange(page.entry_at(at.1), Pte::INVALID, host.mem);
            self.owe(debt, host);
        } else {
            self.drop_entry(at, host);
        }
    }

    /// Takes from a leaf the right to store.
    pub(super) fn withdraw_writes_of<M: PhysMem, H>(&mut self, (id, index): At, host: &mut Host<'_, M, H>) {
        host.budget.spend(Budget::EDIT);
        let page = self.index.page(id);
        let (at, level) = (page.entry_at(index), page.key.level);
        let pte = Pte(host.mem.read_u64(at));
        if pte.flags().contains(PteFlags::V | PteFlags::W) {
            let narrower = Pte(pte.0 & !(PteFlags::W | PteFlags::D).bits());
            // If the lane passes now, it allows nothing at all.
            if let Some(debt) = self.write((at, level), pte, narrower, host.mem) {
                self.owe(debt, host);
            }
        }
    }

    /// Makes an entry, not live now, a pointer to `child`.
    pub(super) fn set_pointer<M: PhysMem, H>(&mut self, at: At, mirror: Pte, child: Id, host: &mut Host<'_, M, H>) {
        debug_assert!(!self.index.page(child).is_coalesced || self.is_sabotaged(Sabotage::KeepsCoalesced));
        let pte = self.pointer_to(child, host.mem);
        if self.index.page(child).key.role == Role::Table {
            self.index.page_mut(at.0).leads_at(at.1);
        }
        self.index.insert(at, mirror, List::Parents(child), host.mem);
        if self.steers() && self.is_restless(self.index.page(child)) {
            self.stir(at, host.mem);
        }
        let (_, debt) = table::exchange(self.index.page(at.0).entry_at(at.1), pte, host.mem);
        self.owe(debt, host);
    }

    /// Makes an entry the leaf `new`, made from `mirror`, unless it is no longer `old`: then the lane has
    /// passed over it meanwhile, and what `mirror` was read from may have changed. Returns what it owes, if it did.
    // Each call in the way of a fault costs it some thirty instructions, to save and restore registers.
    #[inline(always)]
    pub(super) fn set_leaf(
        &mut self,
        at: At,
        (old, new): (Pte, Pte),
        mirror: Pte,
        mem: &mut impl PhysMem,
    ) -> Option<Debt> {
        let page = self.index.page(at.0);
        let (key, entry) = (page.key, page.entry_at(at.1));
        let is_pointer = page.is_pointer(old);
        let known = page.mirror(at.1, mem);
        if is_pointer || known != Some(mirror) {
            if known.is_some() || page.is_parked(at.1) {
                if self.is_sabotaged(Sabotage::ListsBlindly) && known.is_none() {
                    self.index.page_mut(at.0).set_parked(at.1, false);
                } else {
                    self.index.unlist(at, is_pointer, mem);
                }
            }
            self.index.insert(at, mirror, Index::list_of_leaf(key, at.1, mirror), mem);
        }
        self.write((entry, key.level), old, new, mem)
    }

    /// What a guest's leaf with A allows.
    pub(super) fn rights(&self, flags: PteFlags) -> PteFlags {
        permissions(if self.is_sabotaged(Sabotage::IgnoresDirty) { flags | PteFlags::D } else { flags })
    }

    /// Whether a leaf of `level` may map `gfn`, which the G-stage maps with a leaf of level `there`.
    #[inline(always)]
    pub(super) fn leaf_fits(&self, gfn: Pfn<Gpa>, level: Level, there: Level) -> bool {
        let is_ram = self.index.heads.contains(gfn);
        is_ram && level <= there && level <= Level::MEGA && (level == Level::PAGE || self.may_be_mega(gfn))
    }

    /// The entry of `level` for what is around `gfn`, which the G-stage translates as `there` says, at that level or
    /// a higher one. `None` if it would allow nothing.
    #[inline(always)]
    pub(super) fn leaf(
        &self,
        gfn: Pfn<Gpa>,
        level: Level,
        allowed: PteFlags,
        there: Translation,
        mem: &impl PhysMem,
    ) -> Option<Pte> {
        let host = PteFlags::R | PteFlags::W | PteFlags::X;
        let mut flags = allowed.intersection(there.flags & host | self.kept);
        if self.is_sabotaged(Sabotage::IgnoresHost) {
            flags = allowed;
        }
        if self.is_sabotaged(Sabotage::ForgetsUser) {
            flags.remove(PteFlags::U);
        }
        if flags.contains(PteFlags::W) && level == Level::PAGE {
            let sees_writes = !self.is_sabotaged(Sabotage::AllowsTableWrites);
            flags.set(PteFlags::W, !(sees_writes && self.is_protected(gfn, mem)));
        }
        // A leaf that allows nothing would be a pointer; W without R is reserved.
        if !flags.contains(PteFlags::R) {
            flags.remove(PteFlags::W);
        }
        if !flags.intersects(PteFlags::R | PteFlags::X) {
            return None;
        }
        // Hardware finds nothing to set.
        flags.insert(PteFlags::A);
        flags.set(PteFlags::D, flags.contains(PteFlags::W));
        let pfn = there.hpa.pfn().align_down(level.pages());
        Some(Entry::Leaf(Leaf { pfn, flags, napot: false }).encode())
    }

    /// Brings one entry of the shadow of a table in step with the guest's, as far as that takes neither shadow pages nor
    /// guest memory that is not there yet; otherwise the entry goes, and a fault will fill it.
    pub(super) fn derive<M: PhysMem, H>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        if self.steers() {
            return self.resync(at, host);
        }
        host.budget.spend(1);
        let Both { ours, guests } = self.look(at, host.space, host.mem);
        let page = self.index.page(at.0);
        let level = page.key.level;
        let known = page.mirror(at.1, host.mem);
        if guests.is_some() && guests == known {
            return;
        }
        if known.is_some() {
            self.counters.synced_entries += 1;
        }
        host.budget.spend(Budget::DERIVE);
        if let Some(pte) = guests
            && let Entry::Leaf(leaf) = pte.decode::<Gpa>(level, CAPS)
            && leaf.flags.contains(PteFlags::A)
            && let Some(there) = host.space.translate(leaf.pfn.base(), host.mem)
            && self.leaf_fits(leaf.pfn, level, there.level)
            && let Some(new) = self.leaf(leaf.pfn, level, self.rights(leaf.flags), there, host.mem)
            && let Some(debt) = self.set_leaf(at, (ours, new), pte, host.mem)
        {
            self.owe(debt, host);
            return;
        }
        self.drop_entry(at, host);
    }
}
