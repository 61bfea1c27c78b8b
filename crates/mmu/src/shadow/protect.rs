//! Write protection: what the modes `shadow` and `unsync` know of the guest's edits before it fences.
//!
//! A guest table is *protected* when no translation of the VM allows a store to it. Then each store is an
//! exit, [`Shadow::table_write`] performs it, and the shadow is in step at all times. A table that is not is
//! *unsync*, and is treated as in the mode `lazy` until a wide fence protects it again.

use super::pages::{Id, Role};
use super::{Host, Mode, Sabotage, Shadow};
use rv::{Addr, Entry, Fence, Gpa, Hpa, Level, Pfn, PhysMem, Pte, PteFlags};

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

impl Shadow {
    /// Whether stores to the frame must be seen.
    pub(super) fn is_protected(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.protects() && self.tables_of(gfn, mem).any(|id| !self.page(id).is_unsync)
    }

    /// Whether one leaf may allow stores to all 2 MiB around `gfn`.
    pub(super) fn may_be_mega(&mut self, gfn: Pfn<Gpa>) -> bool {
        self.is_sabotaged(Sabotage::CoversTables) || *self.heads.protected_around(gfn) == 0
    }

    /// Enlists the shadow of a guest table in RAM, and protects the table where the mode does.
    pub(super) fn begin_table<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        let gfn = self.page(id).key.gfn;
        let first = self.tables_of(gfn, host.mem).next();
        // All shadows of a frame are protected, or none is.
        let is_unsync = !self.protects() || first.is_some_and(|other| self.page(other).is_unsync);
        self.page_mut(id).is_unsync = is_unsync;
        self.enlist(id, host.mem);
        if !is_unsync && first.is_none() {
            *self.heads.protected_around(gfn) += 1;
            let must_flush = self.withdraw_writes(gfn, host.mem) || self.tlbs_are_dirty;
            if must_flush && !self.is_sabotaged(Sabotage::ProtectsWithoutFlush) {
                self.flush(host.hw);
            }
        }
    }

    /// The opposite, at the end of a shadow page.
    pub(super) fn end_table(&mut self, id: Id, mem: &mut impl PhysMem) {
        let (gfn, is_unsync) = (self.page(id).key.gfn, self.page(id).is_unsync);
        self.delist(id, mem);
        if self.protects() && self.heads.contains(gfn) && self.tables_of(gfn, mem).next().is_none() {
            if is_unsync {
                self.unsync.retain(|other| *other != gfn);
            } else {
                *self.heads.protected_around(gfn) -= 1;
            }
        }
    }

    /// Makes all leaves to the frame read-only. Says whether there was one that was not.
    fn withdraw_writes(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) -> bool {
        let mut changed = false;
        while let Some((id, index)) = self.first_mega(gfn) {
            self.drop_entry(id, index, mem);
            changed = true;
        }
        let mut next = self.first_leaf(gfn, mem);
        while let Some((id, index)) = next {
            let at = self.entry_at(id, index);
            let pte = Pte(mem.read_u64(at));
            if pte.flags().contains(PteFlags::V | PteFlags::W) {
                mem.write_u64(at, pte.0 & !(PteFlags::W | PteFlags::D).bits());
                changed = true;
            }
            next = self.next_leaf((id, index), mem);
        }
        changed
    }

    /// Lets the guest write the frame, and looks at it at fences instead.
    pub(super) fn unsync(&mut self, gfn: Pfn<Gpa>, mem: &impl PhysMem) {
        if !self.is_protected(gfn, mem) {
            return;
        }
        self.counters.unsynced += 1;
        let mut next = self.tables_of(gfn, mem).next();
        while let Some(id) = next {
            self.page_mut(id).is_unsync = true;
            next = self.page(id).next;
        }
        *self.heads.protected_around(gfn) -= 1;
        self.unsync.push(gfn);
    }

    /// Protects again what is unsync, with one flush for all. The entries are still to be compared.
    pub(super) fn protect_all<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        let all = core::mem::take(&mut self.unsync);
        for &gfn in &all {
            let mut next = self.tables_of(gfn, host.mem).next();
            while let Some(id) = next {
                self.page_mut(id).is_unsync = false;
                next = self.page(id).next;
            }
            *self.heads.protected_around(gfn) += 1;
            self.tlbs_are_dirty |= self.withdraw_writes(gfn, host.mem);
        }
        self.counters.reprotected += all.len() as u64;
        if self.tlbs_are_dirty {
            self.flush(host.hw);
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
        let are_leaves = self.tables_of(gfn, host.mem).all(|id| self.page(id).key.level == Level::PAGE);
        let store = match store {
            Some(store) if !(self.config.mode == Mode::Unsync && are_leaves) => store,
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
        let (mut is_flooded, mut next) = (true, self.tables_of(gfn, host.mem).next());
        while let Some(id) = next {
            next = self.page(id).next;
            is_flooded &= self.written(id, index, Pte(new), host);
        }
        if is_flooded {
            self.give_up_table(gfn, host.mem);
        }
        self.conclude(host.hw);
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
        let is_live = self.page(id).is_live(index);
        let is_entry = match new.decode::<Gpa>(self.page(id).key.level, super::pages::CAPS) {
            Entry::Leaf(leaf) => self.heads.contains(leaf.pfn),
            Entry::Table(gfn) => self.heads.contains(gfn),
            Entry::Invalid | Entry::Reserved(_) => false,
        };
        if !self.is_sabotaged(Sabotage::ForgetsWrite) {
            self.derive(id, index, host);
        }
        let page = self.page_mut(id);
        page.flood = if is_live || is_entry { 0 } else { (page.flood + 1).min(FLOOD) };
        page.flood == FLOOD
    }

    /// The frame seems to be no table any more: its shadows go, but for those in use.
    fn give_up_table(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) {
        let mut next = self.tables_of(gfn, mem).next();
        while let Some(id) = next {
            next = self.page(id).next;
            if self.page(id).users == 0 && !self.page(id).has_parents() {
                self.zap(id, mem);
                self.counters.dropped += 1;
            }
        }
        self.unsync(gfn, mem);
    }

    /// Tells the engine that Gnomon itself has written to guest memory: a table there is out of step.
    pub fn host_wrote(&mut self, gfn: Pfn<Gpa>, mem: &impl PhysMem) {
        self.unsync(gfn, mem);
    }

    /// Whether the page is one whose entries may be out of step with the guest's.
    pub(super) fn may_lag(&self, id: Id) -> bool {
        self.page(id).key.role == Role::Table && self.page(id).is_unsync
    }
}
