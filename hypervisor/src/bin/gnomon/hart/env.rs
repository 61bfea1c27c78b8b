//! [`Env`] made of instructions.

use super::{FENCE_PAGES, Hart, Reach};
use crate::seat;
use hypervisor::env::{Env, VsTrapRegs};
use metal::ram::Ram;
use metal::{csr, fence};
use rv::{Addr, FenceScope, Gpa, Interrupt, Mode, PAGE_BYTES, Vmid};

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

    fn guest_mode(&self) -> Mode {
        self.seat.guest_mode()
    }

    fn set_guest_mode(&mut self, mode: Mode) {
        self.seat.set_guest_mode(mode);
    }

    fn trap_regs(&self) -> VsTrapRegs {
        VsTrapRegs {
            vsstatus: csr::vsstatus::read(),
            vstvec: csr::vstvec::read(),
            vsepc: csr::vsepc::read(),
            vscause: csr::vscause::read(),
            vstval: csr::vstval::read(),
        }
    }

    fn set_trap_regs(&mut self, regs: &VsTrapRegs) {
        // SAFETY: VS-level registers concern the guest only.
        unsafe {
            csr::vsstatus::write(regs.vsstatus);
            csr::vsepc::write(regs.vsepc);
            csr::vscause::write(regs.vscause);
            csr::vstval::write(regs.vstval);
        }
    }

    fn vsatp(&self) -> u64 {
        csr::vsatp::read()
    }

    fn interrupt_pending(&self) -> bool {
        csr::vsip::read() & csr::vsie::read() != 0
    }

    fn set_timer_interrupt(&mut self, high: bool) {
        // SAFETY: an interrupt of the guest's.
        unsafe {
            if high { csr::hvip::set(Interrupt::VsTimer.bit()) } else { csr::hvip::clear(Interrupt::VsTimer.bit()) }
        }
    }

    fn set_guest_deadline(&mut self, deadline: u64) {
        // SAFETY: the guest's own comparator; called only with Sstc.
        unsafe { csr::vstimecmp::write(deadline) };
    }

    fn send_ipi(&mut self, hart: usize) {
        let Reach { id, msip } = self.reach[hart];
        seat::send_ipi(id, msip);
    }

    fn fence_here(&mut self, vm: usize, scope: FenceScope<Gpa>) {
        let vmid = Vmid(self.views[vm].slot.id());
        match scope {
            FenceScope::Range { start, bytes } if bytes <= FENCE_PAGES * PAGE_BYTES => {
                let pages = bytes.div_ceil(PAGE_BYTES);
                (0..pages).for_each(|n| fence::gvma_page(Addr::new(start.raw() + n * PAGE_BYTES), vmid));
            }
            _ => fence::gvma_vmid(vmid),
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
