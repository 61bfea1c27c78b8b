//! An engine's configuration, the resources that its operations borrow, and its counters.

use crate::budget::Budget;
use crate::frames::Frames;
use crate::gstage::{AddressSpace, Ready};
use crate::mapper::Loss;
use crate::shadow::lane::LaneMemory;
use crate::shadow::pages::{FRAMES_EACH, Heads, MOST_PAGES};
use crate::shadow::policy::Policy;
use crate::shadow::{Shadowed, Upkeep};
use crate::table::Debt;
use crate::walk::AdPolicy;
use core::ops::Range;
use rv::{Gpa, PAGE_BYTES, Pfn};

/// The configuration of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The way in which shadow tables are kept synchronised with the guest's.
    pub upkeep: Upkeep,
    /// The setter of the guest's A and D, software or hardware, as its device tree promises.
    pub ad: AdPolicy,
    /// Set if leaves keep the guest's G, so that they serve in all of its address spaces. The caller that puts a vCPU
    /// on a hart must make sure that the hart has global translations of one vCPU only ([`crate::ids::Globals`]).
    /// Without effect for a guest's G-stage, which has no G.
    pub globals: bool,
    /// In `Steered`: the number of comparisons that must find a guest's table unchanged before it becomes quiet, so
    /// that wide fences leave it out (`quiet`). It grows with the number of times that the table stopped being quiet.
    /// 0: no table becomes quiet. At most 256.
    pub quiet_after: u16,
    /// Most shadow pages. At least [`Config::least_pages`].
    pub pages: u32,
    /// The serial of the first root. TLBs may remember those of an earlier engine.
    pub first_serial: u64,
}

impl Config {
    /// Most shadow pages that a configuration can name.
    pub const MOST_PAGES: u32 = MOST_PAGES as u32;

    /// Shadow pages that the translations of one instruction can need at once: a root; a walk for each of the two pages that its fetch
    /// and the two that its access may lie in, whose tables below the root may all differ; and those that [`Shadow::fault`] has ready for
    /// the last of them.
    ///
    /// [`Shadow::fault`]: crate::shadow::Shadow::fault
    pub const ONE_INSTRUCTION: u32 = 1 + 4 * (DEEPEST - 1) + DEEPEST + 1;

    const fn frames_each(upkeep: Upkeep) -> u64 {
        if Policy::of(upkeep).has_gate { FRAMES_EACH + 1 } else { FRAMES_EACH }
    }

    /// Bytes of memory for each shadow page.
    #[must_use]
    pub const fn bytes_each(upkeep: Upkeep) -> u64 {
        Self::frames_each(upkeep) * PAGE_BYTES
    }

    /// Returns the number of shadow pages of an engine with a stage below that take no more frames than `pages` of one without.
    #[must_use]
    pub const fn pages_composed(pages: u32) -> u32 {
        (pages as u64 * FRAMES_EACH / (FRAMES_EACH + 1)) as u32
    }

    /// The fewest shadow pages for a VM with that many vCPUs: twice those of a root for each vCPU and of one whole walk.
    #[must_use]
    pub const fn least_pages<S: Shadowed>(vcpus: u32) -> u32 {
        2 * DEEPEST + 2 * vcpus * S::ROOT_FRAMES as u32
    }

    /// Frames that an engine of `pages` shadow pages may take for a VM with RAM from `first` on.
    #[must_use]
    pub const fn frames(upkeep: Upkeep, pages: u32, (first, ram_pages): (Pfn<Gpa>, u64)) -> u64 {
        let lane = if Policy::of(upkeep).has_gate { LaneMemory::frames(first.add(ram_pages)) } else { 0 };
        pages as u64 * Self::frames_each(upkeep) + Heads::frames_for(ram_pages) + lane
    }
}

/// The longest walk: Sv57.
pub(super) const DEEPEST: u32 = 5;

/// The resources that each operation borrows: the VM's memory, the host's, and the fence that reaches the VM's harts.
pub struct Host<'a, M, H> {
    /// The VM's guest physical memory.
    pub space: &'a mut AddressSpace,
    /// Host frames.
    pub frames: &'a Frames,
    /// The content that has been made ready for guest memory.
    pub ready: &'a mut Ready,
    /// Host RAM.
    pub mem: &'a mut M,
    /// Makes all harts forget translations of the VM, whatever the scope says: shadow translations go by GVA.
    pub hw: &'a mut H,
    /// The debt of the operation so far.
    pub(super) debt: Debt,
    /// The work that the operation may still do before it leaves the rest for later.
    pub(crate) budget: Budget,
    /// Another engine on the same memory, if there is one.
    pub(crate) companion: Option<&'a mut dyn Companion<M, H>>,
}

/// An engine beside the one that works: both have leaves that lead to the VM's memory. So where the one that works moves guest memory, the
/// companion forgets it as well.
pub trait Companion<M, H> {
    /// Forgets entries that lead to these pages, which are about to have that loss, as far as the budget lets. Returns whether that was all.
    /// Without a loss they have moved: all entries go, and all harts are about to forget all translations of the VM.
    fn let_go(&mut self, pages: Range<u64>, loss: Option<Loss>, host: &mut Host<'_, M, H>) -> bool;

    /// Keeps the lane out, or lets it in again.
    fn keep_lane_out(&mut self, keeps: bool, mem: &mut M);
}

/// The costs of the parts of an operation on shadow tables, in steps.
impl Budget {
    /// To take a right from an entry costs as much as to look at so many.
    pub(super) const EDIT: u32 = 14;
    /// To drop an entry.
    pub(super) const DROP: u32 = 28;
    /// To bring an entry in step that is not, or to tell the lane of 2 MiB.
    pub(super) const DERIVE: u32 = 24;
    /// To bring an entry in step in `steered`, by itself.
    pub(super) const RESYNC: u32 = 50;
    /// To bring one of many entries in step, each of which becomes a leaf that the lane would make.
    pub(super) const RELIST: u32 = 21;
    /// To empty one for which the guest's faults.
    pub(super) const PARK: u32 = 8;
    /// To drop a leaf of a page that is to end.
    pub(super) const UNLIST: u32 = 15;
    /// To take a parked entry out of its list.
    pub(super) const UNPARK: u32 = 10;
    /// To compose an entry with that of the stage below.
    pub(super) const COMPOSE: u32 = 49;
    /// To walk the table of the stage below for that.
    pub(super) const WALK: u32 = 75;
    /// To look whether a table's first entry is as it was.
    pub(super) const GLANCE: u32 = 3;
    /// To begin with another shadow page.
    pub(super) const VISIT: u32 = 16;
    /// To fill one of a new page that leads to where the lane may go.
    pub(super) const INSERT: u32 = 10;
    /// To fill any other.
    pub(super) const FILL: u32 = 53;
    /// To fill a whole page where the lane may go.
    const INSERT_ALL: u32 = 512 * Self::INSERT;
    /// To compare 64 entries one after the other.
    pub(super) const COMPARE: u32 = 18;

    /// Returns whether a new page can be filled with what is left.
    pub(super) const fn affords_page(self) -> bool {
        self.0 >= Self::INSERT_ALL
    }
}

impl<'a, M, H> Host<'a, M, H> {
    /// Lends the resources to one or more operations.
    pub const fn new(
        space: &'a mut AddressSpace,
        (frames, ready): (&'a Frames, &'a mut Ready),
        mem: &'a mut M,
        hw: &'a mut H,
    ) -> Self {
        Self { space, frames, ready, mem, hw, debt: Debt::none(), budget: Budget::WHOLE, companion: None }
    }

    /// Does something beside another engine, if there is one, whose lane is kept out meanwhile.
    #[inline(always)]
    pub fn beside<R>(mut self, companion: Option<&'a mut dyn Companion<M, H>>, act: impl FnOnce(&mut Self) -> R) -> R {
        self.companion = companion;
        if let Some(companion) = &mut self.companion {
            companion.keep_lane_out(true, self.mem);
        }
        let result = act(&mut self);
        if let Some(companion) = self.companion {
            companion.keep_lane_out(false, self.mem);
        }
        result
    }

    /// Makes the companion let go of these pages ([`Companion::let_go`]).
    #[inline(always)]
    pub(super) fn companion_lets_go(&mut self, pages: Range<u64>, loss: Option<Loss>) -> bool {
        let Some(companion) = self.companion.take() else { return true };
        let is_all = companion.let_go(pages, loss, self);
        self.companion = Some(companion);
        is_all
    }

    /// Does something within a budget that is for other operations, too, and takes from it what that costs.
    pub(crate) fn sharing<R>(&mut self, budget: &mut Budget, act: impl FnOnce(&mut Self) -> R) -> R {
        core::mem::swap(&mut self.budget, budget);
        let result = act(self);
        core::mem::swap(&mut self.budget, budget);
        result
    }

    /// With so many steps for each operation, in tests.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub const fn within(mut self, steps: u32) -> Self {
        self.budget = Budget(steps);
        self
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal),* $(,)?) => {
        /// The counters of an engine. All only grow.
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
    /// Parts that several roots share which were compared in one go.
    digests = "shadow.digests",
    /// Entries that a fence by address invalidated.
    invalidated = "shadow.entries_invalidated",
    /// Writes to guest tables that were emulated.
    table_writes = "shadow.table_writes",
    /// Writes that made a guest table unsynchronised.
    unsynced = "shadow.tables_unsynced",
    /// Unsynchronised guest tables that a wide fence protected again.
    reprotected = "shadow.tables_protected",
    /// Tables that became quiet.
    quieted = "shadow.tables_quieted",
    /// Entries that were marked because a table below them may be written.
    stirred = "shadow.entries_stirred",
    /// Times that a leaf of 2 MiB went to pieces for a quiet table.
    split = "shadow.leaves_split",
    /// Times that such 2 MiB could have a leaf again.
    rejoined = "shadow.leaves_rejoined",
    /// Times that a leaf of 2 MiB came to stand for 512 of 4 KiB.
    coalesced = "shadow.coalesced",
    /// Times that it did no more, since one of those changed.
    coalesced_split = "shadow.coalesced_split",
    /// Of those that do, the ones whose pages were moved for it.
    gathered = "shadow.gathered",
    /// Pages that were moved for that.
    moved = "shadow.pages_moved",
    /// Tables that stopped being quiet.
    woken = "shadow.tables_woken",
    /// Operations that left a part of their work for later.
    postponed = "shadow.postponed",
    /// Shadow pages filled as a whole.
    whole = "shadow.pages_filled",
    /// Flushes of all harts' TLBs that the engine needed.
    flushes = "shadow.flushes",
}
