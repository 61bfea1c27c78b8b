//! A vCPU comes to a hart, and leaves it: what of its state is in the hart's registers, and what its TLB may hold.

use super::unplain::Aside;
use super::{Hart, Leaves, View};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use hypervisor::hart::env::Env;
use hypervisor::life::lifecycle;
use hypervisor::memory::shootdown;
use hypervisor::vm::Vm;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::{NOWHERE, VcpuRun};
use metal::fence;
use mmu::ids::{Acquired, IdSlot};
use rv::csr::atp;
use rv::{Format, Hpa, Pfn, Vmid};

impl Hart {
    /// Puts a vCPU on this hart.
    pub(super) fn load(&mut self, run: &mut VcpuRun, now: u64) {
        let vm = Arc::clone(&run.vm);
        // Before any walk can happen: an edit of the tables fences the harts that have arrived.
        let generation = shootdown::arrive(&vm, self.index);
        if self.tags.views[vm.slot()].vm != vm.handle.number {
            // OWNERSHIP: what the slot's last VM left in the TLB is under a VMID that is not reused before the hart has
            // fenced all of them, so the new VM has nothing there yet.
            self.tags.views[vm.slot()] = View::of(vm.handle.number, generation);
        }
        self.guest.set_time_zero(vm.time_zero.load(Ordering::Relaxed));
        self.guest.set_breaks(vm.breaks.is_on());
        self.guest.set_sets_ad(vm.tlb.sets_ad.load(Ordering::SeqCst));
        let loaded = vm.translation.load(self.g, run, self);
        let counters = &run.shared.counters;
        counters.switches.bump();
        if run.last_hart != self.index && run.last_hart != NOWHERE {
            counters.migrations.bump();
        }
        if let Some(nested) = &run.nested {
            self.guest.begin_world(nested);
        }
        let mut aside = run.runs_l2().then_some(Aside::L2);
        if let Some(program) = run.program.as_deref().filter(|program| program.runs) {
            self.guest.begin_program(program.sie);
            aside = Some(Aside::Program);
        }
        self.set_plain_world(aside);
        self.unplain.samples = run.samples();
        if self.unplain.samples {
            self.exits_are_noted();
        }
        // SAFETY: the last vCPU's registers were saved by `unload`.
        unsafe { self.guest.load_csrs(&run.bank.csrs, &self.g.offer) };
        let who = (vm.handle.number, run.shared.id);
        if self.registers_of != Some(who) || run.last_hart != self.index {
            self.guest.load_registers(run, &self.g.offer);
            self.registers_of = Some(who);
        }
        self.guest.limit_extensions();
        self.guest.set_privilege(run.bank.mode);
        run.awake();
        run.last_hart = self.index;
        run.context.host_sp = self.stack_end;
        run.context.host_tp = (&raw mut *self).expose_provenance() as u64;
        run.shared.hart.store(self.index, Ordering::SeqCst);
        self.shared.has_guest.store(true, Ordering::Relaxed);
        self.due.slice_end = now + self.ticks.slice;
        run.watch.load(now, self.ticks.watch, self.ticks.least_run);
        if let Err(outcome) = loaded {
            // Without a root it must not enter its guest: it is asked to park, and finds that when it is about to.
            let Outcome::Depart(departure) = outcome else { unreachable!("a missing root ends the VM") };
            lifecycle::depart(self.g, &vm, departure, self);
        }
    }

    /// Puts a root of a VM's G-stage into the hart's registers, with a VMID from `id`, and then the guest's own `vsatp`. `stays`: the vCPU
    /// was on this hart last.
    pub(super) fn set_g_stage(
        &mut self,
        (vm, stays): (&Vm, bool),
        (format, table): (&'static Format, Pfn<Hpa>),
        id: &mut IdSlot,
        vsatp: u64,
    ) {
        // What it has left in this TLB it may find again if it did its fences here.
        let acquired = self.tags.views[vm.slot()].vmids.come(id, stays, &mut self.tags.vmids);
        self.guest.set_two_stage(atp::hgatp(format, Vmid(id.id()), table));
        self.guest.set_svadu(vm.svadu && !self.guest.sets_ad());
        if acquired == Acquired::RolledOver {
            fence::gvma_all();
        }
        if acquired != Acquired::Same {
            // A G-stage fence covers the G-stage only: what another vCPU left under this VMID goes here. Of an instruction
            // cache, what this one has not fenced on this hart.
            fence::vvma_all();
            fence::instruction();
        }
        // SAFETY: behind a G-stage. Until now nothing could walk this guest's tables, nor any guest's since
        // `clear_csrs`.
        unsafe { self.guest.load_guest_root(vsatp) };
    }

    /// Takes the vCPU off this hart.
    pub(super) fn unload(&mut self, run: &mut VcpuRun) {
        run.count_lane();
        self.set_spins(false);
        self.guest.save_csrs(&mut run.bank.csrs, &self.g.offer);
        run.vm.translation.unload(run, self);
        if run.vm.translation.may_enter(run) && !run.is_unsettled() {
            // A vCPU on no hart keeps no unowned frames back; but they may be for a root without which it enters no guest.
            run.discard_ready(&self.shared.frames);
        }
        run.bank.mode = self.guest.privilege();
        if let Some(nested) = run.nested.as_deref_mut() {
            self.guest.end_world(nested);
        }
        if run.runs_program() {
            self.guest.end_program();
        }
        self.guest.save_registers(run, &self.g.offer);
        self.guest.clear_csrs(&self.g.offer);
        run.shared.hart.store(NOWHERE, Ordering::SeqCst);
        self.shared.has_guest.store(false, Ordering::Relaxed);
    }

    /// Takes the loaded vCPU off this hart; it is no longer started.
    pub(super) fn give_up(&mut self, mut run: Box<VcpuRun>, what_for: Leaves) {
        self.unload(&mut run);
        self.g.sched.stopped();
        match what_for {
            Leaves::ForPark => lifecycle::park(self.g, run, self),
            Leaves::ForPause => lifecycle::put_aside(self.g, run, self),
        }
    }

    /// Takes the vCPU off this hart; it is ready since `since`.
    pub(super) fn requeue(&mut self, mut run: Box<VcpuRun>, since: u64) {
        self.unload(&mut run);
        self.g.sched.requeue(run, self.index, since);
    }

    /// Handles a vCPU that waits for another one's store. If vCPUs are ready that may make it, they go first. Else it
    /// waits in its guest, without any exit, until one is.
    pub(super) fn give_way(&mut self, run: Box<VcpuRun>) -> Option<Box<VcpuRun>> {
        let now = self.now();
        if self.g.sched.ready_since() > now {
            // The flag is set before this looks again: a hart that makes a vCPU ready in between finds one that spins.
            self.set_spins(self.traps_wfi);
            let next = self.g.sched.ready_since();
            if next > now {
                self.due.slice_end = self.due.slice_end.min(next);
                return Some(run);
            }
        }
        run.shared.counters.yields.bump();
        self.requeue(run, now + self.ticks.behind);
        None
    }

    /// Takes the vCPU off this hart, and its state from it, until an interrupt is pending or something is posted to it.
    pub(super) fn sleep(&mut self, mut run: Box<VcpuRun>, pc: u64, opaque: u64) {
        let until = if self.interrupt_pending() { 0 } else { self.next_timer(&run) };
        self.unload(&mut run);
        run.vm.translation.forget(&mut run);
        run.resume_at(pc, opaque);
        run.shared.counters.waits.bump();
        let now = self.now();
        self.g.sched.wait(run, until, self.index, now);
    }

    /// Takes the vCPU off this hart until something is posted to it, or until host time `until`.
    pub(super) fn wait(&mut self, mut run: Box<VcpuRun>, until: u64) {
        self.unload(&mut run);
        run.shared.counters.waits.bump();
        let now = self.now();
        self.g.sched.wait(run, until, self.index, now);
    }
}
