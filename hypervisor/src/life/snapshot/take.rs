//! Takes a snapshot of a paused VM, in pieces: each is asked for by the control channel.
//!
//! ```text
//!  Save::Begin ──► paused ──► all vCPUs aside, devices done with what they were asked for ──► frozen: the state is encoded
//!                   Later ◄────────┘                                                            │
//!  Save::Pages, Save::State ◄──── RAM and state, which do not change ◄──────────────────────────┤
//!  Save::End, or resume, or stop ──► no more of it can be asked for ◄───────────────────────────┘
//! ```

use crate::device::Unsaved;
use crate::device::virtio::{Balloon, Mmio, Net, Rng};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::life::lifecycle;
use crate::life::lifecycle::let_go;
use crate::life::snapshot;
use crate::life::snapshot::log;
use crate::life::undone::{Done, Undone, answer, refuse};
use crate::vm::Vm;
use crate::vm::savings::Saving;
use crate::vm::vcpu::VcpuRun;
use abi::bundle::GUEST_RAM_BASE;
use abi::control::Answer;
use abi::control::save::{self, MOST_PAGES, MOST_STATE, NOT_YET, Pages, Save};
use abi::snapshot::bytes::Bytes;
use abi::snapshot::{MOST_STATE_BYTES, Placed, State, Told};
use alloc::string::ToString;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use mmu::gstage::{Object, Ready};
use rv::{Addr, Gpa, PAGE_BYTES, Pfn, PhysMem};

/// Does what is asked for.
pub(crate) fn ask<E: Env>(g: &Gnomon, vm: &Vm, wish: Save, env: &mut E) -> Answer {
    answer(match wish {
        Save::Begin => begin(g, vm, env).map(Answer::Saving),
        Save::State { id, from } => state(vm, id, from).map(|bytes| Answer::State(Bytes(bytes))),
        // It asks for the state first: without that there is no snapshot.
        Save::Pages { id, from } => {
            state(vm, id, u32::MAX).and_then(|_| pages(g, vm, (from, u64::MAX), env)).map(Answer::Pages)
        }
        Save::End(id) => end(g, vm, id, env).map(|()| Answer::Done),
        Save::Log(on) => log::switch(g, vm, on, env).map(|()| Answer::Done),
        Save::Changed { from, is_first } => log::changed(g, vm, (from, is_first), env).map(Answer::Changed),
        Save::Look { from, end } => log::check(vm).and_then(|()| pages(g, vm, (from, end), env)).map(Answer::Pages),
        Save::Fetch(pages) => log::check(vm).and_then(|()| fetch(g, vm, pages, env)).map(Answer::Pages),
        // The command's side keeps it from being ended when the command goes.
        Save::Give(id) => state(vm, id, u32::MAX).map(|_| {
            vm.savings.lock().is_given_away = true;
            Answer::Done
        }),
    })
}

fn end<E: Env>(g: &Gnomon, vm: &Vm, id: u32, env: &mut E) -> Done<()> {
    let own = |saving: &&Saving| if id == NOT_YET { !saving.is_given } else { saving.id == id };
    let was_running = vm.savings.lock().now.as_ref().filter(own).map(|saving| saving.was_running);
    let Some(was_running) = was_running else { return refuse(NONE) };
    let_go(vm, env);
    if was_running {
        lifecycle::resume(g, vm, env);
    }
    Ok(())
}

fn begin<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Done<save::Saving> {
    if vm.breaks.is_on() {
        return refuse("a debugger is attached to it");
    }
    // No lock is held while the VM is paused.
    let is_given_out = vm.savings.lock().now.as_ref().map(|saving| saving.state.is_some());
    match is_given_out {
        Some(true) => return refuse("another snapshot of it is being taken"),
        Some(false) => {}
        None => start(g, vm, env)?,
    }
    if g.vms.tenant(vm, |tenant| tenant.is_still()) != Some(true) {
        return Err(Undone::Later);
    }
    let saving = freeze(g, vm, env.now());
    if matches!(saving, Err(Undone::Refused(_))) {
        let _ = end(g, vm, NOT_YET, env);
    }
    saving
}

/// Pauses the VM, unless it is paused.
fn start<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Done<()> {
    let was_running = lifecycle::pause(g, vm, env);
    if !was_running && g.vms.tenant(vm, |tenant| tenant.paused.is_some()) != Some(true) {
        return refuse("it does not run: it starts, or comes to its end");
    }
    let mut savings = vm.savings.lock();
    // The one that is meant when none is yet is no snapshot's.
    savings.last = savings.last.wrapping_add(1).max(NOT_YET + 1);
    savings.now = Some(Saving { id: savings.last, was_running, state: None, is_given: false });
    Ok(())
}

/// Encodes the state of a VM that stands still. From then on its devices do, too.
fn freeze(g: &Gnomon, vm: &Vm, now: u64) -> Done<save::Saving> {
    let time = now.wrapping_sub(vm.time_zero.load(Ordering::Relaxed));
    let (told, plic, devices) = {
        let devices = vm.devices.all();
        let mut placed = Vec::new();
        for device in devices.iter() {
            match device.save() {
                Ok(state) => placed.push(Placed { at: device.place().start, device: state }),
                Err(Unsaved::Busy) => return Err(Undone::Later),
                Err(Unsaved::Never(why)) => return refuse(why),
            }
        }
        let told = told(g, vm, time);
        let savings = vm.savings.lock();
        if !savings.is_on() {
            return refuse(NONE);
        }
        // No device of its does anything between the two.
        vm.is_frozen.store(true, Ordering::SeqCst);
        (told, devices.plic().save(), placed)
    };
    let vcpus = g.vms.tenant(vm, |tenant| {
        let all = tenant.paused.iter().flatten().chain(tenant.parked.values());
        let mut all: Vec<&VcpuRun> = all.map(|run| &**run).collect();
        all.sort_by_key(|run| run.shared.id);
        all.into_iter().map(|run| run.save(time, &g.offer)).collect()
    });
    let events = vm.events.lock().save();
    let spaces = vm.tlb.spaces.lock().save();
    let state = State { told, vcpus: vcpus.unwrap_or_default(), events, plic, devices, spaces }.encode();
    if state.len() > MOST_STATE_BYTES {
        return refuse("its state is too long");
    }
    let state_bytes = state.len() as u32;
    let mut savings = vm.savings.lock();
    // It is gone if the VM was resumed or has ended.
    let Some(saving) = &mut savings.now else { return refuse(NONE) };
    saving.state = Some(state);
    let pages = vm.config.memory_bytes / PAGE_BYTES;
    Ok(save::Saving { id: saving.id, state_bytes, pages, was_running: saving.was_running })
}

fn told(g: &Gnomon, vm: &Vm, time: u64) -> Told {
    let (config, offer) = (&vm.config, &g.offer);
    let isa = vm.translation.isa(config, offer);
    Told {
        name: config.name.clone(),
        memory_bytes: config.memory_bytes,
        timebase: offer.timebase,
        time,
        isa: isa.ordered().map(ToString::to_string).collect(),
        blocks: [isa.cbom_block, isa.cboz_block, isa.cbop_block],
        formats: offer.formats.iter().map(|format| format.mode).collect(),
        vlenb: offer.vlenb as u32,
        svadu: vm.svadu,
        has_balloon: vm.devices.has::<Mmio<Balloon>>(),
        disks: snapshot::disks(config, offer),
        mac: config.mac.filter(|_| vm.devices.has::<Mmio<Net>>()),
        shares: config.shares.iter().map(|share| share.tag.clone()).collect(),
        has_rng: vm.devices.has::<Mmio<Rng>>(),
        has_virtio_console: config.virtio_console,
        ports: config.ports.clone(),
        has_pmu: offer.has_pmu,
    }
}

const NONE: &str = "no snapshot of it is being taken, or it went on meanwhile";

fn state(vm: &Vm, id: u32, from: u32) -> Done<Vec<u8>> {
    match &mut vm.savings.lock().now {
        Some(Saving { state: Some(state), id: own, is_given, .. }) if *own == id => {
            *is_given = true;
            let rest = state.get(from as usize..).unwrap_or_default();
            Ok(rest[..rest.len().min(MOST_STATE)].into())
        }
        _ => refuse(NONE),
    }
}

/// A page's bytes, where they are copied by words.
#[repr(align(8))]
struct Copy([u8; PAGE_BYTES as usize]);

/// The state of a page that a snapshot asks for.
enum Seen {
    /// The page was copied out.
    Copied,
    /// The page is zero, and so are all up to that one.
    Zero(Pfn<Gpa>),
    /// The page has to be brought in, or mapped first.
    Away,
}

fn pages<E: Env>(g: &Gnomon, vm: &Vm, (from, most): (u64, u64), env: &mut E) -> Done<Pages> {
    /// Steps of one answer: a page that is zero, or copied, takes some 2,000 instructions.
    const MOST_STEPS: usize = 64;
    let base = Addr::<Gpa>::new(GUEST_RAM_BASE).pfn();
    let end = base.add(vm.config.memory_bytes / PAGE_BYTES);
    if from > end.raw() - base.raw() {
        return refuse("it has not so many pages");
    }
    let end = base.add(most.min(end.raw() - base.raw()));
    let mut page = base.add(from);
    let mut answer = Pages { next: 0, first: Vec::new(), bytes: Bytes::default() };
    let mut copy = Copy([0; PAGE_BYTES as usize]);
    let copy = &mut copy.0;
    for _ in 0..MOST_STEPS {
        if page >= end || answer.first.len() == MOST_PAGES {
            break;
        }
        let seen = see(vm, page, copy, &env.mem())?;
        match seen {
            Seen::Zero(next) => page = next.min(end),
            Seen::Copied => {}
            Seen::Away => match vm.read(g, page.base(), copy, &mut Ready::Never, env) {
                Ok(()) => {}
                // What was found before is not lost.
                Err(why) if why.is_for_now() && !answer.first.is_empty() => break,
                Err(why) => return Err(why.into()),
            },
        }
        if !matches!(seen, Seen::Zero(_)) {
            if copy.iter().any(|byte| *byte != 0) {
                answer.first.push(page.raw() - base.raw());
                answer.bytes.0.extend_from_slice(copy);
            }
            page = page.add(1);
        }
    }
    answer.next = page.raw() - base.raw();
    Ok(answer)
}

/// Reads those pages.
fn fetch<E: Env>(g: &Gnomon, vm: &Vm, numbers: [u64; MOST_PAGES], env: &mut E) -> Done<Pages> {
    let mut answer = Pages { next: 0, first: Vec::new(), bytes: Bytes::default() };
    let all = vm.config.memory_bytes / PAGE_BYTES;
    for number in numbers.into_iter().filter(|number| *number < all) {
        let some = pages(g, vm, (number, number + 1), env)?;
        answer.first.extend(some.first);
        answer.bytes.0.extend(some.bytes.0);
    }
    Ok(answer)
}

/// Reads a page without touching memory that the guest has not touched.
fn see(vm: &Vm, page: Pfn<Gpa>, copy: &mut [u8], mem: &impl PhysMem) -> Done<Seen> {
    let guard = vm.memory.lock();
    let Some(memory) = guard.as_ref() else { return refuse("it has no memory now") };
    let space = &memory.space;
    let Some(region) = space.region_of(page) else { return Ok(Seen::Zero(page.add(1))) };
    if let Some(there) = space.resident(page.base(), mem) {
        // By words, and mostly the first ones tell.
        let is_zero = (0..PAGE_BYTES).step_by(8).all(|at| mem.read_u64(there.hpa.wrapping_add(at)) == 0);
        if is_zero {
            return Ok(Seen::Zero(page.add(1)));
        }
        mem.read_bytes(there.hpa, copy);
        return Ok(Seen::Copied);
    }
    let is_image = !matches!(region.object, Object::Anonymous);
    if is_image || space.is_out(page, mem).is_some() {
        return Ok(Seen::Away);
    }
    let (_, next) = space.look(page, mem);
    Ok(Seen::Zero(next.min(region.start.add(region.pages))))
}
