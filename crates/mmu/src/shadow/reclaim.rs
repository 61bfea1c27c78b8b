//! Within a bound: shadow pages are prepared for, recycled, and given back; and what the host takes from
//! the guest leaves no trace in them.

use super::config::{Budget, DEEPEST, Host};
use super::engine::Shadow;
use super::index::List;
use super::page::{At, Body, Id, PARTS, Role, indices};
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use crate::frames::{AllocError, Frames, Run, Use};
use crate::gstage::{self, AddressSpace, GiveBack, How, Promoted, Promotion, Publish, Returned, Span};
use crate::stale::Stale;
use crate::table::{self, Debt, Owed};
use alloc::boxed::Box;
use alloc::vec::Vec;
use rv::{Fence, FenceScope, Gpa, Level, Pfn, PhysMem, Pte, PteFlags};

/// Shadow pages taken back at once: others wait for the lock meanwhile.
const MOST_AT_ONCE: u32 = 64;

impl<S: Shadowed> Shadow<S> {
    /// Makes sure of shadow pages for one whole walk, and of one more for its root; those of other walks go for it
    /// if need be.
    ///
    /// Says whether there are enough now; if not, the budget is spent, and more is done the next time. It is spent, too, if pages were
    /// taken back and the rest of it would not fill one whose guest table is full: that page would be poison, and each of its entries
    /// cost an exit.
    ///
    /// # Errors
    /// If the host has no frames and no page can be taken back. Nothing is lost.
    pub(super) fn prepare<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) -> Result<bool, AllocError> {
        let mut may_fill = true;
        while self.spare.len() <= DEEPEST as usize {
            if host.budget.is_spent() {
                self.counters.postponed += 1;
                return Ok(false);
            }
            let before = self.counters.recycled;
            let more = if self.bodies < self.config.pages { self.take_body(host.frames) } else { Ok(None) };
            match more {
                Ok(Some(body)) => self.spare.push(body),
                Ok(None) => self.recycle(host),
                Err(error) if self.index.is_empty() => return Err(error),
                Err(error) => {
                    let before = self.spare.len();
                    self.recycle(host);
                    if self.spare.len() == before && !host.budget.is_spent() {
                        return Err(error);
                    }
                }
            }
            may_fill &= !self.steers() || self.counters.recycled == before || host.budget.affords_page();
        }
        self.counters.postponed += u64::from(!may_fill);
        Ok(may_fill)
    }

    fn take_body(&mut self, frames: &Frames) -> Result<Option<Body>, AllocError> {
        // Four in a row are a convenience of the lane's: others will do.
        if self.lane.is_some()
            && let Ok(run) = frames.alloc(self.owner, Use::Table, 2)
            && let Ok((front, back)) = run.split()
            && let (Ok((a, b)), Ok((c, d))) = (front.split(), back.split())
        {
            // The header is before the table. Were that always the second of four frames, all tables would share a quarter of the
            // sets of a cache.
            let (header, table, mirror, links) = match self.bodies % 3 {
                0 => (a, b, c, d),
                1 => (b, c, a, d),
                _ => (c, d, a, b),
            };
            self.bodies += 1;
            return Ok(Some(Body { table, mirror, links, header: Some(header) }));
        }
        self.all_have_headers = false;
        let take = || frames.alloc(self.owner, Use::Table, 0);
        let table = take()?;
        let mirror = take();
        let links = take();
        match (mirror, links) {
            (Ok(mirror), Ok(links)) => {
                self.bodies += 1;
                Ok(Some(Body { table, mirror, links, header: None }))
            }
            (Err(error), other) | (other, Err(error)) => {
                frames.free(table);
                other.into_iter().for_each(|run| frames.free(run));
                Err(error)
            }
        }
    }

    /// Bodies for a root, of those that [`Shadow::prepare`] has set aside. Their tables follow one another.
    ///
    /// # Errors
    /// If the host has no frames in one piece. Nothing is lost.
    pub(super) fn take_root(&mut self, frames: &Frames) -> Result<Vec<Body>, AllocError> {
        let bodies = self.spare.split_off(self.spare.len() - S::ROOT_FRAMES);
        if S::ROOT_FRAMES == 1 {
            return Ok(bodies);
        }
        let release_table = |Body { table, mirror, links, header }| {
            frames.free(table);
            header.into_iter().for_each(|run| frames.free(run));
            (mirror, links)
        };
        let rest: Vec<(Run, Run)> = bodies.into_iter().map(release_table).collect();
        match frames.alloc(self.owner, Use::Table, S::ROOT_FRAMES.ilog2() as u8) {
            Ok(tables) => {
                let first = tables.into_entry();
                let table = |n| Run::from_entry(first.add(n), 0);
                Ok((0..)
                    .zip(rest)
                    .map(|(n, (mirror, links))| Body { table: table(n), mirror, links, header: None })
                    .collect())
            }
            Err(error) => {
                self.bodies -= S::ROOT_FRAMES as u32;
                rest.into_iter().flat_map(<[Run; 2]>::from).for_each(|run| frames.free(run));
                Err(error)
            }
        }
    }

    /// Takes back an eighth of all pages, 64 at most, as many as the budget lets, and makes all harts forget them: those whose tables the
    /// guest seems to use no more, as far as a short search finds some; else those that no fault has used for longest. The roots of
    /// vCPUs stay.
    fn recycle<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        let wanted = (self.config.pages / 8).clamp(DEEPEST + 1, MOST_AT_ONCE);
        let mut taken = self.recycle_dead(wanted, host);
        // What is in use goes only if it must, or a search finds too little.
        let least = if taken > DEEPEST { 0 } else { wanted };
        // The clock: one round to clear what is recent, one to take.
        for _ in 0..2 * self.index.end() {
            if taken >= least || host.budget.is_spent() {
                break;
            }
            host.budget.spend(1);
            let id = self.hand;
            self.hand = if id + 1 >= self.index.end() { 0 } else { id + 1 };
            if self.index.get(id).is_none_or(|page| page.users != 0) {
                continue;
            }
            if !core::mem::take(&mut self.index.page_mut(id).is_recent) {
                if !self.zap(id, host) {
                    // Next time it is the first one.
                    self.hand = id;
                    break;
                }
                taken += 1;
            }
        }
        self.counters.recycled += u64::from(taken);
        if self.is_sabotaged(Sabotage::ReusesEarly) {
            self.flushed(host);
        } else {
            self.flush(host);
        }
    }

    /// Takes back shadows of tables that the guest seems to use no more, as those of a process that has ended: as many as are wanted, or
    /// a short search finds. Says how many.
    fn recycle_dead<M: PhysMem, H: Fence<Gpa>>(&mut self, wanted: u32, host: &mut Host<'_, M, H>) -> u32 {
        let (mut taken, end) = (0, self.index.end());
        // Where there are none, the search is to leave enough to take back others.
        let mut search = host.budget.half().half();
        for _ in 0..end {
            if taken == wanted || search.is_spent() || host.budget.is_spent() {
                break;
            }
            let id = self.dead_hand;
            self.dead_hand = if id + 1 >= end { 0 } else { id + 1 };
            let left = search;
            let is_dead = host.sharing(&mut search, |host| self.is_dead(id, host));
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

    /// Whether no entry is left in a guest's table of those that its shadow has. The frame may be anything by now.
    fn is_dead<M: PhysMem, H>(&self, id: Id, host: &mut Host<'_, M, H>) -> bool {
        host.budget.spend(Budget::GLANCE);
        let Some(page) = self.index.get(id).filter(|page| page.users == 0 && page.key.role == Role::Table) else {
            return false;
        };
        let (Some(guest), Some(first)) = (page.guest, page.next_live(0)) else { return false };
        // Of those that are in use most say so at once.
        let at = 8 * first as u64;
        if host.mem.read_u64(guest.at(at)) == host.mem.read_own(page.mirror_at(first)) {
            return false;
        }
        host.budget.spend(PARTS as u32 * Budget::COMPARE);
        let frames = (guest, page.body.mirror.first());
        (0..PARTS).all(|part| {
            let live = page.live_in(part);
            live == 0 || host.mem.differing(frames, part, live) == live
        })
    }

    /// Makes all harts forget all translations of the VM.
    pub(super) fn flush<M, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        self.counters.flushes += 1;
        host.hw.fence(FenceScope::Everything);
        self.flushed(host);
    }

    /// All harts have forgotten all translations of the VM.
    pub(super) fn flushed<M, H>(&mut self, host: &mut Host<'_, M, H>) {
        let _ = host.debt.take().paid();
        self.stores_may_pass = false;
        self.spare.append(&mut self.retired);
    }

    /// At the end of an operation: what it owes is spent. No hart may walk by a pointer that is gone. That TLBs have more
    /// leaves than the tables is the guest's own affair, until a table is to be protected.
    #[inline(always)]
    pub(super) fn conclude<M, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        if !host.debt.owes(Owed::all()) {
            return;
        }
        if host.debt.owes(Owed::POINTERS) && !self.is_sabotaged(Sabotage::KeepsPointers) {
            self.flush(host);
        } else {
            let debt = host.debt.take();
            self.leave(debt);
        }
    }

    /// TLBs may have these leaves until the guest's own fence.
    #[inline(always)]
    pub(super) fn leave(&mut self, debt: Debt) {
        self.stores_may_pass |= debt.waive().contains(Owed::STORES);
    }

    /// Ends a shadow page: nothing leads to it, and it leads nowhere. TLBs may still walk it. Says whether it has: if there is
    /// more to drop than the budget lets, it has not.
    pub(super) fn zap<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) -> bool {
        debug_assert!(self.index.page(id).users == 0);
        while let Some(parent) = self.index.first(List::Parents(id), host.mem) {
            if host.budget.is_spent() {
                return false;
            }
            self.drop_entry(parent, host);
            if self.is_sabotaged(Sabotage::ForgetsSharer) {
                break;
            }
        }
        self.gone += 1;
        let page = self.index.page(id);
        let is_steered_table = self.has_all_mirrors(page) && page.key.role == Role::Table;
        while let Some(index) = self.index.page(id).next_live(0) {
            if host.budget.is_spent() {
                return false;
            }
            if is_steered_table {
                self.drop_leaves_around((id, index), host);
            } else {
                self.drop_entry((id, index), host);
            }
        }
        while let Some((part, parked)) = self.index.page(id).parked_part() {
            if self.is_sabotaged(Sabotage::ForgetsParked) {
                break;
            }
            for index in indices(part, parked) {
                if host.budget.is_spent() {
                    return false;
                }
                host.budget.spend(Budget::UNPARK);
                self.index.unpark((id, index), host.mem);
            }
        }
        if self.index.page(id).key.role == Role::Table {
            self.end_table(id, host.mem);
        } else {
            self.index.delist(id, host.mem);
        }
        self.retired.push(self.index.take(id));
        true
    }

    /// Drops the leaves of a steered page of level 0 that is to end, among the 64 with that one, as far as the budget lets.
    fn drop_leaves_around<M: PhysMem, H>(&mut self, (id, index): At, host: &mut Host<'_, M, H>) {
        let part = index / 64;
        let page = self.index.page(id);
        let (live, row) = (page.live_in(part), self.index.row(id));
        let poison = [PteFlags::empty(), PteFlags::U].map(|user| self.unfilled(page, Pte(user.bits())));
        let most = host.budget.affords(Budget::UNLIST) as usize;
        let (mut those, mut debt) = (0u64, Debt::none());
        for index in indices(part, live).take(most) {
            let at = 8 * index as u64;
            let mirror = Pte(host.mem.read_own(row.mirrors.wrapping_add(at)));
            let unfilled = poison[usize::from(mirror.flags().contains(PteFlags::U))];
            debt.add(table::exchange(row.table.wrapping_add(at), unfilled, host.mem).1);
            self.index.unlink_in(&row, index, mirror, host.mem);
            those |= 1 << (index % 64);
        }
        self.index.page_mut(id).leave(part, those);
        host.budget.spend(those.count_ones() * Budget::UNLIST);
        self.emptied += u64::from(those.count_ones());
        self.owe(debt, host);
    }

    /// Drops all entries of a page from number `at` on, 512 at most, whatever the budget.
    pub(super) fn empty<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, mut at: usize, host: &mut Host<'_, M, H>) {
        self.gone += 1;
        while let Some(index) = self.index.page(id).next_live(at) {
            self.drop_entry((id, index), host);
            at = index + 1;
        }
    }

    /// Drops all leaves that lead to the guest frame.
    fn drop_leaves<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) {
        for list in [List::Frame(gfn), List::Mega(gfn)] {
            while let Some(at) = self.index.first(list, host.mem) {
                self.drop_entry(at, host);
                if self.is_sabotaged(Sabotage::ForgetsLeaf) {
                    break;
                }
            }
        }
    }

    /// Forgets where the frame is, because the G-stage is about to lead elsewhere, or nowhere. All harts must
    /// forget all of the VM's translations before the frame has another use.
    fn forget<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) {
        if !self.index.heads.contains(gfn) {
            return;
        }
        self.wake(gfn, host.mem);
        self.drop_leaves(gfn, host);
        let mut next = self.index.tables_of(gfn, host.mem).next();
        while let Some(id) = next {
            if self.steers() {
                self.lose_table(id, host);
            }
            // What its entries were made from is another frame's contents.
            self.empty(id, 0, host);
            let page = self.index.page_mut(id);
            page.guest = None;
            next = page.next;
        }
    }

    /// Forgets as much of where the frame is as the budget lets, so that [`Shadow::forget`] will find little to do. Says
    /// whether it will.
    pub(super) fn forget_ahead<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        if !self.index.heads.contains(gfn) {
            return true;
        }
        let is_all = [List::Frame(gfn), List::Mega(gfn)]
            .into_iter()
            .all(|list| self.drop_ahead(host, |shadow, mem| shadow.index.first(list, mem)));
        self.counters.postponed += u64::from(!is_all);
        is_all
    }

    /// Drops the entries that `next` names, one after another, as far as the budget lets. Says whether none is left.
    fn drop_ahead<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        host: &mut Host<'_, M, H>,
        next: impl Fn(&Self, &M) -> Option<At>,
    ) -> bool {
        while let Some(at) = next(self, host.mem) {
            if host.budget.is_spent() {
                return false;
            }
            self.drop_entry(at, host);
        }
        true
    }

    /// The same for each shadow of a frame as a table.
    fn drop_of_tables_ahead<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gfn: Pfn<Gpa>,
        host: &mut Host<'_, M, H>,
        next: impl Fn(&Self, Id, &M) -> Option<At>,
    ) -> bool {
        let mut table = self.index.tables_of(gfn, host.mem).next();
        while let Some(id) = table {
            if !self.drop_ahead(host, |shadow, mem| next(shadow, id, mem)) {
                return false;
            }
            table = self.index.page(id).next;
        }
        true
    }

    /// Spends what an edit of the G-stage owes: all harts forget all that they know of the VM, a copy becomes visible, then
    /// the frames are free.
    fn spend<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        stale: Stale<Gpa>,
        publish: Option<Box<Publish>>,
        host: &mut Host<'_, M, H>,
    ) {
        let is_fenced = !stale.is_none();
        if let Some(scope) = stale.scope() {
            self.unteach(scope, host.mem);
        }
        let retired = gstage::settle(stale, publish, host.hw, host.mem);
        if is_fenced {
            self.flushed(host);
        }
        if !retired.runs().is_empty() {
            retired.release(host.frames);
        }
    }

    /// What a host-side edit of the G-stage leaves to be done, where its answer says that a page was copied:
    /// forget the old frame, fence, publish the new one.
    pub(super) fn settle<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gfn: Pfn<Gpa>,
        (how, stale): (How, Stale<Gpa>),
        publish: Option<Box<Publish>>,
        host: &mut Host<'_, M, H>,
    ) {
        if how == How::Copied {
            let pages = publish.as_ref().map_or(1, |publish| publish.level().pages());
            if pages > 1 {
                host.budget = Budget::NONE;
            }
            (0..pages).for_each(|n| self.forget(gfn.align_down(pages).add(n), host));
        }
        self.spend(stale, publish, host);
    }

    /// Makes what is mapped at `page` idle ([`crate::AddressSpace::rest`]), and forgets all entries that lead there. It is so once
    /// the result is spent by [`Shadow::rested`].
    ///
    /// `None`: the budget is spent before that. A part is done, the page is mapped still.
    pub fn rest<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        page: Pfn<Gpa>,
        level: Level,
        host: &mut Host<'_, M, H>,
    ) -> Option<Stale<Gpa>> {
        let first = page.align_down(level.pages());
        let all_forgotten = self.is_sabotaged(Sabotage::RestsWithLeaves)
            || (0..level.pages()).all(|n| self.forget_ahead(first.add(n), host));
        all_forgotten.then(|| host.space.rest(page, host.mem))
    }

    /// Ends a series of [`Shadow::rest`], or what [`crate::AddressSpace::bring_in`] leaves to be done.
    pub fn rested<M: PhysMem, H: Fence<Gpa>>(&mut self, stale: Stale<Gpa>, host: &mut Host<'_, M, H>) {
        self.spend(stale, None, host);
        self.conclude(host);
    }

    /// Does a portion of a promotion ([`AddressSpace::begin_promotion`]). All entries that lead to frames which are about to move, or
    /// to lose W, are forgotten before. A guest's table that is shadowed does not move: its shadow knows where it is.
    pub fn promote<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        promotion: &mut Promotion,
        host: &mut Host<'_, M, H>,
    ) -> Promoted {
        let done = self.promote_some(promotion, host);
        self.conclude(host);
        done
    }

    fn promote_some<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        promotion: &mut Promotion,
        host: &mut Host<'_, M, H>,
    ) -> Promoted {
        let mut pages = promotion.next().map(Pfn::new);
        if pages.clone().any(|page| self.is_shadowed(page, host.mem)) {
            return Promoted::Not;
        }
        if !self.is_sabotaged(Sabotage::MovesWithLeaves) && !pages.all(|page| self.forget_ahead(page, host)) {
            return Promoted::More;
        }
        if AddressSpace::is_copied(promotion) {
            let concluded = host.space.conclude_promotion(promotion, host.frames, host.mem);
            let Some((stale, publish)) = concluded else { return Promoted::Not };
            self.spend(stale, Some(publish), host);
            return Promoted::Whole;
        }
        let Some(stale) = host.space.withhold(promotion, host.mem) else { return Promoted::Not };
        self.spend(stale, None, host);
        host.space.copy_withheld(promotion, host.mem);
        Promoted::More
    }

    /// Whether the frame is one of the guest's tables that are shadowed. It must not be taken away: their shadows know where they
    /// are.
    #[must_use]
    pub fn is_shadowed(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.index.heads.contains(gfn)
            && self.index.tables_of(gfn, mem).next().is_some()
            && !self.is_sabotaged(Sabotage::LetsTablesGo)
    }

    /// Pages of guest RAM become untouched again, as many of them as may be done at once ([`AddressSpace::give_back`]), and nothing
    /// of them stays in the shadow or in a TLB. What came free is free when this returns.
    pub fn give_back<M: PhysMem, H: Fence<Gpa>>(&mut self, spans: &[Span], host: &mut Host<'_, M, H>) -> Returned {
        // The other half is for what the G-stage costs.
        host.budget = host.budget.half();
        let mut work = GiveBack::new(spans);
        while let Some(piece) = work.next(host.space, host.mem) {
            let Span { start, pages } = piece.span;
            work.spend(pages as u32);
            if !(0..pages).all(|n| self.forget_some(start.add(n), host)) {
                self.counters.postponed += 1;
                break;
            }
            work.take(&piece, host.space, host.frames, host.mem);
        }
        let (returned, stale) = work.finish();
        self.spend(stale, None, host);
        self.conclude(host);
        returned
    }

    /// [`Shadow::forget`], as far as the budget lets. Says whether that was all.
    fn forget_some<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        if self.index.heads.is_unknown(gfn, host.mem) {
            return true;
        }
        let is_all = self.forget_all_ahead(gfn, host);
        if is_all {
            self.forget(gfn, host);
        }
        is_all
    }

    /// The part of [`Shadow::lose_table`] that a budget is for, for all shadows of a frame as a table.
    fn lose_tables_ahead<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        let is_all = self.drop_of_tables_ahead(gfn, host, |shadow, id, mem| {
            let is_linked_by = |id| shadow.index.first(List::Parents(id), mem);
            Some(id).filter(|id| shadow.index.page(*id).key.level == Level::PAGE).and_then(is_linked_by)
        });
        self.counters.postponed += u64::from(!is_all);
        is_all
    }

    /// Does as much of [`Shadow::forget`] as the budget lets, so that little is left. Says whether it was all.
    pub(super) fn forget_all_ahead<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gfn: Pfn<Gpa>,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        (self.is_sabotaged(Sabotage::ForgetsLeaf) || self.forget_ahead(gfn, host))
            && (!self.steers() || self.lose_tables_ahead(gfn, host))
            && self.drop_of_tables_ahead(gfn, host, |shadow, id, _| Some((id, shadow.index.page(id).next_live(0)?)))
    }
}
