//! The state of a vCPU that every hart may see, and the requests that other harts make of it.

use crate::measure::counters::{NestedCounters, VcpuCounters};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use alloc::boxed::Box;
use alloc::vec::Vec;
#[cfg(not(feature = "model"))]
use core::mem::offset_of;
#[cfg(not(feature = "model"))]
use lane::LaneRoots;
use mmu::shadow::GuestFence;

/// Requests posted to a vCPU: bits of [`Vcpu::posted`].
pub mod request {
    /// Raise its software interrupt.
    pub const SOFTWARE: u64 = 1 << 0;
    /// Its external interrupt line may have changed: look at [`super::Vcpu::external`].
    pub const EXTERNAL: u64 = 1 << 1;
    /// Do the fences in its queue.
    pub const FENCES: u64 = 1 << 2;
    /// Do a `fence.i`.
    pub const FENCE_I: u64 = 1 << 3;
    /// Its VM ends or restarts: give it back.
    pub const PARK: u64 = 1 << 4;
    /// Raise its timer interrupt: its deadline passed while it waited (no Sstc).
    pub const TIMER: u64 = 1 << 5;
    /// Make its last exit again, which was to be made later.
    pub const AGAIN: u64 = 1 << 6;
    /// Its VM is paused: put it aside.
    pub const PAUSE: u64 = 1 << 7;
    /// A software event may be due.
    pub const EVENTS: u64 = 1 << 8;
    /// Do a fence of all translations of its guest's own guests.
    pub const HFENCES: u64 = 1 << 10;
    /// Its exit is to be noted, which goes the long way: its hart has said so to itself.
    pub const PROBE: u64 = 1 << 9;
}

/// SBI HSM states of a vCPU (SBI 2.0, table "HSM Hart States").
pub mod hsm {
    /// Running or able to.
    pub const STARTED: u8 = 0;
    /// Not started.
    pub const STOPPED: u8 = 1;
    /// Stopping, its hart is about to give it up.
    pub const STOP_PENDING: u8 = 3;
    /// Waiting, by its own wish.
    pub const SUSPENDED: u8 = 4;
}

/// [`Vcpu::hart`] of a vCPU that is on no hart.
pub const NOWHERE: usize = usize::MAX;

/// [`Vcpu::satp`] of a vCPU that no fence concerns at once: its paging is off.
pub const NO_SPACE: u64 = 0;

/// [`Vcpu::satp`] of a vCPU that every fence concerns at once: which root it runs is not known. No guest can write it.
pub const ANY_SPACE: u64 = u64::MAX;

/// Fences of other vCPUs that wait for the vCPU's next entry. Bounded: too many become one for everything.
#[derive(Debug, Default)]
pub struct FenceQueue {
    fences: Vec<GuestFence>,
    everything: bool,
}

impl FenceQueue {
    const MOST: usize = 16;

    /// Adds a fence.
    pub fn push(&mut self, fence: GuestFence) {
        if self.fences.len() == Self::MOST || (fence.range.is_none() && fence.asid.is_none()) {
            self.everything = true;
            self.fences.clear();
        } else if !self.everything {
            self.fences.push(fence);
        }
    }

    /// Takes all: `None` means a fence for everything.
    pub fn take(&mut self) -> Option<Vec<GuestFence>> {
        let fences = core::mem::take(&mut self.fences);
        if core::mem::take(&mut self.everything) { None } else { Some(fences) }
    }
}

/// The part of a vCPU that every hart may look at.
#[repr(C)]
#[derive(Debug)]
pub struct Vcpu {
    /// On shadow tables: its `satp`, or [`NO_SPACE`]. In mode `adaptive`, while it is behind the G-stage,
    /// [`ANY_SPACE`]. The lane writes it, and finds behind it what is posted.
    pub satp: AtomicU64,
    /// [`request`] bits. Any hart sets them; the hart that enters the vCPU takes them.
    pub posted: AtomicU64,
    /// Its VM's number, which no other VM ever has.
    pub vm: u64,
    /// Its hart id in the VM.
    pub id: u32,
    /// The hart it is loaded on, or [`NOWHERE`].
    pub hart: AtomicUsize,
    /// The hart that watches over its wait for an interrupt, or [`NOWHERE`] if it does not wait.
    pub waiting: AtomicUsize,
    /// The level of its external interrupt line.
    pub external: AtomicBool,
    /// Its [`hsm`] state.
    pub hsm: AtomicU8,
    /// Fences to do at the next entry.
    pub fences: Mutex<FenceQueue>,
    /// The vCPU's counters.
    pub counters: VcpuCounters,
    /// Those of its guests, if its VM is a hypervisor.
    pub nested: Option<Box<NestedCounters>>,
}

#[cfg(not(feature = "model"))]
const _: () = assert!(offset_of!(Vcpu, posted) == offset_of!(Vcpu, satp) + LaneRoots::POSTED_AT);

impl Vcpu {
    /// Makes vCPU `id` of VM `vm`, stopped. `is_nested`: the VM is a hypervisor.
    #[must_use]
    pub fn new(vm: u64, id: u32, is_nested: bool) -> Self {
        Self {
            vm,
            id,
            posted: AtomicU64::new(0),
            hart: AtomicUsize::new(NOWHERE),
            waiting: AtomicUsize::new(NOWHERE),
            external: AtomicBool::new(false),
            satp: AtomicU64::new(NO_SPACE),
            hsm: AtomicU8::new(hsm::STOPPED),
            fences: Mutex::new(FenceQueue::default()),
            counters: VcpuCounters::default(),
            nested: is_nested.then(Box::default),
        }
    }

    /// Returns the counters of its guests.
    ///
    /// # Panics
    /// If its VM is no hypervisor.
    pub fn of_guests(&self) -> &NestedCounters {
        self.nested.as_deref().expect("a vCPU with the H extension")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rv::Addr;

    #[test]
    fn too_many_fences_become_one() {
        let page = |n: u64| GuestFence { range: Some((Addr::new(n << 12), 4096)), asid: None };
        let mut queue = FenceQueue::default();
        (0..16).for_each(|n| queue.push(page(n)));
        assert_eq!(queue.take().map(|f| f.len()), Some(16));
        (0..17).for_each(|n| queue.push(page(n)));
        queue.push(page(1));
        assert_eq!(queue.take(), None);
        assert_eq!(queue.take(), Some(Vec::new()));
        queue.push(GuestFence { range: None, asid: None });
        assert_eq!(queue.take(), None);
    }
}
