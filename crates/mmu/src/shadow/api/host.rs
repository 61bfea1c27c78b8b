//! Memory that the host takes from the guest, moves, and gives back.

use crate::frames::{Ahead, Frames};
use crate::gstage::{GiveBack, Promoted, Promotion, Returned, Span};
use crate::shadow::pages::Stay;
use crate::shadow::{Gathered, Host, Root, Sabotage, Shadow, Shadowed};
use crate::stale::Stale;
use rv::{Fence, Gpa, Level, Pfn, PhysMem};

impl<S: Shadowed> Shadow<S> {
    /// Makes what is mapped at `page` idle ([`crate::AddressSpace::rest`]), and forgets all entries that lead there. It is so once
    /// the result is spent by [`Shadow::rested`].
    ///
    /// `None`: the budget is spent before that. A part is done, the page is mapped still.
    pub fn rest<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        page: Pfn<Gpa>,
        level: Level,
        host: &mut Host<'_, M, H>,
    ) -> Option<Stale<Gpa>> {
        let first = page.align_down(level.pages());
        let all_forgotten = self.rules().is_sabotaged(Sabotage::RestsWithLeaves)
            || (0..level.pages()).all(|n| self.cache().forget_ahead(first.add(n), host));
        all_forgotten.then(|| host.space.rest(page, host.mem))
    }

    /// Ends a series of [`Shadow::rest`], or what [`crate::AddressSpace::bring_in`] leaves to be done.
    pub fn rested<M: PhysMem, H: Fence<Gpa>>(&mut self, stale: Stale<Gpa>, host: &mut Host<'_, M, H>) {
        self.cache().spend(stale, None, host);
        self.cache().conclude(host);
    }

    /// Does a portion of a promotion ([`AddressSpace::begin_promotion`]). All entries that lead to frames which are about to move, or
    /// to lose W, are forgotten before. A guest's table that is shadowed does not move: its shadow knows where it is.
    pub fn promote<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        promotion: &mut Promotion,
        host: &mut Host<'_, M, H>,
    ) -> Promoted {
        let done = self.cache().promote_some(promotion, host);
        self.cache().conclude(host);
        done
    }

    /// Returns whether the frame is one of the guest's tables that are shadowed. It must not be taken away: their shadows know where they
    /// are.
    #[must_use]
    pub fn is_shadowed(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.filler.syncer.cache.is_shadowed(gfn, mem)
    }

    /// Pages of guest RAM become untouched again, as many of them as may be done at once ([`AddressSpace::give_back`]), and nothing
    /// of them stays in the shadow or in a TLB. What came free is free when this returns.
    pub fn give_back<M: PhysMem, H: Fence<Gpa>>(&mut self, spans: &[Span], host: &mut Host<'_, M, H>) -> Returned {
        // The other half is for what the G-stage costs.
        host.budget = host.budget.half();
        let mut work = GiveBack::new(spans);
        while let Some(piece) = work.next(host.space, host.mem) {
            let Span { start, pages } = piece.span;
            work.spend(pages as u32);
            if !(0..pages).all(|n| self.cache().forget_some(start.add(n), host)) {
                self.cache().tables.counters.postponed += 1;
                break;
            }
            work.take(&piece, host.space, host.frames, host.mem);
        }
        let (returned, stale) = work.finish();
        self.cache().spend(stale, None, host);
        self.cache().conclude(host);
        returned
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
