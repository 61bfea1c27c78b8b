//! One hart: its event loop, and [`Env`] made of instructions.
//!
//! Every exit arrives in [`gnomon_exit`] on the hart's empty stack and ends with the context to enter
//! next. The hart owns the vCPU it runs by holding its box.

mod brief;
mod due;
mod emulation;
mod env;
mod external;
mod interrupts;
mod load;
mod probed;
mod programs;
mod serve;
mod tags;
mod unplain;
mod worlds;

use crate::drivers::PlicContext;
use crate::guest::GuestHart;
use crate::pen;
use crate::seat::{self, PowerOff, SeatHart};
use ::lane::Context;
use abi::record::{EndReason, Record};
use abi::tunable::Id;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use due::{Due, Ticks};
use hypervisor::control;
use hypervisor::device::offer::{Denial, GuestTimer};
use hypervisor::exit::{self, watch};
use hypervisor::gnomon::Gnomon;
use hypervisor::hart::budget::Budget;
use hypervisor::hart::env::Env;
use hypervisor::hart::harts::HartShared;
use hypervisor::io::host_events;
use hypervisor::life::lifecycle;
use hypervisor::measure::probe::Doing;
use hypervisor::memory::shootdown;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::{NOWHERE, VcpuRun, request};
use hypervisor::vm::{Departure, Vm};
use interrupts::HostDevices;
pub use interrupts::{Interrupts, MOST_DEVICES};
use metal::ram::Ram;
use metal::{fence, world};
use rv::Mode;
use tags::{Tags, View};
use unplain::Unplain;

/// The means to reach another hart.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// Its hart id.
    pub id: u64,
    /// Its `msip` register, in the firmware seat.
    pub msip: u64,
}

/// A hart's own block; `tp` points to it.
pub struct Hart {
    g: &'static Gnomon,
    index: usize,
    /// The hart's state that others see.
    shared: &'static HartShared,
    seat: SeatHart,
    guest: GuestHart,
    ram: Ram,
    reach: Arc<[Reach]>,
    host: HostDevices,
    stack_end: u64,
    current: Option<Box<VcpuRun>>,
    tags: Tags,
    /// The vCPU whose floating point and vectors are in the registers: VM and vCPU number.
    registers_of: Option<(u64, u32)>,
    /// Set if slices end: there are more vCPUs than harts.
    is_shared: bool,
    /// Set if WFI and WRS.NTO trap, unless the vCPU spins.
    traps_wfi: bool,
    /// Set if the vCPU waits for another's store in its guest, where WRS.NTO does not trap now.
    spins: bool,
    due: Due,
    ticks: Ticks,
    /// Set if exits are only handled: one has proved that, no client wants to know of them, and no samples are taken.
    is_plain: bool,
    /// The facts about exits that are more than handled.
    unplain: Unplain,
}

/// The reason for which a vCPU leaves its hart, and is no longer started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaves {
    /// The vCPU stops, or its VM does.
    ForPark,
    /// Its VM is paused.
    ForPause,
}

/// A fence over more pages than this becomes one for the whole address space.
const FENCE_PAGES: u64 = 64;

static POWERING_OFF: AtomicBool = AtomicBool::new(false);

/// The state that a hart is started with.
pub struct Start {
    /// The state that all harts share.
    pub g: &'static Gnomon,
    /// This hart's index.
    pub index: usize,
    /// Its devices.
    pub seat: SeatHart,
    /// The way in which the hart runs guests.
    pub guest: GuestHart,
    /// Host RAM.
    pub ram: Ram,
    /// The means to reach the other harts.
    pub reach: Arc<[Reach]>,
    /// The PLIC contexts of all harts.
    pub contexts: &'static [Option<PlicContext>],
    /// The devices that interrupt beside the UART, with their PLIC sources.
    pub devices: &'static [(u32, Interrupts)],
    /// VMID bits of the hart.
    pub vmid_bits: u32,
    /// ASID bits of the register that holds a guest's root.
    pub asid_bits: u32,
}

impl Hart {
    /// Makes the hart's block, ready to run.
    pub fn new(start: Start) -> Self {
        let (per_ms, id_bits) = (start.g.offer.timebase / 1000, start.g.tunables.get(Id::IdBits) as u32);
        let (mut guest, vmid_bits) = (start.guest, start.vmid_bits.min(id_bits));
        guest.use_vmid_bits(vmid_bits);
        if let Denial::Hole { table } = start.g.offer.denial {
            guest.use_hole(start.g.offer.g_format, table);
        }
        Self {
            index: start.index,
            shared: &start.g.harts[start.index],
            seat: start.seat,
            guest,
            ram: start.ram,
            reach: start.reach,
            host: HostDevices {
                contexts: start.contexts,
                devices: start.devices,
                deferred: 0,
                budget: Budget::default(),
            },
            stack_end: pen::stack_end(start.index),
            current: None,
            tags: Tags::new(vmid_bits, start.asid_bits, id_bits),
            registers_of: None,
            is_shared: false,
            traps_wfi: false,
            spins: false,
            due: Due::NOTHING,
            ticks: Ticks::new(per_ms),
            is_plain: false,
            unplain: Unplain::default(),
            g: start.g,
        }
    }

    /// Runs the hart for ever. The block is leaked: `tp` and every context point to it.
    pub fn run(self) -> ! {
        let hart = Box::leak(Box::new(self));
        let (this, stack) = ((&raw mut *hart).expose_provenance(), hart.stack_end);
        // SAFETY: `tp` is this hart's; nothing on the present stack is needed any more.
        unsafe {
            world::set_thread_pointer(this);
            world::on_empty_stack(this, stack, first_entry)
        }
    }

    /// Finds something to run, and prepares its entry.
    fn schedule(&mut self) -> *mut Context {
        loop {
            let run = self.next();
            if let Some(context) = self.enter(run) {
                self.turns(Doing::Guest);
                return context;
            }
            // A vCPU that may not enter yet takes turns with what the hart does for others: no guest is left for an interrupt here.
            self.attend_external();
        }
    }

    /// Loads the next vCPU; waits until there is one.
    fn next(&mut self) -> Box<VcpuRun> {
        let shared = self.shared;
        loop {
            if self.g.is_over() {
                self.power_off();
            }
            let now = self.now();
            self.expire(now);
            self.handle_deferred(None);
            self.look_after(now, None);
            if let Some(mut run) = self.g.sched.take(self.index) {
                if self.g.sched.has_ready() {
                    // The hart that made them ready may have roused this one only.
                    self.g.rouse(NOWHERE, self);
                }
                self.load(&mut run, now);
                return run;
            }
            if hypervisor::life::idle::go_on(self.g, self) {
                self.handle_left(None);
                self.attend_external();
                continue;
            }
            self.g.rest(self, |hart| {
                shared.counters.idles.bump();
                hart.arm(hart.due.waiters.min(hart.due.serial));
                hart.turns(Doing::Idle);
                hart.wait_for_interrupt();
                hart.turns(Doing::Host);
            });
            self.seat.clear_ipi();
            self.look_who_asks();
            self.handle_left(None);
            self.attend_external();
        }
    }

    /// Waits for an interrupt of this hart.
    fn wait_for_interrupt(&self) {
        if self.g.tunables.get(Id::IdlePoll) == 0 {
            return metal::wait_for_interrupt();
        }
        while !self.seat.is_interrupted() {
            core::hint::spin_loop();
        }
    }

    /// Makes those vCPUs ready that waited for a time which has come.
    fn expire(&mut self, now: u64) {
        self.due.waiters = self.g.sched.expire(self.index, now, |run| {
            if run.deadline <= now {
                run.shared.posted.fetch_or(request::TIMER, Ordering::SeqCst);
            }
        });
    }

    /// Makes slices end while there are more vCPUs than harts, and only then. Makes WFI trap then, and while a client wants to know
    /// how long guests work. When that changes, harts are kicked, so an entry need not look if the exit before it was short.
    fn set_policy(&mut self) {
        self.is_shared = self.g.sched.is_overcommitted();
        let traps = self.is_shared || !self.is_plain && self.g.asked.is_exact(self.now());
        if traps != self.traps_wfi {
            self.traps_wfi = traps;
            self.set_spins(false);
            self.guest.set_wfi_trap(traps);
        }
    }

    /// Lets the vCPU wait for a store in its guest, or no longer.
    fn set_spins(&mut self, spins: bool) {
        if spins != self.spins {
            self.spins = spins;
            self.shared.spins.store(spins, Ordering::SeqCst);
            self.guest.set_wfi_trap(self.traps_wfi && !spins);
        }
    }

    fn arm(&mut self, deadline: u64) {
        if deadline != self.due.armed {
            self.due.armed = deadline;
            self.seat.set_timer(deadline);
        }
    }

    /// Prepares the entry into the loaded vCPU; `None` if it was given up instead.
    fn enter(&mut self, mut run: Box<VcpuRun>) -> Option<*mut Context> {
        self.set_policy();
        loop {
            if run.nested.is_some() || run.program.is_some() {
                run = self.settle_worlds(run)?;
            }
            let is_settled = !run.is_unsettled(); // OWNERSHIP: L2 may have no root yet, behind which is no G-stage
            if is_settled && self.announce(&run) {
                return Some(self.go(run));
            }
            let posted = run.shared.posted.load(Ordering::SeqCst);
            let lacks_root = posted & request::PARK == 0 && !run.vm.translation.may_enter(&run);
            // It will go on to make one when it is loaded again.
            if lacks_root || !is_settled && posted & (request::PARK | request::PAUSE) == 0 {
                let now = self.now();
                self.requeue(run, now);
                return None;
            }
            // Served before the entry is announced: it may wait for a lock whose holder waits for this hart to leave.
            if let Some(what_for) = self.serve(&mut run) {
                self.give_up(run, what_for);
                return None;
            }
            let vm = run.vm.slot();
            if let Some(generation) = shootdown::behind(&run.vm, self.index, self.tags.views[vm].fenced) {
                self.tags.views[vm].fenced = generation;
                self.shared.counters.fences.bump();
                run.vm.translation.catch_up(&run.vm, self);
                // What the table now leads to may hold code that another hart copied there.
                fence::instruction();
            }
        }
    }

    /// Delivers interrupts that a vCPU with the H extension is to take, and makes sure that L1 knows of L2's last exit before it goes on. Ends the
    /// run of a program if its kernel is to take an interrupt. Returns the vCPU if it may enter, or is to leave its hart anyway.
    #[cold]
    #[inline(never)]
    fn settle_worlds(&mut self, mut run: Box<VcpuRun>) -> Option<Box<VcpuRun>> {
        exit::nested::interrupt(self.g, &mut run, self);
        let outcome = exit::vmspace::settle(self.g, &mut run, self);
        let outcome = outcome.or_else(|| exit::nested::settle(self.g, &mut run, self));
        let Some(outcome) = outcome else { return Some(run) };
        if run.shared.posted.load(Ordering::SeqCst) & (request::PARK | request::PAUSE) != 0 {
            return Some(run);
        }
        match outcome {
            Outcome::Later => self.wait(run, u64::MAX),
            Outcome::Depart(departure) => {
                lifecycle::depart(self.g, &Arc::clone(&run.vm), departure, self);
                // It has been asked to park, or is about to be.
                return Some(run);
            }
            _ => {
                let now = self.now();
                self.requeue(run, now);
            }
        }
        None
    }

    /// Announces that the guest is about to be entered, unless something is to be done before.
    #[inline(always)]
    fn announce(&mut self, run: &VcpuRun) -> bool {
        let slot = run.vm.slot();
        self.shared.announce(slot, || run.may_enter(|| self.tags.views[slot].fenced))
    }

    /// Does the last step of an entry that is announced.
    #[inline(always)]
    fn go(&mut self, run: Box<VcpuRun>) -> *mut Context {
        self.arm_for(&run);
        let run = self.current.insert(run);
        &raw mut run.context
    }

    /// Sets Gnomon's timer for what comes first while that vCPU runs.
    #[inline(always)]
    fn arm_for(&mut self, run: &VcpuRun) {
        let slice_end = if self.is_shared { self.due.slice_end } else { u64::MAX };
        self.arm(slice_end.min(run.watch.due()).min(self.due.waiters).min(run.deadline).min(self.due.serial));
    }

    /// Handles the exit of the vCPU on this hart; returns what to enter next.
    #[inline(always)]
    fn exit(&mut self) -> *mut Context {
        if !self.is_plain && self.begin_exit() {
            return self.exit_aside();
        }
        let Some(mut run) = self.current.take() else { unreachable!("an exit without a vCPU") };
        self.shared.left();
        let outcome = exit::handle(self.g, &mut run, self);
        self.leave_exit(run, outcome)
    }

    /// Handles an exit of L2, or of a program.
    #[cold]
    #[inline(never)]
    fn exit_aside(&mut self) -> *mut Context {
        let Some(mut run) = self.current.take() else { unreachable!("an exit without a vCPU") };
        self.shared.left();
        if run.runs_program() {
            let outcome = exit::vmspace::handle(self.g, &mut run, self);
            return self.leave_exit(run, outcome);
        }
        let outcome = exit::nested::handle(self.g, &mut run, self);
        // OWNERSHIP: L2 may have lost its root. [`Hart::enter`] gives it another.
        if run.is_unsettled() { self.go_on(run, outcome) } else { self.leave_exit(run, outcome) }
    }

    /// Ends an exit that is handled.
    #[inline(always)]
    fn leave_exit(&mut self, run: Box<VcpuRun>, outcome: Outcome) -> *mut Context {
        match outcome {
            // Most exits end here.
            Outcome::Resume if self.announce(&run) => self.go(run),
            outcome => self.go_on(run, outcome),
        }
    }

    /// Ends an exit that leaves something to do before a guest goes on, this one or another.
    #[inline(never)]
    fn go_on(&mut self, run: Box<VcpuRun>, outcome: Outcome) -> *mut Context {
        if !self.is_plain {
            run.shared.posted.fetch_and(!request::PROBE, Ordering::SeqCst);
        }
        let context = match self.conclude(run, outcome).and_then(|run| self.enter(run)) {
            Some(context) => context,
            None => self.schedule(),
        };
        if !self.is_plain {
            self.end_exit();
        }
        context
    }

    /// Does what an exit asks for; returns the vCPU if it stays on this hart.
    fn conclude(&mut self, run: Box<VcpuRun>, outcome: Outcome) -> Option<Box<VcpuRun>> {
        match outcome {
            Outcome::Resume => {}
            Outcome::Timer => {
                self.due.armed = 0; // it has fired: whatever comes next is set anew
                return self.tick(run);
            }
            Outcome::Kicked => {
                self.seat.clear_ipi();
                self.set_spins(false);
                self.look_who_asks();
                self.handle_left(Some(&run.vm));
            }
            Outcome::External => self.external(Some(&run.vm)),
            Outcome::Wait => {
                if !self.interrupt_pending() && run.shared.posted.load(Ordering::SeqCst) == 0 {
                    let until = self.next_timer(&run);
                    self.wait(run, until);
                    return None;
                }
                run.awake();
            }
            Outcome::Yield => return self.give_way(run),
            Outcome::Later => {
                // It may take an interrupt first, as it might before the instruction.
                // L1's interrupts are taken whatever L2's SIE is.
                let takes =
                    self.guest.runs_l2() || self.privilege() == Mode::User || self.status() & rv::csr::status::SIE != 0;
                if !(takes && self.interrupt_pending()) && run.shared.posted.load(Ordering::SeqCst) == 0 {
                    let until = if takes { self.next_timer(&run) } else { u64::MAX };
                    self.wait(run, until);
                    return None;
                }
            }
            Outcome::Stop => {
                self.give_up(run, Leaves::ForPark);
                return None;
            }
            Outcome::Sleep { pc, opaque } => {
                self.sleep(run, pc, opaque);
                return None;
            }
            // The vCPU finds its own PARK when it is about to enter.
            Outcome::Depart(departure) => lifecycle::depart(self.g, &Arc::clone(&run.vm), departure, self),
        }
        Some(run)
    }

    /// Handles Gnomon's timer.
    fn tick(&mut self, mut run: Box<VcpuRun>) -> Option<Box<VcpuRun>> {
        run.count_lane();
        let (now, spun) = (self.now(), self.spins);
        self.set_spins(false);
        if run.deadline <= now {
            self.raise_timer(&mut run);
        }
        if run.watch.due() <= now
            && let Some(message) = watch::look(self.g, &mut run, (now, self.ticks.watch), self)
        {
            let end = Departure::End(EndReason::Killed { message });
            lifecycle::depart(self.g, &Arc::clone(&run.vm), end, self);
            return Some(run);
        }
        self.look_after(now, Some(&Arc::clone(&run.vm)));
        if self.due.waiters <= now {
            self.expire(now);
            self.g.rouse(NOWHERE, self);
        }
        if !self.is_shared || now < self.due.slice_end {
            return Some(run);
        }
        self.due.slice_end = now + self.ticks.slice;
        if !self.g.sched.has_ready() {
            return Some(run);
        }
        run.shared.counters.preemptions.bump();
        self.requeue(run, if spun { now + self.ticks.behind } else { now });
        None
    }

    /// Raises the timer interrupt of the vCPU, whose deadline has come. With Sstc Gnomon's timer stands in for the vCPU's own comparator only
    /// while another world runs. If that was a program, it has ended since, or ends by the comparator. While that is raised, QEMU 10.0
    /// ignores a write of `hvip` that is to clear VSTIP, so `hvip` must not have it.
    fn raise_timer(&mut self, run: &mut VcpuRun) {
        run.deadline = u64::MAX;
        run.shared.counters.inject_timer.bump();
        if self.g.offer.timer == GuestTimer::Sbi || self.guest.runs_l2() {
            self.set_timer_interrupt(true);
        }
    }

    /// Returns the host time of the next timer interrupt of the vCPU on this hart.
    fn next_timer(&self, run: &VcpuRun) -> u64 {
        match self.g.offer.timer {
            GuestTimer::Sstc if self.guest.runs_l2() => {
                run.deadline.min(run.vm.host_time(self.guest.comparator_of_l2(), self.now()))
            }
            GuestTimer::Sstc => run.vm.host_time(self.guest.comparator(), self.now()),
            GuestTimer::Sbi => run.deadline,
        }
    }

    /// Continues with output that was left, with guests' devices, with chores and with deferred interrupts, if it is time. While the hart
    /// has a vCPU of VM `own`, all that is not that VM's is done within the budget for others.
    fn look_after(&mut self, now: u64, own: Option<&Vm>) {
        // Of what is left by a hart that had no time to look again, some hart hears at its timer.
        if self.due.serial > now && !self.g.console.is_dirty() {
            return;
        }
        (self.due.serial, self.due.serial_is_soon) = (u64::MAX, false);
        let guests = core::mem::take(&mut self.due.serial_guests);
        let own_guest = own.map_or(u64::MAX, |vm| 1 << vm.slot());
        host_events::go_on(self.g, guests & own_guest, self);
        // Requests come from the host, not from a VM.
        control::go_on(self.g, self);
        // A guest that waits for pages of its own has them brought in at its own cost; and pages that go at random go from all.
        let at_random = self.g.tunables.get(Id::UnmapAtRandom) != 0;
        let pages = at_random || own.is_some_and(|vm| self.g.pager.is_busy_for(vm.handle));
        if own.is_some() && !pages && !self.host.budget.allows(now) {
            self.due.serial_guests |= guests & !own_guest;
            if self.due.serial_guests != 0 || self.host.deferred != 0 || self.due.chores != u64::MAX {
                self.due.serial = self.due.serial.min(self.host.budget.next());
            }
            return;
        }
        let begun = self.now();
        if guests & !own_guest != 0 {
            host_events::go_on(self.g, guests & !own_guest, self);
        }
        if self.due.chores <= now {
            self.due.chores = u64::MAX;
            lifecycle::go_on(self.g, self);
            hypervisor::life::idle::page(self.g, self);
        }
        if own.is_some() {
            self.host.budget.charge(begun, self.now());
        }
        self.handle_deferred(own);
        self.due.serial = self.due.serial.min(self.due.chores);
    }

    fn power_off(&self) -> ! {
        if !POWERING_OFF.swap(true, Ordering::SeqCst) {
            self.g.record(&Record::Stats(self.g.stats()));
            self.g.record(&Record::Halt);
            self.g.console.flush();
            seat::power_off(PowerOff::Done);
        }
        loop {
            metal::wait_for_interrupt();
        }
    }
}

/// Returns this hart's block.
///
/// # Safety
/// `tp` points to it since [`Hart::run`], and the caller holds no other reference to it: true at an exit, which starts
/// on an empty stack.
unsafe fn this_hart<'a>(address: usize) -> &'a mut Hart {
    // SAFETY: by the caller's promise.
    unsafe { &mut *core::ptr::with_exposed_provenance_mut(address) }
}

extern "C" fn first_entry(address: usize) -> ! {
    // SAFETY: the address that `run` passed, on an empty stack.
    let hart = unsafe { this_hart(address) };
    let context = hart.schedule();
    hart.end_exit();
    let guest = hart.guest;
    // SAFETY: prepared by `enter`; nothing of this stack is needed any more.
    unsafe { guest.enter(context) }
}

/// Handles an exit. The trap vectors jump here on the hart's empty stack, and name the address to continue at.
#[unsafe(no_mangle)]
extern "C" fn gnomon_exit(_: *mut Context, resume: usize) -> ! {
    // SAFETY: the vector has set `tp` and emptied the stack.
    let hart = unsafe { this_hart(world::thread_pointer()) };
    let context = hart.exit();
    // SAFETY: prepared by `enter`; nothing of this stack is needed any more.
    unsafe { world::resume(context, resume) }
}
