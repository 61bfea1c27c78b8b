//! A fence is a value that must be spent.
//!
//! An edit that removes or narrows a translation returns a [`Stale`]: which translations some hart
//! may still use, and which frames they lead to. It is spent exactly once, by [`crate::AddressSpace::settle`]: mappers are told of it, TLBs
//! are fenced, and only then do the frames return to the allocator (OWNERSHIP). What may be mapped only after the fence,
//! a [`crate::gstage::Publish`], comes with it.

use crate::frames::{Frames, Run};
use crate::table::{Debt, Owed};
use alloc::vec::Vec;
use rv::{Fence, FenceScope, Space};

/// Translations that some hart may still use, and the frames that must outlive them.
#[must_use = "an edit is not in force until its stale translations are fenced"]
#[derive(Debug)]
pub struct Stale<S: Space> {
    scope: Option<FenceScope<S>>,
    retired: Vec<Run>,
}

impl<S: Space> Stale<S> {
    /// Nothing is stale.
    pub const fn none() -> Self {
        Self { scope: None, retired: Vec::new() }
    }

    /// Translations in `scope` are stale; nothing is retired yet.
    pub(crate) const fn of(scope: FenceScope<S>) -> Self {
        Self { scope: Some(scope), retired: Vec::new() }
    }

    /// Translations in `scope` are stale, too.
    pub(crate) fn widen(&mut self, scope: FenceScope<S>) {
        self.scope = Some(self.scope.map_or(scope, |known| known.join(scope)));
    }

    /// Marks as stale what the `debt` of an edit covers, if the edited entry translates `scope`.
    pub(crate) fn owe(&mut self, debt: Debt, scope: FenceScope<S>) {
        let owed = debt.paid();
        if owed.contains(Owed::POINTERS) {
            // A fence by address orders leaf entries only (norm:hfence-gvma_op, and SFENCE.VMA's rules, which it
            // shares).
            self.widen(FenceScope::Everything);
        } else if !owed.is_empty() {
            self.widen(scope);
        }
    }

    /// Adds frames that only stale translations lead to.
    ///
    /// # Panics
    /// If nothing is stale: then the frames need not wait.
    pub(crate) fn retire(&mut self, run: Run) {
        assert!(self.scope.is_some(), "{run:?} retired, but nothing leads to it");
        self.retired.push(run);
    }

    /// Joins both, to be fenced together.
    pub fn join(mut self, other: Self) -> Self {
        self.scope = match (self.scope, other.scope) {
            (Some(a), Some(b)) => Some(a.join(b)),
            (a, b) => a.or(b),
        };
        self.retired.extend(other.retired);
        self
    }

    /// Returns whether no fence is owed.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.scope.is_none()
    }

    /// Returns the scope that a fence must cover, if one is owed.
    #[must_use]
    pub const fn scope(&self) -> Option<FenceScope<S>> {
        self.scope
    }

    /// The frames that wait for the fence.
    pub fn retired(&self) -> &[Run] {
        &self.retired
    }

    /// Marks it as told to mappers.
    #[inline(always)]
    pub(crate) fn told(self) -> Told<S> {
        Told(self)
    }
}

/// Stale translations of which all mappers have been told: only TLBs may still use them.
#[must_use = "an edit is not in force until its stale translations are fenced"]
#[derive(Debug)]
pub struct Told<S: Space>(Stale<S>);

impl<S: Space> Told<S> {
    /// Fences, and yields the frames that are now free to go: to [`Retired::release`], which may be done
    /// without the locks that the fence needed.
    // Here and in `release`: each fault ends so, and most have nothing to fence.
    #[inline(always)]
    pub fn fence(self, hw: &mut impl Fence<S>) -> Retired {
        if let Some(scope) = self.0.scope {
            hw.fence(scope);
        }
        Retired { runs: self.0.retired }
    }

    /// Fences, then frees the retired frames.
    pub fn flush(self, hw: &mut impl Fence<S>, frames: &Frames) {
        self.fence(hw).release(frames);
    }
}

/// Frames that no hart can reach any more.
#[must_use = "dropping retired frames leaks them"]
#[derive(Debug)]
pub struct Retired {
    runs: Vec<Run>,
}

impl Retired {
    /// The frames.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Gives them back.
    #[inline(always)]
    pub fn release(self, frames: &Frames) {
        for run in self.runs {
            frames.free(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{Owner, Use};
    use rv::{Addr, Gpa, Pfn};

    #[derive(Default)]
    struct Recorder(Vec<FenceScope<Gpa>>);

    impl Fence<Gpa> for Recorder {
        fn fence(&mut self, scope: FenceScope<Gpa>) {
            self.0.push(scope);
        }
    }

    fn range(start: u64, bytes: u64) -> FenceScope<Gpa> {
        FenceScope::Range { start: Addr::new(start), bytes }
    }

    fn one_retired(frames: &mut Frames) -> Stale<Gpa> {
        frames.add(Pfn::new(0), 1);
        let mut stale = Stale::of(range(0, 4096));
        stale.retire(frames.alloc(Owner::Vm(0), Use::Guest, 0).unwrap());
        stale
    }

    #[test]
    fn frames_are_free_only_after_the_fence() {
        let (mut frames, mut hw) = (Frames::new(), Recorder::default());
        let stale = one_retired(&mut frames);
        let retired = stale.told().fence(&mut hw);
        assert_eq!((frames.free_count(), hw.0.len(), retired.runs().len()), (0, 1, 1));
        retired.release(&frames);
        assert_eq!(frames.free_count(), 1);
    }

    #[test]
    fn joined_edits_are_fenced_once() {
        let mut hw = Recorder::default();
        let frames = Frames::new();
        let both = Stale::of(range(0, 4096)).join(Stale::none()).join(Stale::of(range(8192, 4096)));
        both.told().flush(&mut hw, &frames);
        Stale::none().told().flush(&mut hw, &frames);
        assert_eq!(hw.0, [range(0, 3 * 4096)]);
    }
}
