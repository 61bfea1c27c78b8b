//! Quiet tables, in `steered`: tables that wide fences need not look at.
//!
//! A guest's table that fences have found unchanged often enough becomes *quiet*: no leaf of the VM leads to its frame
//! any more, and no TLB lets a store through. So it cannot be written, and its shadows are in step whatever is fenced.
//! An access to it, a read or a write, is an access fault, which ends that state. The next time more fences must find
//! it unchanged.
//!
//! A page is *restless* if its table may be written, or if it leads to a page that is. Each page has a bit for each of its entries that
//! leads to one. A wide fence follows those bits alone: its work is that of the tables that may have been written.
//!
//! ```text
//!            root  ● ○ ○ ●                ●  leads to a restless page
//!              ┌───┘     └────┐           ○  leads to none: what is below is not looked at
//!            page  ○ ● ○    page  ○ ○ ●
//!          ┌───────┘ └──────┐         └─────────────┐
//!        table: quiet     table: may be written   table: may be written
//! ```
//!
//! Rule: where a page is restless, all entries that lead to it have their bit. It may be set where that is not needed; a fence
//! that comes by clears it then.

use crate::shadow::pages::{Id, List};
use crate::shadow::sync::{MOST, Syncer};
use crate::shadow::{Budget, Host, Sabotage, Shadowed};
use rv::{Fence, FenceScope, Gpa, Level, Pfn, PhysMem};

impl<S: Shadowed> Syncer<S> {
    /// A table has been compared, and was as it had been, or not.
    #[inline(always)]
    pub fn note_comparison(&mut self, id: Id, is_same: bool) {
        let tables = &mut self.cache.tables;
        let page = tables.index.page_mut(id);
        if page.calm.is_enough(is_same, tables.rules.config.quiet_after) {
            self.candidates.add(page.key.gfn, self.cache.passed.fences());
        }
    }

    /// Before a wide fence does its work: those that have been as they were for long become quiet.
    #[inline(always)]
    pub fn quieten<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        if self.candidates.are_due(self.cache.passed.fences()) {
            self.quieten_all(host);
        }
    }

    #[cold]
    #[inline(never)]
    fn quieten_all<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        // The other half is the fence's.
        let rest = host.budget.half();
        host.budget = rest;
        let mut frames = self.candidates.take();
        let (mut taken, mut many) = ([Pfn::new(0); MOST], 0);
        while let Some(gfn) = frames.pop() {
            let keeps_leaves = self.rules().is_sabotaged(Sabotage::QuietsWithLeaves);
            if self.may_become_quiet(gfn, host.mem) && (keeps_leaves || self.cache.forget_ahead(gfn, host)) {
                taken[many] = gfn;
                many += 1;
            }
        }
        self.cache.stop_stores(host);
        for gfn in taken.into_iter().take(many) {
            // The others come back.
            if host.budget.is_spent() {
                frames.push(gfn);
            } else {
                self.make_quiet(gfn, host);
            }
        }
        self.candidates.put_back(frames);
        host.budget = rest;
    }

    fn may_become_quiet(&mut self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        let mut shadows = self.cache.tables.index.tables_of(gfn, mem).map(|id| self.page(id)).peekable();
        if shadows.peek().is_none() || !shadows.all(|page| page.is_unsync && page.origin.guest.is_some()) {
            return false;
        }
        // A leaf of 2 MiB takes one place in a TLB, and its pieces take 512. They need a page of ours, too.
        let may_split = self.rate.is_high() && self.cache.pool.bodies < self.rules().config.pages / 4 * 3;
        self.cache.tables.index.first(List::Mega(gfn), mem).is_none()
            || may_split && self.candidates.may_split(gfn, &mut self.cache.tables.counters.split)
    }

    /// The next access to those 2 MiB may get one leaf for all. Says whether that is so, or the budget is spent before: then a part
    /// is done.
    pub fn make_whole<M: PhysMem, H: Fence<Gpa>>(&mut self, chunk: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        for gfn in (0..Level::MEGA.pages()).map(|n| chunk.add(n)) {
            if self.cache.tables.is_quiet(gfn, host.mem) {
                self.cache.wake_table(gfn, host.mem);
                host.budget.spend(Budget::DERIVE);
                if host.budget.is_spent() {
                    return false;
                }
            }
        }
        while let Some(pieces) = self.cache.tables.index.linked_pieces(chunk) {
            while let Some(above) = self.cache.tables.index.first(List::Parents(pieces), host.mem) {
                self.cache.tables.drop_entry(above, host);
                if host.budget.is_spent() {
                    return false;
                }
            }
        }
        host.budget.spend(Level::MEGA.pages() as u32);
        true
    }

    fn make_quiet<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) {
        let mut next = self.cache.tables.index.first_table(gfn, host.mem);
        let mut is_in_step = true;
        while let Some(id) = next {
            is_in_step &= self.sync_entries(id, host);
            next = self.page(id).next;
        }
        // The table may have leaves to itself.
        let is_reached = |list| self.cache.tables.index.first(list, host.mem).is_some();
        let is_reached = is_reached(List::Frame(gfn)) || is_reached(List::Mega(gfn));
        // One frame may have waited twice.
        let is_quiet = self.cache.tables.is_quiet(gfn, host.mem);
        if is_quiet || !is_in_step || is_reached && !self.rules().is_sabotaged(Sabotage::QuietsWithLeaves) {
            return;
        }
        self.cache.tables.counters.quieted += 1;
        self.cache.tables.index.set_unsync(gfn, false, host.mem);
        *self.cache.tables.index.heads.protected_around(gfn) += 1;
        // The lane does not check whether a frame is a quiet table's.
        let chunk = gfn.align_down(Level::MEGA.pages()).base();
        if let Some(lane) = &self.cache.tables.gate.memory {
            lane.words.end(FenceScope::Range { start: chunk, bytes: Level::MEGA.bytes() }, host.mem);
        }
        // Without it they are shorter.
        self.cache.tables.index.digests = 0;
    }
}
