//! An engine as the companion of another.

use super::lane::{close, open};
use crate::mapper::Loss;
use crate::shadow::fill::Filler;
use crate::shadow::{Companion, Host, Shadow, Shadowed};
use crate::table::Debt;
use core::ops::Range;
use rv::{Fence, Gpa, Pfn, PhysMem};

/// Makes an engine the companion of another on the same memory.
pub fn companion<S: Shadowed, M: PhysMem, H: Fence<Gpa>>(engine: &mut Shadow<S>) -> &mut dyn Companion<M, H> {
    &mut engine.filler
}

impl<M: PhysMem, H: Fence<Gpa>, S: Shadowed> Companion<M, H> for Filler<S> {
    fn let_go(&mut self, pages: Range<u64>, loss: Option<Loss>, host: &mut Host<'_, M, H>) -> bool {
        let cache = &mut self.syncer.cache;
        // What this engine owes is its own.
        let debt = core::mem::replace(&mut host.debt, Debt::none());
        let is_all = if let Some(loss) = loss {
            cache.let_go(pages, loss, host)
        } else {
            pages.for_each(|page| cache.forget(Pfn::new(page), host));
            true
        };
        cache.conclude(host);
        host.debt = debt;
        is_all
    }

    fn keep_lane_out(&mut self, keeps: bool, mem: &mut M) {
        if keeps {
            close(self, mem);
        } else {
            open(self, mem);
        }
    }
}
