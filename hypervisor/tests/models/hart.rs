//! A hart of the models: the event loop of the binary's `hart.rs`, around the library's own steps. What a guest does is a
//! [`Program`]. Interrupts between harts and waiting for them are the model checker's.

use crate::fake::Mem;
use abi::bundle::GUEST_RAM_BASE;
use hypervisor::exit;
use hypervisor::gnomon::Gnomon;
use hypervisor::hart::env::Env;
use hypervisor::life::lifecycle;
use hypervisor::memory::shootdown::{arrive, behind, shoot_down};
use hypervisor::sync::atomic::{AtomicBool, AtomicU64};
use hypervisor::vm::Vm;
use hypervisor::vm::outcome::{Brief, Outcome};
use hypervisor::vm::vcpu::{NOWHERE, VcpuRun, VsTrapRegs, request};
use mmu::ids::{Acquired, Group, IdSlot, Ids};
use mmu::shadow::Root;
use rv::{Addr, Asid, Caps, Entry, Exception, Exit, FenceScope, Gpa, Gva, Hpa, Mode, Pfn, PhysMem, Pte};
use sbi_spec::spi;
use shuttle::thread::{self, Thread};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

/// A fault that is made on purpose: the models have to find each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A hart looks at what was posted, and only then says that it enters.
    LooksBeforeItEnters,
    /// A hart looks for work, and only then says that it is idle.
    LooksBeforeItIsIdle,
    /// An edit of a table does not wait for harts in their guests.
    DoesNotWait,
    /// A hart that enters does not fence for the edits of others.
    DoesNotCatchUp,
    /// A hart that fences for an edit does so for one vCPU, and the others come back to what they left there.
    KeepsOthers,
    /// A hart that enters fences for the edits of others, and does not say that the VM is live there again.
    StaysAway,
    /// A hart says that the VM is live there, and only then looks at its generation.
    LooksAfterItArrived,
    /// A vCPU that waits was posted to, and no hart looks.
    WaitsWithoutLooking,
    /// A vCPU that is told to park goes on.
    DoesNotPark,
    /// A vCPU looks whether memory has come, and only then says that it waits for some.
    LooksBeforeItHolds,
    /// A call that might have been brief, and is not, is taken for one that is over.
    TakesAllForBrief,
}

/// The next step of a guest.
pub enum Step {
    /// The guest reads by the translation that it is modelled to have.
    Access,
    /// Nothing until it is interrupted.
    Wait,
    /// An SBI call: extension, function, arguments.
    Sbi(usize, usize, [u64; 3]),
    /// An exit in which the VM's table is changed: the frame that it led to before is free.
    Edit,
    /// The guest stores to that page of its RAM the number that it is to find there. If the page is not present, that
    /// is an exit.
    Touch(u64),
}

/// The program of the guests: it sees the vCPU, whose registers keep its state. It is called in the guest.
pub type Program = fn(&mut VcpuRun) -> Step;

/// The state that the harts share besides [`Gnomon`].
pub struct Rig {
    pub g: Gnomon,
    pub mem: Mem,
    pub program: Program,
    pub mutant: Option<Mutant>,
    interrupts: Vec<AtomicBool>,
    threads: Mutex<Vec<Option<Thread>>>,
    /// The frame that the guests' table leads to, and how many of those before it are free.
    table: AtomicU64,
    freed: AtomicU64,
}

impl Rig {
    pub fn new(g: Gnomon, mem: Mem, program: Program, mutant: Option<Mutant>) -> Self {
        let interrupts = g.harts.iter().map(|_| AtomicBool::new(false)).collect();
        let threads = Mutex::new(g.harts.iter().map(|_| None).collect());
        Self { g, mem, program, mutant, interrupts, threads, table: AtomicU64::new(1), freed: AtomicU64::new(0) }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn interrupt(&self, hart: usize) {
        self.interrupts[hart].store(true, SeqCst);
        let thread = self.threads.lock().unwrap()[hart].clone();
        if let Some(thread) = thread {
            thread.unpark();
        }
    }
}

/// One hart.
pub struct Hart {
    pub rig: Arc<Rig>,
    pub index: usize,
    /// The VM in slot 0 as it was seen here: its number, and the TLB generation that is fenced for.
    view: (u64, u64),
    /// The VMIDs of its vCPUs, and the one that is in `hgatp`.
    vmids: Group,
    vmid: u16,
    ids: Ids,
    /// The frame that the TLB leads to, by VMID.
    tlb: BTreeMap<u16, u64>,
    traps_wfi: bool,
    regs: VsTrapRegs,
    /// The G-stage table of the VM whose vCPU is loaded.
    root: Pfn<Hpa>,
    /// Its timer is set, for what is to be done soon.
    goes_on: bool,
    /// The loaded vCPU's software interrupt is to be raised or lowered.
    software: Option<bool>,
}

/// The number of VMID bits: so few that VMIDs run out.
const VMID_BITS: u32 = 2;

pub const HVIP_SSIP: u64 = 1 << 2;

impl Hart {
    pub fn new(rig: &Arc<Rig>, index: usize) -> Self {
        rig.threads.lock().unwrap()[index] = Some(thread::current());
        let (rig, view) = (Arc::clone(rig), (u64::MAX, 0));
        Self {
            rig,
            index,
            view,
            vmids: Group::new(),
            vmid: 0,
            ids: Ids::new(1, VMID_BITS),
            tlb: BTreeMap::new(),
            traps_wfi: false,
            regs: VsTrapRegs::default(),
            root: Pfn::new(0),
            goes_on: false,
            software: None,
        }
    }

    /// Runs it until all VMs have ended.
    pub fn run(mut self) {
        while let Some(run) = self.next() {
            self.enter(run);
        }
        let harts = self.rig.g.harts.len();
        (0..harts).for_each(|hart| self.rig.interrupt(hart));
    }

    fn next(&mut self) -> Option<Box<VcpuRun>> {
        let rig = Arc::clone(&self.rig);
        let g = &rig.g;
        loop {
            if g.is_over() {
                return None;
            }
            if let Some(mut run) = g.sched.take(self.index) {
                if g.sched.has_ready() {
                    g.rouse(NOWHERE, self);
                }
                self.load(&mut run);
                return Some(run);
            }
            // Memory is taken away by harts that run guests alone: one with nothing else to do would always be faster here.
            if lifecycle::go_on(g, self) | g.pager.poll(g, self) {
                if g.pager.is_on() {
                    // What a VM that ends waits for may be in another hart's hands.
                    self.relax();
                }
                continue;
            }
            if rig.is(Mutant::LooksBeforeItIsIdle) {
                let has_ready = g.sched.has_ready() || g.is_over();
                g.harts[self.index].idle.store(true, SeqCst);
                if !has_ready {
                    self.sleep();
                }
                g.harts[self.index].idle.store(false, SeqCst);
            } else {
                g.rest(self, |hart| hart.sleep());
            }
            self.clear_interrupt();
        }
    }

    fn is_interrupted(&self) -> bool {
        self.rig.interrupts[self.index].load(SeqCst)
    }

    fn clear_interrupt(&self) {
        self.rig.interrupts[self.index].store(false, SeqCst);
    }

    /// Waits for an interrupt (WFI).
    fn sleep(&mut self) {
        while !self.is_interrupted() {
            thread::park();
        }
    }

    fn load(&mut self, run: &mut VcpuRun) {
        let (rig, vm) = (Arc::clone(&self.rig), Arc::clone(&run.vm));
        let generation = self.arrive(&vm);
        if self.view.0 != vm.handle.number {
            self.view = (vm.handle.number, generation);
            self.vmids = Group::new();
        }
        vm.translation.load(&rig.g, run, self).expect("in two stages");
        run.awake();
        run.last_hart = self.index;
        run.shared.hart.store(self.index, SeqCst);
    }

    fn arrive(&self, vm: &Vm) -> u64 {
        if self.rig.is(Mutant::LooksAfterItArrived) {
            vm.tlb.live_on.fetch_or(1 << self.index, SeqCst);
            return vm.tlb.generation.load(SeqCst);
        }
        arrive(vm, self.index)
    }

    fn unload(&mut self, run: &mut VcpuRun) {
        run.vm.translation.unload(run, self);
        run.discard_ready(&self.rig.g.harts[self.index].frames);
        run.shared.hart.store(NOWHERE, SeqCst);
    }

    fn give_up(&mut self, mut run: Box<VcpuRun>, is_paused: bool) {
        let rig = Arc::clone(&self.rig);
        self.unload(&mut run);
        rig.g.sched.stopped();
        if is_paused { lifecycle::put_aside(&rig.g, run, self) } else { lifecycle::park(&rig.g, run, self) }
    }

    /// Runs a loaded vCPU until it leaves the hart.
    fn enter(&mut self, mut run: Box<VcpuRun>) {
        let rig = Arc::clone(&self.rig);
        loop {
            self.traps_wfi = rig.g.sched.is_overcommitted();
            while !self.announce(&run) {
                let posted = run.shared.posted.swap(0, SeqCst);
                if posted & request::PARK != 0 && !rig.is(Mutant::DoesNotPark) {
                    return self.give_up(run, false);
                }
                if posted & request::PAUSE != 0 {
                    run.shared.posted.fetch_or(posted & !request::PAUSE, SeqCst);
                    return self.give_up(run, true);
                }
                if posted & request::SOFTWARE != 0 {
                    run.bank.csrs.hvip |= HVIP_SSIP;
                }
                let (vm, fenced) = (&run.vm, self.view.1);
                let generation = vm.tlb.generation.load(SeqCst);
                let generation = match rig.mutant {
                    Some(Mutant::StaysAway) => Some(generation).filter(|generation| *generation != fenced),
                    Some(Mutant::LooksAfterItArrived) => (generation != fenced).then(|| self.arrive(vm)),
                    _ => behind(vm, self.index, fenced),
                };
                if let Some(generation) = generation {
                    self.view.1 = generation;
                    if !rig.is(Mutant::DoesNotCatchUp) {
                        run.vm.translation.catch_up(&run.vm, self);
                    }
                }
            }
            let step = self.guest(&mut run);
            rig.g.harts[self.index].left();
            match step {
                None => {
                    self.clear_interrupt();
                    // As often as it takes for the hand to come round.
                    (0..3).for_each(|_| _ = hypervisor::life::idle::page(&rig.g, self));
                }
                Some(Step::Access) => unreachable!("no exit"),
                Some(Step::Touch(page)) => match self.fault(&mut run, page) {
                    Outcome::Resume => {}
                    Outcome::Later => {
                        if rig.is(Mutant::LooksBeforeItHolds) {
                            run.vm.held.fetch_and(!(1 << run.shared.id), SeqCst);
                            self.relax();
                            run.hold();
                        }
                        if run.shared.posted.load(SeqCst) == 0 {
                            return self.wait(run);
                        }
                    }
                    other => unreachable!("{other:?}"),
                },
                Some(Step::Edit) => self.edit(&run),
                Some(Step::Wait) => {
                    if run.bank.csrs.hvip & HVIP_SSIP == 0 && run.shared.posted.load(SeqCst) == 0 {
                        return self.wait(run);
                    }
                }
                Some(Step::Sbi(extension, function, arguments)) => {
                    match self.call(&mut run, extension, function, arguments) {
                        Outcome::Resume => {}
                        Outcome::Stop => return self.give_up(run, false),
                        Outcome::Depart(departure) => {
                            lifecycle::depart(&rig.g, &Arc::clone(&run.vm), departure, self);
                        }
                        other => unreachable!("{other:?}"),
                    }
                }
            }
        }
    }

    fn announce(&self, run: &VcpuRun) -> bool {
        let (hart, slot) = (&self.rig.g.harts[self.index], run.vm.slot());
        if self.rig.is(Mutant::LooksBeforeItEnters) {
            return run.may_enter(|| self.view.1) && hart.announce(slot, || true);
        }
        hart.announce(slot, || run.may_enter(|| self.view.1))
    }

    /// Runs the guest until its next exit; `None` if that is by an interrupt.
    fn guest(&mut self, run: &mut VcpuRun) -> Option<Step> {
        loop {
            if self.is_interrupted() {
                return None;
            }
            match (self.rig.program)(run) {
                Step::Access => {
                    let frame = *self.tlb.entry(self.vmid).or_insert_with(|| self.rig.table.load(SeqCst));
                    let freed = self.rig.freed.load(SeqCst);
                    assert!(frame > freed, "the guest reads frame {frame}, and those up to {freed} are free");
                }
                Step::Touch(page) if self.store(run, page) => {
                    if core::mem::take(&mut self.goes_on) {
                        return None;
                    }
                }
                Step::Sbi(extension, function, arguments)
                    if self.call_briefly(run, extension, function, arguments)
                        || extension == spi::EID_SPI && self.rig.is(Mutant::TakesAllForBrief) => {}
                // The hart itself waits, in the guest.
                Step::Wait if !self.traps_wfi => {
                    if run.bank.csrs.hvip & HVIP_SSIP == 0 {
                        self.sleep();
                        return None;
                    }
                }
                step => return Some(step),
            }
        }
    }

    /// Stores to a page of the guest's RAM, if its G-stage table leads there. No other hart does anything meanwhile: as
    /// hardware it needs no lock, and a hart that holds one may wait for it.
    fn store(&self, run: &mut VcpuRun, page: u64) -> bool {
        let gpa = Addr::<Gpa>::new(GUEST_RAM_BASE + (page << 12));
        let (format, mut mem) = (self.rig.g.offer.g_format, self.mem());
        let (mut table, mut level) = (self.root, format.root_level());
        let hpa = loop {
            let pte = Pte(mem.read_u64(table.at(8 * format.index(gpa, level) as u64)));
            match (pte.decode::<Hpa>(level, Caps::default()), level.down()) {
                (Entry::Table(next), Some(below)) => (table, level) = (next, below),
                (Entry::Leaf(leaf), _) => break leaf.pfn.at(gpa.raw() & (level.bytes() - 1)),
                _ => return false,
            }
        };
        let found = mem.read_u64(hpa);
        assert!(found == 0 || found == page, "page {page} holds {found}");
        mem.write_u64(hpa, page);
        run.context.x[7] += 1;
        true
    }

    fn fault(&mut self, run: &mut VcpuRun, page: u64) -> Outcome {
        let (rig, tval2) = (Arc::clone(&self.rig), (GUEST_RAM_BASE + (page << 12)) >> 2);
        run.context.exit = Exit { cause: Exception::StoreGuestPage.code(), tval2, ..Exit::default() };
        exit::handle(&rig.g, run, self)
    }

    fn wait(&mut self, mut run: Box<VcpuRun>) {
        self.unload(&mut run);
        let sched = &self.rig.g.sched;
        if self.rig.is(Mutant::WaitsWithoutLooking) {
            let shared = Arc::clone(&run.shared);
            let posted = shared.posted.swap(0, SeqCst);
            sched.wait(run, u64::MAX, self.index, 0);
            shared.posted.fetch_or(posted, SeqCst);
        } else {
            sched.wait(run, u64::MAX, self.index, 0);
        }
    }

    fn edit(&mut self, run: &VcpuRun) {
        let rig = Arc::clone(&self.rig);
        // The editor of a VM's tables holds their lock.
        let _held = run.vm.memory.lock();
        let before = rig.table.fetch_add(1, SeqCst);
        if rig.is(Mutant::DoesNotWait) {
            run.vm.tlb.generation.fetch_add(1, SeqCst);
        } else {
            shoot_down(&rig.g, &run.vm, self);
        }
        self.fence_g_stage(run.vm.slot(), FenceScope::Everything);
        rig.freed.fetch_max(before, SeqCst);
    }

    fn call(&mut self, run: &mut VcpuRun, extension: usize, function: usize, arguments: [u64; 3]) -> Outcome {
        run.context.x[10..13].copy_from_slice(&arguments);
        (run.context.x[16], run.context.x[17]) = (function as u64, extension as u64);
        run.context.exit = Exit { cause: Exception::EcallFromVs.code(), ..Exit::default() };
        let rig = Arc::clone(&self.rig);
        exit::handle(&rig.g, run, self)
    }

    /// Makes an SBI call, if it is brief: others see the hart in its guest meanwhile. Returns whether it is.
    fn call_briefly(&mut self, run: &mut VcpuRun, extension: usize, function: usize, arguments: [u64; 3]) -> bool {
        run.context.x[10..13].copy_from_slice(&arguments);
        (run.context.x[16], run.context.x[17]) = (function as u64, extension as u64);
        run.context.exit = Exit { cause: Exception::EcallFromVs.code(), ..Exit::default() };
        let rig = Arc::clone(&self.rig);
        let kind = exit::kind_of(run, run.context.exit.cause);
        let is_over = kind.is_some_and(|kind| exit::handle_brief(kind, &rig.g, run, self) == Brief::OVER);
        match self.software.take() {
            Some(true) => run.bank.csrs.hvip |= HVIP_SSIP,
            Some(false) => run.bank.csrs.hvip &= !HVIP_SSIP,
            None => {}
        }
        is_over
    }
}

impl Env for Hart {
    type Mem = Mem;
    fn mem(&self) -> Mem {
        self.rig.mem.clone()
    }
    fn hart(&self) -> usize {
        self.index
    }
    fn now(&self) -> u64 {
        0
    }
    fn sets_ad(&self) -> bool {
        false
    }
    fn privilege(&self) -> Mode {
        Mode::Supervisor
    }
    fn set_privilege(&mut self, _: Mode) {}
    fn trap_regs(&self) -> VsTrapRegs {
        self.regs
    }
    fn status(&self) -> u64 {
        0
    }
    fn set_trap_regs(&mut self, regs: &VsTrapRegs) {
        self.regs = *regs;
    }
    fn follow_counters(&mut self, _: &VcpuRun) {}
    fn user_environment(&self) -> u64 {
        0
    }
    fn load_byte(&mut self, _: u64) -> Result<u8, rv::Exit> {
        unreachable!("no access is misaligned")
    }
    fn store_byte(&mut self, _: u64, _: u8) -> Result<(), rv::Exit> {
        unreachable!("no access is misaligned")
    }
    fn float_register(&mut self, _: u8) -> u64 {
        unreachable!("no access is misaligned")
    }
    fn set_float_register(&mut self, _: u8, _: u64) {
        unreachable!("no access is misaligned")
    }
    fn user_counters(&self) -> u64 {
        0
    }
    fn vsatp(&self) -> u64 {
        0
    }
    fn interrupt_pending(&self) -> bool {
        false
    }
    fn set_timer_interrupt(&mut self, _: bool) {}
    fn set_software_interrupt(&mut self, high: bool) {
        self.software = Some(high);
    }
    fn deadline_changed(&mut self, _: &VcpuRun) {}
    fn set_guest_deadline(&mut self, _: u64) {}
    fn send_ipi(&mut self, hart: usize) {
        self.rig.interrupt(hart);
    }
    fn load_two_stage(&mut self, run: &mut VcpuRun, table: Pfn<Hpa>) {
        let stays = run.last_hart == self.index;
        if self.vmids.come(&mut run.vmid, stays, &mut self.ids) == Acquired::RolledOver {
            self.tlb.clear();
        }
        (self.vmid, self.root) = (run.vmid.id(), table);
    }
    fn load_shadow(&mut self, _: &VcpuRun, _: bool) {}
    fn leave_tables(&mut self) {}
    fn asid_bits(&self) -> u32 {
        16
    }
    fn fence_g_stage(&mut self, _: usize, _: FenceScope<Gpa>) {
        let mut vmids = self.vmids;
        self.tlb.remove(&vmids.give_up_others(&self.ids));
        if !self.rig.is(Mutant::KeepsOthers) {
            self.vmids = vmids;
        }
    }
    fn load_root(&mut self, _: &Root, _: &mut IdSlot, _: bool) -> u64 {
        0
    }
    fn fence_guest(&mut self, _: Option<Addr<Gva>>, _: Option<Asid>) {}
    fn fence_shadows(&mut self) {}
    fn fence_guest_root(&mut self) {}
    fn lane_table(&self, root: &Root) -> u64 {
        root.format.mode.into()
    }
    fn fence_instructions(&mut self) {}
    fn fenced_for(&mut self, _: usize, generation: u64) {
        if self.view.1 + 1 == generation {
            self.view.1 = generation;
        }
    }
    fn attend_soon(&mut self, _: Option<usize>) {}
    fn attend_at(&mut self, _: u64, _: usize) {}
    fn others_from(&self) -> u64 {
        0
    }
    fn charge_others(&mut self, _: u64) {}
    fn go_on_soon(&mut self) {
        // Where memory is not short, harts do it when they have nothing else to do.
        self.goes_on |= self.rig.g.pager.is_on();
    }
    fn relax(&self) {
        thread::yield_now();
    }
}
