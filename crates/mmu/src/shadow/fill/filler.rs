//! The part that fills the shadow: faults, links, roots.

use super::fills::Fills;
use crate::shadow::Shadowed;
use crate::shadow::cache::Cache;
use crate::shadow::entries::{Rules, Tables};
use crate::shadow::pages::{Id, Page};
use crate::shadow::sync::Syncer;

/// Shadow tables in step with the guest's, and how they grow.
pub struct Filler<S: Shadowed> {
    pub syncer: Syncer<S>,
    pub fills: Fills,
    /// The lane, or vCPUs that share the lock, write entries: the engine learns what they have written, before it does anything else.
    pub others_write: bool,
}

impl<S: Shadowed> Filler<S> {
    #[inline(always)]
    pub fn page(&self, id: Id) -> &Page {
        self.syncer.cache.tables.index.page(id)
    }

    #[inline(always)]
    pub fn page_mut(&mut self, id: Id) -> &mut Page {
        self.syncer.cache.tables.index.page_mut(id)
    }

    /// Returns the rules of the engine's entries.
    #[inline(always)]
    pub const fn rules(&self) -> &Rules {
        &self.syncer.cache.tables.rules
    }

    #[inline(always)]
    pub const fn cache(&mut self) -> &mut Cache<S> {
        &mut self.syncer.cache
    }

    #[inline(always)]
    pub const fn tables(&mut self) -> &mut Tables<S> {
        &mut self.syncer.cache.tables
    }
}
