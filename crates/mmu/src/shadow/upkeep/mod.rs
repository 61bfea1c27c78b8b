//! What the upkeeps answer differently: all questions are in [`rules`], and here alone it matters which one a VM has.

mod lazy;
mod rules;
mod shadow;
mod steered;
mod unsync;

use super::config::{Host, Upkeep};
use super::engine::Shadow;
use super::page::At;
use super::passed::Mappings;
use super::root::Root;
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use rules::Rules;
use rv::{Fence, Gpa, PhysMem};

macro_rules! ask {
    ($shadow:ident, $rules:ident => $question:expr) => {
        match $shadow.config.upkeep {
            Upkeep::Shadow => {
                type $rules = shadow::Rules;
                $question
            }
            Upkeep::Unsync => {
                type $rules = unsync::Rules;
                $question
            }
            Upkeep::Lazy => {
                type $rules = lazy::Rules;
                $question
            }
            Upkeep::Steered => {
                type $rules = steered::Rules;
                $question
            }
        }
    };
}

impl<S: Shadowed> Shadow<S> {
    /// Whether a guest table is write-protected from its first shadow on.
    pub(super) const fn protects_new_tables(&self) -> bool {
        ask!(self, R => <R as Rules>::PROTECTS)
    }

    /// Whether a shadow may lag behind its table at all now.
    pub(super) fn may_any_lag(&self) -> bool {
        !self.protects_new_tables() || !self.unsync.is_empty()
    }

    /// Whether the lane may take fences.
    pub(super) const fn has_lane(&self) -> bool {
        ask!(self, R => <R as Rules>::HAS_LANE) && (!self.steers() || self.lane.is_some())
    }

    /// Whether the guest gets its page faults itself.
    #[inline(always)]
    pub(super) const fn steers(&self) -> bool {
        matches!(self.config.upkeep, Upkeep::Steered)
    }

    /// Whether the first store to a protected table lets it go.
    pub(super) fn lets_go(&self, are_leaves: bool) -> bool {
        ask!(self, R => R::lets_go(are_leaves))
    }

    /// A fence by address arrives at a live entry that is no pointer to a table.
    pub(super) fn fence_entry<M: PhysMem, H: Fence<Gpa>>(&mut self, at: At, host: &mut Host<'_, M, H>) {
        ask!(self, R => R::fence_entry(self, at, host));
    }

    /// A fence of everything that `root` leads to, or a root that a vCPU has not used for long enough.
    pub(super) fn fence_root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) {
        if !self.is_sabotaged(Sabotage::ForgetsWideFence) {
            ask!(self, R => R::fence_root(self, root, mappings, host));
        }
    }
}
