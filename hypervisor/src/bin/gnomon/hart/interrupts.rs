//! The host's devices that interrupt, and which of them do not interrupt this hart for now.

use crate::drivers::PlicContext;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use hypervisor::backend::disks::Port;
use hypervisor::backend::shares;
use hypervisor::gnomon::Gnomon;
use hypervisor::hart::budget::Budget;
use hypervisor::slots::Handle;
use hypervisor::sync::Mutex;

/// Most devices that interrupt, beside the UART: each has a bit.
pub const MOST_DEVICES: usize = u64::BITS as usize;

/// A host device that interrupts.
#[derive(Debug)]
pub enum Interrupts {
    /// A guest's disk.
    Disk(Arc<Mutex<Port>>),
    /// A guest's share.
    Share(Arc<Mutex<shares::Port>>),
    /// The network device by which guests reach the world.
    Network,
    /// The source of random bytes for guests.
    Entropy,
    /// The line of the control channel.
    Control,
    /// The swap device.
    Swap,
}

impl Interrupts {
    /// The VM that the device works for now; `None` if it works for none, or for several.
    fn user(&self) -> Option<Handle> {
        match self {
            Self::Disk(port) => port.lock().user().map(|user| user.vm),
            Self::Share(port) => port.lock().user().map(|user| user.vm),
            Self::Entropy | Self::Network | Self::Control | Self::Swap => None,
        }
    }
}

/// The course that an interrupt takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Course {
    /// The hart handles it: it has no guest, or its guest is the device's user.
    Own,
    /// The hart handles it, within the budget for VMs that it does not run.
    Foreign,
    /// A hart that runs the device's user handles it, and those that follow.
    At(usize),
    /// The hart handles it when the budget allows.
    Later,
}

/// The host's devices, as one hart sees them.
pub(super) struct HostDevices {
    /// The PLIC contexts of all harts; none on machines without a PLIC.
    pub(super) contexts: &'static [Option<PlicContext>],
    /// The devices beside the UART, at most 64, with their PLIC sources.
    pub(super) devices: &'static [(u32, Interrupts)],
    /// Devices (by bit) whose interrupts are masked here until the budget allows to handle them.
    pub(super) deferred: u64,
    /// The time for VMs that the hart does not run.
    pub(super) budget: Budget,
}

impl HostDevices {
    /// The number of the device with a PLIC source.
    pub(super) fn of_source(&self, source: u32) -> Option<usize> {
        self.devices.iter().position(|(other, _)| *other == source)
    }

    /// Chooses the course of device number `at`'s interrupt on hart `me` at host time `now`, while that hart has a vCPU of VM `own`.
    pub(super) fn course(&self, g: &Gnomon, (at, me): (usize, usize), own: Option<Handle>, now: u64) -> Course {
        if own.is_none() {
            return Course::Own;
        }
        let device = &self.devices[at].1;
        let user = device.user();
        // Requests of the control channel come from the host, not from a VM; and no interrupt of the network or of the entropy device says
        // which VM it is for: it may be this hart's.
        if matches!(device, Interrupts::Control | Interrupts::Network | Interrupts::Entropy) {
            return Course::Own;
        }
        let pages = matches!(device, Interrupts::Swap) && own.is_some_and(|own| g.pager.is_busy_for(own));
        if user == own || pages {
            return Course::Own;
        }
        let runs_at = |hart: &usize| *hart != me && self.contexts.get(*hart).is_some_and(Option::is_some);
        let vm = user.and_then(|user| g.vms.get(user));
        let hart = vm.and_then(|vm| vm.vcpus.iter().map(|vcpu| vcpu.hart.load(Ordering::SeqCst)).find(runs_at));
        match hart {
            Some(hart) => Course::At(hart),
            None if self.budget.allows(now) => Course::Foreign,
            None => Course::Later,
        }
    }

    /// Lets device number `at` interrupt a hart, or not.
    pub(super) fn set_enabled(&self, at: usize, hart: usize, enabled: bool) {
        if let Some(context) = self.contexts.get(hart).copied().flatten() {
            context.set_enabled(self.devices[at].0, enabled);
        }
    }
}
