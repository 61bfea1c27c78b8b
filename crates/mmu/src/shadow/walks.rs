//! Where walks down the shadow ended lately: most faults and fences are near others. As a hart's own walk cache it is
//! emptied whenever a pointer goes.

use super::page::Id;
use alloc::vec::Vec;
use core::marker::PhantomData;
use rv::{Addr, Level, Space};

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

pub(super) struct Walks<S> {
    walks: Vec<Walk>,
    generation: u64,
    space: PhantomData<S>,
}

impl<S: Space> Walks<S> {
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

    /// Where the walk for `gva` from that root ends.
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
}
