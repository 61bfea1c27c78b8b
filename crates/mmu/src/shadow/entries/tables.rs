//! The tables of an engine: shadow pages, their entries, and what changes with an entry.

use crate::shadow::entries::{Rules, Unrest};
use crate::shadow::lane::Gate;
use crate::shadow::pages::{At, Id, Index, Walks};
use crate::shadow::{Counters, Root, Sabotage, Shadowed};
use rv::{Addr, PhysMem};

/// Shadow pages and their entries.
pub struct Tables<S: Shadowed> {
    pub rules: Rules,
    pub index: Index,
    pub walks: Walks<S>,
    /// The lane's side of the tables.
    pub gate: Gate,
    pub unrest: Unrest,
    /// Entries that lead nowhere any more.
    pub emptied: u64,
    pub counters: Counters,
}

impl<S: Shadowed> Tables<S> {
    /// The shadow page of the root's frame that decides about `gva`.
    #[inline(always)]
    pub fn part(&self, root: &Root<S>, gva: Addr<S>) -> Id {
        if self.rules.is_sabotaged(Sabotage::AliasesRoots) { root.id } else { self.index.arena.part(root, gva) }
    }

    /// Goes down the shadow's pointers as far as they lead from one shadow of a guest's table to another, and says where
    /// it arrives: the entry that decides about `gva`, or the last above it.
    #[inline(always)]
    pub fn descend(&mut self, root: &Root<S>, gva: Addr<S>, mem: &impl PhysMem) -> At {
        self.walks.known(root, gva).unwrap_or_else(|| self.descend_from_root(root, gva, mem))
    }

    /// As [`Tables::descend`], if the way is not remembered. It is from now on.
    #[cold]
    #[inline(never)]
    pub fn descend_from_root(&mut self, root: &Root<S>, gva: Addr<S>, mem: &impl PhysMem) -> At {
        let from = self.part(root, gva);
        self.walks.descend(&self.index, from, (root, gva), mem)
    }
}
