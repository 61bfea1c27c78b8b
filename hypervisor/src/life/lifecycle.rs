//! The life of VMs: they are created, started, paused, resumed, reset, stopped and destroyed (`docs/glossary.md` has the states). A VM
//! may wait for another's end, and have its memory and its slot then.
//!
//! ```text
//!  wish ──► create ──► start ──► running ◄──► paused      create: a slot, the VM, its vCPUs, its console
//!             │          ▲          │            │        start: memory, devices, the first vCPU
//!             │          └─ reset ──┤            │        stop: all vCPUs are parked, then teardown: memory is given back
//!             └───────────► stop ◄──┴────────────┘        destroy: the slot is free; the VM's report is kept
//!                             └──► destroy
//! ```
//!
//! At a stop or reset, a VM's vCPUs are parked: those in queues at once, those on harts when the harts notice
//! [`request::PARK`]. The hart that parks the last one begins the teardown (`give_back`). A chore frees the memory
//! ([`go_on`]), then starts or destroys the VM.

use crate::device::board;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::serial;
use crate::life::build;
use crate::life::build::Unbuilt;
use crate::life::snapshot;
use crate::vm::chores::{Chore, Gigapages, Work};
use crate::vm::tenant::Tenant;
use crate::vm::vcpu::{VcpuRun, hsm, request};
use crate::vm::vms::{Report, Wish, has_vcpus};
use crate::vm::{Departure, Phase, Unreachable, Vm};
use abi::bundle::{GUEST_RAM_BASE, MAX_VCPUS, MAX_VMS, VmConfig};
use abi::record::{EndReason, Record, VmEnd};
use abi::tunable::Id;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use mmu::frames::{AllocError, Frames};
use mmu::gstage::Ready;
use mmu::shadow::Lists;
use rv::Addr;

/// Creates and starts those VMs that were wished for and whose turn it is.
pub fn start_due<E: Env>(g: &Gnomon, env: &mut E) {
    while let Some(admitted) = g.vms.next(|wish| admit(g, wish)) {
        match admitted {
            Ok(vm) => set_off(g, &vm, env),
            Err(refused) => refuse(g, refused),
        }
    }
}

/// Creates a VM: it has a slot, a console, and all its vCPUs, stopped. `None` if it cannot be: it is over then, with a message.
pub fn create<E: Env>(g: &Gnomon, wish: Wish, env: &mut E) -> Option<Arc<Vm>> {
    match admit(g, wish) {
        Ok(vm) => Some(vm),
        Err(refused) => {
            refuse(g, refused);
            start_due(g, env);
            None
        }
    }
}

/// The report of a VM that cannot be created, and the reason.
type Refused = (Report, EndReason);

fn admit(g: &Gnomon, wish: Wish) -> Result<Arc<Vm>, Refused> {
    let Wish { number, config, tree, end, .. } = wish;
    let name = config.name.clone();
    let problem = if config.after.is_some_and(|other| u64::from(other) >= number) {
        Some("it is to start after a VM that does not come before it".into())
    } else if !has_vcpus(&config) {
        Some(format!("{} vCPUs; 1 to {MAX_VCPUS} are possible", config.vcpus))
    } else {
        lacking(g, &config)
    };
    let problem = problem.or_else(|| snapshot::check(&config, &g.offer).err());
    let refused = |reason| (Report::new(number, name.clone(), []), reason);
    if let Some(reason) = end.or(problem.map(|message| EndReason::NotStarted { message })) {
        return Err(refused(reason));
    }
    let moved_in = g.vms.move_in(number, |handle| {
        g.console.open(handle, &config.name);
        Tenant::new(handle, (config, tree), &g.offer)
    });
    moved_in.ok_or_else(|| refused(EndReason::NotStarted { message: format!("there are {MAX_VMS} VMs already") }))
}

/// Returns a device that a VM is to have and the machine does not have.
fn lacking(g: &Gnomon, config: &VmConfig) -> Option<String> {
    let disk = config.disks.iter().find(|number| g.offer.disks.get(**number).is_none());
    let disk = disk.map(|number| abi::disk_serial(*number));
    let share = config.shares.iter().find(|share| g.offer.shares.get(share.number).is_none());
    let disk = disk.map(|serial| format!("the machine has no block device with the serial {serial}"));
    let share = share.map(|share| format!("the machine has no device for share {} (`{}`)", share.number, share.tag));
    let entropy = (config.rng && g.offer.entropy.is_none()).then(|| "the machine has no entropy device".into());
    disk.or(share).or(entropy)
}

fn refuse(g: &Gnomon, (report, reason): Refused) {
    g.console.say(&last_message(&report.name, &reason));
    g.console.record(&Record::VmEnd(VmEnd { vm: report.name.clone(), reason }));
    let number = report.number;
    g.vms.reports().push(report);
    g.vms.over(number);
}

/// Starts a VM that was created. If that cannot be, or if its end was asked for meanwhile, it ends with a message, and those
/// that waited for it have their turn.
pub fn start<E: Env>(g: &Gnomon, vm: &Arc<Vm>, env: &mut E) {
    set_off(g, vm, env);
    start_due(g, env);
}

fn set_off<E: Env>(g: &Gnomon, vm: &Arc<Vm>, env: &mut E) {
    {
        let mut phase = vm.phase.lock();
        if *phase != Phase::Created {
            return;
        }
        *phase = Phase::Leaving(Departure::Reboot);
    }
    bring_up(g, vm, env);
}

/// Begins to start a VM whose vCPUs are all parked, for the first time or over. [`go_on`] does the rest; or ends it.
fn bring_up<E: Env>(g: &Gnomon, vm: &Arc<Vm>, env: &mut E) {
    match build::begin(g, vm, env) {
        Ok(lists) => put_off(g, vm, Work::Prepare(lists), env),
        Err(message) => fail(g, vm, EndReason::NotStarted { message }, env),
    }
}

/// Ends a VM that cannot start.
fn fail<E: Env>(g: &Gnomon, vm: &Arc<Vm>, reason: EndReason, env: &mut E) {
    {
        let mut phase = vm.phase.lock();
        // If its end was asked for meanwhile, it ends for that.
        if !matches!(*phase, Phase::Leaving(Departure::End(_))) {
            *phase = Phase::Leaving(Departure::End(reason));
        }
    }
    give_back(g, vm, env);
}

/// Starts the first vCPU of a VM that is built, or ends it.
fn set_going<E: Env>(g: &Gnomon, vm: &Arc<Vm>, env: &mut E) {
    if vm.config.incoming && await_arrival(vm) {
        return;
    }
    if let Err(reason) = launch(g, vm, env) {
        fail(g, vm, reason, env);
    }
    if g.tunables.get(Id::UnmapAtRandom) != 0 {
        env.go_on_soon();
    }
}

/// Leaves a VM that is built as one whose state is still to come ([`snapshot::load`]). Returns false if its end was asked for.
fn await_arrival(vm: &Vm) -> bool {
    let mut phase = vm.phase.lock();
    let is_to_end = matches!(*phase, Phase::Leaving(Departure::End(_)));
    if !is_to_end {
        *phase = Phase::Created;
    }
    !is_to_end
}

/// Starts the first vCPU, unless the VM's end was asked for while it was built.
fn launch<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Result<(), EndReason> {
    // Held until the vCPU is started: an end comes before this, or finds the vCPU.
    let mut phase = vm.phase.lock();
    if let Phase::Leaving(Departure::End(reason)) = &*phase {
        return Err(reason.clone());
    }
    let not_started = |message| EndReason::NotStarted { message };
    let started = match snapshot::check(&vm.config, &g.offer).map_err(not_started)? {
        Some(state) => snapshot::put(g, vm, &state, env).map_err(not_started)?,
        None => first_vcpu(g, vm, env).map_err(not_started)?,
    };
    vm.since.store(env.now().max(1), Ordering::Relaxed);
    g.vms.tenant(vm, |tenant| tenant.starts_over = false);
    *phase = Phase::Running;
    started.into_iter().for_each(|run| g.start(run, env));
    Ok(())
}

/// Takes the first vCPU, reset to the state in which its VM's board starts it.
#[expect(clippy::vec_box, reason = "the owner of a vCPU's box may run it")]
fn first_vcpu<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Result<Vec<Box<VcpuRun>>, String> {
    let first = g.vms.tenant(vm, |tenant| tenant.parked.remove(&0)).flatten();
    let mut run = first.ok_or("it has no vCPU 0")?;
    run.reset(vm.config.entry_gpa, board::tree_address(vm.config.memory_bytes));
    let zero = if g.offer.shows_host_time() { 0 } else { env.now() };
    vm.time_zero.store(zero, Ordering::Relaxed);
    run.shared.hsm.store(hsm::STARTED, Ordering::Release);
    Ok([run].into())
}

/// Ends all VMs, and those that were wished for when their turn comes.
pub fn end_all<E: Env>(g: &Gnomon, reason: &EndReason, env: &mut E) {
    g.vms.cancel(|_| true, reason);
    g.vms.all().for_each(|vm| depart(g, &vm, Departure::End(reason.clone()), env));
}

/// Begins the end of a VM, or its restart. Its vCPUs leave their harts soon; the caller parks its
/// own. Of several wishes the first counts, but an end overrides a restart that is not yet done.
pub fn depart<E: Env>(g: &Gnomon, vm: &Arc<Vm>, departure: Departure, env: &mut E) {
    let starts_over = g.vms.tenant(vm, |tenant| tenant.starts_over) == Some(true);
    let departure = match departure {
        Departure::End(EndReason::Poweroff) if starts_over => Departure::Reboot,
        departure => departure,
    };
    let departure = match departure {
        Departure::Reboot if vm.config.restore.is_some() => {
            let message = "it is to start over, and has no kernel: it was restored from a snapshot".into();
            Departure::End(EndReason::Killed { message })
        }
        departure => departure,
    };
    let before = {
        let mut phase = vm.phase.lock();
        match (&*phase, &departure) {
            (Phase::Running, _) | (Phase::Created | Phase::Leaving(Departure::Reboot), Departure::End(_)) => {
                core::mem::replace(&mut *phase, Phase::Leaving(departure))
            }
            _ => return,
        }
    };
    match before {
        // The vCPUs are being collected already, or are all parked: the restart finds this departure instead.
        Phase::Leaving(_) | Phase::Ended => {
            g.chores.wake(vm);
            return env.go_on_soon();
        }
        // They are all parked, and no start is under way.
        Phase::Created => return leave(g, Arc::clone(vm), env),
        Phase::Running => {}
    }
    for vcpu in &vm.vcpus {
        g.post(vcpu, request::PARK, env);
    }
    let_go(vm, env);
    let aside = g.vms.tenant(vm, |tenant| tenant.paused.take()).flatten().unwrap_or_default();
    for run in g.sched.remove_vm(vm.handle.number).into_iter().chain(aside) {
        park(g, run, env);
    }
}

/// Pauses a VM: its vCPUs leave their harts soon, and keep their state. The clock goes on for it. Returns false if it does not
/// run, or is paused already.
pub fn pause<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> bool {
    {
        // Held so that a vCPU which is started meanwhile comes before this, or finds it.
        let phase = vm.phase.lock();
        if *phase != Phase::Running {
            return false;
        }
        let begun = g.vms.tenant(vm, |tenant| match &tenant.paused {
            Some(_) => false,
            None => {
                tenant.paused = Some(Vec::new());
                true
            }
        });
        if begun != Some(true) {
            return false;
        }
    }
    for vcpu in &vm.vcpus {
        g.post(vcpu, request::PAUSE, env);
    }
    true
}

/// Puts a vCPU of a paused VM aside: it is on no hart and not started. If the VM goes on meanwhile, so does the vCPU.
pub fn put_aside<E: Env>(g: &Gnomon, run: Box<VcpuRun>, env: &mut E) {
    let vm = Arc::clone(&run.vm);
    let kept = g.vms.tenant(&vm, |tenant| match &mut tenant.paused {
        Some(aside) => {
            aside.push(run);
            None
        }
        None => Some(run),
    });
    match kept {
        Some(None) => {}
        Some(Some(run)) => g.start(run, env),
        None => unreachable!("{STAYS}"),
    }
}

/// Resumes a paused VM. Returns false if it is not paused.
pub fn resume<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> bool {
    let aside = g.vms.tenant(vm, |tenant| tenant.paused.take()).flatten();
    let was_paused = aside.is_some();
    if was_paused {
        // Before any of them runs, and changes what is being given out.
        let_go(vm, env);
    }
    aside.into_iter().flatten().for_each(|run| g.start(run, env));
    was_paused
}

/// Ends a snapshot: no more of it is given out, because the VM continues, or ends.
pub(crate) fn let_go<E: Env>(vm: &Vm, env: &mut E) {
    let is_frozen = {
        let mut savings = vm.savings.lock();
        savings.now = None;
        savings.is_given_away = false;
        vm.is_frozen.swap(false, Ordering::SeqCst)
    };
    if is_frozen {
        // Its devices may have something to do since.
        vm.devices.ask_all();
        env.attend_soon(Some(vm.slot()));
    }
}

/// Pauses a VM, or lets it go on, and says so: a wish from the console. One that was given to another run stays paused, because only the run's
/// own process can tell whether the other one has it.
pub fn toggle_pause<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) {
    let name = &vm.config.name;
    if vm.savings.lock().is_given_away {
        g.console.say(&format!("{name} was given to another run; if it does not run there, use gnomon resume"));
    } else if resume(g, vm, env) {
        g.console.say(&format!("{name} goes on"));
    } else if pause(g, vm, env) {
        g.console.say(&format!("{name} is paused; Ctrl-A p lets it go on"));
    }
}

/// Parks a vCPU: it is on no hart and not started.
pub fn park<E: Env>(g: &Gnomon, mut run: Box<VcpuRun>, env: &mut E) {
    run.vm.translation.forget(&mut run);
    run.discard_ready(&g.harts[env.hart()].frames);
    let (vm, shared) = (Arc::clone(&run.vm), Arc::clone(&run.shared));
    let all = g.vms.tenant(&vm, |tenant| {
        tenant.parked.insert(shared.id, run);
        // A hart that sees the vCPU stopped finds it parked.
        shared.hsm.store(hsm::STOPPED, Ordering::Release);
        tenant.parked.len() == vm.vcpus.len()
    });
    match all {
        Some(true) => leave(g, vm, env),
        Some(false) => {}
        None => unreachable!("{STAYS}"),
    }
}

/// The reason why a vCPU in hand implies that its VM is in its slot.
const STAYS: &str = "a VM whose vCPUs are not all parked stays in its slot";

/// Does the rest for a VM that ends or restarts, when all its vCPUs are parked.
fn leave<E: Env>(g: &Gnomon, vm: Arc<Vm>, env: &mut E) {
    {
        let mut phase = vm.phase.lock();
        match &*phase {
            Phase::Leaving(_) => {}
            // Each stopped by itself (SBI hart_stop): nothing can ever start one again.
            Phase::Running => {
                let message = "all its vCPUs have stopped".into();
                *phase = Phase::Leaving(Departure::End(EndReason::Killed { message }));
            }
            Phase::Created | Phase::Ended => return,
        }
    }
    give_back(g, &vm, env);
    drop(vm);
    start_due(g, env);
}

/// Takes the memory away of a VM that leaves, to be given back by [`go_on`]. None of its vCPUs is on a hart.
fn give_back<E: Env>(g: &Gnomon, vm: &Arc<Vm>, env: &mut E) {
    let memory = vm.memory.lock().take();
    let Some(memory) = memory else { return part(g, vm, env) };
    let remains = vm.translation.tear_down(g, vm, memory, env);
    put_off(g, vm, Work::GiveBack(remains), env);
}

fn put_off<E: Env>(g: &Gnomon, vm: &Arc<Vm>, work: Work, env: &mut E) {
    g.chores.add(Chore { vm: Arc::clone(vm), work, since: None });
    env.go_on_soon();
}

/// Does a portion of what is to be done for VMs that start, end or start over. Returns whether there was anything to do. Each
/// hart calls it while it has nothing else to do, and now and then ([`Env::go_on_soon`]).
pub fn go_on<E: Env>(g: &Gnomon, env: &mut E) -> bool {
    let before = g.pager.events();
    // A chore that waits for memory has nothing to do until an event has happened.
    let can_go_on = |chore: &Chore| chore.since != Some(before) || !g.pager.has_work();
    let Some(Chore { vm, work, .. }) = g.chores.take(can_go_on) else {
        if !g.chores.is_empty() {
            env.go_on_soon();
        }
        return false;
    };
    g.pager.begin_attempt(&vm);
    match do_some(g, &vm, work, env) {
        Ok(Some(work)) => {
            let since = g.pager.is_waiting(&vm).then_some(before);
            g.chores.add(Chore { vm, work, since });
            env.go_on_soon();
        }
        Ok(None) => start_due(g, env),
        Err(message) => fail(g, &vm, EndReason::NotStarted { message }, env),
    }
    true
}

/// Does a portion; returns what is left.
fn do_some<E: Env>(g: &Gnomon, vm: &Arc<Vm>, work: Work, env: &mut E) -> Result<Option<Work>, String> {
    let frames = &g.harts[env.hart()].frames;
    match work {
        Work::GiveBack(mut remains) => {
            let more = remains.release(frames, &env.mem(), |slot| g.pager.forgo(slot));
            g.pager.wake_waiting(g, env);
            // What the swap device still has is the VM's until it is finished.
            if more || g.pager.is_busy_for(vm.handle) {
                g.pager.poll(g, env);
                return Ok(Some(Work::GiveBack(remains)));
            }
            part(g, vm, env);
            Ok(None)
        }
        Work::Prepare(mut lists) => match build::prepare(g, vm, &mut lists, env) {
            Ok(false) => Ok(Some(Work::Prepare(lists))),
            Ok(true) => do_build(g, vm, lists, env),
            Err(error) => match wait_for_room(g, vm, error, env) {
                Ok(()) => Ok(Some(Work::Prepare(lists))),
                Err(why) => {
                    lists.into_iter().for_each(|lists| lists.release(frames));
                    Err(format!("no memory for its shadow tables: {why}"))
                }
            },
        },
        Work::GiveGigapages(left) => {
            let left = if is_to_end(vm) { left.discard(frames) } else { left.go_on(g, vm, env) };
            let left = left.map(Work::GiveGigapages);
            Ok(Some(left.unwrap_or_else(|| {
                g.chores.gigapages.fetch_sub(1, Ordering::Relaxed);
                Work::Furnish(Ready::Nothing)
            })))
        }
        Work::Furnish(mut ready) => {
            let is_there = build::furnish(g, vm, &mut ready, env);
            if matches!(is_there, Ok(false)) && !is_to_end(vm) {
                return Ok(Some(Work::Furnish(ready)));
            }
            ready.discard(frames);
            is_there?;
            if vm.config.wired && !is_to_end(vm) {
                return Ok(Some(Work::Wire(Addr::new(GUEST_RAM_BASE).pfn(), Ready::Nothing)));
            }
            set_going(g, vm, env);
            Ok(None)
        }
        Work::Wire(page, mut ready) => {
            let next = build::wire(g, vm, page, &mut ready, env);
            if let Ok(Some(next)) = next
                && !is_to_end(vm)
            {
                return Ok(Some(Work::Wire(next, ready)));
            }
            ready.discard(frames);
            next?;
            set_going(g, vm, env);
            Ok(None)
        }
    }
}

/// The reason why a VM is not built although frames are free.
const IN_PIECES: &str = "no memory for its tables: what is free is in pieces";

/// Builds a VM's memory, if there is room for it now.
fn do_build<E: Env>(g: &Gnomon, vm: &Arc<Vm>, mut lists: Vec<Lists>, env: &mut E) -> Result<Option<Work>, String> {
    let frames = &g.harts[env.hart()].frames;
    let result = build::build(g, vm, &mut lists, env);
    // There are frames, but not side by side as those of a root: there may be where more are free.
    let is_scattered = matches!(result, Err(Unbuilt::NoFrame(AllocError::OutOfMemory)))
        && frames.at_hand() >> g.offer.g_format.root_extra_bits != 0;
    let message = match result {
        Ok(()) => {
            g.pager.aim_as_usual();
            return Ok(Some(built(g, vm, frames)));
        }
        Err(Unbuilt::NoFrame(_)) if is_scattered && !g.pager.aim_higher(frames) => IN_PIECES.into(),
        Err(Unbuilt::NoFrame(error)) => match wait_for_room(g, vm, error, env) {
            Ok(()) => return Ok(Some(Work::Prepare(lists))),
            Err(_) if is_scattered => IN_PIECES.into(),
            Err(why) => format!("no memory for its tables: {why}"),
        },
        Err(Unbuilt::Never(message)) => message,
    };
    g.pager.aim_as_usual();
    lists.into_iter().for_each(|lists| lists.release(frames));
    Err(message)
}

/// Takes back others' memory for a VM that is about to start and needs a frame, when there is none. The start is
/// attempted again when there may be some.
///
/// # Errors
/// If nothing can be had so, or the VM's end is asked for.
fn wait_for_room<E: Env>(g: &Gnomon, vm: &Vm, error: AllocError, env: &mut E) -> Result<(), Unreachable> {
    if is_to_end(vm) {
        return Err(Unreachable::Gone);
    }
    match g.pager.help(g, vm, Unreachable::OutOfFrames(error), env) {
        Err(why) if !why.is_for_now() => Err(why),
        _ => Ok(()),
    }
}

/// Returns whether the end of a VM that is about to start is asked for: then nothing more is done for it.
fn is_to_end(vm: &Vm) -> bool {
    matches!(*vm.phase.lock(), Phase::Leaving(Departure::End(_)))
}

/// Returns the work that follows when a VM's memory is built.
fn built(g: &Gnomon, vm: &Vm, frames: &Frames) -> Work {
    let Some(gigapages) = Gigapages::of(g, vm) else { return Work::Furnish(Ready::Nothing) };
    g.chores.gigapages.fetch_add(1, Ordering::Relaxed);
    frames.give_back_zeroed();
    Work::GiveGigapages(gigapages)
}

/// Ends a VM that has no memory any more, or starts it over.
fn part<E: Env>(g: &Gnomon, vm: &Arc<Vm>, env: &mut E) {
    let phase = vm.phase.lock().clone();
    match phase {
        Phase::Leaving(Departure::End(reason)) => over(g, vm, reason),
        Phase::Leaving(Departure::Reboot) => {
            serial::last_words(g, vm);
            g.console.say_of(vm.slot(), &format!("{} starts over", vm.config.name), false);
            bring_up(g, vm, env);
        }
        Phase::Created | Phase::Running | Phase::Ended => unreachable!("{STAYS}"),
    }
}

/// Reports that a VM is over, its memory given back, and destroys it.
fn over(g: &Gnomon, vm: &Vm, reason: EndReason) {
    *vm.phase.lock() = Phase::Ended;
    let name = vm.config.name.as_str();
    serial::last_words(g, vm);
    g.console.say_of(vm.slot(), &last_message(name, &reason), true);
    g.console.record(&Record::VmEnd(VmEnd { vm: name.into(), reason }));
    destroy(g, vm);
}

fn last_message(name: &str, reason: &EndReason) -> String {
    match reason {
        EndReason::Poweroff => format!("{name} powered off"),
        EndReason::Requested => format!("{name} was stopped by request"),
        EndReason::SystemFailure => format!("{name} powered off after a system failure"),
        EndReason::Killed { message } => format!("{name} was stopped: {message}"),
        EndReason::NotStarted { message } => format!("{name} could not be started: {message}"),
    }
}

/// Frees the slot of a VM that has ended. Only its report is left: the VM itself is freed with its last reference.
fn destroy(g: &Gnomon, vm: &Vm) {
    let report = g.report(vm);
    drop(g.vms.move_out(vm.handle, report));
    g.vms.over(vm.handle.number);
}
