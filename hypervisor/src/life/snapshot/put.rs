//! Restores a VM from a snapshot: its devices and vCPUs get the state that they had.
//!
//! Nothing in a state is believed. State that a guest could have brought about by itself is set as if it had, by the
//! same registers; all else is refused, or left out.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::lines;
use crate::vm::Vm;
use crate::vm::events::Events;
use crate::vm::vcpu::{VcpuRun, hsm};
use abi::snapshot::State;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// Gives a VM whose vCPUs are all parked that state. Returns the vCPUs that are started: they are the caller's to start.
///
/// # Errors
/// A message, if the state is none that this VM can have. The VM is to end then.
#[expect(clippy::vec_box, reason = "the owner of a vCPU's box may run it")]
pub(crate) fn put<E: Env>(g: &Gnomon, vm: &Vm, state: &State, env: &mut E) -> Result<Vec<Box<VcpuRun>>, String> {
    let events = Events::of(&state.events, vm.config.vcpus);
    let events = events.ok_or("the software events of its snapshot are impossible")?;
    if !vm.tlb.spaces.lock().restore(&state.spaces, vm.config.vcpus) {
        return Err("the address spaces of its snapshot are impossible".into());
    }
    let now = env.now();
    // The host's clock was set for that when the machine started.
    let zero = if g.offer.shows_host_time() { 0 } else { now.wrapping_sub(state.told.time) };
    vm.time_zero.store(zero, Ordering::Relaxed);
    let started = g.vms.tenant(vm, |tenant| {
        let mut started = Vec::new();
        for (id, saved) in (0..).zip(&state.vcpus) {
            let Some(run) = tenant.parked.get_mut(&id) else { continue };
            run.reset(0, 0);
            if saved.is_started {
                run.restore(saved, &g.offer, now);
                started.extend(tenant.parked.remove(&id));
            }
        }
        started
    });
    *vm.events.lock() = events;
    let mut devices = vm.devices.all();
    if let Err(wild) = devices.restore(state) {
        devices.reset(vm.config.vcpus);
        drop(devices);
        // The VM ends as any other that has not started.
        let back = |run: Box<VcpuRun>| (run.shared.id, run);
        g.vms.tenant(vm, |tenant| tenant.parked.extend(started.into_iter().flatten().map(back)));
        return Err(wild.0.to_string());
    }
    let started = started.unwrap_or_default();
    started.iter().for_each(|run| run.shared.hsm.store(hsm::STARTED, Ordering::Release));
    lines::update(g, vm, devices.into_plic(), env);
    // What they had begun, and what came for them meanwhile.
    vm.devices.ask_all();
    env.attend_soon(Some(vm.slot()));
    Ok(started)
}
