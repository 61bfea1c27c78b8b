//! Steering: the guest gets its page faults itself, and Gnomon gets access faults (or, where it is a G-stage that denies guests a frame,
//! guest-page faults, which are as good for all that follows). So each entry of a shadow has to say by itself
//! whose the fault is that it makes:
//!
//! - It is *empty* only at level 0, and where the guest's entry faults, whatever the access.
//! - It is a *leaf* only if that allows exactly what the guest's does. Where the host allows less (no frame is mapped, or not for
//!   stores, or a device is there) it is poison; so what only the host forbids is an access fault.
//! - All else is *poison* ([`crate::table::poison_leaf`]), with the guest's U, for that is looked at before the access.
//!
//! An entry that is not in step may be none of these. So a shadow page of level 0 is filled as a whole before it is linked, all its
//! entries have mirrors, and fences compare them all. Above level 0 there are no empty entries: poison there needs no U, so it
//! is never wrong, and need not be compared. Gnomon needs no fault to make poison of anything: it may do so at any time.
//!
//! The guest's A and D are its own (Svade): a leaf without A is empty, and one without D has no W.

use crate::gstage::{AddressSpace, Translation};
use crate::shadow::entries::{Both, Row};
use crate::shadow::lane::{LaneMemory, Leaves, faults_always};
use crate::shadow::pages::{At, CAPS, Id, NO_PTE, PARTS, Role, Stay, indices};
use crate::shadow::sync::Syncer;
use crate::shadow::{Budget, Host, Lower, Sabotage, Shadowed, whole_chunk};
use rv::format::ENTRIES;
use rv::{Addr, Entry, Gpa, Hpa, Level, Pfn, PhysMem, Pte, PteFlags};

impl<S: Shadowed> Syncer<S> {
    /// Brings one entry of the shadow of a table in step with the guest's.
    pub fn resync<M: PhysMem, H>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        host.budget.spend(1);
        // A table that is nowhere has been poisoned as a whole.
        let Both { ours, guests: Some(pte), .. } = self.cache.tables.look(at, host.space, host.mem) else { return };
        if self.page(at.0).made_from(at.1, host.mem) == pte {
            return;
        }
        self.cache.tables.counters.synced_entries += 1;
        host.budget.spend(Budget::RESYNC);
        self.cache.tables.split(at.0, host);
        self.cache.tables.remake(at, ours, pte, host);
    }

    /// [`Syncer::fence_in_known_table`], in `steered`.
    #[inline(always)]
    pub fn resync_in_known_table(
        &mut self,
        at: At,
        gva: Addr<S>,
        space: &AddressSpace,
        mem: &mut impl PhysMem,
    ) -> bool {
        self.pass_page(gva);
        let Both { ours, guests: Some(pte), .. } = self.cache.tables.look(at, space, mem) else { return false };
        if self.page(at.0).made_from(at.1, mem) != pte && !self.rules().is_sabotaged(Sabotage::ForgetsFence) {
            self.cache.tables.counters.synced_entries += 1;
            self.page_mut(at.0).stay = Stay::Changed;
            let debt = self.cache.tables.remade(at, ours, pte, space, mem);
            self.cache.leave(debt);
        }
        self.teach(pte.pfn(), space, mem);
        true
    }

    /// Of 64 entries of the shadow of a table, brings those in step for which the lane would do, as far as the budget goes: empties those for
    /// which the guest's faults whatever the access, and makes leaves. Returns which of `behind` are left.
    // A guest that takes memory back has hundreds of the one, and one that forks of the other: all have less rights than before.
    pub fn resync_as_lane<M: PhysMem, H>(
        &mut self,
        id: Id,
        part: usize,
        behind: u64,
        host: &mut Host<'_, M, H>,
    ) -> u64 {
        debug_assert!(self.cache.tables.gate.is_alone());
        let page = self.page_mut(id);
        let Some(frame) = page.origin.guest else { return behind };
        let most = host.budget.affords(Budget::PARK);
        let (emptied, mut debt) = page.park_faulting(frame, part, behind, most, host.mem);
        host.budget.spend(emptied.count_ones() * Budget::PARK);
        self.cache.tables.emptied += u64::from(emptied.count_ones());
        let (mut left, mut told) = (behind & !emptied, None);
        if let Some(leaves) = self.cache.tables.gate.memory.as_ref().map(LaneMemory::leaves) {
            let row = Row::of(&self.cache.tables.index, id);
            for index in indices(part, left) {
                if host.budget.is_spent() {
                    break;
                }
                let pte = Pte(host.mem.read_u64(frame.at(8 * index as u64)));
                host.budget.spend(1);
                let Some(new) = self.leaf_as_lane(&leaves, pte, &mut told, host) else { continue };
                host.budget.spend(Budget::RELIST);
                debt.add(row.relist(&mut self.cache.tables.index, index, (pte, new), host.mem));
                left &= !(1 << (index % 64));
            }
        }
        self.cache.tables.counters.synced_entries += u64::from((behind & !left).count_ones());
        self.cache.tables.owe(debt, host);
        left
    }

    /// Fills a new shadow page, which nothing leads to yet.
    pub fn fill_whole<M: PhysMem, H>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        self.cache.tables.counters.whole += 1;
        let page = self.page(id);
        let (key, guest) = (page.key, page.origin.guest);
        match (key.role, guest) {
            // What is not live above level 0 is poison, whatever the guest's entry says: it costs an exit where that faults, which
            // is once for many pages, and nothing when it is compared.
            (Role::Table | Role::Direct(_), _) if key.level > Level::PAGE => {
                host.budget.spend(Budget::EDIT + Budget::COMPARE);
                self.cache.tables.poison_all(id, host.mem);
            }
            (Role::Table, Some(frame)) => {
                host.budget.spend(8 * Budget::COMPARE);
                // The page is all zeroes itself, and most of the guest's entries are as well.
                for part in 0..PARTS {
                    if host.mem.any_of_64(frame.at(512 * part as u64)) {
                        self.fill_part(id, frame, part, host);
                    }
                }
            }
            (Role::Direct(flags), _) => {
                for index in 0..ENTRIES {
                    let at = (id, index);
                    let leaf = if host.budget.is_spent() {
                        None
                    } else {
                        host.budget.spend(Budget::FILL);
                        self.cache.tables.whole_leaf(key.frame_below(index), key.level, flags, (host.space, host.mem))
                    };
                    let ours = Pte::INVALID;
                    match leaf.and_then(|leaf| self.cache.tables.set_leaf(at, (ours, leaf), NO_PTE, host.mem)) {
                        Some(debt) => self.cache.tables.owe(debt, host),
                        None => self.cache.tables.replace(at, self.rules().poison(key.level, flags), NO_PTE, host),
                    }
                }
            }
            // A table of level 0 is shadowed only where it is.
            (Role::Table, None) | (Role::Bare | Role::Piece(_), _) => {}
        }
    }

    /// Fills 64 entries of a new page from the guest's table in `frame`.
    fn fill_part<M: PhysMem, H>(&mut self, id: Id, frame: Pfn<Hpa>, part: usize, host: &mut Host<'_, M, H>) {
        let (row, leaves) =
            (Row::of(&self.cache.tables.index, id), self.cache.tables.gate.memory.as_ref().map(LaneMemory::leaves));
        let mut told = None;
        for first in (64 * part..64 * part + 64).step_by(8) {
            if !host.mem.any_of_eight(frame.at(8 * first as u64)) {
                continue;
            }
            let leaves = leaves.as_ref().filter(|_| !host.budget.is_spent());
            for index in first..first + 8 {
                let pte = Pte(host.mem.read_u64(frame.at(8 * index as u64)));
                if faults_always(pte) {
                    if pte.0 != 0 {
                        self.page_mut(id).set_mirror(index, pte, host.mem);
                    }
                    continue;
                }
                let Some(new) = leaves.and_then(|leaves| self.leaf_as_lane(leaves, pte, &mut told, host)) else {
                    self.remake_within_budget((id, index), pte, host);
                    continue;
                };
                host.budget.spend(Budget::INSERT);
                row.fill(&mut self.cache.tables.index, index, (pte, new), host.mem);
            }
        }
        self.page_mut(id).settle(part, host.mem);
    }

    /// The leaf that the lane would make of a guest's. Where it has not been told of what is around the page, it is now, unless it is kept
    /// out there: not once more for the 2 MiB that it was `told` of last.
    #[inline(always)]
    fn leaf_as_lane<M: PhysMem, H>(
        &mut self,
        leaves: &Leaves,
        pte: Pte,
        told: &mut Option<Pfn<Gpa>>,
        host: &mut Host<'_, M, H>,
    ) -> Option<Pte> {
        if let Some(leaf) = leaves.of(pte, host.mem) {
            return Some(leaf);
        }
        let chunk = pte.pfn().align_down(Level::MEGA.pages());
        let is_told = told.replace(chunk) == Some(chunk);
        if is_told || host.budget.is_spent() || self.cache.tables.index.heads.has_protected_around(chunk) {
            return None;
        }
        host.budget.spend(Budget::DERIVE);
        self.teach(pte.pfn(), host.space, host.mem);
        leaves.of(pte, host.mem)
    }

    fn remake_within_budget<M: PhysMem, H>(&mut self, at: At, pte: Pte, host: &mut Host<'_, M, H>) {
        let page = self.page(at.0);
        let level = page.key.level;
        if host.budget.is_spent() || !pte.flags().contains(PteFlags::V) {
            return self.cache.tables.replace(at, self.rules().faulting(level, pte), pte, host);
        }
        host.budget.spend(Budget::FILL);
        let ours = page.slot(at.1).read(host.mem);
        self.cache.tables.remake(at, ours, pte, host);
    }

    /// Tells the lane, which passed a fence on or may come there, where what is around `gfn` is, if it may go there.
    #[inline(always)]
    fn teach(&mut self, gfn: Pfn<Gpa>, space: &AddressSpace, mem: &mut impl PhysMem) {
        const ALL: PteFlags = PteFlags::R.union(PteFlags::W).union(PteFlags::X);
        let Some(at) = self.cache.tables.gate.memory.as_ref().and_then(|lane| lane.words.get(gfn)) else { return };
        if mem.read_u64(at) != 0 {
            return;
        }
        if self.cache.tables.index.heads.has_protected_around(gfn) && !self.is_worth_a_lane(gfn, mem) {
            return;
        }
        let word = match space.translate(gfn.base(), mem) {
            Some(Translation { level: Level::PAGE, .. }) => {
                space.table_at(gfn, mem).map_or(0, |(_, table)| table.base().raw())
            }
            Some(there) if there.flags.contains(ALL) => whole_chunk(gfn, there.hpa.pfn()),
            _ => 0,
        };
        mem.write_u64(at, word);
    }

    /// The lane passed a fence by address on, since it is kept out of the 2 MiB around a frame for the quiet tables there. Where such
    /// fences are many beside the wide ones that have less to do for it, the tables are quiet no more, and it says so.
    #[cold]
    #[inline(never)]
    fn is_worth_a_lane(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) -> bool {
        if !self.kept_out.is_enough(self.cache.passed.fences()) {
            return false;
        }
        let chunk = gfn.align_down(Level::MEGA.pages());
        (0..Level::MEGA.pages()).for_each(|n| self.cache.wake(chunk.add(n), &mut *mem));
        true
    }

    /// Brings one entry of the shadow of a table in step with the guest's, as far as that takes neither shadow pages nor
    /// guest memory that is not there yet; otherwise the entry goes, and a fault will fill it.
    pub fn derive<M: PhysMem, H>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        if self.rules().policy.own_faults {
            return self.resync(at, host);
        }
        let Both { ours, guests, own } = self.cache.tables.look(at, host.space, host.mem);
        host.budget.spend(1 + self.cache.tables.lower.walked() * Budget::WALK);
        let page = self.page(at.0);
        let level = page.key.level;
        let known = page.mirror(at.1, host.mem);
        if guests.is_some() && guests == known {
            if let Some(own) = own.filter(|_| S::COMPOSES) {
                self.page_mut(at.0).note_own(at.1, own, host.mem);
            }
            return;
        }
        if known.is_some() {
            self.cache.tables.counters.synced_entries += 1;
        }
        host.budget.spend(Budget::DERIVE);
        if S::COMPOSES && level > Level::PAGE {
            return self.cache.tables.drop_entry(at, host);
        }
        if let Some(pte) = guests
            && let Entry::Leaf(leaf) = pte.decode::<Gpa>(level, CAPS)
            && leaf.flags.contains(PteFlags::A)
            && let Some(there) = host.space.translate(leaf.pfn.base(), host.mem)
            && self.cache.tables.leaf_fits(leaf.pfn, level, there.level)
            && let Some(new) = self.cache.tables.leaf(leaf.pfn, level, self.rules().rights(leaf.flags), there, host.mem)
            && let Some(debt) = self.cache.tables.set_leaf(at, (ours, new), pte, host.mem)
        {
            self.cache.tables.owe(debt, host);
            if let Some(own) = own.filter(|_| S::COMPOSES) {
                self.page_mut(at.0).note_own(at.1, own, host.mem);
            }
            return;
        }
        self.cache.tables.drop_entry(at, host);
    }
}
