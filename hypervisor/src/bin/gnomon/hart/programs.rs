//! [`Programs`] made of instructions.

use super::Hart;
use super::unplain::Aside;
use hypervisor::hart::programs::Programs;

impl Programs for Hart {
    fn begin_program(&mut self) -> u64 {
        let enabled = self.guest.take_enabled();
        self.guest.begin_program(enabled);
        self.set_plain_world(Some(Aside::Program));
        enabled
    }

    fn end_program(&mut self) {
        let enabled = self.guest.end_program();
        self.guest.give_enabled(enabled);
        self.set_plain_world(None);
    }

    fn program_interrupts(&self) -> u64 {
        self.guest.program_interrupts()
    }

    fn guest_deadline(&self) -> u64 {
        self.guest.comparator()
    }

    fn set_guest_root(&mut self, satp: u64) {
        // SAFETY: behind a G-stage, by the caller's promise.
        unsafe { self.guest.load_guest_root(satp) };
    }
}
