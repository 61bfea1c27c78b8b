//! Forgetting: frames that the host takes from the guest leave no trace in the shadow.

use crate::gstage::{How, Publish};
use crate::mapper::Loss;
use crate::shadow::cache::Cache;
use crate::shadow::pages::{At, Compared, Id, List};
use crate::shadow::{Budget, Host, Sabotage, Shadowed};
use crate::stale::Stale;
use alloc::boxed::Box;
use core::ops::Range;
use rv::{Fence, Gpa, Level, Pfn, PhysMem};

impl<S: Shadowed> Cache<S> {
    /// Drops all leaves that lead to the guest frame.
    fn drop_leaves<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) {
        for list in [List::Frame(gfn), List::Mega(gfn)] {
            while let Some(at) = self.tables.index.first(list, host.mem) {
                self.tables.drop_entry(at, host);
                if self.tables.rules.is_sabotaged(Sabotage::ForgetsLeaf) {
                    break;
                }
            }
        }
    }

    /// Forgets where the frame is, because the G-stage is about to lead elsewhere, or nowhere. All harts must
    /// forget all of the VM's translations before the frame has another use.
    pub fn forget<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) {
        if !self.tables.index.heads.contains(gfn) {
            return;
        }
        self.wake(gfn, host.mem);
        self.drop_leaves(gfn, host);
        let mut next = self.tables.index.tables_of(gfn, host.mem).next();
        while let Some(id) = next {
            if self.tables.rules.policy.fills_whole {
                self.lose_table(id, host);
            }
            // What its entries were made from is another frame's contents.
            self.empty(id, 0, host);
            let page = self.tables.index.page_mut(id);
            page.origin.guest = None;
            next = page.next;
        }
    }

    /// Forgets as much of where the frame is as the budget lets, so that [`Cache::forget`] will find little to do. Says
    /// whether it will.
    pub fn forget_ahead<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        if !self.tables.index.heads.contains(gfn) {
            return true;
        }
        let is_all = [List::Frame(gfn), List::Mega(gfn)]
            .into_iter()
            .all(|list| self.drop_ahead(host, |shadow, mem| shadow.tables.index.first(list, mem)));
        self.tables.counters.postponed += u64::from(!is_all);
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
            self.tables.drop_entry(at, host);
        }
        true
    }

    /// Like [`Cache::drop_ahead`], for each shadow of a frame as a table.
    fn drop_of_tables_ahead<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gfn: Pfn<Gpa>,
        host: &mut Host<'_, M, H>,
        next: impl Fn(&Self, Id, &M) -> Option<At>,
    ) -> bool {
        let mut table = self.tables.index.tables_of(gfn, host.mem).next();
        while let Some(id) = table {
            if !self.drop_ahead(host, |shadow, mem| next(shadow, id, mem)) {
                return false;
            }
            table = self.tables.index.page(id).next;
        }
        true
    }

    /// The guest's table that the page stands for is about to be elsewhere, or nowhere: nothing that it says can be compared until
    /// it is found again. A page of level 0 is unlinked: its poison would have to know the guest's U.
    fn lose_table<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        self.tables.index.page_mut(id).compared = Compared::NEVER;
        if self.tables.index.page(id).key.level > Level::PAGE {
            return;
        }
        while let Some(parent) = self.tables.index.first(List::Parents(id), host.mem) {
            self.tables.drop_entry(parent, host);
        }
    }

    /// The part of [`Cache::lose_table`] that a budget is for, for all shadows of a frame as a table.
    fn lose_tables_ahead<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        let is_all = self.drop_of_tables_ahead(gfn, host, |shadow, id, mem| {
            let is_linked_by = |id| shadow.tables.index.first(List::Parents(id), mem);
            Some(id).filter(|id| shadow.tables.index.page(*id).key.level == Level::PAGE).and_then(is_linked_by)
        });
        self.tables.counters.postponed += u64::from(!is_all);
        is_all
    }

    /// Does as much of [`Cache::forget`] as the budget lets, so that little is left. Says whether it was all.
    pub fn forget_all_ahead<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        (self.tables.rules.is_sabotaged(Sabotage::ForgetsLeaf) || self.forget_ahead(gfn, host))
            && (!self.tables.rules.policy.fills_whole || self.lose_tables_ahead(gfn, host))
            && self.drop_of_tables_ahead(gfn, host, |shadow, id, _| {
                Some((id, shadow.tables.index.page(id).marks.next_live(0)?))
            })
    }

    /// [`Cache::forget`], as far as the budget lets. Says whether that was all.
    pub fn forget_some<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        if self.tables.index.heads.is_unknown(gfn, host.mem) {
            return true;
        }
        let is_all = self.forget_all_ahead(gfn, host);
        if is_all {
            self.forget(gfn, host);
        }
        is_all
    }

    /// Forgets entries that lead to these pages, which are about to have that loss, as far as the budget lets. Returns whether that was all.
    pub fn let_go<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        pages: Range<u64>,
        loss: Loss,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        let mut pages = pages.map(Pfn::new);
        match loss {
            Loss::Access => pages.all(|page| self.forget_ahead(page, host)),
            Loss::Contents => {
                let is_all = pages.all(|page| self.forget_some(page, host));
                self.tables.counters.postponed += u64::from(!is_all);
                is_all
            }
        }
    }

    /// Spends what an edit of the G-stage owes: all harts forget all that they know of the VM, a copy becomes visible, then
    /// the frames are free.
    pub fn spend<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        stale: Stale<Gpa>,
        publish: Option<Box<Publish>>,
        host: &mut Host<'_, M, H>,
    ) {
        let is_fenced = !stale.is_none();
        let retired = host.space.settle(stale, publish, host.hw, host.mem);
        if is_fenced {
            self.flushed(host);
        }
        if !retired.runs().is_empty() {
            retired.release(host.frames);
        }
    }

    /// Finishes a host-side edit of the G-stage. If the edit's answer says that a page was copied, forgets the old
    /// frame. Then fences, and publishes the new one.
    pub fn settle<M: PhysMem, H: Fence<Gpa>>(
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
            let first = gfn.align_down(pages);
            (0..pages).for_each(|n| self.forget(first.add(n), host));
            if !self.tables.rules.is_sabotaged(Sabotage::ForgetsCompanion) {
                host.companion_lets_go(first.raw()..first.raw() + pages, None);
            }
        }
        self.spend(stale, publish, host);
    }
}
