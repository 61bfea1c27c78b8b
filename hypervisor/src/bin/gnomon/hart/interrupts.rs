//! The host's devices that interrupt, the choice of the hart that handles an interrupt ([`HostDevices::course`]), and the devices that
//! are masked at this hart for now.

use crate::drivers::PlicContext;
use abi::bundle::MAX_VMS;
use alloc::sync::Arc;
use arrayvec::ArrayVec;
use core::sync::atomic::Ordering;
use hypervisor::backend::disks::Port;
use hypervisor::backend::shares;
use hypervisor::gnomon::Gnomon;
use hypervisor::hart::budget::Budget;
use hypervisor::slots::Handle;
use hypervisor::sync::Mutex;
use hypervisor::vm::Vm;

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
    /// The VMs that the device works for now.
    fn users(&self, g: &Gnomon) -> ArrayVec<Handle, MAX_VMS> {
        let user = match self {
            Self::Disk(port) => port.lock().user(),
            Self::Share(port) => port.lock().user(),
            Self::Entropy => g.offer.entropy.as_ref().and_then(|source| source.lock().user()),
            Self::Network => return g.offer.network.users(),
            Self::Control | Self::Swap => None,
        };
        user.into_iter().map(|user| user.vm).collect()
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
        let (Some(own), device) = (own, &self.devices[at].1) else { return Course::Own };
        // Requests of the control channel come from the host, not from a VM.
        if matches!(device, Interrupts::Control) || matches!(device, Interrupts::Swap) && g.pager.is_busy_for(own) {
            return Course::Own;
        }
        let users = device.users(g);
        let is_own = users.contains(&own);
        if is_own && users.len() == 1 {
            return Course::Own;
        }
        let runs_at = |hart: &usize| *hart != me && self.contexts.get(*hart).is_some_and(Option::is_some);
        let hart_of = |vm: Arc<Vm>| vm.vcpus.iter().map(|vcpu| vcpu.hart.load(Ordering::SeqCst)).find(runs_at);
        if !is_own && let Some(hart) = users.iter().filter_map(|user| g.vms.get(*user)).find_map(hart_of) {
            return Course::At(hart);
        }
        match device {
            _ if !self.budget.allows(now) => Course::Later,
            // The delivery of frames charges those for other VMs itself.
            Interrupts::Network => Course::Own,
            _ => Course::Foreign,
        }
    }

    /// Lets device number `at` interrupt a hart, or not.
    pub(super) fn set_enabled(&self, at: usize, hart: usize, enabled: bool) {
        if let Some(context) = self.contexts.get(hart).copied().flatten() {
            context.set_enabled(self.devices[at].0, enabled);
        }
    }
}
