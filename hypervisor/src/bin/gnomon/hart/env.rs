//! [`Env`] made of instructions.

use super::{FENCE_PAGES, Hart, Reach};
use crate::guest::Line;
use crate::seat;
use hypervisor::env::{Env, VsTrapRegs};
use hypervisor::gnomon::GuestMode;
use metal::fence;
use metal::ram::Ram;
use rv::{Addr, FenceScope, Gpa, Mode, PAGE_BYTES, Vmid};

impl Env for Hart {
    type Mem = Ram;

    fn mem(&self) -> Ram {
        self.ram
    }

    fn hart(&self) -> usize {
        self.index
    }

    fn now(&self) -> u64 {
        metal::time()
    }

    fn privilege(&self) -> Mode {
        self.guest.privilege()
    }

    fn set_privilege(&mut self, mode: Mode) {
        self.guest.set_privilege(mode);
    }

    fn trap_regs(&self) -> VsTrapRegs {
        self.guest.trap_regs()
    }

    fn set_trap_regs(&mut self, regs: &VsTrapRegs) {
        self.guest.set_trap_regs(regs);
    }

    fn vsatp(&self) -> u64 {
        self.guest.guest_root()
    }

    fn interrupt_pending(&self) -> bool {
        self.guest.interrupt_pending()
    }

    fn set_timer_interrupt(&mut self, high: bool) {
        self.guest.set_line(Line::Timer, high);
    }

    fn set_guest_deadline(&mut self, deadline: u64) {
        self.guest.set_comparator(deadline);
    }

    fn send_ipi(&mut self, hart: usize) {
        let Reach { id, msip } = self.reach[hart];
        seat::send_ipi(id, msip);
    }

    fn fence_here(&mut self, vm: usize, scope: FenceScope<Gpa>) {
        let vmid = Vmid(self.views[vm].slot.id());
        match (self.guest.mode(), scope) {
            // What its TLB holds there leads from virtual to host addresses at once.
            (GuestMode::Supervisor, _) => self.guest.fence(None, None),
            (GuestMode::Virtual, FenceScope::Range { start, bytes }) if bytes <= FENCE_PAGES * PAGE_BYTES => {
                let pages = bytes.div_ceil(PAGE_BYTES);
                (0..pages).for_each(|n| fence::gvma_page(Addr::new(start.raw() + n * PAGE_BYTES), vmid));
            }
            (GuestMode::Virtual, _) => fence::gvma_vmid(vmid),
        }
    }

    fn fence_instructions(&mut self) {
        fence::instruction();
    }

    fn fenced_for(&mut self, vm: usize, generation: u64) {
        let fenced = &mut self.views[vm].fenced;
        if *fenced + 1 == generation {
            *fenced = generation;
        }
    }
}
