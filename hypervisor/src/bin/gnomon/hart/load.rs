//! A vCPU comes to a hart, and leaves it: what of its state is in the hart's registers, and what its TLB may hold.

use super::Hart;
use crate::guest::Translation;
use abi::bundle::MmuMode;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use hypervisor::exit::Outcome;
use hypervisor::vcpu::{NOWHERE, VcpuRun};
use hypervisor::vm::Vm;
use hypervisor::{lifecycle, shadow};
use metal::fence;
use mmu::ids::Acquired;
use rv::Vmid;
use rv::csr::atp;

impl Hart {
    /// Puts a vCPU on this hart.
    pub(super) fn load(&mut self, run: &mut VcpuRun, now: u64) {
        let vm = Arc::clone(&run.vm);
        // Before any walk can happen: whoever edits the tables looks here.
        vm.live_on.fetch_or(1 << self.index, Ordering::SeqCst);
        self.guest.set_time_zero(vm.time_zero.load(Ordering::Relaxed));
        let is_shadow = self.g.mode(&vm.config) != MmuMode::Nested;
        if is_shadow {
            self.load_shadow(run, &vm);
        } else {
            self.load_two_stage(run, &vm);
        }
        let counters = &run.shared.counters;
        counters.switches.bump();
        if run.last_hart != self.index && run.last_hart != NOWHERE {
            counters.migrations.bump();
        }
        // SAFETY: the last vCPU's registers were saved by `unload`; the translation is set.
        unsafe { self.guest.load_csrs(&run.csrs, &self.g.offer) };
        let who = (vm.index, run.shared.id);
        if self.registers_of != Some(who) || run.last_hart != self.index {
            self.guest.load_registers(run, &self.g.offer);
            self.registers_of = Some(who);
        }
        self.guest.set_privilege(run.mode);
        run.awake();
        run.last_hart = self.index;
        run.context.host_sp = self.stack_end;
        run.context.host_tp = (&raw mut *self).expose_provenance() as u64;
        run.shared.hart.store(self.index, Ordering::SeqCst);
        self.slice_end = now + self.ticks.slice;
        run.watch.load(now, self.ticks.watch, self.ticks.least_run);
        if is_shadow && let Err(outcome) = shadow::load(self.g, run, self) {
            // Without a root it must not enter its guest: it is asked to park, and finds that when it is about to.
            let Outcome::Depart(departure) = outcome else { unreachable!("a missing root ends the VM") };
            lifecycle::depart(self.g, &vm, departure, self);
        }
    }

    /// Makes this hart's TLB hold nothing that is not this vCPU's, of a VM on shadow tables.
    fn load_shadow(&mut self, run: &VcpuRun, vm: &Vm) {
        self.guest.set_translation(Translation::Shadow);
        let view = &mut self.views[vm.index];
        if run.last_hart != self.index || view.last_vcpu != run.shared.id {
            // As for two stages: other vCPUs of the VM use the same roots, and fence their own TLBs only.
            self.guest.fence(None, None);
            fence::instruction();
        }
        view.last_vcpu = run.shared.id;
    }

    /// Gives a vCPU of a nested VM its two stages: the VM's table under a VMID, and a TLB that holds
    /// nothing which is not this vCPU's.
    fn load_two_stage(&mut self, run: &VcpuRun, vm: &Vm) {
        let view = &mut self.views[vm.index];
        let acquired = self.vmids.acquire(&mut view.slot);
        let root = vm.memory.lock().as_ref().map(|memory| memory.space.root());
        // A VM loses its tables only when all its vCPUs are parked; Bare would be all of memory.
        let Some(root) = root else { unreachable!("{} has no memory, but a vCPU to run", vm.config.name) };
        let hgatp = atp::hgatp(self.g.offer.g_format, Vmid(view.slot.id()), root);
        self.guest.set_translation(Translation::TwoStage { hgatp });
        self.guest.set_svadu(vm.config.svadu);
        if acquired == Acquired::RolledOver {
            fence::gvma_all();
        }
        if acquired != Acquired::Same || run.last_hart != self.index || view.last_vcpu != run.shared.id {
            // Another vCPU of this VM, or this one on another hart, fenced its own TLB only; what is
            // left here is not what this vCPU's "TLB" may hold. The same goes for fetched code, and
            // for what another VM left under this VMID: a G-stage fence covers the G-stage only.
            fence::vvma_all();
            fence::instruction();
        }
        view.last_vcpu = run.shared.id;
    }

    /// Takes the vCPU off this hart.
    pub(super) fn unload(&mut self, run: &mut VcpuRun) {
        run.count_lane();
        self.guest.save_csrs(&mut run.csrs, &self.g.offer);
        run.mode = self.guest.privilege();
        self.guest.save_registers(run, &self.g.offer);
        self.guest.clear_csrs(&self.g.offer);
        run.shared.hart.store(NOWHERE, Ordering::SeqCst);
    }
}
