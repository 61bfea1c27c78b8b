//! The engine: the shadow tables of one VM, and how their pages begin.

use super::candidates::{Candidates, STIRS};
use super::config::{Config, Counters, Host, Upkeep};
use super::digest::Digests;
use super::gathering::Gathering;
use super::index::Index;
use super::lane_memory::LaneMemory;
use super::lists::Lists;
use super::page::{Body, Id, Key, Page};
use super::passed::{Compared, Passed};
use super::rate::{KeptOut, Rate};
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use super::walks::Walks;
use crate::frames::{AllocError, Frames, Owner, Run};
use alloc::vec::Vec;
use rv::{Fence, Gpa, Gva, Hpa, Pfn, PhysMem, PteFlags};

/// The shadow tables of one VM.
///
/// Dropping one leaks its frames; end it with [`Shadow::destroy`].
#[must_use = "dropping an engine leaks its frames"]
pub struct Shadow<S: Shadowed = Gva> {
    pub(super) config: Config,
    /// What leaves have of the guest's flags that the G-stage has no say in.
    pub(super) kept: PteFlags,
    pub(super) owner: Owner,
    pub(super) index: Index,
    pub(super) walks: Walks<S>,
    /// Bodies ready for use.
    pub(super) spare: Vec<Body>,
    /// Bodies that TLBs may still walk.
    pub(super) retired: Vec<Body>,
    /// Shadow pages and bodies, all told.
    pub(super) bodies: u32,
    /// Some TLB may let stores through that the tables no longer allow. No guest is wronged by that; but before a table
    /// is believed to be protected, all TLBs are flushed.
    pub(super) stores_may_pass: bool,
    /// Guest frames whose tables may be written without an exit, in the upkeeps that protect.
    pub(super) unsync: Vec<Pfn<Gpa>>,
    pub(super) next_serial: u64,
    /// Times that shadow pages went, or lost their entries: what was found before may be out of date.
    pub(super) gone: u64,
    /// Entries that lead nowhere any more.
    pub(super) emptied: u64,
    pub(super) stamp: u64,
    /// What fences have passed over lately.
    pub(super) passed: Passed,
    pub(super) digests: Digests<S>,
    /// Tables that are to become quiet.
    pub(super) candidates: Candidates,
    pub(super) rate: Rate,
    /// Fences by address that the lane was kept out of, for quiet tables.
    pub(super) kept_out: KeptOut,
    /// It grows where pages that are restless are too many to tell (`quiet`).
    pub(super) epoch: u64,
    /// Entries that may still be looked at for that before the next wide fence.
    pub(super) stirs: u32,
    /// The lane's memory, where it brings entries in step.
    pub(super) lane: Option<LaneMemory>,
    /// It is kept out.
    pub(super) is_closed: bool,
    /// Every shadow page says in its header who it is.
    pub(super) all_have_headers: bool,
    /// The search for what may be coalesced.
    pub(super) gathering: Gathering<S>,
    /// Where the search for victims goes on.
    pub(super) hand: Id,
    /// And where that for such as the guest seems to use no more does.
    pub(super) dead_hand: Id,
    pub(super) counters: Counters,
    #[cfg(feature = "sabotage")]
    pub(super) sabotage: Option<Sabotage>,
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
        // The heap is nobody's to exhaust: what it may ever take is taken here.
        let mut arena = Vec::new();
        let steers = config.upkeep == Upkeep::Steered;
        let room = arena.try_reserve_exact(config.pages as usize).ok();
        let parts = room.and_then(|()| Some((Passed::new()?, Digests::new(steers)?, Candidates::new()?)));
        let Some((passed, digests, candidates)) = parts else {
            lists.release(frames);
            return Err(AllocError::OutOfMemory);
        };
        // The others see writes, or compare all.
        let quiet_after = if steers { config.quiet_after } else { 0 };
        Ok(Self {
            config: Config { quiet_after, ..config },
            kept: if config.globals && S::HAS_GLOBALS { PteFlags::U | PteFlags::G } else { PteFlags::U },
            owner,
            index: Index::new(arena, lists.into_heads()),
            walks: Walks::new(),
            spare: Vec::new(),
            retired: Vec::new(),
            bodies: 0,
            stores_may_pass: false,
            unsync: Vec::new(),
            next_serial: config.first_serial,
            gone: 0,
            emptied: 0,
            stamp: 1,
            passed,
            digests,
            candidates,
            rate: Rate::default(),
            kept_out: KeptOut::default(),
            epoch: 0,
            stirs: STIRS,
            lane: None,
            is_closed: false,
            all_have_headers: false,
            gathering: Gathering::new(),
            hand: 0,
            dead_hand: 0,
            counters: Counters::default(),
            #[cfg(feature = "sabotage")]
            sabotage: None,
        })
    }

    /// The serial of the next root.
    #[must_use]
    pub const fn next_serial(&self) -> u64 {
        self.next_serial
    }

    /// How many times an entry was made to lead nowhere. While that is the same, an access that the tables allow goes on to be
    /// allowed by them.
    #[must_use]
    pub const fn emptied(&self) -> u64 {
        self.emptied
    }

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A new shadow page, found by its key from now on.
    /// In upkeeps that protect, the guest's table is write-protected when this returns.
    pub(super) fn make<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        key: Key,
        body: Body,
        guest: Option<Pfn<Hpa>>,
        host: &mut Host<'_, M, H>,
    ) -> Id {
        for run in [&body.table, &body.mirror, &body.links] {
            host.mem.zero_frames(run.first(), 1);
        }
        let id = self.index.add(Page::new(key, body, self.next_serial, guest));
        self.index.page_mut(id).epoch = self.epoch;
        self.write_id(id, host.mem);
        // In `steered` it is about to be filled.
        self.index.page_mut(id).compared = if self.steers() { Compared::new(self.stamp) } else { Compared::NEVER };
        self.next_serial += 1;
        self.counters.made += 1;
        if self.index.is_by_frame(key) {
            self.begin_table(id, host);
        } else {
            self.index.enlist(id, host.mem);
        }
        // In place of what its frame said of another.
        self.tell_lane(id, host.mem);
        id
    }

    /// Ends the engine: its frames, which are to be given back. No hart may have a root of it any more, and all must have
    /// forgotten its translations.
    pub fn destroy(self) -> impl Iterator<Item = Run> + Send + use<S> {
        let spare = self.spare.into_iter().chain(self.retired).flat_map(Body::runs);
        self.index.into_frames().chain(spare).chain(self.lane.map(LaneMemory::into_run))
    }

    /// Breaks the engine.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&mut self, how: Sabotage) {
        self.sabotage = Some(how);
    }

    /// Checks the rules of the structure.
    ///
    /// # Panics
    /// If one does not hold.
    #[cfg(feature = "sabotage")]
    pub fn audit(&self, mem: &impl PhysMem) {
        self.index.audit(mem);
        self.audit_quiet(mem);
        self.audit_coalesced(mem);
    }

    /// Whether it is broken so.
    #[cfg(feature = "sabotage")]
    pub(super) fn is_sabotaged(&self, how: Sabotage) -> bool {
        self.sabotage == Some(how)
    }

    /// Whether it is broken so: it is not.
    #[cfg(not(feature = "sabotage"))]
    #[inline(always)]
    pub(super) const fn is_sabotaged(&self, _: Sabotage) -> bool {
        false
    }
}
