//! Interrupt lines, from a VM's devices to its vCPUs.

use crate::device::{Devices, Target};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::sync::MutexGuard;
use crate::vm::Vm;
use crate::vm::vcpu::request;
use core::sync::atomic::Ordering;

/// The number of the UART.
const UART: usize = 0;

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

/// Passes on the devices' lines after an access to one device: mostly its line has not changed.
pub fn settle<E: Env>(g: &Gnomon, vm: &Vm, (mut devices, target): (MutexGuard<'_, Devices>, Target), env: &mut E) {
    let has_changed = match target {
        Target::Plic => true,
        // Most by far.
        Target::Device(UART) => devices.pass_line(UART),
        // What was typed may have gone from one to the other.
        Target::Device(at) if devices.is_console(at) => devices.pass_line(at) | devices.pass_line(UART),
        Target::Device(at) => devices.pass_line(at),
    };
    if has_changed {
        update(g, vm, devices, env);
    }
}

/// Passes on the devices' lines after an event that may have changed several of them.
pub fn settle_all<E: Env>(g: &Gnomon, vm: &Vm, mut devices: MutexGuard<'_, Devices>, env: &mut E) {
    if devices.pass_lines() {
        update(g, vm, devices, env);
    }
}
