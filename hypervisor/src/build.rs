//! What a VM has from its start to its end, or its next start: memory, devices as after a reset, and a device tree.

use crate::board;
use crate::env::Env;
use crate::events::Events;
use crate::gnomon::Gnomon;
use crate::offer::GuestMode;
use crate::vm::{Memory, Unreachable, Vm};
use abi::bundle::{GUEST_RAM_BASE, Segment, VmConfig};
use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering;
use mmu::frames::Owner;
use mmu::gstage::{AddressSpace, Object, Policy, Prot, Ready, Region, Superpages};
use rv::{Addr, Elide, Fence, FenceScope, Gpa, PAGE_BYTES, Pfn};

/// Builds a VM's memory, devices and device tree.
///
/// # Errors
/// A message, if that cannot be. What it has by then is still to be torn down.
pub(crate) fn build<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Result<(), String> {
    let memory = build_memory(g, vm, env)?;
    *vm.memory.lock() = Some(memory);
    announce(g, vm);
    vm.devices.lock().reset(vm.config.vcpus);
    *vm.events.lock() = Events::new(vm.config.vcpus);
    g.console.release_input();
    vm.vcpus.iter().for_each(|vcpu| vcpu.external.store(false, Ordering::SeqCst));
    let isa = vm.translation.isa(&vm.config, &g.offer);
    let tree = board::device_tree(&vm.config, &g.offer, &isa, vm.devices.lock().iter());
    let at = board::tree_address(vm.config.memory_bytes);
    if tree.len() as u64 > board::TREE_BYTES {
        return Err(format!("its device tree of {} bytes is too long; shorten the command line", tree.len()));
    }
    let mut ready = Ready::Nothing;
    let written = loop {
        match vm.write(g, Addr::new(at), &tree, &mut ready, env) {
            Err(Unreachable::Later) => {}
            written => break written,
        }
    };
    ready.discard(&g.harts[env.hart()].frames);
    written.map_err(|e| format!("no memory for its device tree: {e}"))
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
    let owner = Owner::Vm(vm.slot() as u16);
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
