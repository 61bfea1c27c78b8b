//! The tables of an engine: shadow pages, their entries, and what changes with an entry.

use crate::shadow::entries::Rules;
use crate::shadow::lane::Gate;
use crate::shadow::pages::{At, Id, Index, Page, Walks};
use crate::shadow::{Counters, Root, Sabotage, Shadowed};
use lane::LaneSync;
use rv::{Addr, Level, PhysMem};

/// Entries that are looked at between two wide fences when pages become restless: some 60,000 instructions.
pub const STIRS: u32 = 2048;

/// The knowledge of restless pages beside their bits.
pub struct Unrest {
    /// The epoch: it grows if too many pages become restless at once.
    pub epoch: u64,
    /// Entries that may still be looked at for that before the next wide fence.
    pub stirs: u32,
}

impl Unrest {
    pub const fn new() -> Self {
        Self { epoch: 0, stirs: STIRS }
    }

    /// Returns whether something that can be reached from a page may have been written since it was compared.
    #[inline(always)]
    pub fn is_restless(&self, page: &Page) -> bool {
        page.is_unsync || page.key.level > Level::PAGE && (page.stirred.epoch != self.epoch || page.is_any_stirred())
    }

    /// Returns the word of a page that rests, in this epoch.
    pub const fn lane_epoch(&self) -> u64 {
        self.epoch + LaneSync::RESTLESS + 1
    }
}

/// Shadow pages and their entries.
pub struct Tables<S: Shadowed> {
    pub rules: Rules,
    pub index: Index<S>,
    /// The stage below the guest's tables.
    pub lower: S::Lower,
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

    /// Like [`Tables::descend`], if the way is not remembered. It is from now on.
    #[cold]
    #[inline(never)]
    pub fn descend_from_root(&mut self, root: &Root<S>, gva: Addr<S>, mem: &impl PhysMem) -> At {
        let from = self.part(root, gva);
        self.walks.descend(&self.index, from, (root, gva), mem)
    }
}
