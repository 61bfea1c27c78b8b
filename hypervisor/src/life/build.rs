//! Building a VM: the resources that it has from its start to its end, or to its next start. These are memory, devices
//! as after a reset, and a device tree. It is made in portions.

use crate::device::board;
use crate::device::offer::GuestMode;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::events::Events;
use crate::vm::{Memory, Vm};
use abi::bundle::{GUEST_RAM_BASE, Segment, VmConfig};
use abi::tunable::Id;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use mmu::frames::{AllocError, Frames};
use mmu::gstage::{AddressSpace, Object, Policy, Prot, Ready, Region, Residence, Superpages};
use mmu::shadow::Lists;
use rv::{Access, Addr, Fence, FenceScope, Gpa, Level, PAGE_BYTES, Pfn};

/// Checks what a VM asks for, and says what it may own. Returns the lists of its shadow tables: they are
/// still to be prepared.
///
/// # Errors
/// A message, if it asks for what cannot be.
pub(crate) fn begin<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Result<Vec<Lists>, String> {
    let (config, translation) = (&vm.config, vm.translation);
    // The bundle's promises are checked here, where they are used.
    let bytes = config.memory_bytes;
    if bytes < board::LEAST_RAM || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(format!("{bytes} bytes of memory: at least {} are needed, in whole pages", board::LEAST_RAM));
    }
    if vm.tree.len() as u64 > board::TREE_BYTES {
        return Err(format!("its device tree of {} bytes is too long; shorten the command line", vm.tree.len()));
    }
    translation.check(config, &g.offer)?;
    regions(g, config)?;
    let (most, limit) = frame_limits(config, translation.table_frames(config)?);
    let frames = &g.harts[env.hart()].frames;
    admit(g, vm, frames)?;
    frames.set_limit(vm.owner(), limit);
    frames.set_guest_limit(vm.owner(), most);
    Ok(translation.lists(config))
}

/// The reason why a VM is not built.
pub(crate) enum Unbuilt {
    /// There is no frame for it now.
    NoFrame(AllocError),
    /// The VM cannot be built, with a message.
    Never(String),
}

/// Prepares some of the lists. Returns whether all are prepared.
///
/// # Errors
/// If there is no memory for them now. The same goes on with it when there is.
pub(crate) fn prepare<E: Env>(g: &Gnomon, vm: &Vm, lists: &mut [Lists], env: &mut E) -> Result<bool, AllocError> {
    /// Some 50,000 instructions, more if a cache block cannot be cleared at once.
    const AT_ONCE: u64 = 64;
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    for lists in lists {
        if !lists.prepare(AT_ONCE, vm.owner(), frames, &mut mem)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Builds a VM's memory and devices, with those lists.
///
/// # Errors
/// If that cannot be. Nothing has changed then, and the lists are still there if it was for want of frames.
pub(crate) fn build<E: Env>(g: &Gnomon, vm: &Vm, lists: &mut Vec<Lists>, env: &mut E) -> Result<(), Unbuilt> {
    let memory = build_memory(g, vm, lists, env)?;
    {
        // The devices are reset, and locked until the memory is there: otherwise a hart that serves them meanwhile, for
        // a disk or for frames from other VMs, would carry out the last driver's requests in the new memory.
        let mut devices = vm.devices.all();
        devices.reset(vm.config.vcpus);
        *vm.memory.lock() = Some(memory);
    }
    announce(g, vm);
    *vm.events.lock() = Events::new(vm.config.vcpus);
    g.console.release_input();
    vm.vcpus.iter().for_each(|vcpu| vcpu.external.store(false, Ordering::SeqCst));
    Ok(())
}

/// Writes a VM's device tree to its memory. Returns whether it is there: if not, this is to be called once more with what
/// has been made ready.
///
/// # Errors
/// A message, if there is no memory for it.
pub(crate) fn furnish<E: Env>(g: &Gnomon, vm: &Vm, ready: &mut Ready, env: &mut E) -> Result<bool, String> {
    if vm.config.restore.is_some() {
        // Its guest has long read its own, and uses that memory for something else.
        return Ok(true);
    }
    let at = board::tree_address(vm.config.memory_bytes);
    // Its memory is zero where nothing is stored: the room at the tree's end takes no page.
    let stored = vm.tree.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match vm.write(g, Addr::new(at), &vm.tree[..stored], ready, env) {
        Ok(()) => Ok(true),
        Err(why) if why.is_for_now() => Ok(false),
        Err(why) => Err(format!("no memory for its device tree: {why}")),
    }
}

/// Gives a VM its memory from a page on: a portion. Returns where to go on, or `None` if it has all.
///
/// # Errors
/// A message, if there is not so much.
pub(crate) fn wire<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    mut page: Pfn<Gpa>,
    ready: &mut Ready,
    env: &mut E,
) -> Result<Option<Pfn<Gpa>>, String> {
    /// Pages of one portion: some 50,000 instructions to clear them one by one.
    const AT_ONCE: usize = 32;
    let end = Addr::<Gpa>::new(GUEST_RAM_BASE + vm.config.memory_bytes).pfn();
    for _ in 0..AT_ONCE {
        if page >= end {
            return Ok(None);
        }
        let look = |vm: &Vm| {
            let guard = vm.memory.lock();
            let memory = guard.as_ref()?;
            let is_image = !matches!(memory.space.region_of(page)?.object, Object::Anonymous);
            let there = memory.space.translate(page.base(), &env.mem()).map(|there| there.level);
            // Without a swap device an image stays in memory, whether or not it is mapped.
            let stays = is_image && g.frames().originals().count() == 0;
            Some((is_image, there.or(stays.then_some(Level::PAGE))))
        };
        let (is_image, level) = look(vm).unwrap_or_default();
        let Some(level) = level else {
            // An image that is touched stays: the sweep leaves those of VMs with wired memory alone.
            let access = if is_image { Access::Load } else { Access::Store };
            match vm.reach(g, (page.base(), access), ready, env) {
                Ok(_) => continue,
                Err(why) if why.is_for_now() => return Ok(Some(page)),
                Err(why) => return Err(format!("no memory that could be wired: {why}")),
            }
        };
        page = page.align_down(level.pages()).add(level.pages());
    }
    Ok(Some(page))
}

/// Returns the number of frames that a VM may own for its RAM, and that for everything: its RAM, the tables for it, some to spare
/// for tables of sparse regions, and its shadow tables. With `limit`, RAM would otherwise take the frames of the tables, down to the
/// few with which two faults of one instruction take each other's shadow pages for ever. Documented in `docs/memory.md`.
fn frame_limits(config: &VmConfig, table_frames: u64) -> (u64, u64) {
    let ram = config.memory_bytes / PAGE_BYTES;
    let most = config.limit_bytes.map_or(ram, |bytes| ram.min(bytes / PAGE_BYTES));
    (most, most + ram / 256 + 64 + table_frames)
}

/// Checks that the host can keep its promises to all present VMs. If they may want more memory than it has, pages will
/// have to go.
fn admit(g: &Gnomon, vm: &Vm, frames: &Frames) -> Result<(), String> {
    let config = &vm.config;
    if config.reserve_bytes > config.limit_bytes.unwrap_or(config.memory_bytes).min(config.memory_bytes) {
        return Err(format!("a reserve of {} bytes is more than it may have", config.reserve_bytes));
    }
    if config.wired && config.limit_bytes.is_some_and(|limit| limit < config.memory_bytes) {
        return Err("wired memory with a limit below it: leave one of them out".into());
    }
    let sum = |of: fn(&Vm) -> u64| g.vms.all().map(|vm| of(&vm)).fold(0_u64, u64::saturating_add);
    // Images may have to be in memory at any time.
    let total = frames.total_count() - frames.originals().count();
    let all = sum(|vm| vm.promised_bytes() / PAGE_BYTES);
    if all > total {
        return Err(format!("{all} frames are reserved or wired for all VMs together, of {total} that the host has"));
    }
    // What they want for tables besides is seen when it is short.
    if config.limit_bytes.is_some() || sum(|vm| frame_limits(&vm.config, 0).1) > total {
        g.pager.turn_on(frames);
    }
    Ok(())
}

/// Prints the mode in which the VM's memory is virtualized, and whether it is the default.
fn announce(g: &Gnomon, vm: &Vm) {
    let mode = g.offer.mode(&vm.config);
    let who = match (vm.config.mmu, g.offer.guest) {
        (Some(_), _) => "",
        (None, GuestMode::Virtual) => ", the default with the H extension",
        (None, GuestMode::Supervisor) => ", the default without the H extension",
    };
    let guests = if vm.collapses() { "; its guests run on collapsed tables" } else { "" };
    g.console.say(&format!("{}: mmu = {mode}{who}{guests}", vm.config.name));
}

fn build_memory<E: Env>(g: &Gnomon, vm: &Vm, lists: &mut Vec<Lists>, env: &mut E) -> Result<Memory, Unbuilt> {
    let (config, translation) = (&vm.config, vm.translation);
    let owner = vm.owner();
    let set = &g.tunables;
    let policy = Policy {
        superpages: match config.superpages && set.is_on(Id::Superpages) {
            true if config.gigapages => Superpages::Giga,
            true => Superpages::Mega,
            false => Superpages::Never,
        },
        images: translation.images(config, &g.offer),
        ad: translation.ad(config, &g.offer, set),
        residence: if config.wired { Residence::Wired } else { Residence::Pageable },
    };
    let mut mem = env.mem();
    let frames = &g.harts[env.hart()].frames;
    let regions = regions(g, config).map_err(Unbuilt::Never)?;
    let space = AddressSpace::new(g.offer.g_format, owner, policy, frames, &mut mem);
    let mut space = space.map_err(Unbuilt::NoFrame)?;
    let added = regions.into_iter().try_for_each(|region| space.add_region(region, &mem));
    let added = added.map_err(|why| format!("its memory map: {why}"));
    let nested = added.and_then(|()| translation.build_nested(vm, lists, frames));
    let built = nested.and_then(|nested| {
        let collapsed = translation.build_collapsed(vm, lists, frames)?;
        let shadow = translation.build(g, vm, lists, (&mut space, owner, frames), &mut mem)?;
        Ok((shadow, nested, collapsed))
    });
    match built {
        Ok((shadow, nested, collapsed)) => {
            g.mappers.iter().filter_map(|kind| kind(vm)).for_each(|mapper| space.add_mapper(mapper));
            Ok(Memory { space, shadow, nested, collapsed })
        }
        Err(message) => {
            // No hart has seen these tables: their frames go straight back.
            space.destroy(&mut Unseen).release(u32::MAX, frames, &mem, |_| {});
            Err(Unbuilt::Never(message))
        }
    }
}

/// The fence for tables that no hart has used.
struct Unseen;

impl Fence<Gpa> for Unseen {
    fn fence(&mut self, _: FenceScope<Gpa>) {}
}

/// Returns the regions of RAM: images where there are segments, anonymous memory elsewhere.
fn regions(g: &Gnomon, config: &VmConfig) -> Result<Vec<Region>, String> {
    let prot = Prot::R | Prot::W | Prot::X;
    let end = GUEST_RAM_BASE + config.memory_bytes;
    let (mut at, mut regions) = (GUEST_RAM_BASE, Vec::new());
    let mut add = |start: u64, end: u64, object| {
        if start != end {
            regions.push(Region { start: Addr::new(start).pfn(), pages: (end - start) / PAGE_BYTES, prot, object });
        }
    };
    for segment in &config.segments {
        let (start, pages_end) = segment_span(segment, at, end, g.bundle_bytes)?;
        add(at, start, Object::Anonymous);
        let first = Pfn::new(g.bundle.raw() + segment.offset / PAGE_BYTES);
        add(start, pages_end, Object::Image { first });
        at = pages_end;
    }
    add(at, end, Object::Anonymous);
    Ok(regions)
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
