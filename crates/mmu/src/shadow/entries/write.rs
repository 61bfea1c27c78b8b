//! The one place where entries of shadow tables change: with each goes its mirror, the list that it is in, and what it owes.

use crate::shadow::entries::{Act, Row, Slot, Tables};
use crate::shadow::pages::{At, Id, Index, List, Role, indices};
use crate::shadow::{Budget, Host, Sabotage, Shadowed};
use crate::table::{self, Debt, Owed};
use rv::{Level, PhysMem, Pte, PteFlags};

impl<S: Shadowed> Tables<S> {
    /// Writes an entry, unless it is no longer `old`. Returns what that owes, if it did.
    #[inline(always)]
    fn write(&self, slot: Slot, act: Act, (old, new): (Pte, Pte), mem: &mut impl PhysMem) -> Option<Debt> {
        debug_assert!(self.gate.is_alone());
        if self.rules.is_sabotaged(Sabotage::StoresBlindly) {
            slot.swap(act, new, mem);
            Some(Debt::of(old, new))
        } else {
            slot.compare_exchange(act, old, new, mem)
        }
    }

    /// Makes an invalid entry of level 0 a leaf, unless it is no longer `old`. Returns whether it did: that owes nothing.
    pub fn fill_beside(&self, slot: Slot, (old, new): (Pte, Pte), mem: &mut impl PhysMem) -> bool {
        slot.compare_exchange(Act::Set, old, new, mem).map(|debt| _ = debt.waive()).is_some()
    }

    /// Adds to what the operation owes.
    #[inline]
    pub fn owe<M, H>(&mut self, debt: Debt, host: &mut Host<'_, M, H>) {
        if debt.owes(Owed::POINTERS) && !self.rules.is_sabotaged(Sabotage::RemembersWalks) {
            self.walks.forget_all();
        }
        if self.rules.is_sabotaged(Sabotage::ForgetsDebt) {
            let _ = debt.waive();
        } else {
            host.debt.add(debt);
        }
    }

    /// Forgets an entry that is in a list: it is in none, and invalid or poison. TLBs may remember it.
    pub fn drop_entry<M: PhysMem, H>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        let (id, index) = at;
        if !self.index.page(id).marks.is_listed(index) {
            return;
        }
        host.budget.spend(Budget::DROP);
        let Some(mirror) = self.index.page(id).mirror(index, host.mem) else {
            return self.index.unpark(at, host.mem);
        };
        self.split(id, host);
        self.emptied += 1;
        let page = self.index.page(id);
        let (old, debt) = page.slot(index).exchange(Act::Drop, self.rules.unfilled(page, mirror), host.mem);
        self.index.unlist(at, page.is_pointer(old), host.mem);
        self.owe(debt, host);
    }

    /// A fence passes over a live entry: a leaf of 4 KiB stays in its list, where the next fault finds it; others go.
    pub fn invalidate<M: PhysMem, H>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        let page = self.index.page(at.0);
        if page.key.level == Level::PAGE {
            let debt = self.invalidate_leaf(page.slot(at.1), host.mem);
            self.owe(debt, host);
        } else {
            self.counters.invalidated += 1;
            self.drop_entry(at, host);
        }
    }

    /// Takes from a leaf the right to store.
    pub fn withdraw_writes_of<M: PhysMem, H>(&mut self, (id, index): At, host: &mut Host<'_, M, H>) {
        host.budget.spend(Budget::EDIT);
        let page = self.index.page(id);
        let slot = page.slot(index);
        let pte = slot.read(host.mem);
        if pte.flags().contains(PteFlags::V | PteFlags::W) {
            let narrower = Pte(pte.0 & !(PteFlags::W | PteFlags::D).bits());
            // If the lane passes now, it allows nothing at all.
            if let Some(debt) = self.write(slot, Act::Withdraw, (pte, narrower), host.mem) {
                self.owe(debt, host);
            }
        }
    }

    /// Makes an entry, not live now, a pointer to `child`.
    pub fn set_pointer<M: PhysMem, H>(&mut self, at: At, mirror: Pte, child: Id, host: &mut Host<'_, M, H>) {
        debug_assert!(!self.index.page(child).is_coalesced || self.rules.is_sabotaged(Sabotage::KeepsCoalesced));
        let pte = self.pointer_to(child, host.mem);
        if self.index.page(child).key.role == Role::Table {
            self.index.page_mut(at.0).marks.leads_at(at.1);
        }
        self.index.insert(at, mirror, List::Parents(child), host.mem);
        if self.rules.policy.quiets && self.unrest.is_restless(self.index.page(child)) {
            self.stir(at, host.mem);
        }
        let (_, debt) = self.index.page(at.0).slot(at.1).exchange(Act::Link, pte, host.mem);
        self.owe(debt, host);
    }

    /// Makes an entry the leaf `new`, made from `mirror`, unless it is no longer `old`: then the lane has
    /// passed over it meanwhile, and what `mirror` was read from may have changed. Returns what it owes, if it did.
    // Each call in the way of a fault costs it some thirty instructions, to save and restore registers.
    #[inline(always)]
    pub fn set_leaf(&mut self, at: At, (old, new): (Pte, Pte), mirror: Pte, mem: &mut impl PhysMem) -> Option<Debt> {
        let page = self.index.page(at.0);
        let (key, slot) = (page.key, page.slot(at.1));
        let is_pointer = page.is_pointer(old);
        let known = page.mirror(at.1, mem);
        if is_pointer || known != Some(mirror) {
            if known.is_some() || page.marks.is_parked(at.1) {
                if self.rules.is_sabotaged(Sabotage::ListsBlindly) && known.is_none() {
                    self.index.page_mut(at.0).marks.set_parked(at.1, false);
                } else {
                    self.index.unlist(at, is_pointer, mem);
                }
            }
            self.index.insert(at, mirror, Index::<S>::list_of_leaf(key, at.1, mirror), mem);
        }
        self.write(slot, Act::Set, (old, new), mem)
    }

    /// Makes an entry `new`, which leads nowhere, from `mirror`.
    pub fn replaced(&mut self, at: At, new: Pte, mirror: Pte, mem: &mut impl PhysMem) -> Debt {
        self.emptied += 1;
        let page = self.index.page(at.0);
        let (old, debt) = page.slot(at.1).exchange(Act::Refuse, new, mem);
        if page.marks.is_live(at.1) {
            self.index.unlist(at, page.is_pointer(old), mem);
        }
        self.index.page_mut(at.0).set_mirror(at.1, mirror, mem);
        debt
    }

    pub fn remake<M: PhysMem, H>(&mut self, at: At, ours: Pte, pte: Pte, host: &mut Host<'_, M, H>) {
        let debt = self.remade(at, ours, pte, host.space, host.mem);
        self.owe(debt, host);
    }

    pub fn replace<M: PhysMem, H>(&mut self, at: At, new: Pte, mirror: Pte, host: &mut Host<'_, M, H>) {
        let debt = self.replaced(at, new, mirror, host.mem);
        self.owe(debt, host);
    }

    /// A fence by address passes over an entry of level 0: the next fault finds it in its list. Returns what that owes.
    #[inline(always)]
    pub fn invalidate_leaf(&mut self, slot: Slot, mem: &mut impl PhysMem) -> Debt {
        self.counters.invalidated += 1;
        slot.exchange(Act::Invalidate, Pte::INVALID, mem).1
    }

    /// Poisons all entries of a new page above level 0.
    pub fn poison_all(&self, id: Id, mem: &mut impl PhysMem) {
        mem.fill_frame(self.index.page(id).table(), table::poison_pointer().0);
    }

    /// A leaf leads nowhere while what it leads to is copied. Returns what it was.
    pub fn withhold<M: PhysMem, H>(&mut self, (id, index): At, mirror: Pte, host: &mut Host<'_, M, H>) -> Pte {
        let page = self.index.page(id);
        let (leaf, debt) = page.slot(index).exchange(Act::Withhold, self.rules.unfilled(page, mirror), host.mem);
        self.owe(debt, host);
        leaf
    }

    /// The leaf that was withheld leads to the copy.
    pub fn arrive(&mut self, (id, index): At, leaf: Pte, mem: &mut impl PhysMem) {
        self.index.page(id).slot(index).fill(Act::Arrive, leaf, mem);
    }

    /// Drops the leaves of a steered page of level 0 that is to end, among the 64 with that one, as far as the budget lets.
    pub fn end_leaves_around<M: PhysMem, H>(&mut self, (id, index): At, host: &mut Host<'_, M, H>) {
        let part = index / 64;
        let page = self.index.page(id);
        let (live, row) = (page.marks.live_in(part), Row::of(&self.index, id));
        let poison = [PteFlags::empty(), PteFlags::U].map(|user| self.rules.unfilled(page, Pte(user.bits())));
        let most = host.budget.affords(Budget::UNLIST) as usize;
        let (mut those, mut debt) = (0u64, Debt::none());
        for index in indices(part, live).take(most) {
            debt.add(row.end(&mut self.index, index, poison, host.mem));
            those |= 1 << (index % 64);
        }
        self.index.page_mut(id).marks.clear_live(part, those);
        host.budget.spend(those.count_ones() * Budget::UNLIST);
        self.emptied += u64::from(those.count_ones());
        self.owe(debt, host);
    }
}
