//! Quiet tables, in `steered`: what wide fences need not look at.
//!
//! A guest's table that fences have found as it was often enough becomes *quiet*: no leaf of the VM leads to its frame any more, and no
//! TLB lets a store through. So nobody can write it, and its shadows are in step whatever is fenced. Who comes there, to read or to write,
//! takes an access fault, which ends that; and the next time more fences must find it as it was.
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

use super::candidates::{MOST, STIRS};
use super::config::{Budget, Host};
use super::engine::Shadow;
use super::index::List;
use super::page::{At, Id, Page};
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use rv::{Fence, FenceScope, Gpa, Level, PAGE_BYTES, Pfn, PhysMem};

impl<S: Shadowed> Shadow<S> {
    /// Whether the frame is that of a quiet table.
    #[inline(always)]
    pub(super) fn is_quiet(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.steers() && self.index.heads.has_protected_around(gfn) && self.is_quiet_table(gfn, mem)
    }

    #[cold]
    #[inline(never)]
    fn is_quiet_table(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.index.tables_of(gfn, mem).any(|id| !self.index.page(id).is_unsync)
    }

    /// A table has been compared, and was as it had been, or not.
    #[inline(always)]
    pub(super) fn note_comparison(&mut self, id: Id, is_same: bool) {
        let page = self.index.page_mut(id);
        if page.calm.is_enough(is_same, self.config.quiet_after) {
            self.candidates.add(page.key.gfn, self.passed.fences());
        }
    }

    /// Before a wide fence does its work: those that have been as they were for long become quiet.
    #[inline(always)]
    pub(super) fn quieten<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        if self.candidates.are_due(self.passed.fences()) {
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
            if self.may_become_quiet(gfn, host.mem) && self.withdraw_all(gfn, host) {
                taken[many] = gfn;
                many += 1;
            }
        }
        self.stop_stores(host);
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
        let mut shadows = self.index.tables_of(gfn, mem).map(|id| self.index.page(id)).peekable();
        if shadows.peek().is_none() || !shadows.all(|page| page.is_unsync && page.guest.is_some()) {
            return false;
        }
        // A leaf of 2 MiB takes one place in a TLB, and its pieces take 512. They need a page of ours, too.
        let may_split = self.rate.is_high() && self.bodies < self.config.pages / 4 * 3;
        self.index.first(List::Mega(gfn), mem).is_none()
            || may_split && self.candidates.may_split(gfn, &mut self.counters.split)
    }

    /// What time it is, in any unit, and how many units are some 5 ms. Whoever makes wide fences happen says so before.
    pub const fn tell_time(&mut self, now: u64, interval: u64) {
        self.rate.tell((now, interval), self.passed.fences());
    }

    /// Whether leaves of 2 MiB are in pieces for quiet tables: then [`Shadow::relax`] is to be called after an interval.
    #[must_use]
    pub fn is_strained(&self) -> bool {
        self.candidates.next_split().is_some()
    }

    /// Ends what is not worth while any more, as far as the budget goes: where wide fences are few, leaves of 2 MiB get whole again,
    /// and the tables there are quiet no more.
    pub fn relax<M: PhysMem, H: Fence<Gpa>>(&mut self, now: u64, interval: u64, host: &mut Host<'_, M, H>) {
        self.tell_time(now, interval);
        self.stirs = STIRS;
        while let Some(chunk) = self.candidates.next_split().filter(|_| !self.rate.is_high()) {
            if host.budget.is_spent() || !self.make_whole(chunk, host) {
                self.counters.postponed += 1;
                break;
            }
            self.candidates.is_whole();
            self.counters.rejoined += 1;
        }
        self.conclude(host);
    }

    /// The next access to those 2 MiB may get one leaf for all. Says whether that is so, or the budget is spent before: then a part
    /// is done.
    fn make_whole<M: PhysMem, H: Fence<Gpa>>(&mut self, chunk: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        for gfn in (0..Level::MEGA.pages()).map(|n| chunk.add(n)) {
            if self.is_quiet(gfn, host.mem) {
                self.wake_table(gfn, host.mem);
                host.budget.spend(Budget::DERIVE);
                if host.budget.is_spent() {
                    return false;
                }
            }
        }
        while let Some(pieces) = self.index.linked_pieces(chunk) {
            while let Some(above) = self.index.first(List::Parents(pieces), host.mem) {
                self.drop_entry(above, host);
                if host.budget.is_spent() {
                    return false;
                }
            }
        }
        host.budget.spend(Level::MEGA.pages() as u32);
        true
    }

    /// Takes all leaves to the frame, as far as the budget goes. Says whether that was all.
    fn withdraw_all<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        self.is_sabotaged(Sabotage::QuietsWithLeaves) || self.forget_ahead(gfn, host)
    }

    fn make_quiet<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) {
        let mut next = self.first_table(gfn, host.mem);
        let mut is_in_step = true;
        while let Some(id) = next {
            is_in_step &= self.sync_entries(id, host);
            next = self.index.page(id).next;
        }
        // The table may have leaves to itself.
        let is_reached = |list| self.index.first(list, host.mem).is_some();
        let is_reached = is_reached(List::Frame(gfn)) || is_reached(List::Mega(gfn));
        // One frame may have waited twice.
        let is_quiet = self.is_quiet(gfn, host.mem);
        if is_quiet || !is_in_step || is_reached && !self.is_sabotaged(Sabotage::QuietsWithLeaves) {
            return;
        }
        self.counters.quieted += 1;
        self.set_unsync(gfn, false, host.mem);
        *self.index.heads.protected_around(gfn) += 1;
        // The lane asks nobody whether a frame is a quiet table's.
        let chunk = gfn.align_down(Level::MEGA.pages()).base();
        self.unteach(FenceScope::Range { start: chunk, bytes: Level::MEGA.pages() * PAGE_BYTES }, host.mem);
        // Without it they are shorter.
        self.index.digests = 0;
    }

    /// Somebody comes to a frame, or Gnomon has written there: if it was a quiet table's, it is not any more.
    #[inline(always)]
    pub(super) fn wake(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) {
        if self.is_quiet(gfn, mem) {
            self.wake_table(gfn, mem);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_table(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) {
        self.counters.woken += 1;
        self.set_unsync(gfn, true, mem);
        *self.index.heads.protected_around(gfn) -= 1;
        let mut next = self.first_table(gfn, mem);
        while let Some(id) = next {
            let page = self.index.page_mut(id);
            page.calm.wakes(self.config.quiet_after);
            next = page.next;
            // It was laid out without this one's entries.
            self.index.end_digest_of(id);
            self.stir_from(id, mem);
        }
    }

    /// A fence by address went the full path, since the lane is kept out of the 2 MiB around a frame for the quiet tables there. Where such
    /// fences are many beside the wide ones that have less to do for it, the tables are quiet no more, and it says so.
    #[cold]
    #[inline(never)]
    pub(super) fn is_worth_a_lane(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) -> bool {
        if !self.kept_out.is_enough(self.passed.fences()) {
            return false;
        }
        let chunk = gfn.align_down(Level::MEGA.pages());
        (0..Level::MEGA.pages()).for_each(|n| self.wake(chunk.add(n), &mut *mem));
        true
    }

    /// An entry leads to a restless page.
    pub(super) fn stir(&mut self, (id, index): At, mem: &mut impl PhysMem) {
        let was_restless = self.is_restless(self.index.page(id));
        self.index.page_mut(id).stir(index);
        self.index.end_digest_of(id);
        if !was_restless {
            self.stir_from(id, mem);
        }
    }

    /// A page has become restless.
    fn stir_from(&mut self, id: Id, mem: &mut impl PhysMem) {
        self.tell_lane(id, mem);
        self.stir_above(id, mem);
    }

    /// So are those above. Each level is above the one before, so this ends. Where more entries lead there than there may be
    /// looked at, all pages that lead to tables are taken for restless, until fences have looked at them.
    fn stir_above(&mut self, id: Id, mem: &mut impl PhysMem) {
        if self.is_sabotaged(Sabotage::ForgetsToStir) {
            return;
        }
        let mut next = self.index.first(List::Parents(id), mem);
        while let Some(at) = next {
            if self.stirs == 0 {
                self.epoch += u64::from(!self.is_sabotaged(Sabotage::ForgetsMostParents));
                self.index.digests = 0;
                if !self.is_sabotaged(Sabotage::KeepsEpoch) {
                    self.tell_lane_epoch(mem);
                }
                return;
            }
            self.stirs -= 1;
            self.counters.stirred += 1;
            self.stir(at, mem);
            next = self.index.next(at, mem);
        }
    }

    /// Whether something that can be reached from a page may have been written since it was compared.
    #[inline(always)]
    pub(super) fn is_restless(&self, page: &Page) -> bool {
        page.is_unsync || page.key.level > Level::PAGE && (page.epoch != self.epoch || page.is_any_stirred())
    }

    /// Whether a wide fence has nothing to do there.
    #[inline(always)]
    pub(super) fn rests(&self, page: &Page) -> bool {
        self.steers() && !self.is_restless(page)
    }

    /// Checks the rules above.
    ///
    /// # Panics
    /// If one does not hold.
    #[cfg(feature = "sabotage")]
    pub(super) fn audit_quiet(&self, mem: &impl PhysMem) {
        let broken = [
            Sabotage::QuietsWithLeaves,
            Sabotage::ForgetsToStir,
            Sabotage::ForgetsMostParents,
            Sabotage::RestsForEver,
            Sabotage::KeepsEpoch,
        ];
        if broken.into_iter().any(|how| self.is_sabotaged(how)) {
            return;
        }
        let mut quiet = alloc::collections::BTreeMap::<Pfn<Gpa>, alloc::collections::BTreeSet<Pfn<Gpa>>>::new();
        for id in 0..self.index.end() {
            let Some(page) =
                self.index.get(id).filter(|page| page.key.role == super::page::Role::Table && self.steers())
            else {
                continue;
            };
            assert!(
                !self.is_said_to_rest(id, mem) || !self.is_restless(page),
                "the lane is told that {:?} is at rest",
                page.key
            );
            let gfn = page.key.gfn;
            if self.index.is_by_frame(page.key) {
                let around = quiet.entry(gfn.align_down(Level::MEGA.pages())).or_default();
                if !page.is_unsync {
                    around.insert(gfn);
                }
            }
            if self.index.is_by_frame(page.key) && !page.is_unsync {
                let leads = [List::Frame(gfn), List::Mega(gfn)].map(|list| self.index.first(list, mem));
                assert_eq!(leads, [None, None], "a leaf leads to the quiet table {gfn:?}");
                assert!(self.index.heads.has_protected_around(gfn), "{gfn:?} is not counted as quiet");
            }
            let mut next = self.index.first(List::Parents(id), mem);
            while let Some((above, index)) = next.filter(|_| self.is_restless(page)) {
                let says = self.index.page(above).epoch != self.epoch || self.index.page(above).is_stirred(index);
                assert!(says, "what leads to the restless {:?} does not say so", page.key);
                next = self.index.next((above, index), mem);
            }
        }
        for (around, tables) in quiet {
            let counted = self.index.heads.count_protected_around(around);
            assert_eq!(usize::from(counted), tables.len(), "quiet tables counted around {around:?}");
        }
    }
}
