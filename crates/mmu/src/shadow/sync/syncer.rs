//! The part that brings shadow tables in step with the guest's.

use crate::shadow::Shadowed;
use crate::shadow::cache::Cache;
use crate::shadow::entries::Rules;
use crate::shadow::pages::{Id, Page};
use crate::shadow::sync::{Candidates, Digests, KeptOut, Rate};

/// Shadow tables, and the state of their synchronisation with the guest's.
pub struct Syncer<S: Shadowed> {
    pub cache: Cache<S>,
    pub digests: Digests<S>,
    /// Tables that are to become quiet.
    pub candidates: Candidates,
    pub rate: Rate,
    /// Fences by address that the lane was kept out of, for quiet tables.
    pub kept_out: KeptOut,
}

impl<S: Shadowed> Syncer<S> {
    #[inline(always)]
    pub fn page(&self, id: Id) -> &Page {
        self.cache.tables.index.page(id)
    }

    #[inline(always)]
    pub fn page_mut(&mut self, id: Id) -> &mut Page {
        self.cache.tables.index.page_mut(id)
    }

    /// Returns the rules of the engine's entries.
    #[inline(always)]
    pub const fn rules(&self) -> &Rules {
        &self.cache.tables.rules
    }
}
