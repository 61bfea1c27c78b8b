//! The engine: the shadow tables of one VM.

use crate::frames::{AllocError, Frames, Owner, Run};
use crate::shadow::cache::{Cache, Pool};
use crate::shadow::entries::{Rules, Tables, Unrest};
use crate::shadow::fill::{Filler, Fills};
use crate::shadow::gather::Gathering;
use crate::shadow::lane::{Gate, LaneMemory};
use crate::shadow::pages::{Arena, Index, Passed, Walks};
use crate::shadow::policy::Policy;
use crate::shadow::sync::{Candidates, Digests, KeptOut, Rate, Syncer};
use crate::shadow::{Config, Counters, Lists, Lower, Shadowed};
use alloc::vec::Vec;
use rv::{Gva, PteFlags};

/// The shadow tables of one VM.
///
/// Dropping one leaks its frames; end it with [`Shadow::destroy`].
#[must_use = "dropping an engine leaks its frames"]
pub struct Shadow<S: Shadowed = Gva> {
    pub(super) filler: Filler<S>,
    /// The search for what may be coalesced.
    pub(super) gathering: Gathering<S>,
}

impl<S: Shadowed> Shadow<S> {
    /// An engine without shadow pages, for the VM that the lists were made for.
    ///
    /// # Errors
    /// If there is no room on the heap. The lists' frames are given back then.
    ///
    /// # Panics
    /// If the lists are not whole, or the configuration has fewer pages than it needs or more than 2^22.
    pub fn new(config: Config, owner: Owner, lists: Lists, frames: &Frames) -> Result<Self, AllocError> {
        assert!(config.pages >= Config::least_pages::<S>(0) && config.pages <= Config::MOST_PAGES);
        // A VM must not exhaust the heap: the most that this can ever take is taken here.
        let mut arena = Vec::new();
        let shares = Policy::of(config.upkeep).tracks_places;
        let room = arena.try_reserve_exact(config.pages as usize).ok();
        let parts = room.and_then(|()| Some((Passed::new()?, Digests::new(shares)?, Candidates::new()?)));
        let lower = S::Lower::new(lists.pages());
        let (Some((passed, digests, candidates)), Some(lower)) = (parts, lower) else {
            lists.release(frames);
            return Err(AllocError::OutOfMemory);
        };
        let kept = if config.globals && S::HAS_GLOBALS { PteFlags::U | PteFlags::G } else { PteFlags::U };
        let tables = Tables {
            rules: Rules::new(config, kept),
            index: Index::new(Arena::new(arena), lists.into_heads()),
            lower,
            walks: Walks::new(),
            gate: Gate::new(),
            unrest: Unrest::new(),
            emptied: 0,
            counters: Counters::default(),
        };
        let cache = Cache {
            tables,
            pool: Pool::new(owner),
            passed,
            stores_may_pass: false,
            unsync: Vec::new(),
            next_serial: config.first_serial,
            gone: 0,
            hand: 0,
            dead_hand: 0,
        };
        let (rate, kept_out) = (Rate::default(), KeptOut::default());
        let syncer = Syncer { cache, digests, candidates, rate, kept_out };
        Ok(Self {
            filler: Filler { syncer, fills: Fills::default(), others_write: false },
            gathering: Gathering::new(),
        })
    }

    /// The serial of the next root.
    #[must_use]
    pub const fn next_serial(&self) -> u64 {
        self.filler.syncer.cache.next_serial
    }

    /// Returns the number of times that an entry was emptied. As long as it is unchanged, an access that the tables
    /// allow stays allowed.
    #[must_use]
    pub const fn emptied(&self) -> u64 {
        self.filler.syncer.cache.tables.emptied
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.filler.syncer.cache.tables.counters
    }

    /// Ends the engine: its frames, which are to be given back. No hart may have a root of it any more, and all must have
    /// forgotten its translations.
    pub fn destroy(self) -> impl Iterator<Item = Run> + Send + use<S> {
        let Cache { tables, pool, .. } = self.filler.syncer.cache;
        tables.index.into_frames().chain(pool.into_frames()).chain(tables.gate.memory.map(LaneMemory::into_run))
    }

    /// Returns the rules of the engine's entries.
    #[inline(always)]
    pub(crate) const fn rules(&self) -> &Rules {
        &self.filler.syncer.cache.tables.rules
    }

    #[inline(always)]
    pub(super) const fn cache(&mut self) -> &mut Cache<S> {
        &mut self.filler.syncer.cache
    }
}
