//! Models: harts run by a model checker (shuttle). At each access to shared state it decides which hart goes on, in an
//! order that it can repeat. A wake-up that is lost is a deadlock, which it finds; so is a lock taken in the wrong
//! order. It knows no weaker order of memory than the one that all harts agree on: what these protocols use is
//! sequentially consistent.
//!
//! `MODEL_ROUNDS` is the number of orders that are tried of each (500 if missing), and `MODEL_SEED` the seed that
//! chooses them (1 if missing).

#[path = "../pager/disk.rs"]
mod disk;
#[path = "../fake/mod.rs"]
mod fake;
mod hart;
mod mappings;
mod worlds;

use abi::bundle::VmConfig;
use abi::record::EndReason;
use fake::{machine, machine_of, vm_config};
use hart::{Hart, Mutant, Program, Rig, Step};
use hypervisor::device::offer::GuestTimer;
use hypervisor::life::lifecycle;
use hypervisor::pager::Pager;
use hypervisor::vm::Departure;
use hypervisor::vm::vcpu::VcpuRun;
use mmu::frames::Owner;
use sbi_spec::{hsm, spi, srst};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Pages of the swap device.
const DISK_PAGES: u64 = 100;

/// A machine of `harts` harts with a VM, whose guest is that program.
#[derive(Clone, Copy)]
struct Model {
    harts: usize,
    vcpus: u32,
    program: Program,
    /// The first action of one more hart.
    meddle: Option<fn(&mut Hart)>,
    /// The machine has so many frames, if not enough, and a swap device.
    frames: Option<u64>,
}

impl Model {
    /// Runs one order of events.
    fn run(self, mutant: Option<Mutant>) {
        let config = vm_config("vm", self.vcpus);
        let others = usize::from(self.meddle.is_some());
        let disk = disk::Hand::new(DISK_PAGES);
        let (g, hart) = match self.frames {
            None => machine(vec![config], self.harts + others, GuestTimer::Sstc),
            Some(frames) => {
                let config = VmConfig { memory_bytes: 4 << 20, superpages: false, ..config };
                let pager = Pager::new(Some(disk.disk()));
                machine_of((frames, pager), vec![config], self.harts + others, GuestTimer::Sstc)
            }
        };
        disk.get().delay = 0;
        disk.plug_into(&hart.mem);
        let rig = Arc::new(Rig::new(g, hart.mem, self.program, mutant));
        let mut first = Hart::new(&rig, 0);
        // The VM starts before the others come, as at a boot.
        lifecycle::start_due(&rig.g, &mut first);
        while lifecycle::go_on(&rig.g, &mut first) {}
        assert_eq!(rig.g.sched.started_count(), 1, "{}", fake::printed());
        let spawn = |index, run: fn(Hart)| {
            let rig = Arc::clone(&rig);
            shuttle::thread::spawn(move || run(Hart::new(&rig, index)))
        };
        let mut threads: Vec<_> = (1..self.harts).map(|index| spawn(index, Hart::run)).collect();
        if let Some(meddle) = self.meddle {
            let rig = Arc::clone(&rig);
            let index = self.harts;
            threads.push(shuttle::thread::spawn(move || {
                let mut hart = Hart::new(&rig, index);
                meddle(&mut hart);
                hart.run();
            }));
        }
        first.run();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let left = rig.g.frames().usage(Owner::Vm(0)).total();
        assert_eq!((rig.g.sched.started_count(), left), (0, 0), "vCPUs started, and frames of the VM");
        if self.frames.is_some() {
            let count = |name| rig.g.pager.each().into_iter().find(|(other, _)| *other == name).unwrap().1;
            assert_eq!(count("swap.free") + count("swap.images"), DISK_PAGES, "pages of the swap device are back");
        }
    }

    /// Checks that the model holds.
    fn holds(self) {
        holds(&|scheduler| explore(scheduler, move || self.run(None)));
    }

    /// Checks that some order shows the mutant.
    fn finds(self, mutant: Mutant) {
        finds(&format!("{mutant:?}"), &|scheduler| explore(scheduler, move || self.run(Some(mutant))));
    }
}

/// Runs a model in the orders of a scheduler.
fn explore(scheduler: Box<dyn Scheduler + Send>, model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(model);
}

/// Checks that a model holds, which is explored by the scheduler that it is given. Half of the orders are random; the other half let one hart at
/// a time go on as far as it can, with a few changes.
fn holds(explore: &dyn Fn(Box<dyn Scheduler + Send>)) {
    let number = |name, otherwise| {
        std::env::var(name).map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let (rounds, seed) = (number("MODEL_ROUNDS", 500) as usize, number("MODEL_SEED", 1));
    explore(Box::new(RandomScheduler::new_from_seed(seed, rounds / 2)));
    explore(Box::new(PctScheduler::new_from_seed(seed, 5, rounds / 2)));
}

/// Checks that some order shows the mutant of that name.
fn finds(mutant: &str, explore: &dyn Fn(Box<dyn Scheduler + Send>)) {
    let fails = |explore: &dyn Fn()| catch_unwind(AssertUnwindSafe(explore)).is_err();
    let is_found = (3..13).any(|changes| {
        fails(&|| explore(Box::new(RandomScheduler::new_from_seed(1, 200))))
            || fails(&|| explore(Box::new(PctScheduler::new_from_seed(1, changes, 800))))
    });
    assert!(is_found, "{mutant} goes unfound");
}

fn own(run: &VcpuRun) -> u64 {
    run.shared.id.into()
}

/// Counts in a register that calls leave alone.
fn count(run: &mut VcpuRun) -> u64 {
    run.context.x[8] += 1;
    run.context.x[8]
}

fn has_interrupt(run: &mut VcpuRun) -> bool {
    let is_there = run.bank.csrs.hvip & hart::HVIP_SSIP != 0;
    run.bank.csrs.hvip &= !hart::HVIP_SSIP;
    is_there
}

const POWER_OFF: Step = Step::Sbi(srst::EID_SRST, srst::SYSTEM_RESET, [srst::RESET_TYPE_SHUTDOWN as u64, 0, 0]);
const REBOOT: Step = Step::Sbi(srst::EID_SRST, srst::SYSTEM_RESET, [srst::RESET_TYPE_COLD_REBOOT as u64, 0, 0]);
/// A call that changes nothing, and is not brief.
const EXIT: Step = Step::Sbi(hsm::EID_HSM, hsm::HART_GET_STATUS, [0; 3]);
const STOP: Step = Step::Sbi(hsm::EID_HSM, hsm::HART_STOP, [0; 3]);

fn start(id: u64) -> Step {
    Step::Sbi(hsm::EID_HSM, hsm::HART_START, [id, abi::bundle::GUEST_ENTRY, 0])
}

fn interrupt(id: u64) -> Step {
    Step::Sbi(spi::EID_SPI, spi::SEND_IPI, [1 << id, 0, 0])
}

/// A program: each of the vCPUs, which all come up, reads and edits the frame that the table leads to; then the first
/// ends the VM.
fn edits<const VCPUS: u64>(run: &mut VcpuRun) -> Step {
    let step = count(run);
    match own(run) {
        0 if step < VCPUS => start(step),
        _ if step > 8 => {
            if own(run) == 0 {
                POWER_OFF
            } else {
                Step::Wait
            }
        }
        _ => match thread_rng().gen_range(0..4) {
            0 => Step::Edit,
            1 => EXIT,
            _ => Step::Access,
        },
    }
}

/// A program: the first edits, and nothing else; the others come in and out, and read.
fn haste(run: &mut VcpuRun) -> Step {
    let step = count(run);
    match own(run) {
        0 if step == 1 => start(1),
        0 if step > 12 => POWER_OFF,
        0 => Step::Edit,
        _ if step > 24 => Step::Wait,
        _ if step.is_multiple_of(3) => EXIT,
        _ => Step::Access,
    }
}

const HASTE: Model = Model { harts: 2, vcpus: 2, program: haste, meddle: None, frames: None };
const EDITS: Model = Model { harts: 2, vcpus: 2, program: edits::<2>, meddle: None, frames: None };
const EDITS_OVERCOMMITTED: Model = Model { harts: 2, vcpus: 3, program: edits::<3>, meddle: None, frames: None };

#[test]
fn nobody_reads_what_was_taken_away() {
    HASTE.holds();
    EDITS.holds();
    EDITS_OVERCOMMITTED.holds();
}

#[test]
fn a_hart_that_enters_behind_an_edit_is_found() {
    EDITS.finds(Mutant::LooksBeforeItEnters);
    EDITS.finds(Mutant::DoesNotWait);
    EDITS.finds(Mutant::DoesNotCatchUp);
    EDITS.finds(Mutant::StaysAway);
    HASTE.finds(Mutant::LooksAfterItArrived);
}

/// A program: an interrupt goes round.
fn round<const VCPUS: u64>(run: &mut VcpuRun) -> Step {
    const ROUNDS: u64 = 2;
    let own = own(run);
    let at = &mut run.context.x[9];
    if own == 0 && *at < VCPUS - 1 {
        *at += 1;
        return start(*at);
    }
    // The first one begins.
    let begins = own == 0 && *at == VCPUS - 1;
    if !begins && !has_interrupt(run) {
        return Step::Wait;
    }
    let at = &mut run.context.x[9];
    *at += 1;
    if own == 0 && *at == VCPUS + ROUNDS { POWER_OFF } else { interrupt((own + 1) % VCPUS) }
}

const ROUND: Model = Model { harts: 2, vcpus: 2, program: round::<2>, meddle: None, frames: None };
const ROUND_OVERCOMMITTED: Model = Model { harts: 2, vcpus: 3, program: round::<3>, meddle: None, frames: None };

/// Like [`round`], but each vCPU reads and edits in between: those that share a hart come back to it.
fn turns<const VCPUS: u64>(run: &mut VcpuRun) -> Step {
    match thread_rng().gen_range(0..6) {
        0 => Step::Edit,
        1 | 2 => Step::Access,
        _ => round::<VCPUS>(run),
    }
}

const TURNS: Model = Model { harts: 2, vcpus: 4, program: turns::<4>, meddle: None, frames: None };

#[test]
fn who_comes_back_to_a_hart_does_not_read_what_was_taken_away() {
    TURNS.holds();
}

#[test]
fn a_hart_that_fences_for_one_vcpu_is_found() {
    TURNS.finds(Mutant::KeepsOthers);
}

#[test]
fn no_wake_up_is_lost() {
    ROUND.holds();
    ROUND_OVERCOMMITTED.holds();
}

#[test]
fn a_wake_up_that_is_lost_is_found() {
    ROUND.finds(Mutant::LooksBeforeItIsIdle);
    ROUND_OVERCOMMITTED.finds(Mutant::TakesAllForBrief);
    ROUND_OVERCOMMITTED.finds(Mutant::WaitsWithoutLooking);
}

/// A program: vCPUs start each other and stop; the first starts the VM over once, and ends it.
fn lives(run: &mut VcpuRun) -> Step {
    let step = count(run);
    let is_first = own(run) == 0;
    // Else it would not wait.
    has_interrupt(run);
    match thread_rng().gen_range(0..8) {
        _ if step > 12 => {
            if is_first {
                POWER_OFF
            } else {
                Step::Wait
            }
        }
        0..=3 => start(thread_rng().gen_range(0..3)),
        4 => interrupt(thread_rng().gen_range(0..3)),
        5 if !is_first => STOP,
        6 if is_first && step > 3 => REBOOT,
        _ if step > 6 => {
            if is_first {
                POWER_OFF
            } else {
                Step::Wait
            }
        }
        _ => Step::Access,
    }
}

/// Pauses the VM and lets it go on, as from the console.
fn pauses(hart: &mut Hart) {
    let rig = Arc::clone(&hart.rig);
    for _ in 0..2 {
        let Some(vm) = rig.g.vms.at(0) else { return };
        lifecycle::pause(&rig.g, &vm, hart);
        lifecycle::resume(&rig.g, &vm, hart);
    }
}

/// Ends the VM, as from the console.
fn ends(hart: &mut Hart) {
    let rig = Arc::clone(&hart.rig);
    lifecycle::end_all(&rig.g, &EndReason::Poweroff, hart);
}

/// Pauses the VM and lets it go on, then ends it.
fn pauses_and_ends(hart: &mut Hart) {
    let rig = Arc::clone(&hart.rig);
    let Some(vm) = rig.g.vms.at(0) else { return };
    lifecycle::pause(&rig.g, &vm, hart);
    lifecycle::depart(&rig.g, &vm, Departure::End(EndReason::Poweroff), hart);
}

const LIVES: Model = Model { harts: 2, vcpus: 3, program: lives, meddle: None, frames: None };

#[test]
fn each_vcpu_is_collected_once_and_all_is_given_back() {
    LIVES.holds();
    for meddle in [pauses, ends, pauses_and_ends] {
        Model { meddle: Some(meddle), ..LIVES }.holds();
    }
}

#[test]
fn a_vcpu_that_is_not_collected_is_found() {
    LIVES.finds(Mutant::DoesNotPark);
}

/// A program: both vCPUs go round through some pages, of which the host takes away as many as it can; then the first
/// ends the VM.
fn pages(run: &mut VcpuRun) -> Step {
    let (own, touched) = (own(run), run.context.x[7]);
    if own == 0 && run.context.x[9] == 0 {
        run.context.x[9] = 1;
        return start(1);
    }
    match touched {
        0..12 => Step::Touch(16 + 8 * own + touched % 4),
        _ if own == 0 => POWER_OFF,
        _ => Step::Wait,
    }
}

/// A machine that never has enough memory for a guest that does anything.
const PAGING: Model = Model { harts: 2, vcpus: 2, program: pages, meddle: None, frames: Some(70) };

#[test]
fn who_waits_for_memory_is_woken_when_it_comes() {
    PAGING.holds();
    Model { meddle: Some(ends), ..PAGING }.holds();
}

#[test]
fn who_looks_for_memory_before_it_waits_is_found() {
    PAGING.finds(Mutant::LooksBeforeItHolds);
}
