//! Paging: guests may be given more memory together than the host has. Pages that are not used go to a swap device, and
//! come back when they are touched.
//!
//! ```text
//!   reach: no frame ──► short_of ──► the vCPU waits ◄───────────────────────┐
//!   reach: page is out ──► fetch ──► read begun ──► the vCPU waits          │ AGAIN
//!                                                                           │
//!   a hart, now and then: go_on ──► poll: what the device has finished ─────┤
//!                            └────► reclaim: a portion of a sweep ──────────┘
//! ```
//!
//! A *sweep* goes through the memory of all VMs like the hand of a clock. A mapped page becomes idle. A page that is
//! still idle when the hand comes again goes, unless it is spared because it was used often: pages of zeroes to
//! nowhere, others to the device. The VMs' `reserve` stays.
//!
//! A page on its way out is out already: its frame is the device's. If the guest touches it meanwhile, it gets the
//! frame back, and the device's copy is forgotten (*rescue*).
//!
//! The pages of images belong to no single VM. The sweep comes to them after the VMs, takes those that no VM has
//! touched, and writes each to the device once ([`mmu::frames::Originals`]).
//!
//! Locks: a VM's memory, then the pager's.

pub(crate) mod clock;
pub(crate) mod disk;
pub(crate) mod homes;
pub mod promoter;
mod wanted;

pub use crate::backend::disks::{IoError, NotBegun, Token};
pub use clock::Portion;
pub use disk::{Disk, Way};
pub use homes::homes_of_all;

use crate::hart::env::Env;
use crate::slots::Handle;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use crate::vm::Vm;
use abi::bundle::MAX_VMS;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use clock::Goal;
use core::sync::atomic;
use disk::{Shelf, Slots, Writes};
use mmu::frames::{Ahead, AllocError, Frames, Run};
use mmu::gstage::{AddressSpace, Comes, SwapSlot};
use rv::{Gpa, Pfn};
use wanted::Wanted;

/// Frames that the pager keeps for tables: it needs some when there are none.
pub(crate) const STOCK: usize = 4;

/// The next step for a page that is out.
pub(crate) enum Fetched {
    /// The page is present, or on its way elsewhere: the access is attempted anew.
    Again,
    /// The page is being read, or something else has to come first.
    Waits,
    /// There is no frame for it.
    NoFrame(AllocError),
    /// The device does not give it.
    Lost,
}

/// A request that has been begun, until all is done about it.
pub(crate) struct Request {
    /// `None`: the device has finished it. Another one may have that token now.
    pub(crate) token: Option<Token>,
    pub(crate) way: Way,
    pub(crate) whose: Whose,
    pub(crate) slot: SwapSlot,
    /// The frame; `None` if the guest has it back already, or the part that handles the end of the request has it.
    pub(crate) frame: Option<Run>,
    /// The way in which the page becomes present, if it is read.
    pub(crate) comes: Comes,
    /// Set if the content of the page of the device is no longer wanted.
    pub(crate) is_moot: bool,
}

/// The owner of the page that a request is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    /// A VM's.
    Vm { vm: Handle, page: Pfn<Gpa> },
    /// The original of that number, with the VM that has asked for it, and where.
    Image { number: u64, wanted: Option<(Handle, Pfn<Gpa>)> },
}

impl Whose {
    pub(crate) fn is_of(&self, handle: Handle) -> bool {
        matches!(self, Whose::Vm { vm, .. } if *vm == handle)
    }

    pub(crate) fn is_original(&self, other: u64) -> bool {
        matches!(self, Whose::Image { number, .. } if *number == other)
    }
}

/// The pager's counters. All only grow.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) reads: atomic::AtomicU64,
    pub(crate) writes: atomic::AtomicU64,
    pub(crate) rescues: atomic::AtomicU64,
    pub(crate) errors: atomic::AtomicU64,
    pub(crate) waits: atomic::AtomicU64,
    pub(crate) portions: atomic::AtomicU64,
    pub(crate) image_drops: atomic::AtomicU64,
    pub(crate) image_reads: atomic::AtomicU64,
}

/// The state of paging that VMs share.
pub struct Pager {
    pub(crate) inner: Mutex<Inner>,
    /// The state of the sweep. The hart that holds the lock sweeps.
    pub(crate) clock: Mutex<clock::Clock>,
    /// Set if a VM may have to give memory away.
    pub(crate) is_on: AtomicBool,
    /// Requests that the device has not finished.
    pub(crate) in_flight: AtomicUsize,
    /// The number of those requests by which a page leaves memory.
    pub(crate) leaving: AtomicUsize,
    /// Set if a frame is wanted that the host does not have.
    pub(crate) is_short: AtomicBool,
    /// The number of frames that are to be free side by side, for a caller that needs that; 0: none does.
    pub(crate) aim: AtomicU64,
    /// Pages that have gone for that.
    pub(crate) gone_for_it: AtomicU64,
    /// VMs, by slot, that want a frame more than they may have.
    pub(crate) over_limit: AtomicU64,
    /// VMs, by slot, of which a vCPU waits for a frame, or for room among the requests.
    pub(crate) waiting: AtomicU64,
    /// The goal of a sweep that found nothing to take, and the count of events then: it means something until the next
    /// one.
    pub(crate) exhausted: Mutex<Option<(u64, Goal)>>,
    /// The pages of each VM, by slot, that have been waited for.
    pub(crate) wanted: Vec<Wanted>,
    /// VMs that are to end, and why.
    pub(crate) doomed: Mutex<Vec<(Handle, String)>>,
    pub(crate) has_doomed: AtomicBool,
    /// Counts what a vCPU may have waited for.
    pub(crate) events: AtomicU64,
    /// The host time when guests are disturbed next ([`abi::tunable::Id::UnmapAtRandom`]).
    pub(crate) shaken_at: AtomicU64,
    pub(crate) counters: Counters,
}

pub(crate) struct Inner {
    pub(crate) disk: Option<Box<dyn Disk>>,
    pub(crate) slots: Slots,
    pub(crate) shelf: Shelf,
    pub(crate) requests: Vec<Request>,
    pub(crate) writes: Writes,
    /// Frames for tables that split 2 MiB.
    pub(crate) stock: Vec<Ahead>,
}

impl Default for Pager {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Pager {
    /// Makes the pager, with or without a swap device.
    #[must_use]
    pub fn new(disk: Option<Box<dyn Disk>>) -> Self {
        let slots = Slots::new(disk.as_ref().map_or(0, |disk| disk.pages()));
        Self {
            inner: Mutex::new(Inner {
                disk,
                slots,
                shelf: Shelf::default(),
                requests: Vec::new(),
                writes: Writes::default(),
                stock: Vec::new(),
            }),
            clock: Mutex::new(clock::Clock::default()),
            is_on: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            is_short: AtomicBool::new(false),
            aim: AtomicU64::new(0),
            gone_for_it: AtomicU64::new(0),
            over_limit: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            exhausted: Mutex::new(None),
            wanted: (0..MAX_VMS).map(|_| Wanted::default()).collect(),
            doomed: Mutex::new(Vec::new()),
            has_doomed: AtomicBool::new(false),
            events: AtomicU64::new(0),
            shaken_at: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// Returns whether there is a swap device.
    #[must_use]
    pub fn has_disk(&self) -> bool {
        self.inner.lock().disk.is_some()
    }

    /// Returns the counters by name, and the counts of the device's pages.
    #[must_use]
    pub fn each(&self) -> [(&'static str, u64); 12] {
        let (pages, free, refused, images) = {
            let Inner { disk, slots, shelf, .. } = &*self.inner.lock();
            (disk.as_ref().map_or(0, |disk| disk.pages()), slots.count(), slots.refused(), shelf.count())
        };
        let c = &self.counters;
        let count = |counter: &atomic::AtomicU64| counter.load(SeqCst);
        [
            ("swap.reads", count(&c.reads)),
            ("swap.writes", count(&c.writes)),
            ("swap.rescues", count(&c.rescues)),
            ("swap.errors", count(&c.errors)),
            ("swap.waits", count(&c.waits)),
            ("swap.portions", count(&c.portions)),
            ("swap.pages", pages),
            ("swap.free", free),
            ("swap.refused", refused),
            ("swap.images", images),
            ("swap.image_drops", count(&c.image_drops)),
            ("swap.image_reads", count(&c.image_reads)),
        ]
    }

    /// Returns whether memory has to be taken from a VM, now or some time.
    #[inline(always)]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(SeqCst)
    }

    /// Turns paging on: memory may have to be taken from VMs from now on.
    pub fn turn_on(&self, frames: &Frames) {
        frames.keep(Self::marks(frames).1);
        self.is_on.store(true, SeqCst);
    }

    /// Returns whether there is work on other occasions than a guest's fault.
    #[inline]
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.in_flight.load(SeqCst) != 0
            || self.is_short.load(SeqCst)
            || self.over_limit.load(SeqCst) != 0
            || self.has_doomed.load(SeqCst)
    }

    /// Returns the count of events that a vCPU may wait for. A vCPU that has to wait, and has said so ([`Vm::hold`]),
    /// compares it with the count before its attempt: if it differs, the vCPU tries again at once, because it will not
    /// be woken.
    #[inline(always)]
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.load(SeqCst)
    }

    /// Frees a page of the device that a VM forgoes.
    pub fn forgo(&self, slot: SwapSlot) {
        let mut inner = self.inner.lock();
        match inner.requests.iter_mut().find(|request| request.slot == slot) {
            Some(request) => request.is_moot = true,
            None => inner.slots.give(slot),
        }
    }

    /// Frees the pages that a VM's memory forgoes, because they are out of date.
    #[inline(always)]
    pub fn forgo_all(&self, space: &mut AddressSpace) {
        if space.has_forgone() {
            self.forgo_those(space);
        }
    }

    // A part of many ways, and hardly ever taken.
    #[cold]
    #[inline(never)]
    fn forgo_those(&self, space: &mut AddressSpace) {
        space.take_forgone().into_iter().for_each(|slot| self.forgo(slot));
    }

    /// Returns whether the device still has a frame of that VM's.
    #[must_use]
    pub fn is_busy_for(&self, vm: Handle) -> bool {
        self.in_flight.load(SeqCst) != 0 && self.inner.lock().requests.iter().any(|request| request.whose.is_of(vm))
    }

    /// Begins an attempt of a VM without running vCPUs: [`Pager::is_waiting`] then returns whether it waits for memory.
    pub(crate) fn begin_attempt(&self, vm: &Vm) {
        self.waiting.fetch_and(!(1 << vm.slot()), SeqCst);
    }

    /// Returns whether a VM waits for a frame, or for the device.
    pub(crate) fn is_waiting(&self, vm: &Vm) -> bool {
        self.waiting.load(SeqCst) >> vm.slot() & 1 == 1
    }

    /// Returns the frames that are to be free, and the number that a sweep makes free once there are fewer.
    pub(crate) fn marks(frames: &Frames) -> (u64, u64) {
        let low = (frames.total_count() / 64).clamp(64, 2048);
        (low, 2 * low)
    }

    /// Raises the number of frames that are to be free. Frames are free, but not so many side by side as a VM needs
    /// that is about to start. Returns false if as many pages have gone for that as the host has frames: then the aim
    /// is given up.
    pub(crate) fn aim_higher(&self, frames: &Frames) -> bool {
        let free = frames.at_hand();
        self.aim.fetch_max((free + free / 2).min(frames.total_count()), SeqCst);
        self.gone_for_it.load(SeqCst) < frames.total_count()
    }

    /// Ends the aim for frames side by side: they are not needed any more.
    pub(crate) fn aim_as_usual(&self) {
        self.aim.store(0, SeqCst);
        self.gone_for_it.store(0, SeqCst);
    }

    /// Returns whether memory is not short.
    pub(crate) fn has_enough(frames: &Frames) -> bool {
        frames.at_hand() >= Self::marks(frames).0
    }

    /// Checks whether memory gets short, and has some taken back soon.
    #[inline(never)]
    pub fn look<E: Env>(&self, frames: &Frames, env: &mut E) {
        if !self.is_short.load(SeqCst) && !Self::has_enough(frames) {
            // Those of zeroes were to make faults short: there are longer ones now.
            frames.give_back_zeroed();
            self.is_short.store(true, SeqCst);
            env.go_on_soon();
        }
    }

    /// Notes that a VM is to end, since there is no memory for it. It ends soon: the caller may hold a device's lock.
    pub(crate) fn doom(&self, vm: &Vm, message: String) {
        self.doomed.lock().push((vm.handle, message));
        self.has_doomed.store(true, SeqCst);
    }

    /// Takes the VMs that are to end, each with the message of its end.
    pub(crate) fn take_doomed(&self) -> Vec<(Handle, String)> {
        if self.has_doomed.swap(false, SeqCst) { core::mem::take(&mut *self.doomed.lock()) } else { Vec::new() }
    }

    /// Has refused writes tried again, if it is time. Returns whether the device was given up: then a page that
    /// leaves memory is likely to come back.
    pub(crate) fn try_writes_again(&self, now: u64) -> bool {
        let Inner { writes, slots, .. } = &mut *self.inner.lock();
        writes.try_again(slots, now);
        writes.are_given_up()
    }

    pub(crate) fn refill(&self, frames: &Frames) {
        let mut inner = self.inner.lock();
        while inner.stock.len() < STOCK
            && let Some(frame) = frames.take_ahead(0)
        {
            inner.stock.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_frames_side_by_side_no_more_goes_than_the_host_has() {
        let (pager, mut frames) = (Pager::new(None), Frames::new());
        frames.add(Pfn::new(0), 1000);
        let taken = frames.alloc(mmu::frames::Owner::Host, mmu::frames::Use::Other, 9).unwrap();
        assert!(pager.aim_higher(&frames));
        // Half as many again as are free.
        assert_eq!(pager.aim.load(SeqCst), 488 + 244);
        pager.gone_for_it.fetch_add(999, SeqCst);
        assert!(pager.aim_higher(&frames));
        pager.gone_for_it.fetch_add(1, SeqCst);
        assert!(!pager.aim_higher(&frames));
        pager.aim_as_usual();
        frames.free(taken);
        assert!(pager.aim_higher(&frames));
        assert_eq!(pager.aim.load(SeqCst), 1000);
    }
}
