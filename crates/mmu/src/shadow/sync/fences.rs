//! The effects of fences on shadow tables: the guest's, and those that the lane has done.

use crate::gstage::AddressSpace;
use crate::shadow::entries::{Row, STIRS};
use crate::shadow::lane::{LINE_BYTES, LOG_AT};
use crate::shadow::pages::{At, CAPS, Id, Mappings, Place, Role, Stay};
use crate::shadow::policy::{ByAddress, Wide};
use crate::shadow::sync::Syncer;
use crate::shadow::{Host, Root, Sabotage, Shadowed};
use alloc::vec::Vec;
use lane::{Lane, LaneSync};
use rv::{Addr, Entry, Fence, Gpa, Hpa, Level, PAGE_BYTES, PhysMem, Pte};

/// Writes in a row that no table would see, after which a frame is believed to have another use.
const FLOOD: u8 = 3;

impl<S: Shadowed> Syncer<S> {
    /// Like [`super::super::Shadow::fence_in_known_table`].
    #[inline(always)]
    pub fn fence_in_known_table(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        space: &AddressSpace,
        mem: &mut impl PhysMem,
    ) -> bool {
        let Some(at) = self.cache.tables.walks.known(root, gva) else { return false };
        if self.rules().policy.own_faults {
            return self.resync_in_known_table(at, gva, space, mem);
        }
        let page = self.cache.tables.index.page(at.0);
        if page.may_lag() && page.marks.is_live(at.1) && !self.rules().is_sabotaged(Sabotage::ForgetsFence) {
            if self.rules().policy.protects {
                return false;
            }
            let slot = page.slot(at.1);
            let debt = self.cache.tables.invalidate_leaf(slot, mem);
            self.cache.leave(debt);
        }
        self.pass_page(gva);
        true
    }

    /// A fence by address on one root: what its tables say of `gva` may be out of date.
    pub fn fence_page<M: PhysMem, H: Fence<Gpa>>(&mut self, root: Root<S>, gva: Addr<S>, host: &mut Host<'_, M, H>) {
        let at = self.cache.tables.descend(&root, gva, host.mem);
        let page = self.page(at.0);
        // The identity does not change, and what is not live says nothing, unless it is steered.
        let says = page.marks.is_live(at.1) || self.rules().policy.fills_whole;
        if page.key.role == Role::Table && says && !self.rules().is_sabotaged(Sabotage::ForgetsFence) {
            self.fence_entry(at, host);
        }
    }

    /// Protects again what is unsync, with one flush for all, and compares its entries. What the budget does not suffice
    /// for stays unsync, and `root` leads nowhere then: a fault compares what it finds again.
    // Most wide fences have nothing to do for it, and would save registers for it.
    #[inline(never)]
    fn catch_up_all<M: PhysMem, H: Fence<Gpa>>(&mut self, root: &Root<S>, host: &mut Host<'_, M, H>) {
        // To compare them takes at least as much as to protect them, and those that are not compared were for nothing.
        let to_compare = host.budget.half();
        host.budget = to_compare;
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        while !host.budget.is_spent()
            && let Some(gfn) = self.cache.unsync.pop()
        {
            host.budget.spend(1);
            if self.cache.withdraw_writes(gfn, host) {
                self.cache.tables.index.set_unsync(gfn, false, host.mem);
                *self.cache.tables.index.heads.protected_around(gfn) += 1;
                taken.push(gfn);
            } else {
                left.push(gfn);
            }
        }
        self.cache.unsync.append(&mut left);
        self.cache.tables.counters.reprotected += taken.len() as u64;
        self.cache.stop_stores(host);
        host.budget = to_compare;
        for gfn in taken {
            let (mut is_in_step, mut next) = (true, self.cache.tables.index.first_table(gfn, host.mem));
            while let Some(id) = next {
                is_in_step &= self.sync_entries(id, host);
                next = self.page(id).next;
            }
            if !is_in_step {
                self.cache.unsync(gfn, host.mem);
            }
        }
        if !self.cache.unsync.is_empty() {
            self.cache.tables.index.arena.parts::<S>(root.id).for_each(|part| self.postpone(part, 0, host));
        }
    }

    /// The guest has changed an entry of a protected table. Says whether it looks as if it were none any more.
    pub fn written<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        index: usize,
        new: Pte,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        let (is_live, level) = (self.page(id).marks.is_live(index), self.page(id).key.level);
        let is_entry = match new.decode::<Gpa>(level, CAPS) {
            Entry::Leaf(leaf) => self.cache.tables.index.heads.contains(leaf.pfn),
            Entry::Table(gfn) => self.cache.tables.index.heads.contains(gfn),
            Entry::Invalid | Entry::Reserved(_) => false,
        };
        if !self.rules().is_sabotaged(Sabotage::ForgetsWrite) {
            self.derive((id, index), host);
        }
        let page = self.page_mut(id);
        page.flood = if is_live || is_entry { 0 } else { (page.flood + 1).min(FLOOD) };
        page.flood == FLOOD
    }

    /// A fence by address arrives at a live entry that is no pointer to a table.
    fn fence_entry<M: PhysMem, H: Fence<Gpa>>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        match self.rules().policy.by_address {
            ByAddress::Invalidate => self.cache.tables.invalidate(at, host),
            ByAddress::Resync => self.resync(at, host),
            ByAddress::CatchUp if self.page(at.0).may_lag() => self.derive(at, host),
            ByAddress::CatchUp => {}
        }
    }

    /// A fence of everything that `root` leads to, or a root that a vCPU has not used for long enough.
    #[inline(always)]
    pub fn fence_root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) {
        if !self.rules().is_sabotaged(Sabotage::ForgetsWideFence) {
            match self.rules().policy.wide {
                Wide::Reprotect if self.cache.unsync.is_empty() => {}
                Wide::Reprotect => self.catch_up_all(root, host),
                Wide::CompareAll => self.sync_root(root, Mappings::All, host),
                Wide::Compare => self.sync_root(root, mappings, host),
            }
        }
    }

    /// Learns what the log says, up to its line at `end`.
    #[inline(never)]
    pub fn learn(&mut self, gate: Addr<Hpa>, end: u64, mem: &mut impl PhysMem) {
        // Another hart, or another ASID, may have the leaves still that it took away.
        self.cache.stores_may_pass = true;
        if self.rules().is_sabotaged(Sabotage::ForgetsLaneLog) {
            return;
        }
        self.cache.passed.some_pages();
        let is_blind = self.rules().is_sabotaged(Sabotage::ListsBlindly);
        let (mut line, end) = (gate.wrapping_add(LOG_AT), Addr::new(end));
        while line != end {
            let what = mem.read_own(line);
            if what == LaneSync::WIDE {
                // A fence of all addresses and all ASIDs, where there was nothing to do.
                if !self.rules().is_sabotaged(Sabotage::ForgetsWideLines) {
                    self.cache.passed.all(Mappings::All);
                }
                self.cache.tables.unrest.stirs = STIRS;
            } else if what & 1 == 1 {
                // There is no table of level 0 for that address.
                self.pass_one(Addr::new(what));
            } else {
                let table = Addr::new(what.wrapping_sub(Lane::POINTER_FLAGS)).align_down(PAGE_BYTES);
                let id = self.learn_table(table, mem);
                line = Row::of(&self.cache.tables.index, id).follow(
                    &mut self.cache.tables.index,
                    (line, end),
                    is_blind,
                    mem,
                );
                continue;
            }
            line = line.wrapping_add(LINE_BYTES);
        }
    }

    /// The lane has made entries of that table. Returns the shadow page that it is of.
    fn learn_table(&mut self, table: Addr<Hpa>, mem: &impl PhysMem) -> Id {
        let id = self.cache.tables.index.id_of(table, mem);
        let page = self.page_mut(id);
        page.is_recent = true;
        page.stay = Stay::Changed;
        debug_assert!(page.key.level == Level::PAGE && page.key.role == Role::Table);
        match page.place {
            Place::At(gva) => self.pass_one(Addr::new(gva)),
            Place::Nowhere | Place::Various => self.cache.passed.any_page(),
        }
        id
    }
}
