//! Interrupt lines, from a VM's devices to its vCPUs.

use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::vcpu::request;
use crate::vm::{Devices, Vm};
use core::sync::atomic::Ordering;
use spin::MutexGuard;

/// Passes the PLIC's lines to the vCPUs, after an access to it or a change of its inputs.
pub fn update<E: Env>(g: &Gnomon, vm: &Vm, devices: MutexGuard<'_, Devices>, env: &mut E) {
    for vcpu in &vm.vcpus {
        let high = devices.plic.interrupts_hart(vcpu.id);
        if vcpu.external.swap(high, Ordering::SeqCst) != high {
            vcpu.counters.inject_external.bump();
            g.post(vcpu, request::EXTERNAL, env);
        }
    }
}

/// The same after an access to the UART: mostly its line has not changed.
pub fn update_uart<E: Env>(g: &Gnomon, vm: &Vm, mut devices: MutexGuard<'_, Devices>, env: &mut E) {
    if devices.pass_line() {
        update(g, vm, devices, env);
    }
}
