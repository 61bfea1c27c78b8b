//! The hart without hardware, as the environment of exits.

use super::{Event, Hart, Mem};
use hypervisor::hart::budget::Budget;
use hypervisor::hart::emulation::Emulation;
use hypervisor::hart::env::Env;
use hypervisor::hart::programs::Programs;
use hypervisor::hart::worlds::Worlds;
use hypervisor::vm::vcpu::{Nested, VcpuRun, VsCsrs, VsTrapRegs};
use mmu::ids::IdSlot;
use mmu::shadow::Root;
use rv::csr::atp;
use rv::system::number;
use rv::{Addr, Asid, Exit, FenceScope, Gpa, Gva, Hpa, L2Gpa, Mode, Pfn};
use std::sync::atomic::Ordering::SeqCst;

impl Env for Hart {
    type Mem = Mem;
    fn mem(&self) -> Mem {
        self.mem.clone()
    }
    fn hart(&self) -> usize {
        0
    }
    fn now(&self) -> u64 {
        self.time
    }
    fn privilege(&self) -> Mode {
        self.mode
    }
    fn set_privilege(&mut self, mode: Mode) {
        self.mode = mode;
    }
    fn trap_regs(&self) -> VsTrapRegs {
        self.regs
    }
    fn sets_ad(&self) -> bool {
        self.sets_ad
    }
    fn status(&self) -> u64 {
        self.regs.vsstatus
    }
    fn set_trap_regs(&mut self, regs: &VsTrapRegs) {
        self.regs = *regs;
    }
    fn follow_counters(&mut self, run: &VcpuRun) {
        self.events.push(Event::Samples(run.samples()));
    }
    fn user_environment(&self) -> u64 {
        0
    }
    fn load_byte(&mut self, at: u64) -> Result<u8, Exit> {
        self.bytes.get(&at).copied().unwrap_or(Err(Exit { cause: 13, tval: at, ..Exit::default() }))
    }
    fn store_byte(&mut self, at: u64, byte: u8) -> Result<(), Exit> {
        match self.bytes.get_mut(&at) {
            Some(Ok(there)) => *there = byte,
            Some(Err(fault)) => return Err(*fault),
            None => return Err(Exit { cause: 15, tval: at, ..Exit::default() }),
        }
        Ok(())
    }
    fn float_register(&mut self, number: u8) -> u64 {
        self.float[usize::from(number)]
    }
    fn set_float_register(&mut self, number: u8, value: u64) {
        self.float[usize::from(number)] = value;
    }
    fn user_counters(&self) -> u64 {
        self.user_counters
    }
    fn vsatp(&self) -> u64 {
        self.vsatp
    }
    fn interrupt_pending(&self) -> bool {
        self.is_interrupted
    }
    fn set_timer_interrupt(&mut self, high: bool) {
        self.events.push(Event::TimerInterrupt(high));
    }
    fn set_software_interrupt(&mut self, high: bool) {
        self.events.push(Event::SoftwareInterrupt(high));
    }
    fn deadline_changed(&mut self, run: &VcpuRun) {
        self.events.push(Event::DeadlineChanged(run.deadline));
    }
    fn set_guest_deadline(&mut self, deadline: u64) {
        self.events.push(Event::Deadline(deadline));
    }
    fn send_ipi(&mut self, hart: usize) {
        self.events.push(Event::Ipi(hart));
    }
    fn load_two_stage(&mut self, run: &mut VcpuRun, _: Pfn<Hpa>) {
        self.events.push(Event::TwoStage);
        self.time += self.load_ticks;
        self.vsatp = run.bank.csrs.vsatp;
    }
    fn load_shadow(&mut self, _: &VcpuRun, _: bool) {
        self.events.push(Event::Shadow);
    }
    fn leave_tables(&mut self) {
        self.vsatp = 0;
    }
    fn asid_bits(&self) -> u32 {
        9
    }
    fn fence_g_stage(&mut self, _: usize, scope: FenceScope<Gpa>) {
        self.events.push(Event::Fence(scope));
    }
    fn load_root(&mut self, root: &Root, id: &mut IdSlot, forget: bool) -> u64 {
        self.events.push(Event::Root(root.serial, forget));
        self.time += self.load_ticks;
        let _ = self.asids.acquire(id);
        atp::satp(root.format, Asid(id.id()), root.table)
    }
    fn fence_guest(&mut self, page: Option<Addr<Gva>>, asid: Option<Asid>) {
        self.events.push(Event::GuestFence(page, asid));
    }
    fn fence_shadows(&mut self) {
        self.events.push(Event::GuestFence(None, None));
    }
    fn fence_guest_root(&mut self) {
        self.events.push(Event::GuestRootFence);
    }
    fn lane_table(&self, root: &Root) -> u64 {
        root.format.mode.into()
    }
    fn fence_instructions(&mut self) {
        self.events.push(Event::FenceInstructions);
    }
    fn fenced_for(&mut self, _: usize, _: u64) {}
    fn attend_soon(&mut self, _: Option<usize>) {
        self.events.push(Event::AttendSoon);
    }
    fn attend_at(&mut self, time: u64, _: usize) {
        self.events.push(Event::AttendAt(time));
    }
    fn others_from(&self) -> u64 {
        self.others_from
    }
    fn charge_others(&mut self, ticks: u64) {
        self.others_from = self.time + Budget::SHARE * ticks;
    }
    fn go_on_soon(&mut self) {
        self.events.push(Event::GoOnSoon);
    }
    fn relax(&self) {
        panic!("waits for a hart that does not leave its guest");
    }
}

impl Worlds for Hart {
    fn load_nested(&mut self, run: &mut VcpuRun) {
        if run.collapses() {
            return self.load_collapsed(run);
        }
        let root = run.nested.as_ref().and_then(|nested| nested.root).expect("L2 has a root");
        self.events.push(Event::Nested(root.serial));
        self.vsatp = run.bank.csrs.vsatp;
    }
    fn fence_nested(&mut self, _: &mut Nested, page: Option<Addr<L2Gpa>>) {
        self.events.push(Event::NestedFence(page));
    }
    fn forget_nested(&mut self, _: &mut Nested) {
        self.events.push(Event::NestedForgotten);
    }
    fn load_collapsed(&mut self, run: &mut VcpuRun) {
        let collapsed = run.nested.as_deref().and_then(|nested| nested.collapsed.as_deref());
        let root = collapsed.and_then(|collapsed| collapsed.root).expect("L2 has a root");
        self.events.push(Event::Nested(root.serial));
    }
    fn leave_root(&mut self) {}
    fn change_world(&mut self, run: &mut VcpuRun) {
        let nested = run.nested.as_deref_mut().expect("it is a hypervisor");
        let (next, own) = (nested.other, run.bank.csrs.vsatp);
        let VsTrapRegs { vsstatus, vstvec, vsepc, vscause, vstval } = self.regs;
        nested.other = VsCsrs {
            vsstatus,
            vstvec,
            vsepc,
            vscause,
            vstval,
            // While L2 runs on collapsed tables, the hart's register is Gnomon's.
            vsatp: if nested.collapsed.is_some() && !nested.runs_l2 { own } else { self.vsatp },
            vsie: self.vsie,
            hvip: self.lines,
            ..next
        };
        let VsCsrs { vsstatus, vstvec, vsepc, vscause, vstval, .. } = next;
        self.regs = VsTrapRegs { vsstatus, vstvec, vsepc, vscause, vstval };
        (self.vsie, self.lines) = (next.vsie, next.hvip);
        run.bank.csrs.vsatp = next.vsatp;
        if nested.runs_l2 {
            self.load_nested(run);
        } else {
            self.load_two_stage(run, Pfn::new(0));
        }
    }
    fn set_world(&mut self, run: &VcpuRun) {
        self.events.push(Event::World(run.nested.as_ref().expect("it is a hypervisor").world()));
    }
    fn watches_l2(&self) -> bool {
        false
    }
    fn watched_comparator(&self) -> u64 {
        unreachable!("the hart has L2's comparator")
    }
    fn set_watched_comparator(&mut self, _: u64) {
        unreachable!("the hart has L2's comparator")
    }
    fn set_timer_of_l2(&mut self, _: bool) {
        unreachable!("the hart has L2's comparator")
    }
    fn held_interrupts(&self) -> u64 {
        self.held
    }
    fn undelegated_interrupts(&self) -> u64 {
        self.lines
    }
}

/// The guest's code and data are in [`Hart::bytes`].
impl Emulation for Hart {
    fn begin_emulation(&mut self, run: &VcpuRun) -> bool {
        self.begin_accesses(run)
    }
    fn begin_accesses(&mut self, run: &VcpuRun) -> bool {
        let begins = run.may_enter(|| run.vm.tlb.generation.load(SeqCst));
        if begins {
            assert!(run.vm.memory.try_lock().is_some(), "other harts would wait for this one with the lock held");
            self.events.push(Event::Emulation(true));
        }
        begins
    }
    fn end_emulation(&mut self) {
        self.events.push(Event::Emulation(false));
    }
    fn fetch_code(&mut self, at: u64) -> Option<u32> {
        self.load_data(at, 4).map(|word| word as u32)
    }
    fn load_data(&mut self, at: u64, width: u8) -> Option<u64> {
        assert!(at.is_multiple_of(width.into()), "{at:#x} is misaligned");
        (0..u64::from(width)).try_fold(0, |value, n| match self.bytes.get(&(at + n)) {
            Some(Ok(byte)) => Some(value | u64::from(*byte) << (8 * n)),
            _ => None,
        })
    }
    fn store_data(&mut self, at: u64, width: u8, value: u64) -> bool {
        if self.load_data(at, width).is_none() || self.read_only.contains(&(at >> 12)) {
            return false;
        }
        (0..u64::from(width)).for_each(|n| _ = self.bytes.insert(at + n, Ok((value >> (8 * n)) as u8)));
        true
    }
    fn supervisor_csr(&self, csr: u16) -> Option<u64> {
        Some(match csr {
            number::SSTATUS => self.regs.vsstatus,
            number::STVEC => self.regs.vstvec,
            number::SEPC => self.regs.vsepc,
            number::SCAUSE => self.regs.vscause,
            number::STVAL => self.regs.vstval,
            number::SSCRATCH => self.sscratch,
            _ => return None,
        })
    }
    fn set_supervisor_csr(&mut self, csr: u16, value: u64) {
        match csr {
            number::SSTATUS => self.regs.vsstatus = value,
            number::STVEC => self.regs.vstvec = value,
            number::SEPC => self.regs.vsepc = value,
            number::SCAUSE => self.regs.vscause = value,
            number::STVAL => self.regs.vstval = value,
            number::SSCRATCH => self.sscratch = value,
            _ => panic!("CSR {csr:#x}"),
        }
    }
    fn fence_memory(&self) {}
}

impl Programs for Hart {
    fn begin_program(&mut self) -> u64 {
        self.events.push(Event::Program(true));
        self.enabled = core::mem::take(&mut self.vsie);
        self.enabled
    }
    fn end_program(&mut self) {
        self.events.push(Event::Program(false));
        self.vsie = core::mem::take(&mut self.enabled);
    }
    fn program_interrupts(&self) -> u64 {
        self.lines >> 1 & self.enabled
    }
    fn guest_deadline(&self) -> u64 {
        self.comparator
    }
    fn set_guest_root(&mut self, satp: u64) {
        self.vsatp = satp;
    }
}
