//! The host's own edits of a VM's memory: it takes pages away, brings them back, and joins small leaves into large ones.
//!
//! All of them go the same way, whatever translates: what was made from the pages is let go in portions, the table is edited,
//! and what is stale then is settled ([`crate::mapper`]). The shadow engine is the mapper that is named here,
//! since it edits the memory itself when its guest faults.

use crate::budget::Budget;
use crate::frames::Run;
use crate::gstage::{
    AddressSpace, Change, Comes, Dirt, GiveBack, Promoted, Promotion, Publish, Returned, Span, SwapSlot,
};
use crate::mapper::Loss;
use crate::shadow::{Host, Sabotage, Shadow, Shadowed};
use crate::stale::Stale;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use rv::{Fence, Gpa, Gva, L2Gpa, L2Gva, Level, Pfn, PhysMem};

/// The pages that have changed, of those that were looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Collected {
    /// The page to continue from.
    pub next: Pfn<Gpa>,
    /// The numbers of those that may have changed; the first run may begin before the page that was asked for.
    pub changed: Vec<Range<u64>>,
    /// The numbers of those that hold zeroes.
    pub zero: Vec<Range<u64>>,
}

/// A VM's memory, what it is lent, and the engine that shadows it, if one does.
pub struct Edits<'e, 'h, M, H, S: Shadowed = Gva> {
    /// The engine.
    pub shadow: Option<&'e mut Shadow<S>>,
    /// The engine that shadows the G-stages of its guest, if that may be a hypervisor.
    pub nested: Option<&'e mut Shadow<L2Gpa>>,
    /// The engine that shadows its guest's tables and G-stages at once.
    pub collapsed: Option<&'e mut Shadow<L2Gva>>,
    /// The memory, and the rest of the machine.
    pub host: &'e mut Host<'h, M, H>,
}

impl<M: PhysMem, H: Fence<Gpa>, S: Shadowed> Edits<'_, '_, M, H, S> {
    /// Asks all mappers to let go of pages. Returns whether nothing is left.
    fn let_go(&mut self, pages: Range<u64>, loss: Loss) -> bool {
        let Self { shadow, nested, collapsed, host } = self;
        shadow.as_mut().is_none_or(|shadow| shadow.let_go(pages.clone(), loss, host))
            && nested.as_mut().is_none_or(|nested| nested.let_go(pages.clone(), loss, host))
            && collapsed.as_mut().is_none_or(|collapsed| collapsed.let_go(pages.clone(), loss, host))
            && host.space.let_go(&pages, loss, &mut host.budget, host.mem)
    }

    fn is_sabotaged(&self, how: Sabotage) -> bool {
        self.shadow.as_ref().is_some_and(|shadow| shadow.rules().is_sabotaged(how))
    }

    /// Spends what is stale: nothing that was made from those pages is left when this returns (TOLD), and their frames are free.
    pub fn settle(&mut self, stale: Stale<Gpa>) {
        self.settle_with(stale, None);
    }

    fn settle_with(&mut self, stale: Stale<Gpa>, publish: Option<Box<Publish>>) {
        let Self { shadow, nested, collapsed, host } = self;
        let mut what = Some((stale, publish));
        // The first one fences for all, so that the others owe their own pages at most.
        let mut next = || what.take().unwrap_or((Stale::none(), None));
        if let Some(shadow) = shadow {
            let (stale, publish) = next();
            shadow.settle(stale, publish, host);
        }
        if let Some(nested) = nested {
            let (stale, publish) = next();
            nested.settle(stale, publish, host);
        }
        if let Some(collapsed) = collapsed {
            let (stale, publish) = next();
            collapsed.settle(stale, publish, host);
        }
        if let Some((stale, publish)) = what {
            host.space.settle(stale, publish, host.hw, host.mem).release(host.frames);
        }
    }

    /// Does something within a budget that is for other memory, too, and takes from it what that costs.
    pub fn sharing<R>(&mut self, budget: &mut Budget, act: impl FnOnce(&mut Self) -> R) -> R {
        core::mem::swap(&mut self.host.budget, budget);
        let result = act(self);
        core::mem::swap(&mut self.host.budget, budget);
        result
    }

    /// Returns whether a page may not move nor go: it is one of the guest's tables that are shadowed.
    #[must_use]
    pub fn is_kept(&self, page: Pfn<Gpa>) -> bool {
        self.shadow.as_ref().is_some_and(|shadow| shadow.is_shadowed(page, self.host.mem))
            || self.nested.as_ref().is_some_and(|nested| nested.is_shadowed(page, self.host.mem))
            || self.collapsed.as_ref().is_some_and(|collapsed| collapsed.is_shadowed(page, self.host.mem))
    }

    /// Makes what is mapped at `page` idle ([`AddressSpace::rest`]). It is so once the result is settled.
    ///
    /// `None`: the budget is spent before that. A part is done, the page is mapped still.
    pub fn rest(&mut self, page: Pfn<Gpa>, level: Level) -> Option<Stale<Gpa>> {
        let first = page.align_down(level.pages()).raw();
        let has_let_go =
            self.is_sabotaged(Sabotage::RestsWithLeaves) || self.let_go(first..first + level.pages(), Loss::Access);
        has_let_go.then(|| self.host.space.rest(page, self.host.mem))
    }

    /// Collects pages that have changed ([`AddressSpace::dirt`]), from `from` on and below `end`: so many runs of them at most, and as far as
    /// the budget lets. From then on each store to one of them shows again.
    pub fn collect(&mut self, (from, end): (Pfn<Gpa>, Pfn<Gpa>), is_first: bool, most: usize) -> Collected {
        /// Steps of a portion, some 12 instructions each; those to look at an entry, and to take its mark away.
        const STEPS: u32 = 7000;
        const LOOK: u32 = 12;
        const TAKE: u32 = 30;
        let mut collected = Collected { next: from, changed: Vec::new(), zero: Vec::new() };
        let mut stale = Stale::none();
        let mut steps = STEPS;
        while steps > 0 {
            let page = collected.next;
            if page >= end || collected.changed.len() + collected.zero.len() >= most {
                break;
            }
            let Dirt { change, mut first, mut next, is_marked } = self.host.space.dirt(page, is_first, self.host.mem);
            // A row of leaves in one table takes 6 instructions each.
            let row = next.raw().saturating_sub(page.raw()).min(Level::MEGA.pages()) as u32 / 2;
            steps = steps.saturating_sub(if is_marked { LOOK + TAKE } else { LOOK + row });
            if is_marked {
                // One of 1 GiB is broken into these.
                first = first.max(page.align_down(Level::MEGA.pages()));
                next = next.min(page.align_down(Level::MEGA.pages()).add(Level::MEGA.pages()));
                if !self.let_go(first.raw()..next.raw(), Loss::Access) {
                    break;
                }
                let Host { space, frames, mem, .. } = &mut *self.host;
                stale = stale.join(space.withhold_dirty(page, frames, *mem));
            }
            match change {
                Change::None => {}
                Change::Zero => push(&mut collected.zero, first.raw()..next.raw().min(end.raw())),
                Change::Some => push(&mut collected.changed, first.raw()..next.raw().min(end.raw())),
            }
            collected.next = next;
        }
        self.settle(stale);
        collected
    }

    /// Does a portion of a promotion ([`AddressSpace::begin_promotion`]).
    pub fn promote(&mut self, promotion: &mut Promotion) -> Promoted {
        let done = self.promote_some(promotion);
        // Entries may have been forgotten though nothing has been edited (SPENT).
        self.settle(Stale::none());
        done
    }

    fn promote_some(&mut self, promotion: &mut Promotion) -> Promoted {
        if promotion.next().map(Pfn::new).any(|page| self.is_kept(page)) {
            return Promoted::Not;
        }
        if !self.is_sabotaged(Sabotage::MovesWithLeaves) && !self.let_go(promotion.next(), Loss::Access) {
            return Promoted::More;
        }
        let Host { space, frames, mem, .. } = &mut *self.host;
        if AddressSpace::<Gpa>::is_copied(promotion) {
            let concluded = space.conclude_promotion(promotion, frames, *mem);
            let Some((stale, publish)) = concluded else { return Promoted::Not };
            self.settle_with(stale, Some(publish));
            return Promoted::Whole;
        }
        let Some(stale) = space.withhold(promotion, *mem) else { return Promoted::Not };
        self.settle(stale);
        self.host.space.copy_withheld(promotion, self.host.mem);
        Promoted::More
    }

    /// Makes one leaf of 1 GiB of those around a page, if it can be.
    pub fn join(&mut self, page: Pfn<Gpa>) {
        if let Some((stale, publish)) = self.host.space.join(page, self.host.mem) {
            self.settle_with(stale, Some(publish));
        }
    }

    /// Maps a page that has been brought in from the swap device, to that frame.
    ///
    /// # Errors
    /// The frame, if the page is not out there any more.
    pub fn bring_in(&mut self, page: Pfn<Gpa>, from: SwapSlot, frame: (Run, Comes)) -> Result<(), Run> {
        let stale = self.host.space.bring_in(page, from, frame, self.host.mem)?;
        self.settle(stale);
        Ok(())
    }

    /// Makes pages untouched again ([`AddressSpace::unmap`]), as many of them as may be done at once: in their order, as if each
    /// span followed the one before. For the rest it is called again. Of 2 MiB that would have to be split, and for
    /// whose table there is no frame, nothing goes.
    ///
    /// The frames of these pages are free when this returns.
    pub fn give_back(&mut self, spans: &[Span]) -> Returned {
        let (returned, stale) = self.take_back(spans);
        self.settle(stale);
        returned
    }

    /// Does the part of [`Edits::give_back`] before the result is settled.
    pub fn take_back(&mut self, spans: &[Span]) -> (Returned, Stale<Gpa>) {
        // The other half is for what the G-stage costs.
        self.host.budget = self.host.budget.half();
        let mut work = GiveBack::new(spans);
        while let Some(piece) = work.next(self.host.space, self.host.mem) {
            let Span { start, pages } = piece.span;
            if self.shadow.is_some() || self.nested.is_some() || self.collapsed.is_some() {
                work.spend(pages as u32);
            }
            if !self.let_go(start.raw()..start.raw() + pages, Loss::Contents) {
                break;
            }
            work.take(&piece, self.host.space, self.host.frames, self.host.mem);
        }
        work.finish()
    }
}

/// Adds a run of pages to a list, or to the last one of it.
fn push(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => runs.push(run),
    }
}
