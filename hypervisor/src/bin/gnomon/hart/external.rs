//! Interrupts of the host's devices: each is handled here, moves to another hart, or is deferred ([`super::interrupts`] chooses).

use super::Hart;
use super::interrupts::{Course, Interrupts};
use crate::drivers::Claimed;
use abi::record::EndReason;
use core::sync::atomic::Ordering;
use hypervisor::backend::console::Command;
use hypervisor::control;
use hypervisor::control::ballooning;
use hypervisor::hart::env::Env;
use hypervisor::hart::harts;
use hypervisor::io::{host_events, serial};
use hypervisor::life::lifecycle;
use hypervisor::vm::{Departure, Vm};

impl Hart {
    /// Handles an interrupt of a host device, while the hart has a vCPU of VM `own`, or none.
    pub(super) fn external(&mut self, own: Option<&Vm>) {
        let Some(plic) = self.host.contexts.get(self.index).copied().flatten() else { return };
        let Some(claimed) = plic.claim() else { return };
        let Claimed::Device(source) = claimed else {
            self.attend_uart();
            return plic.complete(claimed);
        };
        let at = self.host.of_source(source);
        let left = at.and_then(|at| self.handle(at, own).err().map(|course| (at, course)));
        // Before the source is masked: a context completes only what it has enabled (PLIC specification, 7).
        plic.complete(claimed);
        if let Some((at, course)) = left {
            self.host.set_enabled(at, self.index, false);
            self.leave(at, course);
        }
    }

    /// Handles the interrupts that other harts have left to this one.
    pub(super) fn handle_left(&mut self, own: Option<&Vm>) {
        if self.shared.sources.load(Ordering::SeqCst) == 0 {
            return;
        }
        for at in harts::each(self.shared.sources.swap(0, Ordering::SeqCst)) {
            if let Err(course) = self.handle(at, own) {
                self.host.set_enabled(at, self.index, false);
                self.leave(at, course);
            }
        }
    }

    /// Handles an external interrupt of the hart's if one is pending, while no guest is on it.
    pub(super) fn attend_external(&mut self) {
        if self.seat.external_pending() {
            self.external(None);
        }
    }

    /// Handles deferred interrupts, as far as the budget allows.
    pub(super) fn handle_deferred(&mut self, own: Option<&Vm>) {
        for at in harts::each(self.host.deferred) {
            if self.course(at, own) == Course::Later {
                self.due.serial = self.due.serial.min(self.host.budget.next());
                return;
            }
            self.host.deferred &= !(1 << at);
            // First: a PLIC need not signal what came while it was masked, but the device is looked at after this.
            self.host.set_enabled(at, self.index, true);
            if let Err(course) = self.handle(at, own) {
                self.host.set_enabled(at, self.index, false);
                self.leave(at, course);
            }
        }
    }

    /// Chooses the course of device number `at`'s interrupt now.
    fn course(&self, at: usize, own: Option<&Vm>) -> Course {
        self.host.course(self.g, (at, self.index), own.map(|vm| vm.handle), self.now())
    }

    /// Handles the interrupt of device number `at`.
    ///
    /// # Errors
    /// The course that it takes, if that is not to be handled here and now.
    fn handle(&mut self, at: usize, own: Option<&Vm>) -> Result<(), Course> {
        let course = self.course(at, own);
        match course {
            Course::Own => self.attend(at),
            Course::Foreign => {
                let begun = self.now();
                self.attend(at);
                let now = self.now();
                self.host.budget.charge(begun, now);
            }
            Course::At(_) | Course::Later => return Err(course),
        }
        Ok(())
    }

    /// Leaves an interrupt, which is masked here, to another hart, or for later.
    fn leave(&mut self, at: usize, course: Course) {
        if let Course::At(hart) = course {
            self.host.set_enabled(at, hart, true);
            self.g.harts[hart].sources.fetch_or(1 << at, Ordering::SeqCst);
            self.g.kick(hart, self);
        } else {
            self.host.deferred |= 1 << at;
            self.due.serial = self.due.serial.min(self.host.budget.next());
        }
    }

    fn attend(&mut self, at: usize) {
        match &self.host.devices[at].1 {
            Interrupts::Disk(port) => host_events::attend_disk(self.g, port, self),
            Interrupts::Share(port) => host_events::attend_share(self.g, port, self),
            Interrupts::Network => host_events::attend_network(self.g, self),
            Interrupts::Entropy => host_events::attend_entropy(self.g, self),
            Interrupts::Control => {
                self.mark_exit(abi::control::FOR_CONTROL);
                control::attend(self.g, self);
            }
            Interrupts::Swap => _ = hypervisor::life::idle::page(self.g, self),
        }
    }

    fn attend_uart(&mut self) {
        match serial::attend(self.g, self) {
            Some(Command::Quit) => lifecycle::end_all(self.g, &EndReason::Requested, self),
            Some(Command::Stats) => self.g.print_stats(),
            Some(Command::Tunables) => self.g.print_tunables(),
            Some(Command::Set(setting)) => {
                self.g.change(&setting);
                // It may be one that has to be looked after.
                self.go_on_soon();
            }
            Some(Command::Pause(guest)) => {
                if let Some(vm) = self.g.vms.get(guest) {
                    lifecycle::toggle_pause(self.g, &vm, self);
                }
            }
            Some(Command::Balloon(guest, step)) => {
                if let Some(vm) = self.g.vms.get(guest) {
                    ballooning::step(self.g, &vm, step, self);
                }
            }
            Some(Command::End(guest)) => {
                if let Some(vm) = self.g.vms.get(guest) {
                    let end = Departure::End(EndReason::Killed { message: "by Ctrl-A k".into() });
                    lifecycle::depart(self.g, &vm, end, self);
                }
            }
            Some(Command::Input(..)) | None => {}
        }
    }
}
