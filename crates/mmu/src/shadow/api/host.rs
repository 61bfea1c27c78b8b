//! Memory that the host takes from the guest, moves, and gives back.

use crate::frames::{Ahead, Frames};
use crate::gstage::Publish;
use crate::mapper::Loss;
use crate::shadow::pages::Stay;
use crate::shadow::{Gathered, Host, Root, Shadow, Shadowed};
use crate::stale::Stale;
use alloc::boxed::Box;
use core::ops::Range;
use rv::{Fence, Gpa, Pfn, PhysMem};

impl<S: Shadowed> Shadow<S> {
    /// Forgets entries that lead to these pages, because they are about to have that loss, as far as the budget lets. Says whether that was all.
    /// All harts must forget all of the VM's translations before a frame of theirs has another use ([`Shadow::settle`]).
    pub(crate) fn let_go<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        pages: Range<u64>,
        loss: Loss,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        self.cache().let_go(pages, loss, host)
    }

    /// Spends what an edit of the host's has made stale ([`crate::AddressSpace::settle`]), and ends the operation.
    pub(crate) fn settle<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        stale: Stale<Gpa>,
        publish: Option<Box<Publish>>,
        host: &mut Host<'_, M, H>,
    ) {
        self.cache().spend(stale, publish, host);
        self.cache().conclude(host);
    }

    /// Returns whether the frame is one of the guest's tables that are shadowed. It must not be taken away: their shadows know where they
    /// are.
    #[must_use]
    pub fn is_shadowed(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.filler.syncer.cache.is_shadowed(gfn, mem)
    }

    /// Does a portion of looking for what may be coalesced below a root, in `steered`: goes on with what it has begun, or looks at some
    /// tables. Those whose leaves have been as they are for `settled` ticks of any clock, which says `now`, it coalesces. Where the frames
    /// do not follow one another, it moves them before, into frames that `take` gives.
    pub fn gather<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        (now, settled): (u64, u64),
        take: impl FnOnce() -> Option<Ahead>,
        host: &mut Host<'_, M, H>,
    ) -> Gathered {
        // The timer's exit may have had a fault to answer, too.
        host.budget = host.budget.half();
        let gathered = self.gathering.gather_some(&mut self.filler.syncer.cache, root, (now, settled), take, host);
        self.cache().conclude(host);
        gathered
    }

    /// Gives back the frames of a move that has begun; what has moved stays where it is, and the rest may later. Says whether there were
    /// some.
    pub fn stop_moving(&mut self, frames: &Frames) -> bool {
        let Some(moving) = self.gathering.moving.take() else { return false };
        let arena = &mut self.cache().tables.index.arena;
        if arena.get(moving.id).is_some_and(|page| page.serial == moving.serial) {
            arena.page_mut(moving.id).stay = Stay::Changed;
        }
        let has_frames = moving.row.is_some();
        moving.end(frames);
        has_frames
    }
}
