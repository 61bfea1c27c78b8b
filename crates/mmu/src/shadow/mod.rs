//! Shadow paging: tables of our own that take a guest from GVA to HPA in one stage.
//!
//! One engine, and three ways to keep its tables in step with the guest's ([`Mode`]). The hardware walks
//! *shadow pages*, each the shadow of one guest table at one level (or of a part of a superpage, or of the
//! identity while the guest's paging is off). They are shared by all roots and vCPUs of a VM, are made by
//! demand (`fill`), brought up to date at the guest's fences (`sync`) or at its writes (`protect`), and
//! recycled within a bound (`reclaim`). `pages` has their structure, `roots` what one vCPU remembers of the
//! roots that it used.
//!
//! What always holds (the names are those of `docs/invariants.md`):
//! - TLB-LIKE: every translation in a shadow of a vCPU's root is one that the guest's tables gave at some time
//!   since that vCPU's last fence that covers it.
//! - SUBSET: an entry allows at most what the guest's entry and the G-stage allow together, with A set, and
//!   with D set where it allows stores. Hardware never writes it.
//! - OWNERSHIP: an entry leads only to frames that the G-stage table leads to; before that changes, the entry
//!   goes, and all TLBs forget it.
//!
//! **Races.** The caller holds the VM's lock; hardware walkers and the lane (`docs/lane.md`) do not. The lane
//! only ever replaces a level-0 entry by an invalid one that it never wrote before. So a leaf is filled by: read
//! the shadow entry, *then* the guest's, then exchange the shadow entry if it is the same as before. If
//! a fence passed between, the exchange fails. A page is linked below another only once it is up to date: where
//! the lane finds no pointer it leaves the fence to the full path, which waits for the lock.

mod fill;
mod pages;
mod protect;
mod reclaim;
mod roots;
mod sabotage;
mod sync;

pub use fill::{Outcome, Paging};
pub use pages::MARK;
pub use protect::Wrote;
pub use roots::{GuestFence, Loaded, Root, Views};
pub use sabotage::Sabotage;

use crate::frames::{AllocError, Frames, Owner, Run, Use};
use crate::gstage::AddressSpace;
use crate::walk::AdPolicy;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use pages::{Body, FRAMES_EACH, Heads, Id, Key, Page};
use rv::{Fence, Gpa, PAGE_BYTES, Pfn, PhysMem};

/// How shadow tables follow the guest's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Guest tables are write-protected; each write is an exit, and mirrored at once.
    Traditional,
    /// The same, but a table of leaves is let go at its first write, and brought up to date at fences.
    Unsync,
    /// Nothing is write-protected: fences by address invalidate, the next access fills; wide fences bring
    /// tables up to date at once.
    Lazy,
}

/// What an engine is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How tables follow the guest's.
    pub mode: Mode,
    /// Who sets the guest's A and D, as its device tree promises.
    pub ad: AdPolicy,
    /// Most shadow pages. At least [`Config::least_pages`].
    pub pages: u32,
    /// The serial of the first root. TLBs may remember those of an earlier engine.
    pub first_serial: u64,
}

impl Config {
    /// Most shadow pages that a configuration can name.
    pub const MOST_PAGES: u32 = pages::MOST_PAGES as u32;
    /// Bytes of memory for each shadow page.
    pub const BYTES_EACH: u64 = FRAMES_EACH * PAGE_BYTES;

    /// What a VM with that many vCPUs cannot do without: a root for each, and one whole walk.
    #[must_use]
    pub const fn least_pages(vcpus: u32) -> u32 {
        2 * DEEPEST + 2 * vcpus
    }

    /// Frames that an engine of `pages` shadow pages may take for a VM with that much RAM.
    #[must_use]
    pub const fn frames(pages: u32, ram_pages: u64) -> u64 {
        pages as u64 * FRAMES_EACH + Heads::frames_for(ram_pages)
    }
}

/// The longest walk: Sv57.
const DEEPEST: u32 = 5;

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal),* $(,)?) => {
        /// What an engine did. All only grow.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Counters { $($(#[$doc])* pub $field: u64),* }

        impl Counters {
            /// Every count with its name, as `docs/counters.md` lists them.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter()
            }
        }

        impl core::ops::AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// Faults answered with a 4 KiB leaf.
    filled_4k = "shadow.filled_4k",
    /// Faults answered with a 2 MiB leaf.
    filled_2m = "shadow.filled_2m",
    /// Faults whose entry changed meanwhile: the guest tries again.
    retries = "shadow.retries",
    /// Faults of the guest's own tables.
    guest_faults = "shadow.guest_faults",
    /// Shadow pages made.
    made = "shadow.pages_made",
    /// Pointers to shadow pages that other pointers, roots or times had already.
    shared = "shadow.pages_shared",
    /// Shadow pages taken back to stay within the bound.
    recycled = "shadow.pages_recycled",
    /// Shadow pages given up because the guest no longer uses the frame as a table.
    dropped = "shadow.pages_dropped",
    /// Entries that a fence or a root switch found changed.
    synced_entries = "shadow.entries_synced",
    /// Whole shadow pages compared with their guest tables.
    synced_pages = "shadow.pages_synced",
    /// Entries that a fence by address invalidated.
    invalidated = "shadow.entries_invalidated",
    /// Writes to guest tables that were emulated.
    table_writes = "shadow.table_writes",
    /// Writes that made a guest table unsynchronised.
    unsynced = "shadow.tables_unsynced",
    /// Unsynchronised guest tables that a wide fence protected again.
    reprotected = "shadow.tables_protected",
    /// Flushes of all harts' TLBs that the engine needed.
    flushes = "shadow.flushes",
}

/// What every operation is lent: the VM's memory, the host's, and the fence that reaches the VM's harts.
pub struct Host<'a, M, H> {
    /// The VM's guest physical memory.
    pub space: &'a mut AddressSpace,
    /// Host frames. Fences need none.
    pub frames: Option<&'a Frames>,
    /// Host RAM.
    pub mem: &'a mut M,
    /// Makes all harts forget translations of the VM, whatever the scope says: shadow translations go by GVA.
    pub hw: &'a mut H,
}

/// The shadow tables of one VM.
///
/// Dropping one leaks its frames; end it with [`Shadow::destroy`].
#[must_use = "dropping an engine leaks its frames"]
pub struct Shadow {
    config: Config,
    owner: Owner,
    arena: Vec<Option<Page>>,
    free: Vec<Id>,
    /// Pages of the roles that [`Heads`] does not lead to.
    direct: BTreeMap<Key, Id>,
    heads: Heads,
    /// Bodies ready for use.
    spare: Vec<Body>,
    /// Bodies that TLBs may still walk.
    retired: Vec<Body>,
    /// Shadow pages and bodies, all told.
    bodies: u32,
    /// Some TLB may allow stores that the tables no longer allow.
    tlbs_are_dirty: bool,
    /// Some hart may walk by a pointer that is gone. A fence by address would not end that.
    pointers_are_dirty: bool,
    /// Guest frames whose tables may be written without an exit, in modes that protect.
    unsync: Vec<Pfn<Gpa>>,
    next_serial: u64,
    /// Times that shadow pages went, or lost their entries: what was found before may be out of date.
    gone: u64,
    stamp: u64,
    /// Where the search for victims goes on.
    hand: Id,
    counters: Counters,
    #[cfg(feature = "sabotage")]
    sabotage: Option<Sabotage>,
}

impl Shadow {
    /// An engine without shadow pages, for a VM whose RAM is `pages` pages from `first`.
    ///
    /// # Errors
    /// If there are no frames for its lists. Nothing has changed then.
    ///
    /// # Panics
    /// If `first` is not a multiple of 2 MiB, or the configuration has fewer pages than it needs or more than
    /// 2^22.
    pub fn new(
        config: Config,
        owner: Owner,
        (first, pages): (Pfn<Gpa>, u64),
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Self, AllocError> {
        assert!(config.pages >= Config::least_pages(0) && config.pages as usize <= pages::MOST_PAGES);
        // The heap is nobody's to exhaust: what it may ever take is taken here.
        let mut arena = Vec::new();
        arena.try_reserve_exact(config.pages as usize).map_err(|_| AllocError::OutOfMemory)?;
        let mut chunks = Vec::new();
        for _ in 0..Heads::frames_for(pages) {
            match frames.alloc(owner, Use::Table, 0) {
                Ok(run) => chunks.push(run),
                Err(error) => {
                    chunks.into_iter().for_each(|run| frames.free(run));
                    return Err(error);
                }
            }
        }
        Ok(Self {
            config,
            owner,
            arena,
            free: Vec::new(),
            direct: BTreeMap::new(),
            heads: Heads::new(first, pages, chunks, mem),
            spare: Vec::new(),
            retired: Vec::new(),
            bodies: 0,
            tlbs_are_dirty: false,
            pointers_are_dirty: false,
            unsync: Vec::new(),
            next_serial: config.first_serial,
            gone: 0,
            stamp: 0,
            hand: 0,
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

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether guest tables are write-protected at all.
    const fn protects(&self) -> bool {
        !matches!(self.config.mode, Mode::Lazy)
    }

    /// A new shadow page, found by its key from now on. Takes from what [`Shadow::prepare`] has set aside.
    /// In modes that protect, the guest's table is write-protected when this returns.
    fn make<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        key: Key,
        guest: Option<Pfn<rv::Hpa>>,
        host: &mut Host<'_, M, H>,
    ) -> Id {
        let body = self.spare.pop().expect("an operation prepares for the pages that it makes");
        for run in [&body.table, &body.mirror, &body.links] {
            host.mem.zero_frames(run.first(), 1);
        }
        let page = Page::new(key, body, self.next_serial, guest);
        self.next_serial += 1;
        let id = match self.free.pop() {
            Some(id) => {
                self.arena[id as usize] = Some(page);
                id
            }
            None => {
                self.arena.push(Some(page));
                (self.arena.len() - 1) as Id
            }
        };
        self.counters.made += 1;
        if self.is_by_frame(key) {
            self.begin_table(id, host);
        } else {
            self.enlist(id, host.mem);
        }
        id
    }
}

/// The frames that an operation takes from, or gives back to.
fn lent<'a>(frames: &Option<&'a Frames>) -> &'a Frames {
    frames.expect("lent for all but fences")
}

/// Frees a body's frames.
fn free(body: Body, frames: &Frames) {
    let runs: [Run; 3] = body.runs();
    runs.into_iter().for_each(|run| frames.free(run));
}
