//! The lane: what it needs, and how it is kept out.

use crate::frames::{Frames, Use};
use crate::gstage::AddressSpace;
use crate::shadow::cache::Cache;
use crate::shadow::fill::Filler;
use crate::shadow::lane::LaneMemory;
use crate::shadow::{Sabotage, Shadow, Shadowed};
use alloc::boxed::Box;
use lane::LaneSync;
use rv::{Gpa, Pfn, PhysMem, PteFlags};

impl<S: Shadowed> Shadow<S> {
    /// Takes memory for the lane, if it can take part in this upkeep at all, for RAM of `space` that ends at `end`. Without, it is off.
    pub fn begin_lane(&mut self, space: &mut AddressSpace, end: Pfn<Gpa>, frames: &Frames, mem: &mut impl PhysMem) {
        let Cache { tables, pool, .. } = self.cache();
        if !tables.rules.policy.has_gate || !S::HAS_LANE || tables.gate.memory.is_some() {
            return;
        }
        let order = LaneMemory::frames(end).ilog2() as u8;
        let Ok(run) = frames.alloc(pool.owner, Use::Table, order) else { return };
        mem.zero_frames(run.first(), run.pages());
        let memory = LaneMemory::new(run, end, tables.rules.kept.contains(PteFlags::G));
        if !tables.rules.is_sabotaged(Sabotage::KeepsChunks) {
            space.add_mapper(Box::new(memory.words));
        }
        tables.gate.memory = Some(memory);
        tables.gate.all_have_headers = pool.bodies == 0;
        tables.gate.tell_epoch(tables.unrest.lane_epoch(), mem);
        self.filler.others_write = true;
        self.open(mem);
    }

    /// Returns the places of the lane's inputs, if the lane may bring entries in step.
    #[must_use]
    pub fn lane_inputs(&self) -> Option<LaneSync> {
        self.filler.syncer.cache.tables.gate.memory.as_ref().map(LaneMemory::inputs)
    }

    /// Does something with the engine, and keeps the lane of all harts out meanwhile. First it learns what the lane has done. Every
    /// operation is done so, with the VM's lock held.
    #[inline(always)]
    pub fn alone<M: PhysMem, R>(&mut self, mem: &mut M, act: impl FnOnce(&mut Self, &mut M) -> R) -> R {
        self.close(mem);
        let result = act(self, mem);
        self.open(mem);
        result
    }

    /// Does the first half of [`Shadow::alone`], where a closure costs too much: the engine learns what vCPUs and the lane have filled.
    #[inline(always)]
    pub fn close(&mut self, mem: &mut impl PhysMem) {
        close(&mut self.filler, mem);
    }

    /// The second half.
    #[inline(always)]
    pub fn open(&mut self, mem: &mut impl PhysMem) {
        open(&mut self.filler, mem);
    }
}

/// Keeps the lane and other vCPUs out.
#[inline(always)]
pub(super) fn close<S: Shadowed>(filler: &mut Filler<S>, mem: &mut impl PhysMem) {
    if !filler.others_write {
        return;
    }
    if let Some((gate, end)) = filler.syncer.cache.tables.gate.close(mem) {
        filler.syncer.learn(gate, end, mem);
    }
    if filler.fills.is_pending() {
        filler.learn_fills(mem);
    }
}

/// Lets them in.
#[inline(always)]
pub(super) fn open<S: Shadowed>(filler: &mut Filler<S>, mem: &mut impl PhysMem) {
    if filler.others_write {
        filler.syncer.cache.tables.gate.open(mem);
    }
}
