//! Write protection: what the upkeeps `shadow` and `unsync` know of the guest's edits before it fences.
//!
//! A guest table is *protected* when no translation of the VM allows a store to it. Then each store is an
//! exit, [`Shadow::table_write`] performs it, and the shadow is in step at all times. A table that is not is
//! *unsync*, and is treated as in `lazy` until a wide fence protects it again.

use crate::shadow::cache::Cache;
use crate::shadow::pages::{Id, List};
use crate::shadow::{Host, Sabotage, Shadowed};
use crate::table::Owed;
use rv::{Fence, Gpa, Pfn, PhysMem};

impl<S: Shadowed> Cache<S> {
    /// Enlists the shadow of a guest table in RAM, and protects the table where the upkeep does.
    pub fn begin_table<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        let gfn = self.tables.index.page(id).key.gfn;
        self.wake(gfn, host.mem);
        let first = self.tables.index.tables_of(gfn, host.mem).next();
        // All shadows of a frame are protected, or none is.
        let is_unsync =
            !self.tables.rules.policy.protects || first.is_some_and(|other| self.tables.index.page(other).is_unsync);
        self.tables.index.page_mut(id).is_unsync = is_unsync;
        self.tables.index.enlist(id, host.mem);
        if !is_unsync && first.is_none() {
            *self.tables.index.heads.protected_around(gfn) += 1;
            if self.withdraw_writes(gfn, host) {
                self.stop_stores(host);
            } else {
                self.tables.counters.postponed += 1;
                self.unsync(gfn, host.mem);
            }
        }
    }

    /// The opposite, at the end of a shadow page.
    pub fn end_table(&mut self, id: Id, mem: &mut impl PhysMem) {
        let page = self.tables.index.page(id);
        let (gfn, is_unsync) = (page.key.gfn, page.is_unsync);
        self.tables.index.delist(id, mem);
        let protects = self.tables.rules.policy.protects || self.tables.rules.policy.quiets;
        if protects && self.tables.index.heads.contains(gfn) && self.tables.index.first_table(gfn, mem).is_none() {
            if is_unsync {
                self.unsync.retain(|other| *other != gfn);
            } else {
                *self.tables.index.heads.protected_around(gfn) -= 1;
            }
        }
    }

    /// Makes all leaves to the frame read-only, as far as the budget goes. Says whether that was all. TLBs may know better.
    pub fn withdraw_writes<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        while let Some(at) = self.tables.index.first(List::Mega(gfn), host.mem) {
            if host.budget.is_spent() {
                return false;
            }
            self.tables.drop_entry(at, host);
        }
        let mut next = self.tables.index.first(List::Frame(gfn), host.mem);
        while let Some(at) = next {
            if host.budget.is_spent() {
                return false;
            }
            self.tables.withdraw_writes_of(at, host);
            next = self.tables.index.next(at, host.mem);
        }
        true
    }

    /// Makes sure that no TLB lets stores through that the tables no longer allow.
    pub fn stop_stores<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        let may_pass = self.stores_may_pass || host.debt.owes(Owed::STORES);
        if may_pass && !self.tables.rules.is_sabotaged(Sabotage::ProtectsWithoutFlush) {
            self.flush(host);
        }
    }

    /// Lets the guest write the frame, and looks at it at fences instead.
    pub fn unsync(&mut self, gfn: Pfn<Gpa>, mem: &impl PhysMem) {
        if !self.tables.is_protected(gfn, mem) {
            return;
        }
        self.tables.counters.unsynced += 1;
        self.tables.index.set_unsync(gfn, true, mem);
        *self.tables.index.heads.protected_around(gfn) -= 1;
        self.unsync.push(gfn);
    }

    /// The frame seems to be no table any more: its shadows go, except those in use.
    pub fn give_up_table<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) {
        let mut next = self.tables.index.first_table(gfn, host.mem);
        while let Some(id) = next {
            next = self.tables.index.page(id).next;
            let page = self.tables.index.page(id);
            let is_unused = page.users == 0 && page.parents.entry().is_none();
            if is_unused && !host.budget.is_spent() && self.zap(id, host) {
                self.tables.counters.dropped += 1;
            }
        }
        self.unsync(gfn, host.mem);
    }

    /// An access comes to a frame, or Gnomon has written there: if it was a quiet table's, it is not any more.
    #[inline(always)]
    pub fn wake(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) {
        if self.tables.is_quiet(gfn, mem) {
            self.wake_table(gfn, mem);
        }
    }

    #[cold]
    #[inline(never)]
    pub fn wake_table(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) {
        self.tables.counters.woken += 1;
        self.tables.index.set_unsync(gfn, true, mem);
        *self.tables.index.heads.protected_around(gfn) -= 1;
        let mut next = self.tables.index.first_table(gfn, mem);
        while let Some(id) = next {
            let page = self.tables.index.page_mut(id);
            page.calm.wakes(self.tables.rules.config.quiet_after);
            next = page.next;
            // It was laid out without this one's entries.
            self.tables.index.end_digest_of(id);
            self.tables.stir_from(id, mem);
        }
    }

    /// Returns whether the frame is one of the guest's tables that are shadowed. It must not be taken away: their shadows know where they
    /// are.
    #[must_use]
    pub fn is_shadowed(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.tables.index.heads.contains(gfn)
            && self.tables.index.tables_of(gfn, mem).next().is_some()
            && !self.tables.rules.is_sabotaged(Sabotage::LetsTablesGo)
    }
}
