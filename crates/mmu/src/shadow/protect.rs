//! Write protection: what the upkeeps `shadow` and `unsync` know of the guest's edits before it fences.
//!
//! A guest table is *protected* when no translation of the VM allows a store to it. Then each store is an
//! exit, [`Shadow::table_write`] performs it, and the shadow is in step at all times. A table that is not is
//! *unsync*, and is treated as in `lazy` until a wide fence protects it again.

use super::config::Host;
use super::engine::Shadow;
use super::index::List;
use super::page::{At, CAPS, Id};
use super::root::Root;
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use crate::table::Owed;
use alloc::vec::Vec;
use rv::{Addr, Entry, Fence, Gpa, Hpa, Level, Pfn, PhysMem, Pte};

/// Writes in a row that no table would see, after which a frame is believed to have another use.
const FLOOD: u8 = 3;

/// What became of a store to a guest table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrote {
    /// It is done, and the word held this before: the instruction is over.
    Done {
        /// The 8 bytes around the store, before it.
        old: u64,
    },
    /// It is not done: the frame is no longer protected, and the guest does it itself.
    Retry,
}

impl<S: Shadowed> Shadow<S> {
    /// Whether stores to the frame must be seen.
    #[inline]
    pub(super) fn is_protected(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.protects_new_tables() && self.index.tables_of(gfn, mem).any(|id| !self.index.page(id).is_unsync)
    }

    /// Whether one leaf may allow stores to all 2 MiB around `gfn`.
    pub(super) fn may_be_mega(&self, gfn: Pfn<Gpa>) -> bool {
        self.is_sabotaged(Sabotage::CoversTables) || !self.index.heads.has_protected_around(gfn)
    }

    /// Enlists the shadow of a guest table in RAM, and protects the table where the upkeep does.
    pub(super) fn begin_table<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        let gfn = self.index.page(id).key.gfn;
        self.wake(gfn, host.mem);
        let first = self.index.tables_of(gfn, host.mem).next();
        // All shadows of a frame are protected, or none is.
        let is_unsync = !self.protects_new_tables() || first.is_some_and(|other| self.index.page(other).is_unsync);
        self.index.page_mut(id).is_unsync = is_unsync;
        self.index.enlist(id, host.mem);
        if !is_unsync && first.is_none() {
            *self.index.heads.protected_around(gfn) += 1;
            if self.withdraw_writes(gfn, host) {
                self.stop_stores(host);
            } else {
                self.counters.postponed += 1;
                self.unsync(gfn, host.mem);
            }
        }
    }

    /// The opposite, at the end of a shadow page.
    pub(super) fn end_table(&mut self, id: Id, mem: &mut impl PhysMem) {
        let page = self.index.page(id);
        let (gfn, is_unsync) = (page.key.gfn, page.is_unsync);
        self.index.delist(id, mem);
        let protects = self.protects_new_tables() || self.steers();
        if protects && self.index.heads.contains(gfn) && self.first_table(gfn, mem).is_none() {
            if is_unsync {
                self.unsync.retain(|other| *other != gfn);
            } else {
                *self.index.heads.protected_around(gfn) -= 1;
            }
        }
    }

    pub(super) fn first_table(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> Option<Id> {
        self.index.tables_of(gfn, mem).next()
    }

    /// Makes all leaves to the frame read-only, as far as the budget goes. Says whether that was all. TLBs may know better.
    fn withdraw_writes<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        while let Some(at) = self.index.first(List::Mega(gfn), host.mem) {
            if host.budget.is_spent() {
                return false;
            }
            self.drop_entry(at, host);
        }
        let mut next = self.index.first(List::Frame(gfn), host.mem);
        while let Some(at) = next {
            if host.budget.is_spent() {
                return false;
            }
            self.withdraw_writes_of(at, host);
            next = self.index.next(at, host.mem);
        }
        true
    }

    /// Makes sure that no TLB lets stores through that the tables no longer allow.
    pub(super) fn stop_stores<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        let may_pass = self.stores_may_pass || host.debt.owes(Owed::STORES);
        if may_pass && !self.is_sabotaged(Sabotage::ProtectsWithoutFlush) {
            self.flush(host);
        }
    }

    /// Lets the guest write the frame, and looks at it at fences instead.
    fn unsync(&mut self, gfn: Pfn<Gpa>, mem: &impl PhysMem) {
        if !self.is_protected(gfn, mem) {
            return;
        }
        self.counters.unsynced += 1;
        self.set_unsync(gfn, true, mem);
        *self.index.heads.protected_around(gfn) -= 1;
        self.unsync.push(gfn);
    }

    pub(super) fn set_unsync(&mut self, gfn: Pfn<Gpa>, is_unsync: bool, mem: &impl PhysMem) {
        let mut next = self.first_table(gfn, mem);
        while let Some(id) = next {
            let page = self.index.page_mut(id);
            page.is_unsync = is_unsync;
            next = page.next;
        }
    }

    /// Protects again what is unsync, with one flush for all, and compares its entries. What the budget does not suffice
    /// for stays unsync, and `root` leads nowhere then: a fault compares what it finds again.
    pub(super) fn catch_up_all<M: PhysMem, H: Fence<Gpa>>(&mut self, root: &Root<S>, host: &mut Host<'_, M, H>) {
        if self.unsync.is_empty() {
            return;
        }
        // To compare them takes at least as much as to protect them, and those that are not compared were for nothing.
        let to_compare = host.budget.half();
        host.budget = to_compare;
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        while !host.budget.is_spent()
            && let Some(gfn) = self.unsync.pop()
        {
            host.budget.spend(1);
            if self.withdraw_writes(gfn, host) {
                self.set_unsync(gfn, false, host.mem);
                *self.index.heads.protected_around(gfn) += 1;
                taken.push(gfn);
            } else {
                left.push(gfn);
            }
        }
        self.unsync.append(&mut left);
        self.counters.reprotected += taken.len() as u64;
        self.stop_stores(host);
        host.budget = to_compare;
        for gfn in taken {
            let (mut is_in_step, mut next) = (true, self.first_table(gfn, host.mem));
            while let Some(id) = next {
                is_in_step &= self.sync_entries(id, host);
                next = self.index.page(id).next;
            }
            if !is_in_step {
                self.unsync(gfn, host.mem);
            }
        }
        if !self.unsync.is_empty() {
            self.parts(root.id).for_each(|part| self.postpone(part, 0, host));
        }
    }

    /// Compares an entry with the guest's, if its table is unsync.
    pub(super) fn catch_up_entry<M: PhysMem, H: Fence<Gpa>>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        if self.index.page(at.0).may_lag() {
            self.derive(at, host);
        }
    }

    /// A store of the guest's to a protected table at `gpa`, which is at `hpa`. `store` is told what the 8 bytes
    /// around it hold and says what they shall hold; `None` if the instruction is none that is emulated.
    pub fn table_write<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        (gpa, hpa): (Addr<Gpa>, Addr<Hpa>),
        store: Option<&dyn Fn(u64) -> u64>,
        host: &mut Host<'_, M, H>,
    ) -> Wrote {
        let gfn = gpa.pfn();
        let are_leaves = self.index.tables_of(gfn, host.mem).all(|id| self.index.page(id).key.level == Level::PAGE);
        let store = match store {
            Some(store) if !self.lets_go(are_leaves) => store,
            _ => {
                self.unsync(gfn, host.mem);
                return Wrote::Retry;
            }
        };
        let word = hpa.align_down(8);
        let (old, new) = loop {
            let old = host.mem.read_u64(word);
            let new = store(old);
            if host.mem.compare_exchange_u64(word, old, new).is_ok() {
                break (old, new);
            }
        };
        self.counters.table_writes += 1;
        let index = (gpa.page_offset() / 8) as usize;
        let (mut is_flooded, mut next) = (true, self.first_table(gfn, host.mem));
        while let Some(id) = next {
            next = self.index.page(id).next;
            is_flooded &= self.written(id, index, Pte(new), host);
        }
        if is_flooded {
            self.give_up_table(gfn, host);
        }
        self.conclude(host);
        Wrote::Done { old }
    }

    /// The guest has changed an entry of a protected table. Says whether it looks as if it were none any more.
    fn written<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        index: usize,
        new: Pte,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        let (is_live, level) = (self.index.page(id).is_live(index), self.index.page(id).key.level);
        let is_entry = match new.decode::<Gpa>(level, CAPS) {
            Entry::Leaf(leaf) => self.index.heads.contains(leaf.pfn),
            Entry::Table(gfn) => self.index.heads.contains(gfn),
            Entry::Invalid | Entry::Reserved(_) => false,
        };
        if !self.is_sabotaged(Sabotage::ForgetsWrite) {
            self.derive((id, index), host);
        }
        let page = self.index.page_mut(id);
        page.flood = if is_live || is_entry { 0 } else { (page.flood + 1).min(FLOOD) };
        page.flood == FLOOD
    }

    /// The frame seems to be no table any more: its shadows go, but for those in use.
    fn give_up_table<M: PhysMem, H: Fence<Gpa>>(&mut self, gfn: Pfn<Gpa>, host: &mut Host<'_, M, H>) {
        let mut next = self.first_table(gfn, host.mem);
        while let Some(id) = next {
            next = self.index.page(id).next;
            let page = self.index.page(id);
            let is_unused = page.users == 0 && page.parents.entry().is_none();
            if is_unused && !host.budget.is_spent() && self.zap(id, host) {
                self.counters.dropped += 1;
            }
        }
        self.unsync(gfn, host.mem);
    }

    /// Tells the engine that Gnomon itself has written to guest memory: a table there is out of step.
    pub fn host_wrote(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) {
        self.wake(gfn, mem);
        self.unsync(gfn, mem);
    }
}
