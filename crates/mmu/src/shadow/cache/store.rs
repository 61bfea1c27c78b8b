//! The shadow pages as a cache within a bound: how they begin, and the flushes after which they may be used again.

use crate::shadow::cache::Pool;
use crate::shadow::entries::Tables;
use crate::shadow::lane::Gate;
use crate::shadow::pages::{Body, Compared, Id, Key, Page, Passed};
use crate::shadow::{Host, Lower, Sabotage, Shadowed};
use crate::table::{Debt, Owed};
use alloc::vec::Vec;
use rv::{Fence, FenceScope, Gpa, Hpa, Pfn, PhysMem};

/// Shadow pages within a bound, and what becomes of them when the host takes memory from the guest.
pub struct Cache<S: Shadowed> {
    pub tables: Tables<S>,
    pub pool: Pool,
    /// The latest fences.
    pub passed: Passed,
    /// Some TLB may let stores through that the tables no longer allow. No guest is wronged by that; but before a table
    /// is believed to be protected, all TLBs are flushed.
    pub stores_may_pass: bool,
    /// Guest frames whose tables may be written without an exit, in the upkeeps that protect.
    pub unsync: Vec<Pfn<Gpa>>,
    pub next_serial: u64,
    /// Times that shadow pages went, or lost their entries: what was found before may be out of date.
    pub gone: u64,
    /// The page at which the search for victims goes on.
    pub hand: Id,
    /// Like `hand`, for the search for pages that the guest seems to use no more.
    pub dead_hand: Id,
}

impl<S: Shadowed> Cache<S> {
    /// A new shadow page, found by its key from now on.
    /// In upkeeps that protect, the guest's table is write-protected when this returns.
    pub fn make<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        key: Key,
        body: Body,
        guest: Option<Pfn<Hpa>>,
        host: &mut Host<'_, M, H>,
    ) -> Id {
        for run in [&body.table, &body.mirror, &body.links] {
            host.mem.zero_frames(run.first(), 1);
        }
        let id = self.tables.index.arena.add(Page::new(key, body, self.next_serial, guest));
        if S::COMPOSES {
            let (context, below) = (self.tables.index.context, self.tables.lower.changes());
            let origin = &mut self.tables.index.page_mut(id).origin;
            (origin.context, origin.own.below) = (context, below);
        }
        self.tables.index.page_mut(id).stirred.epoch = self.tables.unrest.epoch;
        Gate::write_id(self.tables.index.page(id), id, host.mem);
        // In `steered` it is about to be filled.
        self.tables.index.page_mut(id).compared =
            if self.tables.rules.policy.fills_whole { Compared::new(self.passed.stamp) } else { Compared::NEVER };
        self.next_serial += 1;
        self.tables.counters.made += 1;
        if self.tables.index.is_by_frame(key) {
            self.begin_table(id, host);
        } else {
            self.tables.index.enlist(id, host.mem);
        }
        // In place of what its frame said of another.
        self.tables.tell_lane(id, host.mem);
        id
    }

    /// Makes all harts forget all translations of the VM.
    pub fn flush<M, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        self.tables.counters.flushes += 1;
        host.hw.fence(FenceScope::Everything);
        self.flushed(host);
    }

    /// All harts have forgotten all translations of the VM.
    pub fn flushed<M, H>(&mut self, host: &mut Host<'_, M, H>) {
        let _ = host.debt.take().paid();
        self.stores_may_pass = false;
        self.pool.flushed();
    }

    /// At the end of an operation: what it owes is spent. No hart may walk by a pointer that is gone. That TLBs have more
    /// leaves than the tables is the guest's own affair, until a table is to be protected.
    #[inline(always)]
    pub fn conclude<M, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        if !host.debt.owes(Owed::all()) {
            return;
        }
        if host.debt.owes(Owed::POINTERS) && !self.tables.rules.is_sabotaged(Sabotage::KeepsPointers) {
            self.flush(host);
        } else {
            let debt = host.debt.take();
            self.leave(debt);
        }
    }

    /// TLBs may have these leaves until the guest's own fence.
    #[inline(always)]
    pub fn leave(&mut self, debt: Debt) {
        self.stores_may_pass |= debt.waive().contains(Owed::STORES);
    }

    /// Returns whether a shadow may lag behind its table at all now.
    pub fn may_any_lag(&self) -> bool {
        !self.tables.rules.policy.protects || !self.unsync.is_empty()
    }
}
