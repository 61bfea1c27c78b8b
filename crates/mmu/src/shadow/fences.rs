//! The guest's fences: what a vCPU may use is brought up to date, by what its tables say now.

use super::candidates::STIRS;
use super::config::{Budget, Host};
use super::engine::Shadow;
use super::page::{Id, PARTS, Place, Role, below, indices};
use super::passed::Mappings;
use super::root::Root;
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use super::views::Views;
use crate::gstage::AddressSpace;
use crate::table;
use rv::{Addr, Asid, Fence, FenceLog, Gpa, Gva, Hpa, Level, PAGE_BYTES, Pfn, PhysMem, Pte, Space};

/// A fence of the guest's (`sfence.vma` and its like).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuestFence<S: Space = Gva> {
    /// First address and length in bytes; `None` for all addresses.
    pub range: Option<(Addr<S>, u64)>,
    /// One address space; `None` for all, global mappings included.
    pub asid: Option<Asid>,
}

/// Pages in a fence by address beyond which it is treated as one of all addresses.
const MOST_PAGES: u64 = 64;

impl<S: Space> GuestFence<S> {
    /// The pages it is about; `None` for all, or for so many that it is treated as one for all.
    pub fn pages(&self) -> Option<impl Iterator<Item = Addr<S>> + Clone + use<S>> {
        let (start, bytes) = self.range?;
        let first = start.align_down(PAGE_BYTES);
        let pages = (start.raw() - first.raw()).saturating_add(bytes).div_ceil(PAGE_BYTES);
        (pages <= MOST_PAGES).then(|| (0..pages).map(move |n| first.wrapping_add(n * PAGE_BYTES)))
    }
}

impl<S: Shadowed> Shadow<S> {
    /// A fence of the guest's, on the vCPU whose root this is. TLBs of its hart are the caller's.
    pub fn fence<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        fence: &GuestFence<S>,
        root: Root<S>,
        views: &mut Views<S>,
        log: &mut FenceLog<S>,
        host: &mut Host<'_, M, H>,
    ) {
        let is_own = fence.asid.is_none_or(|asid| asid == root.asid);
        match fence.pages() {
            Some(pages) => {
                // Other roots catch up when they are loaded; the present one does now.
                let is_logged = fence.asid.is_none() && !self.is_sabotaged(Sabotage::ForgetsLog);
                for gva in pages {
                    self.pass_page(gva);
                    if is_own {
                        self.fence_page(root, gva, host);
                    }
                    if is_logged {
                        log.push(gva);
                    }
                }
                if fence.asid.is_some() {
                    views.outdate_others(fence.asid, log);
                }
            }
            None => {
                self.stamp += 1;
                let is_private = fence.asid.is_some() || self.is_sabotaged(Sabotage::ForgetsGlobals);
                let mappings = if is_private { Mappings::Private } else { Mappings::All };
                if !self.is_sabotaged(Sabotage::ForgetsPassed) {
                    self.passed.all(mappings, self.stamp);
                }
                self.stirs = STIRS;
                self.quieten(host);
                if is_own {
                    self.fence_root(&root, mappings, host);
                    self.tell_lane(root.id, host.mem);
                }
                views.outdate_others(fence.asid, log);
            }
        }
        self.conclude(host);
    }

    /// A fence by address on one root, where the shadow's last table for the address is one that a walk ended at lately, as nearly all
    /// are, and where it has to do with one entry at most. Says whether it was such a one, and is done.
    ///
    /// It takes no frames, and owes no fence but the guest's own.
    #[inline(always)]
    pub fn fence_in_known_table(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        space: &AddressSpace,
        mem: &mut impl PhysMem,
    ) -> bool {
        let Some(at) = self.known(root, gva) else { return false };
        if self.steers() {
            return self.resync_in_known_table(at, gva, space, mem);
        }
        let page = self.index.page(at.0);
        if page.may_lag() && page.is_live(at.1) && !self.is_sabotaged(Sabotage::ForgetsFence) {
            if self.protects_new_tables() {
                return false;
            }
            self.counters.invalidated += 1;
            let (_, debt) = table::exchange(page.entry_at(at.1), Pte::INVALID, mem);
            self.leave(debt);
        }
        self.pass_page(gva);
        true
    }

    /// A fence of one page happens, on whatever root.
    #[inline(always)]
    pub(super) fn pass_page(&mut self, gva: Addr<S>) {
        let stamp = self.begin_to_pass();
        self.pass_one(gva, stamp);
    }

    /// Fences of pages are about to happen. Says when.
    #[inline(always)]
    pub(super) const fn begin_to_pass(&mut self) -> u64 {
        self.stamp += 1;
        self.passed.some_pages(self.stamp);
        self.stamp
    }

    /// One of them happens.
    #[inline(always)]
    pub(super) fn pass_one(&mut self, gva: Addr<S>, stamp: u64) {
        if !self.is_sabotaged(Sabotage::ForgetsPassedPages) {
            self.passed.page(gva.raw(), stamp);
        }
    }

    /// A fence by address on one root: what its tables say of `gva` may be out of date.
    pub(super) fn fence_page<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: Root<S>,
        gva: Addr<S>,
        host: &mut Host<'_, M, H>,
    ) {
        let at = self.descend(&root, gva, host.mem);
        let page = self.index.page(at.0);
        // The identity does not change, and what is not live says nothing, unless it is steered.
        let says = page.is_live(at.1) || self.steers();
        if page.key.role == Role::Table && says && !self.is_sabotaged(Sabotage::ForgetsFence) {
            self.fence_entry(at, host);
        }
    }

    /// [`Shadow::sync_below`] for a root.
    pub(super) fn sync_root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) {
        for part in self.parts(root.id) {
            self.sync_below(part, mappings, Addr::new(0), host);
            if self.is_sabotaged(Sabotage::ForgetsFrames) {
                break;
            }
        }
    }

    /// Brings the page, and all that can be reached from it, in step with the guest's tables. What the budget does not
    /// suffice for cannot be reached from it any more: faults will find it again. `gva`: an address that it translates.
    ///
    /// Says whether it may be linked. A steered page of level 0 may not before all of it is in step, for which some more
    /// attempts suffice.
    pub(super) fn sync_below<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        mappings: Mappings,
        gva: Addr<S>,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        if !self.may_any_lag() {
            return true;
        }
        self.stamp += 1;
        let Err(rest) = self.sync_tree(id, mappings, gva, host) else { return true };
        if self.steers() && self.index.page(id).key.level == Level::PAGE {
            self.counters.postponed += 1;
            return self.is_sabotaged(Sabotage::ForgetsRest);
        }
        self.postpone(id, rest, host);
        true
    }

    /// Leaves out what a page leads to from entry `rest` on, for there is too much of it: it is found again by faults.
    pub(super) fn postpone<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, rest: usize, host: &mut Host<'_, M, H>) {
        self.counters.postponed += 1;
        if self.is_sabotaged(Sabotage::ForgetsRest) {
            return;
        }
        self.empty(id, rest, host);
    }

    /// Where it stops because the budget is spent, the entries below that index are in step, with all that they lead to.
    pub(super) fn sync_tree<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        mappings: Mappings,
        gva: Addr<S>,
        host: &mut Host<'_, M, H>,
    ) -> Result<(), usize> {
        let page = self.index.page(id);
        let key = page.key;
        if key.role != Role::Table || page.compared.of(mappings) == self.stamp {
            return Ok(());
        }
        let part = match (key.level, page.place) {
            (Level::PAGE, Place::Nowhere | Place::At(_)) => Some(gva.raw()),
            _ => None,
        };
        if self.rests(page) {
            return Ok(());
        }
        if self.steers() && self.passed.is_fresh(page.compared, mappings, part) {
            return Ok(());
        }
        if self.sync_by_digest(id, mappings, host) {
            return Ok(());
        }
        let may_lag = self.index.page(id).may_lag();
        if may_lag {
            self.counters.synced_pages += 1;
            if host.budget.is_spent() {
                return Err(0);
            }
        } else if key.level == Level::PAGE {
            return Ok(());
        }
        host.budget.spend(Budget::VISIT);
        if key.level == Level::PAGE {
            let parts = self.parts_behind(id, mappings, host);
            self.note_comparison(id, parts == 0);
            if parts != 0 {
                for part in (0..PARTS).filter(|part| parts >> part & 1 == 1) {
                    self.sync_part(id, part, host)?;
                }
            }
        } else {
            self.sync_upper(id, mappings, (gva, may_lag), host)?;
            self.digest(id, gva, host);
        }
        let stamp = self.stamp;
        self.index.page_mut(id).compared.set(mappings, stamp);
        Ok(())
    }

    /// [`Shadow::sync_tree`] of a page that leads to others.
    fn sync_upper<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        mappings: Mappings,
        (gva, may_lag): (Addr<S>, bool),
        host: &mut Host<'_, M, H>,
    ) -> Result<(), usize> {
        if self.index.page(id).epoch != self.epoch {
            let epoch = self.epoch;
            self.index.page_mut(id).stir_all(epoch);
        }
        let page = self.index.page(id);
        let (level, guest, mirror) = (page.key.level, page.guest, page.body.mirror.first());
        let drops_unused = level == Level::MEGA && self.steers();
        let mut is_same = true;
        // Nothing can be reached by the others.
        let mut next = page.live_part(0);
        while let Some((part, live)) = next {
            if may_lag && Self::is_behind((guest, mirror), (part, live), host) {
                is_same = false;
                self.sync_part(id, part, host)?;
            }
            let page = self.index.page(id);
            let leading = if self.steers() { page.stirred_in(part) } else { page.leading_in(part) };
            for index in indices(part, leading) {
                let Some(child) = self.table_below((id, index), host.mem) else { continue };
                if host.budget.is_spent() {
                    return Err(index);
                }
                host.budget.spend(Budget::EDIT);
                if drops_unused && !self.index.page_mut(child).use_.is_kept(self.passed.fences()) {
                    self.drop_entry((id, index), host);
                    continue;
                }
                if self.sync_tree(child, mappings, below(level, gva, index), host).is_err() {
                    return Err(index);
                }
                if self.rests(self.index.page(child)) {
                    self.index.page_mut(id).calm_at(index);
                }
            }
            next = self.index.page(id).live_part(part + 1);
        }
        if may_lag {
            self.note_comparison(id, is_same);
        }
        Ok(())
    }

    /// Whether some of 64 live entries are out of step with the guest's, or that cannot be seen at once.
    #[inline(always)]
    fn is_behind<M: PhysMem, H>(
        (guest, mirror): (Option<Pfn<Hpa>>, Pfn<Hpa>),
        (part, live): (usize, u64),
        host: &mut Host<'_, M, H>,
    ) -> bool {
        let Some(guest) = guest else { return true };
        // Most tables above those of large pages have one entry.
        if live.is_power_of_two() {
            host.budget.spend(1);
            let at = 512 * part as u64 + 8 * u64::from(live.trailing_zeros());
            return host.mem.read_u64(guest.at(at)) != host.mem.read_u64(mirror.at(at));
        }
        host.budget.spend(Budget::COMPARE);
        Self::do_differ((guest, mirror), (part, live), host.mem)
    }

    /// In the loop that asks, the compiler would prepare it for each page, also for those of one entry.
    #[inline(never)]
    fn do_differ(frames: (Pfn<Hpa>, Pfn<Hpa>), (part, live): (usize, u64), mem: &impl PhysMem) -> bool {
        mem.differing(frames, part, live) != 0
    }

    /// Brings 64 entries of the shadow of a table in step with the guest's, as far as the budget goes: those below an index
    /// where it stops.
    fn sync_part<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        part: usize,
        host: &mut Host<'_, M, H>,
    ) -> Result<(), usize> {
        // Of a page that is not linked before all of it is in step, one entry is: so whoever tries again gets on.
        let mut is_free = self.has_all_mirrors(self.index.page(id));
        if host.budget.is_spent() && !is_free {
            return Err(64 * part);
        }
        let mut behind = self.behind(id, part, host);
        if behind == 0 {
            return Ok(());
        }
        self.split(id, host);
        if is_free {
            behind = self.resync_as_lane(id, part, behind, host);
        }
        for index in indices(part, behind) {
            if host.budget.is_spent() && !core::mem::take(&mut is_free) {
                return Err(index);
            }
            self.derive((id, index), host);
        }
        if self.has_all_mirrors(self.index.page(id)) {
            self.index.page_mut(id).settle(part, host.mem);
        }
        Ok(())
    }

    /// Compares all live entries of the shadow of a table with the guest's, as far as the budget goes. Says whether that
    /// was all.
    pub(super) fn sync_entries<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) -> bool {
        self.counters.synced_pages += 1;
        host.budget.spend(Budget::VISIT);
        let parts = self.parts_behind(id, Mappings::All, host);
        (0..PARTS).filter(|part| parts >> part & 1 == 1).all(|part| self.sync_part(id, part, host).is_ok())
    }
}
