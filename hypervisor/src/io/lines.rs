//! Interrupt lines, from a VM's interrupt controller to its vCPUs.

use crate::device::Plic;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::sync::MutexGuard;
use crate::vm::Vm;
use crate::vm::vcpu::request;
use core::sync::atomic::Ordering;

/// Passes the PLIC's lines to the vCPUs, after an access to it or a change of its inputs.
pub fn update<E: Env>(g: &Gnomon, vm: &Vm, plic: MutexGuard<'_, Plic>, env: &mut E) {
    for vcpu in &vm.vcpus {
        let high = plic.interrupts_hart(vcpu.id);
        if vcpu.external.swap(high, Ordering::SeqCst) != high {
            vcpu.counters.inject_external.bump();
            g.post(vcpu, request::EXTERNAL, env);
        }
    }
}
