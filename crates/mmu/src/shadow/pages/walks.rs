//! The ends of the latest walks down the shadow: most faults and fences are near others. Like a hart's own walk cache,
//! it is emptied whenever a pointer goes.

use crate::shadow::pages::{At, Id, Index, Key, Role};
use crate::shadow::{Root, Shadowed};
use alloc::vec::Vec;
use core::marker::PhantomData;
use rv::{Addr, Level, PhysMem};

/// The shadow page of level 0 that a walk ended at.
#[derive(Clone, Copy)]
struct Walk {
    /// The root's serial.
    root: u64,
    /// The address, in units of what such a page translates.
    part: u64,
    generation: u64,
    id: Id,
}

/// The latest walk of each kind. A power of two of kinds.
const KINDS: usize = 64;

pub struct Walks<S> {
    walks: Vec<Walk>,
    generation: u64,
    space: PhantomData<S>,
}

impl<S: Shadowed> Walks<S> {
    pub fn new() -> Self {
        // No walk is of the generation 0.
        Self {
            walks: alloc::vec![Walk { root: 0, part: 0, generation: 0, id: 0 }; KINDS],
            generation: 1,
            space: PhantomData,
        }
    }

    const fn part(gva: Addr<S>) -> u64 {
        gva.raw() >> Level::MEGA.shift()
    }

    const fn kind(root: u64, part: u64) -> usize {
        (part ^ root) as usize % KINDS
    }

    /// Returns the page at which the walk for `gva` from that root ends, if it is remembered.
    #[inline(always)]
    pub fn find(&self, root: u64, gva: Addr<S>) -> Option<Id> {
        let part = Self::part(gva);
        let walk = self.walks.get(Self::kind(root, part))?;
        (walk.root == root && walk.part == part && walk.generation == self.generation).then_some(walk.id)
    }

    pub fn remember(&mut self, root: u64, gva: Addr<S>, id: Id) {
        let part = Self::part(gva);
        self.walks[Self::kind(root, part)] = Walk { root, part, generation: self.generation, id };
    }

    pub const fn forget_all(&mut self) {
        self.generation += 1;
    }

    /// The entry of level 0 that decides about `gva`, if the way there is remembered: that of an address that can be.
    #[inline(always)]
    pub fn known(&self, root: &Root<S>, gva: Addr<S>) -> Option<At> {
        Some((self.find(root.serial, gva)?, root.format.index_in_frame(gva, Level::PAGE)))
    }

    /// Goes down from a shadow page as far as pointers lead from one shadow of a guest's table to another. Returns the entry there, which
    /// decides about the address or is the last above the one that does, and whether the way is to be remembered.
    #[inline(always)]
    pub fn way(&self, tables: &Index<S>, from: Id, (root, gva): (&Root<S>, Addr<S>), mem: &impl PhysMem) -> (At, bool) {
        let (mut id, format) = (from, root.format);
        loop {
            let page = tables.page(id);
            let (key, index) = (page.key, format.index_in_frame(gva, page.key.level));
            let Some(level) = key.level.down() else {
                // A fault there is the guest's, whatever the tables say: those who find a walk ask no more.
                return ((id, index), format.fits(gva) && !page.is_coalesced);
            };
            let pointer = page.mirror(index, mem).filter(|mirror| key.role == Role::Table && mirror.is_pointer());
            let Some(pointer) = pointer else { return ((id, index), false) };
            let child = tables.find(Key { gfn: pointer.pfn(), level, role: Role::Table }, mem);
            id = child.expect("a live pointer's shadow page exists");
        }
    }

    /// Goes that way, and remembers it.
    #[inline(always)]
    pub fn descend(&mut self, tables: &Index<S>, from: Id, (root, gva): (&Root<S>, Addr<S>), mem: &impl PhysMem) -> At {
        let (at, is_to_be_remembered) = self.way(tables, from, (root, gva), mem);
        if is_to_be_remembered {
            self.remember(root.serial, gva, at.0);
        }
        at
    }
}
