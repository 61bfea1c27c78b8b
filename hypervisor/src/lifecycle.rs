//! How VMs start, start over, and end. A VM may wait for another's end, and have its memory then.
//!
//! To end or restart, a VM's vCPUs are collected: those in queues at once, those on harts when the
//! harts notice [`request::PARK`]. Whoever parks the last one does what remains.

use crate::board;
use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::offer::GuestMode;
use crate::serial;
use crate::vcpu::{VcpuRun, hsm, request};
use crate::vm::{Departure, Memory, Phase, Vm};
use abi::bundle::{GUEST_RAM_BASE, Segment, VmConfig};
use abi::record::{EndReason, Record, VmEnd};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use mmu::frames::Owner;
use mmu::gstage::{AddressSpace, Object, Policy, Prot, Region, Superpages};
use rv::{Addr, Elide, Fence, FenceScope, Gpa, PAGE_BYTES, Pfn};

/// Creates the parked vCPUs of every VM and starts those VMs that wait for no other.
pub fn start_all<E: Env>(g: &Gnomon, env: &mut E) {
    for vm in &g.vms {
        for vcpu in &vm.vcpus {
            g.aside[vm.index]
                .parked
                .lock()
                .insert(vcpu.id, VcpuRun::new(Arc::clone(vm), Arc::clone(vcpu), g.offer.vlenb));
        }
    }
    start(g, g.vms.iter().filter(|vm| turn(vm) == Turn::AtOnce).cloned().collect(), env);
}

/// When a VM starts.
#[derive(PartialEq, Eq)]
enum Turn {
    AtOnce,
    /// When the VM of that number has ended.
    After(usize),
}

fn turn(vm: &Vm) -> Turn {
    match vm.config.after {
        // What does not come before it would wait for itself: that is a complaint, and not to be waited for.
        Some(other) if (other as usize) < vm.index => Turn::After(other as usize),
        _ => Turn::AtOnce,
    }
}

/// Starts VMs whose vCPUs are all parked. One that cannot be started, or whose end was asked for meanwhile, ends with a
/// message, and those that waited for it have their turn.
pub fn start<E: Env>(g: &Gnomon, mut vms: VecDeque<Arc<Vm>>, env: &mut E) {
    while let Some(vm) = vms.pop_front() {
        let ended = match build(g, &vm, env) {
            Ok(()) => launch(g, &vm, env).err(),
            Err(message) => Some(EndReason::NotStarted { message }),
        };
        if let Some(reason) = ended {
            tear_down(g, &vm, env);
            vms.extend(over(g, &vm, reason));
        }
    }
}

/// Builds a VM's memory, devices and device tree.
fn build<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Result<(), String> {
    if vm.config.after.is_some() && turn(vm) == Turn::AtOnce {
        return Err("it is to start after a VM that does not come before it".into());
    }
    let memory = build_memory(g, vm, env)?;
    *vm.memory.lock() = Some(memory);
    announce(g, vm);
    vm.devices.lock().reset(vm.config.vcpus);
    g.console.release_input();
    vm.vcpus.iter().for_each(|vcpu| vcpu.external.store(false, Ordering::SeqCst));
    let isa = vm.translation.isa(&vm.config, &g.offer);
    let tree = board::device_tree(&vm.config, &g.offer, &isa, vm.devices.lock().iter());
    let at = board::tree_address(vm.config.memory_bytes);
    if tree.len() as u64 > board::TREE_BYTES {
        return Err(format!("its device tree of {} bytes is too long; shorten the command line", tree.len()));
    }
    vm.write(g, Addr::new(at), &tree, env).map_err(|e| format!("no memory for its device tree: {e}"))
}

/// Starts the first vCPU, unless the VM's end was asked for while it was built.
fn launch<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Result<(), EndReason> {
    // Held until the vCPU is started: an end comes before this, or finds the vCPU.
    let mut phase = vm.phase.lock();
    if let Phase::Leaving(Departure::End(reason)) = &*phase {
        return Err(reason.clone());
    }
    let first = g.aside[vm.index].parked.lock().remove(&0);
    let Some(mut run) = first else { return Err(EndReason::NotStarted { message: "it has no vCPU 0".into() }) };
    run.reset(vm.config.entry_gpa, board::tree_address(vm.config.memory_bytes));
    let zero = match g.offer.guest {
        GuestMode::Virtual => env.now(),
        // S mode reads the host's clock.
        GuestMode::Supervisor => 0,
    };
    vm.time_zero.store(zero, Ordering::Relaxed);
    run.shared.hsm.store(hsm::STARTED, Ordering::Release);
    *phase = Phase::Running;
    g.start(run, env);
    Ok(())
}

/// What a VM may own, in frames: its RAM, the tables for it, some to spare for tables of sparse
/// regions, and its shadow tables. Documented in `docs/memory.md`.
fn frame_limit(config: &VmConfig, table_frames: u64) -> u64 {
    let ram = config.memory_bytes / PAGE_BYTES;
    ram + ram / 256 + 64 + table_frames
}

/// Says how the VM's memory is virtualized, and who chose.
fn announce(g: &Gnomon, vm: &Vm) {
    let mode = g.offer.mode(vm.config.mmu);
    let who = match (vm.config.mmu, g.offer.guest) {
        (Some(_), _) => "",
        (None, GuestMode::Virtual) => ", the default with the H extension",
        (None, GuestMode::Supervisor) => ", the default without the H extension",
    };
    g.console.say(&format!("{}: mmu = {mode}{who}", vm.config.name));
}

fn build_memory<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Result<Memory, String> {
    let (config, translation) = (&vm.config, vm.translation);
    // The bundle's promises are checked here, where they are used.
    let bytes = config.memory_bytes;
    if bytes < board::LEAST_RAM || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(format!("{bytes} bytes of memory: at least {} are needed, in whole pages", board::LEAST_RAM));
    }
    translation.check(config, &g.offer)?;
    let owner = Owner::Vm(vm.index as u16);
    let policy = Policy {
        superpages: if config.superpages { Superpages::Mega } else { Superpages::Never },
        images: translation.images(config),
    };
    let mut mem = env.mem();
    let frames = &g.harts[env.hart()].frames;
    frames.set_limit(owner, frame_limit(config, translation.table_frames(config)?));
    let space = AddressSpace::new(g.offer.g_format, owner, policy, frames, &mut mem);
    let mut space = space.map_err(|e| format!("no memory for its tables: {e}"))?;
    let built = add_regions(&mut space, g, config).and_then(|()| translation.build(vm, (owner, frames), &mut mem));
    match built {
        Ok(shadow) => Ok(Memory { space, shadow }),
        Err(message) => {
            // No hart has seen these tables: their frames go straight back.
            let mut nobody = Unseen;
            space.destroy(&mem).abandon(&mut nobody).release(frames);
            Err(message)
        }
    }
}

/// The fence for tables that no hart has used.
struct Unseen;

impl Fence<Gpa> for Unseen {
    fn fence(&mut self, _: FenceScope<Gpa>) {}
    fn note_elided(&mut self, _: FenceScope<Gpa>, _: Elide) {}
}

/// RAM: images where there are segments, anonymous memory elsewhere.
fn add_regions(space: &mut AddressSpace, g: &Gnomon, config: &VmConfig) -> Result<(), String> {
    let prot = Prot::R | Prot::W | Prot::X;
    let end = GUEST_RAM_BASE + config.memory_bytes;
    let mut at = GUEST_RAM_BASE;
    let mut add = |start: u64, end: u64, object| -> Result<(), String> {
        if start == end {
            return Ok(());
        }
        let region = Region { start: Addr::new(start).pfn(), pages: (end - start) / PAGE_BYTES, prot, object };
        space.add_region(region).map_err(|e| format!("its memory map: {e}"))
    };
    for segment in &config.segments {
        let (start, pages_end) = segment_span(segment, at, end, g.bundle_bytes)?;
        add(at, start, Object::Anonymous)?;
        let first = Pfn::new(g.bundle.raw() + segment.offset / PAGE_BYTES);
        add(start, pages_end, Object::Image { first })?;
        at = pages_end;
    }
    add(at, end, Object::Anonymous)
}

fn segment_span(segment: &Segment, from: u64, to: u64, bundle_bytes: u64) -> Result<(u64, u64), String> {
    let Segment { gpa, offset, bytes, label } = segment;
    let bad = |what: &str| format!("its {label} at {gpa:#x} {what}");
    if gpa % PAGE_BYTES != 0 || offset % PAGE_BYTES != 0 || *bytes == 0 {
        return Err(bad("is not in whole pages"));
    }
    let end = bytes.checked_next_multiple_of(PAGE_BYTES).and_then(|n| gpa.checked_add(n));
    let end = end.filter(|end| *gpa >= from && *end <= to);
    let end = end.ok_or_else(|| bad("does not fit its memory, or overlaps what is below"))?;
    if offset.checked_add(end - gpa).is_none_or(|last| last > bundle_bytes) {
        return Err(bad("is cut off: the bundle is too short"));
    }
    Ok((*gpa, end))
}

/// Begins the end of a VM, or its restart. Its vCPUs leave their harts soon; the caller parks its
/// own. Of several wishes the first counts, but an end overrides a restart that is not yet done.
pub fn depart<E: Env>(g: &Gnomon, vm: &Arc<Vm>, departure: Departure, env: &mut E) {
    {
        let mut phase = vm.phase.lock();
        match (&*phase, &departure) {
            (Phase::Running, _) => *phase = Phase::Leaving(departure),
            (Phase::Leaving(Departure::Reboot), Departure::End(_)) => {
                // The vCPUs are being collected already, or are all parked: whoever restarts the VM
                // finds this instead.
                *phase = Phase::Leaving(departure);
                return;
            }
            _ => return,
        }
    }
    for vcpu in &vm.vcpus {
        g.post(vcpu, request::PARK, env);
    }
    let aside = g.aside[vm.index].paused.lock().take().unwrap_or_default();
    for run in g.sched.remove_vm(vm.index).into_iter().chain(aside) {
        park(g, run, env);
    }
}

/// Pauses a VM: its vCPUs leave their harts soon, and keep their state. The clock goes on for it. Returns false if it does not
/// run, or is paused already.
pub fn pause<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> bool {
    {
        // Held so that a vCPU which is started meanwhile comes before this, or finds it.
        let phase = vm.phase.lock();
        let mut paused = g.aside[vm.index].paused.lock();
        if *phase != Phase::Running || paused.is_some() {
            return false;
        }
        *paused = Some(Vec::new());
    }
    for vcpu in &vm.vcpus {
        g.post(vcpu, request::PAUSE, env);
    }
    true
}

/// Puts a vCPU of a paused VM aside: it is on no hart and not started. If the VM goes on meanwhile, so does the vCPU.
pub fn put_aside<E: Env>(g: &Gnomon, run: Box<VcpuRun>, env: &mut E) {
    let vm = Arc::clone(&run.vm);
    let mut paused = g.aside[vm.index].paused.lock();
    match &mut *paused {
        Some(aside) => aside.push(run),
        None => {
            drop(paused);
            g.start(run, env);
        }
    }
}

/// Lets a paused VM go on. Returns false if it is not paused.
pub fn resume<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> bool {
    let aside = g.aside[vm.index].paused.lock().take();
    let was_paused = aside.is_some();
    aside.into_iter().flatten().for_each(|run| g.start(run, env));
    was_paused
}

/// Pauses a VM, or lets it go on, and says so: a wish from the console.
pub fn toggle_pause<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) {
    let name = &vm.config.name;
    if resume(g, vm, env) {
        g.console.say(&format!("{name} goes on"));
    } else if pause(g, vm, env) {
        g.console.say(&format!("{name} is paused; Ctrl-A p lets it go on"));
    }
}

/// Parks a vCPU: it is on no hart and not started.
pub fn park<E: Env>(g: &Gnomon, mut run: Box<VcpuRun>, env: &mut E) {
    run.vm.translation.forget(&mut run);
    let (vm, shared) = (Arc::clone(&run.vm), Arc::clone(&run.shared));
    let all = {
        let mut parked = g.aside[vm.index].parked.lock();
        parked.insert(shared.id, run);
        // Whoever sees it stopped finds it parked.
        shared.hsm.store(hsm::STOPPED, Ordering::Release);
        parked.len() == vm.vcpus.len()
    };
    if !all {
        return;
    }
    let departure = {
        let mut phase = vm.phase.lock();
        match &*phase {
            Phase::Leaving(departure) => departure.clone(),
            // Each stopped by itself (SBI hart_stop): nothing can ever start one again.
            Phase::Running => {
                let end = Departure::End(EndReason::Killed { message: "all its vCPUs have stopped".into() });
                *phase = Phase::Leaving(end.clone());
                end
            }
            Phase::Ended => return,
        }
    };
    tear_down(g, &vm, env);
    match departure {
        Departure::End(reason) => start(g, over(g, &vm, reason), env),
        Departure::Reboot => {
            serial::last_words(g, &vm);
            g.console.say_of(vm.index, &format!("{} starts over", vm.config.name), false);
            start(g, VecDeque::from([vm]), env);
        }
    }
}

/// Takes a VM's memory away. None of its vCPUs is on a hart.
fn tear_down<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) {
    let memory = vm.memory.lock().take();
    if let Some(memory) = memory {
        vm.translation.tear_down(g, vm, memory, env);
    }
}

/// Says that a VM is over, its memory given back; returns those whose turn it is now.
#[must_use]
fn over(g: &Gnomon, vm: &Vm, reason: EndReason) -> VecDeque<Arc<Vm>> {
    *vm.phase.lock() = Phase::Ended;
    let name = vm.config.name.as_str();
    let message = match &reason {
        EndReason::Poweroff => format!("{name} powered off"),
        EndReason::SystemFailure => format!("{name} powered off after a system failure"),
        EndReason::Killed { message } => format!("{name} was stopped: {message}"),
        EndReason::NotStarted { message } => format!("{name} could not be started: {message}"),
    };
    serial::last_words(g, vm);
    g.console.say_of(vm.index, &message, true);
    g.console.record(&Record::VmEnd(VmEnd { vm: name.into(), reason }));
    g.ended.fetch_add(1, Ordering::SeqCst);
    g.vms.iter().filter(|other| turn(other) == Turn::After(vm.index)).cloned().collect()
}
