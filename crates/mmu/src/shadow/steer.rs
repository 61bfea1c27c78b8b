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

use super::config::{Budget, Host};
use super::engine::Shadow;
use super::entries::Both;
use super::fault::Found;
use super::index::List;
use super::lane_memory::{LaneMemory, Leaves, faults_always};
use super::page::{At, CAPS, Id, NO_PTE, PARTS, Page, Role, Stay, indices};
use super::passed::Compared;
use super::root::{Paging, Root};
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use crate::gstage::{AddressSpace, Translation};
use crate::table::{self, Debt};
use rv::format::ENTRIES;
use rv::{Access, Addr, Entry, Fence, Gpa, Hpa, Leaf, Level, Pfn, PhysMem, Pte, PteFlags};

/// What a guest's leaf may allow that the G-stage has a say in.
const RIGHTS: PteFlags = PteFlags::R.union(PteFlags::W).union(PteFlags::X);

impl<S: Shadowed> Shadow<S> {
    /// What an entry is that leads nowhere for now, and was made from `mirror`.
    #[inline(always)]
    pub(super) fn unfilled(&self, page: &Page, mirror: Pte) -> Pte {
        if !self.steers() || self.is_sabotaged(Sabotage::SteersTaken) {
            return Pte::INVALID;
        }
        let flags = match page.key.role {
            // Its page faults come to Gnomon.
            Role::Bare => return Pte::INVALID,
            Role::Direct(flags) => flags,
            Role::Table => mirror.flags(),
        };
        self.poison(page.key.level, flags)
    }

    fn poison(&self, level: Level, flags: PteFlags) -> Pte {
        if level > Level::PAGE {
            return table::poison_pointer();
        }
        table::poison_leaf(flags.contains(PteFlags::U) && !self.is_sabotaged(Sabotage::PoisonsKernelOnly))
    }

    /// Whether the G-stage allows all that a guest's leaf with these flags does.
    #[inline(always)]
    pub(super) fn allows_all(&self, flags: PteFlags, there: Translation) -> bool {
        self.allows(self.rights(flags), there)
    }

    #[inline(always)]
    fn allows(&self, allowed: PteFlags, there: Translation) -> bool {
        there.flags.contains(allowed & RIGHTS) || self.is_sabotaged(Sabotage::SteersNarrower)
    }

    /// What memory is to be made ready for. A leaf that allows stores takes a frame that does, whatever it is wanted for now: with
    /// less, a store would be a page fault of the guest's.
    pub(super) fn wanted<M: PhysMem, H>(
        &self,
        root: &Root<S>,
        found: &Found,
        access: Access,
        host: &Host<'_, M, H>,
    ) -> Access {
        let stores = self.steers() && root.paging != Paging::Bare && found.allowed.contains(PteFlags::W);
        let may = |access| host.space.region_of(found.gpa.pfn()).is_some_and(|region| region.prot.allows(access));
        if stores && may(access) && may(Access::Store) { Access::Store } else { access }
    }

    /// The leaf of `level` for what is at `gfn`, if it is there and allows all that the guest's entry does.
    #[inline(always)]
    fn whole_leaf(
        &mut self,
        gfn: Pfn<Gpa>,
        level: Level,
        allowed: PteFlags,
        (space, mem): (&AddressSpace, &impl PhysMem),
    ) -> Option<Pte> {
        let there = space.translate(gfn.base(), mem)?;
        if !self.allows(allowed, there) {
            return None;
        }
        // Nobody has come there.
        let is_quiet = level == Level::PAGE && self.is_quiet(gfn, mem);
        (!is_quiet && self.leaf_fits(gfn, level, there.level)).then(|| self.leaf(gfn, level, allowed, there, mem))?
    }

    /// [`Shadow::fence_in_known_table`], in `steered`.
    #[inline(always)]
    pub(super) fn resync_in_known_table(
        &mut self,
        at: At,
        gva: Addr<S>,
        space: &AddressSpace,
        mem: &mut impl PhysMem,
    ) -> bool {
        self.pass_page(gva);
        let Both { ours, guests: Some(pte) } = self.look(at, space, mem) else { return false };
        if self.index.page(at.0).made_from(at.1, mem) != pte && !self.is_sabotaged(Sabotage::ForgetsFence) {
            self.counters.synced_entries += 1;
            self.index.page_mut(at.0).stay = Stay::Changed;
            let debt = self.remade(at, ours, pte, space, mem);
            self.leave(debt);
        }
        self.teach(pte.pfn(), space, mem);
        true
    }

    /// The guest refuses an access itself, in a table that was not linked. When it has mended that, it will come again: then the table says
    /// by itself whose the fault is, so it is linked now. Otherwise that would be one exit more, for each table of a process that was forked.
    /// (A hart that remembers the pointer to poison makes it all the same.)
    #[inline(never)]
    pub(super) fn link_ahead<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        host: &mut Host<'_, M, H>,
    ) {
        if !self.steers() || !matches!(self.prepare(host), Ok(true)) {
            return;
        }
        let mut id = self.part(root, gva);
        while self.index.page(id).key.level > Level::PAGE && self.index.page(id).key.role == Role::Table {
            let level = self.index.page(id).key.level;
            let index = root.format.index_in_frame(gva, level);
            let Both { ours, guests: Some(pte) } = self.look((id, index), host.space, host.mem) else { return };
            if !matches!(pte.decode::<Gpa>(level, CAPS), Entry::Table(_)) {
                return;
            }
            let child = self.pointer((id, index), (ours, pte), host);
            let Some(child) = child.or_else(|| self.link((id, index), pte, gva, host)) else { return };
            id = child;
        }
    }

    /// Brings one entry of the shadow of a table in step with the guest's.
    pub(super) fn resync<M: PhysMem, H>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        host.budget.spend(1);
        // A table that is nowhere has been poisoned as a whole.
        let Both { ours, guests: Some(pte) } = self.look(at, host.space, host.mem) else { return };
        if self.index.page(at.0).made_from(at.1, host.mem) == pte {
            return;
        }
        self.counters.synced_entries += 1;
        host.budget.spend(Budget::RESYNC);
        self.split(at.0, host);
        self.remake(at, ours, pte, host);
    }

    /// Of 64 entries of the shadow of a table, brings those in step for which the lane would do, as far as the budget goes: empties those for
    /// which the guest's faults whatever the access, and makes leaves. Returns which of `behind` are left.
    // A guest that takes memory back has hundreds of the one, and one that forks of the other: all have less rights than before.
    pub(super) fn resync_as_lane<M: PhysMem, H>(
        &mut self,
        id: Id,
        part: usize,
        behind: u64,
        host: &mut Host<'_, M, H>,
    ) -> u64 {
        debug_assert!(self.is_alone());
        let page = self.index.page_mut(id);
        let Some(frame) = page.guest else { return behind };
        let most = host.budget.affords(Budget::PARK);
        let (emptied, mut debt) = page.park_faulting(frame, part, behind, most, host.mem);
        host.budget.spend(emptied.count_ones() * Budget::PARK);
        self.emptied += u64::from(emptied.count_ones());
        let (mut left, mut told) = (behind & !emptied, None);
        if let Some(leaves) = self.lane.as_ref().map(LaneMemory::leaves) {
            let row = self.index.row(id);
            for index in indices(part, left) {
                if host.budget.is_spent() {
                    break;
                }
                let pte = Pte(host.mem.read_u64(frame.at(8 * index as u64)));
                host.budget.spend(1);
                let Some(new) = self.leaf_as_lane(&leaves, pte, &mut told, host) else { continue };
                host.budget.spend(Budget::RELIST);
                debt.add(table::exchange(row.table.wrapping_add(8 * index as u64), new, host.mem).1);
                self.index.relist_in(&row, index, pte, host.mem);
                left &= !(1 << (index % 64));
            }
        }
        self.counters.synced_entries += u64::from((behind & !left).count_ones());
        self.owe(debt, host);
        left
    }

    fn remake<M: PhysMem, H>(&mut self, at: At, ours: Pte, pte: Pte, host: &mut Host<'_, M, H>) {
        let debt = self.remade(at, ours, pte, host.space, host.mem);
        self.owe(debt, host);
    }

    /// Makes an entry of the shadow of a table from the guest's.
    #[inline(always)]
    fn remade(&mut self, at: At, ours: Pte, pte: Pte, space: &AddressSpace, mem: &mut impl PhysMem) -> Debt {
        let level = self.index.page(at.0).key.level;
        if let Entry::Leaf(leaf) = pte.decode::<Gpa>(level, CAPS)
            && leaf.flags.contains(PteFlags::A)
        {
            if let Some(new) = self.whole_leaf(leaf.pfn, level, self.rights(leaf.flags), (space, &*mem))
                && let Some(debt) = self.set_leaf(at, (ours, new), pte, mem)
            {
                return debt;
            }
            if self.is_sabotaged(Sabotage::SteersMissing) {
                return self.replaced(at, Pte::INVALID, pte, mem);
            }
        }
        self.replaced(at, self.faulting(level, pte), pte, mem)
    }

    /// The entry that makes the fault, made from the guest's: empty where that faults anyway.
    fn faulting(&self, level: Level, pte: Pte) -> Pte {
        match pte.decode::<Gpa>(level, CAPS) {
            _ if level > Level::PAGE => table::poison_pointer(),
            Entry::Leaf(Leaf { flags, .. }) if flags.contains(PteFlags::A) => self.poison(level, flags),
            Entry::Leaf(_) | Entry::Table(_) | Entry::Invalid | Entry::Reserved(_) => Pte::INVALID,
        }
    }

    fn replace<M: PhysMem, H>(&mut self, at: At, new: Pte, mirror: Pte, host: &mut Host<'_, M, H>) {
        let debt = self.replaced(at, new, mirror, host.mem);
        self.owe(debt, host);
    }

    /// Makes an entry `new`, which leads nowhere, from `mirror`.
    fn replaced(&mut self, at: At, new: Pte, mirror: Pte, mem: &mut impl PhysMem) -> Debt {
        self.emptied += 1;
        let page = self.index.page(at.0);
        let (old, debt) = table::exchange(page.entry_at(at.1), new, mem);
        if page.is_live(at.1) {
            self.index.unlist(at, page.is_pointer(old), mem);
        }
        self.index.page_mut(at.0).set_mirror(at.1, mirror, mem);
        debt
    }

    /// Fills a new shadow page, which nothing leads to yet.
    pub(super) fn fill_whole<M: PhysMem, H>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        self.counters.whole += 1;
        let page = self.index.page(id);
        let (key, guest) = (page.key, page.guest);
        match (key.role, guest) {
            // What is not live above level 0 is poison, whatever the guest's entry says: it costs an exit where that faults, which
            // is once for many pages, and nothing when it is compared.
            (Role::Table | Role::Direct(_), _) if key.level > Level::PAGE => {
                host.budget.spend(Budget::EDIT + Budget::COMPARE);
                host.mem.fill_frame(page.table(), table::poison_pointer().0);
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
                        self.whole_leaf(key.frame_below(index), key.level, flags, (host.space, host.mem))
                    };
                    let ours = Pte::INVALID;
                    match leaf.and_then(|leaf| self.set_leaf(at, (ours, leaf), NO_PTE, host.mem)) {
                        Some(debt) => self.owe(debt, host),
                        None => self.replace(at, self.poison(key.level, flags), NO_PTE, host),
                    }
                }
            }
            // A table of level 0 is shadowed only where it is.
            (Role::Table, None) | (Role::Bare, _) => {}
        }
    }

    /// Fills 64 entries of a new page from the guest's table in `frame`.
    fn fill_part<M: PhysMem, H>(&mut self, id: Id, frame: Pfn<Hpa>, part: usize, host: &mut Host<'_, M, H>) {
        let (row, leaves) = (self.index.row(id), self.lane.as_ref().map(LaneMemory::leaves));
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
                        self.index.page_mut(id).set_mirror(index, pte, host.mem);
                    }
                    continue;
                }
                let Some(new) = leaves.and_then(|leaves| self.leaf_as_lane(leaves, pte, &mut told, host)) else {
                    self.remake_within_budget((id, index), pte, host);
                    continue;
                };
                host.budget.spend(Budget::INSERT);
                table::fill(row.table.wrapping_add(8 * index as u64), new, host.mem);
                self.index.insert_in(&row, index, pte, host.mem);
            }
        }
        self.index.page_mut(id).settle(part, host.mem);
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
        if is_told || host.budget.is_spent() || self.index.heads.has_protected_around(chunk) {
            return None;
        }
        host.budget.spend(Budget::DERIVE);
        self.teach(pte.pfn(), host.space, host.mem);
        leaves.of(pte, host.mem)
    }

    fn remake_within_budget<M: PhysMem, H>(&mut self, at: At, pte: Pte, host: &mut Host<'_, M, H>) {
        let page = self.index.page(at.0);
        let level = page.key.level;
        if host.budget.is_spent() || !pte.flags().contains(PteFlags::V) {
            return self.replace(at, self.faulting(level, pte), pte, host);
        }
        host.budget.spend(Budget::FILL);
        let ours = Pte(host.mem.read_u64(page.entry_at(at.1)));
        self.remake(at, ours, pte, host);
    }

    /// The guest's table that the page stands for is about to be elsewhere, or nowhere: nothing that it says can be compared until
    /// it is found again. A page of level 0 is unlinked: its poison would have to know the guest's U.
    pub(super) fn lose_table<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        self.index.page_mut(id).compared = Compared::NEVER;
        if self.index.page(id).key.level > Level::PAGE {
            return;
        }
        while let Some(parent) = self.index.first(List::Parents(id), host.mem) {
            self.drop_entry(parent, host);
        }
    }
}
