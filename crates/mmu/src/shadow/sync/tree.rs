//! Comparing shadow pages with the guest's tables, and all that can be reached from them.

use crate::shadow::pages::{Id, Mappings, NO_DIGEST, Number, PARTS, Place, Role, below, indices};
use crate::shadow::sync::{Digest, Digests, Syncer};
use crate::shadow::{Budget, Host, Root, Sabotage, Shadowed};
use rv::{Addr, Fence, Gpa, Hpa, Level, Pfn, PhysMem};

impl<S: Shadowed> Syncer<S> {
    /// A fence of one page happens, on whatever root.
    #[inline(always)]
    pub fn pass_page(&mut self, gva: Addr<S>) {
        self.cache.passed.some_pages();
        self.pass_one(gva);
    }

    /// One of them happens.
    #[inline(always)]
    pub fn pass_one(&mut self, gva: Addr<S>) {
        if !self.rules().is_sabotaged(Sabotage::ForgetsPassedPages) {
            self.cache.passed.page(gva.raw());
        }
    }

    /// [`Syncer::sync_below`] for a root.
    pub fn sync_root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) {
        for part in self.cache.tables.index.arena.parts::<S>(root.id) {
            self.sync_below(part, mappings, Addr::new(0), host);
            if self.rules().is_sabotaged(Sabotage::ForgetsFrames) {
                break;
            }
        }
    }

    /// Brings the page, and all that can be reached from it, in step with the guest's tables. What the budget does not
    /// suffice for cannot be reached from it any more: faults will find it again. `gva`: an address that it translates.
    ///
    /// Says whether it may be linked. A steered page of level 0 may not before all of it is in step, for which some more
    /// attempts suffice.
    pub fn sync_below<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        mappings: Mappings,
        gva: Addr<S>,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        if !self.cache.may_any_lag() {
            return true;
        }
        self.cache.passed.stamp += 1;
        let Err(rest) = self.sync_tree(id, mappings, gva, host) else { return true };
        if self.rules().policy.fills_whole && self.page(id).key.level == Level::PAGE {
            self.cache.tables.counters.postponed += 1;
            return self.rules().is_sabotaged(Sabotage::ForgetsRest);
        }
        self.postpone(id, rest, host);
        true
    }

    /// Leaves out what a page leads to from entry `rest` on, for there is too much of it: it is found again by faults.
    pub fn postpone<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, rest: usize, host: &mut Host<'_, M, H>) {
        self.cache.tables.counters.postponed += 1;
        if self.rules().is_sabotaged(Sabotage::ForgetsRest) {
            return;
        }
        self.cache.empty(id, rest, host);
    }

    /// Does the comparisons of [`Syncer::sync_below`]. Stops at an index if the budget is spent: the entries below it
    /// are in step, with all that they lead to.
    fn sync_tree<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        mappings: Mappings,
        gva: Addr<S>,
        host: &mut Host<'_, M, H>,
    ) -> Result<(), usize> {
        if S::COMPOSES {
            return self.sync_composed(id, mappings, host);
        }
        let page = self.page(id);
        let key = page.key;
        if key.role != Role::Table || page.compared.of(mappings) == self.cache.passed.stamp {
            return Ok(());
        }
        let part = match (key.level, page.place) {
            (Level::PAGE, Place::Nowhere | Place::At(_)) => Some(gva.raw()),
            _ => None,
        };
        if self.cache.tables.rests(page) {
            return Ok(());
        }
        if self.rules().policy.tracks_places && self.cache.passed.is_fresh(page.compared, mappings, part) {
            return Ok(());
        }
        if self.sync_by_digest(id, mappings, host) {
            return Ok(());
        }
        let may_lag = self.page(id).may_lag();
        if may_lag {
            self.cache.tables.counters.synced_pages += 1;
            if host.budget.is_spent() {
                return Err(0);
            }
        } else if key.level == Level::PAGE {
            return Ok(());
        }
        host.budget.spend(Budget::VISIT);
        if key.level == Level::PAGE {
            let parts = self.cache.tables.parts_behind(id, mappings, host);
            self.note_comparison(id, parts == 0);
            if parts != 0 {
                for part in (0..PARTS).filter(|part| parts >> part & 1 == 1) {
                    self.sync_part(id, part, host)?;
                }
            }
        } else {
            self.sync_upper(id, mappings, (gva, may_lag), host)?;
            self.digests.digest(id, gva, &mut self.cache.tables, host);
        }
        let stamp = self.cache.passed.stamp;
        self.page_mut(id).compared.set(mappings, stamp);
        Ok(())
    }

    /// [`Syncer::sync_tree`] of a page that leads to others.
    fn sync_upper<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        mappings: Mappings,
        (gva, may_lag): (Addr<S>, bool),
        host: &mut Host<'_, M, H>,
    ) -> Result<(), usize> {
        if self.page(id).stirred.epoch != self.cache.tables.unrest.epoch {
            let epoch = self.cache.tables.unrest.epoch;
            self.page_mut(id).stir_all(epoch);
        }
        let page = self.page(id);
        let (level, guest, mirror) = (page.key.level, page.origin.guest, page.body.mirror.first());
        let drops_unused = level == Level::MEGA && self.rules().policy.drops_unused;
        let mut is_same = true;
        // Nothing can be reached by the others.
        let mut next = page.marks.live_part(0);
        while let Some((part, live)) = next {
            if may_lag && is_behind((guest, mirror), (part, live), host) {
                is_same = false;
                self.sync_part(id, part, host)?;
            }
            let page = self.page(id);
            let leading = if self.rules().policy.quiets { page.stirred_in(part) } else { page.marks.leading_in(part) };
            for index in indices(part, leading) {
                let Some(child) = self.cache.tables.table_below((id, index), host.mem) else { continue };
                if host.budget.is_spent() {
                    return Err(index);
                }
                host.budget.spend(Budget::EDIT);
                if drops_unused && !self.cache.tables.index.page_mut(child).use_.is_kept(self.cache.passed.fences()) {
                    self.cache.tables.drop_entry((id, index), host);
                    continue;
                }
                if self.sync_tree(child, mappings, below(level, gva, index), host).is_err() {
                    return Err(index);
                }
                if self.cache.tables.rests(self.page(child)) {
                    self.page_mut(id).calm_at(index);
                }
            }
            next = self.page(id).marks.live_part(part + 1);
        }
        if may_lag {
            self.note_comparison(id, is_same);
        }
        Ok(())
    }

    /// Brings 64 entries of the shadow of a table in step with the guest's, as far as the budget goes: those below an index
    /// where it stops.
    fn sync_part<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        part: usize,
        host: &mut Host<'_, M, H>,
    ) -> Result<(), usize> {
        // A page that is not linked before all of it is synchronised gets one entry even without budget, so that each
        // retry makes progress.
        let mut is_free = self.rules().has_all_mirrors(self.page(id));
        if host.budget.is_spent() && !is_free {
            return Err(64 * part);
        }
        let mut behind = self.cache.tables.behind(id, part, host);
        if behind == 0 {
            return Ok(());
        }
        self.cache.tables.split(id, host);
        if is_free {
            behind = self.resync_as_lane(id, part, behind, host);
        }
        for index in indices(part, behind) {
            if host.budget.is_spent() && !core::mem::take(&mut is_free) {
                return Err(index);
            }
            self.derive((id, index), host);
        }
        if self.rules().has_all_mirrors(self.page(id)) {
            self.page_mut(id).settle(part, host.mem);
        }
        Ok(())
    }

    /// Compares all live entries of the shadow of a table with the guest's, as far as the budget goes. Says whether that
    /// was all.
    pub fn sync_entries<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) -> bool {
        self.cache.tables.counters.synced_pages += 1;
        host.budget.spend(Budget::VISIT);
        let parts = self.cache.tables.parts_behind(id, Mappings::All, host);
        (0..PARTS).filter(|part| parts >> part & 1 == 1).all(|part| self.sync_part(id, part, host).is_ok())
    }

    /// Brings a page that has a digest in step, with all that it leads to. Says whether it has.
    #[inline(always)]
    fn sync_by_digest<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        let number = self.page(id).digest.number;
        number != NO_DIGEST
            && Digests::<S>::holds(number, &self.cache.tables)
            && self.go_through(id, number, mappings, host)
    }

    #[inline(never)]
    fn go_through<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        number: Number,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        let Some(digest) = self.digests.all[usize::from(number) - 1].take() else { return false };
        let done = digest.top == id && self.sync_all_of(&digest, mappings, host);
        self.digests.all[usize::from(number) - 1] = Some(digest);
        done
    }

    fn sync_all_of<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        digest: &Digest<S>,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        self.cache.tables.counters.digests += 1;
        host.budget.spend(Budget::VISIT + digest.words.len() as u32);
        if digest.words.iter().any(|(at, known)| host.mem.read_u64(*at) != *known) {
            self.cache.tables.index.end_digest_of(digest.top);
            return false;
        }
        let (stamp, fences) = (self.cache.passed.stamp, self.cache.passed.fences());
        for (at, id, gva) in &digest.tables {
            if !self.page_mut(*id).use_.is_kept(fences) {
                self.cache.tables.drop_entry(*at, host);
                continue;
            }
            // An entry that was dropped has ended the digest; the rest of it is as it was.
            if self.sync_tree(*id, mappings, *gva, host).is_err() {
                return false;
            }
        }
        for id in &digest.uppers {
            self.page_mut(*id).compared.set(mappings, stamp);
        }
        true
    }
}

/// Returns whether some of 64 live entries are out of step with the guest's, or that cannot be seen at once.
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
    do_differ((guest, mirror), (part, live), host.mem)
}

/// In the loop that asks, the compiler would prepare it for each page, also for those of one entry.
#[inline(never)]
fn do_differ(frames: (Pfn<Hpa>, Pfn<Hpa>), (part, live): (usize, u64), mem: &impl PhysMem) -> bool {
    mem.differing(frames, part, live) != 0
}
