//! Which pages lead to tables that may have been written (`quiet`): what wide fences follow.

use crate::shadow::entries::Tables;
use crate::shadow::pages::{At, Id, List};
use crate::shadow::{Sabotage, Shadowed};
use rv::PhysMem;

impl<S: Shadowed> Tables<S> {
    /// An entry leads to a restless page.
    pub fn stir(&mut self, (id, index): At, mem: &mut impl PhysMem) {
        let was_restless = self.unrest.is_restless(self.index.page(id));
        self.index.page_mut(id).stir(index);
        self.index.end_digest_of(id);
        if !was_restless {
            self.stir_from(id, mem);
        }
    }

    /// A page has become restless, and so have those above. Each level is above the one before, so this ends. Where more entries lead there
    /// than there may be looked at, all pages that lead to tables are taken for restless, until fences have looked at them.
    pub fn stir_from(&mut self, id: Id, mem: &mut impl PhysMem) {
        self.tell_lane(id, mem);
        if self.rules.is_sabotaged(Sabotage::ForgetsToStir) {
            return;
        }
        let mut next = self.index.first(List::Parents(id), mem);
        while let Some(at) = next {
            if self.unrest.stirs == 0 {
                self.unrest.epoch += u64::from(!self.rules.is_sabotaged(Sabotage::ForgetsMostParents));
                self.index.digests = 0;
                if !self.rules.is_sabotaged(Sabotage::KeepsEpoch) {
                    self.gate.tell_epoch(self.unrest.lane_epoch(), mem);
                }
                return;
            }
            self.unrest.stirs -= 1;
            self.counters.stirred += 1;
            self.stir(at, mem);
            next = self.index.next(at, mem);
        }
    }
}
