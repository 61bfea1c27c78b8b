//! [`Env`] made of instructions.

use super::{FENCE_PAGES, Hart, Reach};
use crate::guest::Line;
use crate::seat;
use abi::tunable::Id;
use core::sync::atomic::Ordering;
use hypervisor::hart::env::Env;
use hypervisor::vm::vcpu::{VcpuRun, VsTrapRegs, request};
use metal::fence;
use metal::ram::Ram;
use mmu::ids::{Acquired, IdSlot};
use mmu::shadow::Root;
use rv::csr::atp;
use rv::{Addr, Asid, Exit, FenceScope, Gpa, Gva, Hpa, Mode, PAGE_BYTES, Pfn, Vmid};

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

    fn sets_ad(&self) -> bool {
        self.guest.sets_ad()
    }

    fn status(&self) -> u64 {
        self.guest.guest_status()
    }

    fn set_trap_regs(&mut self, regs: &VsTrapRegs) {
        self.guest.set_trap_regs(regs);
    }

    fn user_environment(&self) -> u64 {
        self.guest.user_environment()
    }

    fn load_byte(&mut self, at: u64) -> Result<u8, Exit> {
        self.guest.load_byte(at)
    }

    fn store_byte(&mut self, at: u64, byte: u8) -> Result<(), Exit> {
        self.guest.store_byte(at, byte)
    }

    fn float_register(&mut self, number: u8) -> u64 {
        self.guest.float_register(number)
    }

    fn set_float_register(&mut self, number: u8, value: u64) {
        self.guest.set_float_register(number, value);
    }

    fn user_counters(&self) -> u64 {
        self.guest.user_counters()
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

    fn set_software_interrupt(&mut self, high: bool) {
        self.guest.set_line(Line::Software, high);
    }

    fn deadline_changed(&mut self, run: &VcpuRun) {
        self.arm_for(run);
    }

    fn follow_counters(&mut self, run: &VcpuRun) {
        self.unplain.samples = run.samples();
        if self.unplain.samples {
            // The end of this exit has to take the first one.
            self.exits_are_noted();
            run.shared.posted.fetch_or(request::PROBE, Ordering::SeqCst);
        }
    }

    fn set_guest_deadline(&mut self, deadline: u64) {
        self.guest.set_comparator(deadline);
    }

    fn send_ipi(&mut self, hart: usize) {
        let Reach { id, msip } = self.reach[hart];
        seat::send_ipi(id, msip);
    }

    fn load_two_stage(&mut self, run: &mut VcpuRun, table: Pfn<Hpa>) {
        let stays = run.last_hart == self.index;
        let root = (self.g.offer.g_format, table);
        self.set_g_stage((&run.vm, stays), root, &mut run.vmid, run.bank.csrs.vsatp);
    }

    fn load_shadow(&mut self, run: &VcpuRun, steered: bool) {
        self.guest.set_one_stage(steered);
        let stays = run.last_hart == self.index;
        if self.tags.globals.come((run.vm.handle.number, run.shared.id), stays) {
            self.guest.fence_shadows();
        }
        if !stays {
            // What this one has not fenced on this hart, of an instruction cache.
            fence::instruction();
        }
    }

    fn leave_tables(&mut self) {
        self.guest.leave_tables();
    }

    fn asid_bits(&self) -> u32 {
        self.tags.asid_bits
    }

    fn fence_g_stage(&mut self, vm: usize, scope: FenceScope<Gpa>) {
        let vmid = Vmid(self.tags.views[vm].vmids.give_up_others(&self.tags.vmids));
        match scope {
            FenceScope::Range { start, bytes } if bytes <= FENCE_PAGES * PAGE_BYTES => {
                let pages = bytes.div_ceil(PAGE_BYTES);
                (0..pages).for_each(|n| fence::gvma_page(Addr::new(start.raw() + n * PAGE_BYTES), vmid));
            }
            _ => fence::gvma_vmid(vmid),
        }
    }

    fn load_root(&mut self, root: &Root, id: &mut IdSlot, forget: bool) -> u64 {
        let others = self.tags.globals.go_by(root.globals.then_some(root.format.mode));
        let acquired = self.tags.asids.acquire(id);
        let asid = Asid(id.id());
        self.guest.set_steering(root.steers && self.g.tunables.is_on(Id::Steer));
        let satp = atp::satp(root.format, asid, root.table);
        // SAFETY: a shadow root of the loaded guest's VM, which the vCPU holds.
        unsafe { self.guest.load_guest_root(satp) };
        // Only now: harts may walk by `vsatp` at any time, and what they find by the old root is to go.
        if others || acquired == Acquired::RolledOver {
            self.guest.fence_shadows();
        } else if acquired == Acquired::Same && forget {
            // Of a new one, nothing is remembered.
            self.guest.fence(None, Some(asid));
        }
        satp
    }

    fn fence_guest(&mut self, page: Option<Addr<Gva>>, asid: Option<Asid>) {
        self.guest.fence(page, asid);
    }

    fn fence_shadows(&mut self) {
        self.guest.fence_shadows();
    }

    fn fence_guest_root(&mut self) {
        // The lane may have changed roots since the last was loaded here.
        let present = atp::Satp::decode(self.guest.guest_root());
        self.guest.fence(None, Some(present.asid));
    }

    fn lane_table(&self, root: &Root) -> u64 {
        self.guest.lane_table(root.format, root.steers)
    }

    fn fence_instructions(&mut self) {
        fence::instruction();
    }

    fn fenced_for(&mut self, vm: usize, generation: u64) {
        let fenced = &mut self.tags.views[vm].fenced;
        if *fenced + 1 == generation {
            *fenced = generation;
        }
    }

    fn attend_soon(&mut self, guest: Option<usize>) {
        self.due.serial_guests |= guest.map_or(0, |guest| 1 << guest);
        if !self.due.serial_is_soon {
            self.due.serial_is_soon = true;
            self.due.serial = self.due.serial.min(metal::time() + self.ticks.serial);
        }
    }

    fn attend_at(&mut self, time: u64, guest: usize) {
        self.due.serial_guests |= 1 << guest;
        self.due.serial = self.due.serial.min(time);
    }

    fn others_from(&self) -> u64 {
        self.host.budget.next()
    }

    fn charge_others(&mut self, ticks: u64) {
        let now = metal::time();
        self.host.budget.charge(now - ticks, now);
    }

    fn go_on_soon(&mut self) {
        self.due.chores = self.due.chores.min(metal::time() + self.ticks.chores);
        self.due.serial = self.due.serial.min(self.due.chores);
    }
}
