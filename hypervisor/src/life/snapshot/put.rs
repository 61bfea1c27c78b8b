//! A VM goes on from a snapshot: its devices and vCPUs get the state that they had.
//!
//! Nothing in a state is believed. What a guest could have brought about by itself is taken as if it had, by the same registers; all
//! else is refused, or left out.

use crate::device::offer::{GuestMode, GuestTimer, Offer};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::lines;
use crate::vm::Vm;
use crate::vm::events::Events;
use crate::vm::vcpu::{Features, RootCache, VcpuRun, hsm, request};
use abi::snapshot::{NEVER, State, VcpuState};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use rv::csr::status;
use rv::{Addr, Interrupt, Mode, VectorCsrs};

/// What a guest can set in its `sstatus`.
const STATUS: u64 = status::SIE | status::SPIE | status::SPP | status::VS | status::FS | status::SUM | status::MXR;
const FCSR: u64 = 0xff;
const COUNTERS: u64 = 0xffff_ffff;

/// Gives a VM whose vCPUs are all parked that state. Returns the vCPUs that are started: they are the caller's to start.
///
/// # Errors
/// A message, if the state is none that this VM can have. The VM is to end then.
#[expect(clippy::vec_box, reason = "whoever has a vCPU's box may run it")]
pub(crate) fn put<E: Env>(g: &Gnomon, vm: &Vm, state: &State, env: &mut E) -> Result<Vec<Box<VcpuRun>>, String> {
    let events = Events::of(&state.events, vm.config.vcpus);
    let events = events.ok_or("the software events of its snapshot are impossible")?;
    let now = env.now();
    let zero = match g.offer.guest {
        GuestMode::Virtual => now.wrapping_sub(state.told.time),
        // S mode reads the host's clock, which was set for that when the machine started.
        GuestMode::Supervisor => 0,
    };
    vm.time_zero.store(zero, Ordering::Relaxed);
    let started = g.vms.tenant(vm, |tenant| {
        let mut started = Vec::new();
        for (id, saved) in (0..).zip(&state.vcpus) {
            let Some(run) = tenant.parked.get_mut(&id) else { continue };
            run.reset(0, 0);
            if saved.is_started {
                set(run, saved, &g.offer, now);
                started.extend(tenant.parked.remove(&id));
            }
        }
        started
    });
    *vm.events.lock() = events;
    let mut devices = vm.devices.lock();
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
    devices.pass_lines();
    lines::update(g, vm, devices, env);
    // What they had begun, and what came for them meanwhile.
    env.attend_soon(Some(vm.slot()));
    Ok(started)
}

/// Sets a vCPU's registers, just reset.
fn set(run: &mut VcpuRun, saved: &VcpuState, offer: &Offer, now: u64) {
    run.context.x = saved.x;
    run.context.x[0] = 0;
    run.context.pc = saved.pc & !1;
    run.bank.mode = if saved.is_supervisor { Mode::Supervisor } else { Mode::User };
    run.bank.float.f = saved.f;
    run.bank.float.fcsr = saved.fcsr & FCSR;
    if saved.v.0.len() == run.bank.vector.bytes.len() {
        run.bank.vector.bytes.copy_from_slice(&saved.v.0);
        let [vstart, vl, vtype, vcsr] = saved.vector;
        run.bank.vector.csrs = VectorCsrs { vstart, vl, vtype, vcsr };
    }
    let (csrs, from) = (&mut run.bank.csrs, &saved.csrs);
    csrs.vsstatus = from.sstatus & STATUS | status::UXL_64;
    csrs.vsie = from.sie;
    csrs.vstvec = from.stvec;
    csrs.vsscratch = from.sscratch;
    csrs.vsepc = from.sepc;
    csrs.vscause = from.scause;
    csrs.vstval = from.stval;
    csrs.vsatp = from.satp;
    csrs.scounteren = from.scounteren & COUNTERS;
    csrs.senvcfg = from.senvcfg;
    csrs.hvip = if saved.is_software_pending { Interrupt::VsSoft.bit() } else { 0 };
    let due = run.vm.host_time(saved.timer, now);
    match offer.timer {
        GuestTimer::Sstc => csrs.vstimecmp = saved.timer,
        GuestTimer::Sbi if saved.timer != NEVER && due <= now => csrs.hvip |= Interrupt::VsTimer.bit(),
        GuestTimer::Sbi => run.deadline = due,
    }
    run.features = Features { delegates_misaligned: saved.delegates_misaligned, is_locked: saved.is_locked };
    run.root_cache = saved.root_cache.map(|it| {
        // Checked before. What its places have is out of date, and does no harm.
        Box::new(RootCache::new(Addr::new(it.at), it.places as usize, it.is_tagged))
    });
    // An event may be due, and its line may be high.
    run.shared.posted.fetch_or(request::EVENTS, Ordering::SeqCst);
}
