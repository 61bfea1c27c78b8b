//! Work that would take longer than an exit may (BOUNDED), done in portions: a VM's resources are made when it starts,
//! and given back when it ends or starts over.

use crate::sync::Mutex;
use crate::vm::Vm;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter;
use core::sync::atomic::AtomicUsize;
use mmu::frames::{Frames, Run};
use mmu::gstage::{self, Ready, SwapSlot};
use mmu::shadow::Lists;
use rv::{Gpa, Hpa, Pfn, PhysMem};

/// The rest of a VM's memory, still to be given back. No TLB holds any of it.
#[must_use = "dropping it leaks frames"]
pub struct Remains {
    space: gstage::Remains,
    /// The frames of the shadow tables, if there were any.
    tables: Box<dyn Iterator<Item = Run> + Send>,
}

/// Frames of tables that go in one portion: some 30,000 instructions.
const TABLES: usize = 128;
/// Entries of the G-stage table that are looked at in one portion: as many.
const ENTRIES: u32 = 1024;

impl Remains {
    /// Makes the remains of an address space, and of its shadow tables.
    pub fn of(space: gstage::Remains, tables: impl Iterator<Item = Run> + Send + 'static) -> Self {
        Self { space, tables: Box::new(tables) }
    }

    /// Makes the remains of an address space without shadow tables.
    pub fn of_space(space: gstage::Remains) -> Self {
        Self::of(space, iter::empty())
    }

    /// Gives a portion back, pages of the swap device by `forgo`. Returns whether there is more.
    pub fn release(&mut self, frames: &Frames, mem: &impl PhysMem, forgo: impl FnMut(SwapSlot)) -> bool {
        let before = self.tables.by_ref().take(TABLES).map(|run| frames.free(run)).count();
        before == TABLES || self.space.release(ENTRIES, frames, mem, forgo)
    }
}

/// Whole GiB that are still to be given to a VM (`life::gigapages`).
#[must_use = "dropping it leaks frames"]
pub struct Gigapages {
    /// The next 2 MiB.
    pub page: Pfn<Gpa>,
    /// The first page that is none of its RAM.
    pub end: Pfn<Gpa>,
    /// The GiB of the host's that they are to come from.
    pub place: Place,
    /// The memory that is being made ready for them.
    pub ready: Ready,
}

/// The GiB of the host's that the next pages are to be in.
#[derive(Clone, Copy)]
pub enum Place {
    /// The GiB is looked for, below that frame.
    Below(Pfn<Hpa>),
    /// The GiB begins at that frame.
    From(Pfn<Hpa>),
}

impl Place {
    /// Any frame is below.
    pub const ANYWHERE: Self = Place::Below(Pfn::new(u64::MAX));
}

/// A VM whose vCPUs are all parked, and what is to be done before it starts, or before it ends.
pub struct Chore {
    /// The VM.
    pub vm: Arc<Vm>,
    /// The work to do next.
    pub work: Work,
    /// The number of pager events before the last attempt, if the chore waits for memory.
    pub since: Option<u64>,
}

/// The work to be done for a VM.
pub enum Work {
    /// Its memory is given back. Then it ends, or starts over.
    GiveBack(Remains),
    /// The lists of its shadow tables are prepared; then its memory is built.
    Prepare(Vec<Lists>),
    /// The VM is given whole GiB.
    GiveGigapages(Gigapages),
    /// Its device tree is written, with what has been made ready for that. Then it starts.
    Furnish(Ready),
    /// All of its memory is given to it, from that page on. Then it starts.
    Wire(Pfn<Gpa>, Ready),
}

/// All that there are. Each is on this list, or some hart does a portion of it.
#[derive(Default)]
pub struct Chores {
    list: Mutex<VecDeque<Chore>>,
    /// The number of VMs that are being given whole GiB of the host's: while there are any, 2 MiB are not taken ahead.
    pub gigapages: AtomicUsize,
}

impl Chores {
    /// Adds one, behind those that there are.
    pub fn add(&self, chore: Chore) {
        self.list.lock().push_back(chore);
    }

    /// Takes the first one of those that can be gone on with.
    pub fn take(&self, can_go_on: impl FnMut(&Chore) -> bool) -> Option<Chore> {
        let mut list = self.list.lock();
        let at = list.iter().position(can_go_on)?;
        list.remove(at)
    }

    /// Makes the chores of a VM wait no more.
    pub fn wake(&self, vm: &Vm) {
        self.list.lock().iter_mut().filter(|chore| chore.vm.handle == vm.handle).for_each(|chore| chore.since = None);
    }

    /// Returns whether there are no chores.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.lock().is_empty()
    }
}
