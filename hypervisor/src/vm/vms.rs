//! All VMs: the present ones, in slots; those that are to be created when another has ended; and the reports of those
//! that are gone.

use crate::device::offer::Offer;
use crate::slots::{Handle, Slots};
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::sync::{Mutex, MutexGuard};
use crate::vm;
use crate::vm::Vm;
use crate::vm::tenant::Tenant;
use abi::bundle::{MAX_VCPUS, MAX_VMS, VmConfig};
use abi::record::EndReason;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use mmu::frames::MOST_OWNERS;

/// Each slot has an account of frames, and a bit by which a hart notes that it serves the VM's devices.
const _: () = assert!(MAX_VMS <= MOST_OWNERS as usize && MAX_VMS <= u64::BITS as usize);

/// A VM that is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// The VM's number: those of the bundle have their places in it, others those that follow.
    pub number: u64,
    /// The configuration of the VM.
    pub config: VmConfig,
    /// Its device tree; nothing if it is not to be.
    pub tree: Vec<u8>,
    /// The number of the VM that has to end before.
    after: Option<u64>,
    /// Its end was asked for before it was there.
    pub end: Option<EndReason>,
}

/// Returns whether a VM's configured number of vCPUs is possible.
pub fn has_vcpus(config: &VmConfig) -> bool {
    (1..=MAX_VCPUS).contains(&config.vcpus)
}

/// The record that is kept of a VM when it is gone.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its number.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// The names of the VM's counters. Reports that are kept share them.
    names: Arc<[&'static str]>,
    /// The counts, in the names' order.
    counts: Box<[u64]>,
}

impl Report {
    /// Returns the report of a VM with that number, name and counters.
    pub fn new(number: u64, name: String, counters: impl IntoIterator<Item = (&'static str, u64)>) -> Self {
        let (names, counts): (Vec<_>, Vec<_>) = counters.into_iter().unzip();
        Self { number, name, names: names.into(), counts: counts.into() }
    }

    /// Returns the count of that name; `None` if the VM has no such counter.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u64> {
        self.counters().find(|(known, _)| *known == name).map(|(_, count)| count)
    }

    /// Returns the VM's counters by name.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.names.iter().copied().zip(self.counts.iter().copied())
    }
}

/// All VMs. `docs/invariants.md` has the order of the locks.
pub struct Vms {
    slots: Slots<Tenant>,
    /// In the order of their numbers.
    wishes: Mutex<VecDeque<Wish>>,
    /// The next VM's number.
    next: AtomicU64,
    /// VMs that are there or wished for.
    left: AtomicUsize,
    reports: Mutex<Vec<Report>>,
}

impl Default for Vms {
    fn default() -> Self {
        Self::new()
    }
}

impl Vms {
    /// Makes the slots, without a VM.
    #[must_use]
    pub fn new() -> Self {
        Self {
            slots: Slots::new(MAX_VMS),
            wishes: Mutex::default(),
            next: AtomicU64::new(0),
            left: AtomicUsize::new(0),
            reports: Mutex::default(),
        }
    }

    /// Adds a wish for a VM: it is created when its turn comes.
    pub fn wish(&self, config: VmConfig, offer: &Offer) {
        let mut wishes = self.wishes.lock();
        let mut wish = self.draw(config, offer);
        // A VM's end is reported before `over` looks for the wishes that wait for it.
        wish.after = wish.after.filter(|other| self.reports.lock().iter().all(|report| report.number != *other));
        wishes.push_back(wish);
    }

    /// Draws a number for a VM that is to be created now.
    #[must_use]
    pub fn draw(&self, config: VmConfig, offer: &Offer) -> Wish {
        self.left.fetch_add(1, SeqCst);
        let number = self.next.fetch_add(1, SeqCst);
        // What does not come before it would wait for itself: that is a complaint, and not to be waited for.
        let after = config.after.map(u64::from).filter(|other| *other < number);
        // The more vCPUs, the longer this takes, so it is done before anything waits for the VM.
        let tree = if has_vcpus(&config) { vm::device_tree(&config, offer) } else { Vec::new() };
        Wish { number, config, tree, after, end: None }
    }

    /// Lets `create` make a VM of the first wish whose turn has come. That is one step: ending all VMs finds the VM
    /// here, or in its slot.
    pub fn next<R>(&self, create: impl FnOnce(Wish) -> R) -> Option<R> {
        let mut wishes = self.wishes.lock();
        let at = wishes.iter().position(|wish| wish.after.is_none())?;
        wishes.remove(at).map(create)
    }

    /// Ends VMs before they are there. They are over when their turn comes.
    pub fn cancel(&self, which: impl Fn(&Wish) -> bool, reason: &EndReason) {
        self.wishes.lock().iter_mut().filter(|wish| which(wish)).for_each(|wish| wish.end = Some(reason.clone()));
    }

    /// Tells of each VM that is wished for.
    pub fn wishes<R>(&self, tell: impl FnMut(&Wish) -> R) -> impl Iterator<Item = R> {
        self.wishes.lock().iter().map(tell).collect::<Vec<R>>().into_iter()
    }

    /// Returns the VM of that number, if it exists.
    #[must_use]
    pub fn numbered(&self, number: u64) -> Option<Arc<Vm>> {
        self.all().find(|vm| vm.handle.number == number)
    }

    /// Gives a VM a slot; `None` if all are taken.
    pub fn move_in(&self, number: u64, make: impl FnOnce(Handle) -> Tenant) -> Option<Arc<Vm>> {
        self.get(self.slots.put(number, make)?)
    }

    /// Returns the VM of that handle, unless it is gone.
    #[must_use]
    pub fn get(&self, handle: Handle) -> Option<Arc<Vm>> {
        self.slots.with(handle, |tenant| Arc::clone(&tenant.vm))
    }

    /// Returns the VM in a slot.
    #[must_use]
    pub fn at(&self, slot: usize) -> Option<Arc<Vm>> {
        self.slots.at(slot, |tenant| Arc::clone(&tenant.vm))
    }

    /// Returns the present VMs.
    pub fn all(&self) -> impl Iterator<Item = Arc<Vm>> {
        self.slots.each(|tenant| Arc::clone(&tenant.vm))
    }

    /// Does something with a VM's vCPUs that are aside, under the lock of its slot; `None` if the VM is gone.
    pub fn tenant<R>(&self, vm: &Vm, act: impl FnOnce(&mut Tenant) -> R) -> Option<R> {
        self.slots.with(vm.handle, act)
    }

    /// Lets a VM leave its slot, and keeps its report. `None` if it has left already.
    pub fn move_out(&self, handle: Handle, mut report: Report) -> Option<Tenant> {
        let mut reports = self.reports();
        let tenant = self.slots.take(handle)?;
        if let Some(like) = reports.iter().find(|other| other.names == report.names) {
            report.names = Arc::clone(&like.names);
        }
        reports.push(report);
        Some(tenant)
    }

    /// Returns the reports of the VMs that are gone. While this is held none goes.
    pub fn reports(&self) -> MutexGuard<'_, Vec<Report>> {
        self.reports.lock()
    }

    /// Notes that the VM of that number is over, and reported. Those that are to come after it have their turn.
    pub fn over(&self, number: u64) {
        let mut wishes = self.wishes.lock();
        wishes.iter_mut().filter(|wish| wish.after == Some(number)).for_each(|wish| wish.after = None);
        self.left.fetch_sub(1, SeqCst);
    }

    /// Returns whether there is neither a VM nor a wish for one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left.load(SeqCst) == 0
    }

    /// Returns the largest number of VMs at a time.
    #[must_use]
    pub fn most(&self) -> usize {
        self.slots.most()
    }
}
