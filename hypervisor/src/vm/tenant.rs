//! A VM in its slot, with those of its vCPUs that are neither on a hart nor with the scheduler. `docs/invariants.md` has the
//! order of the locks.

use crate::device::offer::Offer;
use crate::slots::Handle;
use crate::vm::Vm;
use crate::vm::vcpu::VcpuRun;
use crate::vm::vcpu::nested::Limits;
use abi::bundle::VmConfig;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// All that there is of a VM.
pub struct Tenant {
    /// The VM.
    pub vm: Arc<Vm>,
    /// The vCPUs that are stopped, by hart id.
    pub parked: BTreeMap<u32, Box<VcpuRun>>,
    /// While the VM is paused, those that have left their harts for that.
    pub paused: Option<Vec<Box<VcpuRun>>>,
    /// Set if the VM starts over when its guest powers off, since a reboot was asked for.
    pub starts_over: bool,
}

impl Tenant {
    /// Makes a VM of that configuration and device tree, with all its vCPUs stopped.
    #[must_use]
    pub fn new(handle: Handle, what: (VmConfig, Vec<u8>), offer: &Offer) -> Self {
        let vm = Arc::new(Vm::new(handle, what, offer));
        let run = |vcpu: &Arc<_>| {
            let causes = vm.translation.brief_causes(offer);
            let mut run = VcpuRun::new(Arc::clone(&vm), Arc::clone(vcpu), offer.vlenb, causes);
            if let Some(nested) = &mut run.nested {
                nested.environment = Limits::environment_of(offer, vm.svadu);
            }
            run
        };
        let parked = vm.vcpus.iter().map(|vcpu| (vcpu.id, run(vcpu))).collect();
        Self { vm, parked, paused: None, starts_over: false }
    }

    /// Returns whether the VM is paused, and all its vCPUs have left their harts.
    #[must_use]
    pub fn is_still(&self) -> bool {
        self.paused.as_ref().is_some_and(|aside| aside.len() + self.parked.len() == self.vm.vcpus.len())
    }
}
