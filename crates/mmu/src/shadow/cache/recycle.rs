//! Within a bound: shadow pages are prepared for, recycled, and given back.

use crate::frames::AllocError;
use crate::shadow::cache::Cache;
use crate::shadow::config::DEEPEST;
use crate::shadow::pages::{Id, Index, List, PARTS, Role, indices};
use crate::shadow::{Budget, Host, Sabotage, Shadowed};
use rv::{Fence, Gpa, PhysMem};

/// Shadow pages taken back at once: others wait for the lock meanwhile.
const MOST_AT_ONCE: u32 = 64;

impl<S: Shadowed> Cache<S> {
    /// Makes sure of shadow pages for one whole walk, and of one more for its root; those of other walks go for it
    /// if need be.
    ///
    /// Says whether there are enough now; if not, the budget is spent, and more is done the next time. It is spent, too, if pages were
    /// taken back and the rest of it would not fill one whose guest table is full: that page would be poison, and each of its entries
    /// cost an exit.
    ///
    /// # Errors
    /// If the host has no frames, and no page can be taken back or fewer than the engine's least are there. With fewer, the pages
    /// for one instruction would be taken from each other for ever (LEAST). Nothing is lost.
    pub fn prepare<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) -> Result<bool, AllocError> {
        let mut may_fill = true;
        while self.pool.spare.len() <= DEEPEST as usize {
            if host.budget.is_spent() {
                self.tables.counters.postponed += 1;
                return Ok(false);
            }
            let before = self.tables.counters.recycled;
            let more = if self.pool.bodies < self.tables.rules.config.pages {
                self.pool.take_body::<S>(&mut self.tables.gate, host.frames)
            } else {
                Ok(None)
            };
            match more {
                Ok(Some(body)) => self.pool.spare.push(body),
                Ok(None) => self.recycle(host),
                Err(error) if self.pool.bodies < self.pool.least || self.tables.index.arena.is_empty() => {
                    return Err(error);
                }
                Err(error) => {
                    let before = self.pool.spare.len();
                    self.recycle(host);
                    if self.pool.spare.len() == before && !host.budget.is_spent() {
                        return Err(error);
                    }
                }
            }
            may_fill &= !self.tables.rules.policy.fills_whole
                || self.tables.counters.recycled == before
                || host.budget.affords_page();
        }
        self.tables.counters.postponed += u64::from(!may_fill);
        Ok(may_fill)
    }

    /// Takes back an eighth of all pages, 64 at most, as many as the budget lets, and makes all harts forget them: those whose tables the
    /// guest seems to use no more, as far as a short search finds some; else those that no fault has used for longest. The roots of
    /// vCPUs stay.
    fn recycle<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        let wanted = (self.tables.rules.config.pages / 8).clamp(DEEPEST + 1, MOST_AT_ONCE);
        let mut taken = self.recycle_dead(wanted, host);
        // What is in use goes only if it must, or a search finds too little.
        let least = if taken > DEEPEST { 0 } else { wanted };
        // The clock: one round to clear what is recent, one to take.
        for _ in 0..2 * self.tables.index.arena.end() {
            if taken >= least || host.budget.is_spent() {
                break;
            }
            host.budget.spend(1);
            let id = self.hand;
            self.hand = if id + 1 >= self.tables.index.arena.end() { 0 } else { id + 1 };
            if self.tables.index.arena.get(id).is_none_or(|page| page.users != 0) {
                continue;
            }
            if !core::mem::take(&mut self.tables.index.page_mut(id).is_recent) {
                if !self.zap(id, host) {
                    // Next time it is the first one.
                    self.hand = id;
                    break;
                }
                taken += 1;
            }
        }
        self.tables.counters.recycled += u64::from(taken);
        if self.tables.rules.is_sabotaged(Sabotage::ReusesEarly) {
            self.flushed(host);
        } else {
            self.flush(host);
        }
    }

    /// Takes back shadows of tables that the guest seems to use no more, as those of a process that has ended: as many as are wanted, or
    /// a short search finds. Says how many.
    fn recycle_dead<M: PhysMem, H: Fence<Gpa>>(&mut self, wanted: u32, host: &mut Host<'_, M, H>) -> u32 {
        let (mut taken, end) = (0, self.tables.index.arena.end());
        if S::COMPOSES {
            // What its entries were made from takes a walk for each.
            return 0;
        }
        // Where there are none, the search is to leave enough to take back others.
        let mut search = host.budget.half().half();
        for _ in 0..end {
            if taken == wanted || search.is_spent() || host.budget.is_spent() {
                break;
            }
            let id = self.dead_hand;
            self.dead_hand = if id + 1 >= end { 0 } else { id + 1 };
            let left = search;
            let is_dead = host.sharing(&mut search, |host| is_dead(&self.tables.index, id, host));
            host.budget.spend(left.less(search));
            if is_dead {
                if !self.zap(id, host) {
                    self.dead_hand = id;
                    break;
                }
                taken += 1;
            }
        }
        taken
    }

    /// Ends a shadow page: nothing leads to it, and it leads nowhere. TLBs may still walk it. Says whether it has: if there is
    /// more to drop than the budget lets, it has not.
    pub fn zap<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) -> bool {
        debug_assert!(self.tables.index.page(id).users == 0);
        while let Some(parent) = self.tables.index.first(List::Parents(id), host.mem) {
            if host.budget.is_spent() {
                return false;
            }
            self.tables.drop_entry(parent, host);
            if self.tables.rules.is_sabotaged(Sabotage::ForgetsSharer) {
                break;
            }
        }
        self.gone += 1;
        let page = self.tables.index.page(id);
        let is_steered_table = self.tables.rules.has_all_mirrors(page) && page.key.role == Role::Table;
        while let Some(index) = self.tables.index.page(id).marks.next_live(0) {
            if host.budget.is_spent() {
                return false;
            }
            if is_steered_table {
                self.tables.end_leaves_around((id, index), host);
            } else {
                self.tables.drop_entry((id, index), host);
            }
        }
        while let Some((part, parked)) = self.tables.index.page(id).marks.parked_part() {
            if self.tables.rules.is_sabotaged(Sabotage::ForgetsParked) {
                break;
            }
            for index in indices(part, parked) {
                if host.budget.is_spent() {
                    return false;
                }
                host.budget.spend(Budget::UNPARK);
                self.tables.index.unpark((id, index), host.mem);
            }
        }
        if self.tables.index.page(id).key.role == Role::Table {
            self.end_table(id, host.mem);
        } else {
            self.tables.index.delist(id, host.mem);
        }
        self.pool.retired.push(self.tables.index.arena.take(id));
        true
    }

    /// Drops all entries of a page from number `at` on, 512 at most, whatever the budget.
    pub fn empty<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, mut at: usize, host: &mut Host<'_, M, H>) {
        self.gone += 1;
        while let Some(index) = self.tables.index.page(id).marks.next_live(at) {
            self.tables.drop_entry((id, index), host);
            at = index + 1;
        }
    }
}

/// Returns whether no entry is left in a guest's table of those that its shadow has. The frame may be anything by now.
fn is_dead<S: Shadowed, M: PhysMem, H>(index: &Index<S>, id: Id, host: &mut Host<'_, M, H>) -> bool {
    host.budget.spend(Budget::GLANCE);
    let Some(page) = index.arena.get(id).filter(|page| page.users == 0 && page.key.role == Role::Table) else {
        return false;
    };
    let (Some(guest), Some(first)) = (page.origin.guest, page.marks.next_live(0)) else { return false };
    // Of those that are in use most say so at once.
    let at = 8 * first as u64;
    if host.mem.read_u64(guest.at(at)) == host.mem.read_own(page.mirror_at(first)) {
        return false;
    }
    host.budget.spend(PARTS as u32 * Budget::COMPARE);
    let frames = (guest, page.body.mirror.first());
    (0..PARTS).all(|part| {
        let live = page.marks.live_in(part);
        live == 0 || host.mem.differing(frames, part, live) == live
    })
}
