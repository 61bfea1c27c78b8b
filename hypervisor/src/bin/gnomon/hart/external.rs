//! Interrupts of the host's devices.

use super::{Hart, Interrupts};
use crate::drivers::Claimed;
use abi::record::EndReason;
use hypervisor::backend::console::Command;
use hypervisor::control;
use hypervisor::control::ballooning;
use hypervisor::hart::env::Env;
use hypervisor::io::serial;
use hypervisor::life::lifecycle;
use hypervisor::vm::Departure;

impl Hart {
    /// Handles the interrupt of a device of the host.
    pub(super) fn external(&mut self) {
        let Some(plic) = self.plic else { return };
        let Some(claimed) = plic.claim() else { return };
        match claimed {
            Claimed::Uart => self.attend_uart(),
            Claimed::Device(source) => {
                match self.devices.iter().find(|(other, _)| *other == source).map(|(_, device)| device) {
                    Some(Interrupts::Disk(port)) => serial::attend_disk(self.g, port, self),
                    Some(Interrupts::Share(port)) => serial::attend_share(self.g, port, self),
                    Some(Interrupts::Network) => serial::attend_network(self.g, self),
                    Some(Interrupts::Entropy) => serial::attend_entropy(self.g, self),
                    Some(Interrupts::Control) => control::attend(self.g, self),
                    Some(Interrupts::Swap) => _ = hypervisor::life::idle::page(self.g, self),
                    None => {}
                }
            }
        }
        plic.complete(claimed);
    }

    fn attend_uart(&mut self) {
        match serial::attend(self.g, self) {
            Some(Command::Quit) => lifecycle::end_all(self.g, &EndReason::Poweroff, self),
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
