//! Checks that a VM can go on from a snapshot here: the facts that its guest was told have to hold.

use crate::backend::disks::Port;
use crate::device::offer::Offer;
use crate::machine::isa::Isa;
use crate::sync::Mutex;
use crate::vm::Translation;
use abi::bundle::{MAX_VCPUS, VmConfig};
use abi::root_cache::MOST_PLACES;
use abi::snapshot::{DiskState, KernelState, MOST_TIME, RootCacheState, State, Told, VcpuState};
use abi::vmspace::Way;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use rv::csr::atp::Satp;
use rv::{Format, PAGE_BYTES};
use sbi_spec::nacl::shmem_size;

/// Returns the state that a VM is to go on from, if it is.
///
/// # Errors
/// A message that says why it cannot, and what to do.
pub fn check(config: &VmConfig, offer: &Offer) -> Result<Option<State>, String> {
    config.restore.as_ref().map(|bytes| check_state(&bytes.0, config, offer)).transpose()
}

/// Returns that state, if the VM can go on from it.
pub(super) fn check_state(bytes: &[u8], config: &VmConfig, offer: &Offer) -> Result<State, String> {
    let state = State::decode(bytes).ok_or("the state of its snapshot is malformed")?;
    let told = &state.told;
    let vcpus = state.vcpus.len();
    if vcpus != config.vcpus as usize || vcpus == 0 || vcpus > MAX_VCPUS as usize {
        return Err(format!("its snapshot has {vcpus} vCPUs, and it is to have {}", config.vcpus));
    }
    if told.memory_bytes != config.memory_bytes {
        let (has, is_to_have) = (told.memory_bytes, config.memory_bytes);
        return Err(format!("its snapshot has {has} bytes of memory, and it is to have {is_to_have}"));
    }
    if told.time >= MOST_TIME {
        return Err("its snapshot was taken at an impossible time".into());
    }
    if told.timebase != offer.timebase {
        let (theirs, ours) = (told.timebase, offer.timebase);
        return Err(format!("its clock counts {theirs} times a second, and this machine's {ours} times"));
    }
    if told.has_pmu && !offer.has_pmu {
        return Err("its guest was offered counters (SBI PMU), which these harts, or their firmware, do not let Gnomon emulate: \
                    restore it on harts with hpmcounter3 to hpmcounter8"
            .into());
    }
    if offer.firmware_emulates_time {
        return Err("the device tree names Zihpm and not Zicntr, so the harts have no `time` CSR, and the firmware shows guests \
                    its own time, so their clock cannot continue: restore it in the firmware seat (--seat firmware)"
            .into());
    }
    check_isa(told, config, offer)?;
    check_devices(told, config, offer)?;
    let is_offered = |mode: u64| offer.formats.iter().any(|format| u64::from(format.mode) == mode);
    for (id, vcpu) in state.vcpus.iter().enumerate() {
        let bytes = vcpu.v.0.len();
        if bytes != 32 * told.vlenb as usize {
            return Err(format!("vCPU {id} of its snapshot has {bytes} bytes of vector registers"));
        }
        let mode = Satp::decode(vcpu.csrs.satp).mode;
        if mode != 0 && !is_offered(mode) {
            return Err(format!("vCPU {id} of its snapshot has page tables of mode {mode}, which these harts lack"));
        }
    }
    check_root_caches(&state, config, offer)?;
    check_nested(&state, config)?;
    check_spaces(&state, config, offer)?;
    if !state.vcpus.iter().any(|vcpu| vcpu.is_started) {
        return Err("no vCPU of its snapshot is started".into());
    }
    Ok(state)
}

/// Checks the facts that the guest was told of its harts.
fn check_isa(told: &Told, config: &VmConfig, offer: &Offer) -> Result<(), String> {
    const REMEDY: &str = "restore it in another mode (--mmu), on harts that have it, or where it was taken";
    // They are printed, and nothing of a file's is to be taken for Gnomon's words.
    let is_name = |name: &String| name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !told.isa.iter().all(is_name) {
        return Err("its snapshot names extensions that have no such names".into());
    }
    let mode = offer.mode(config);
    let isa: Isa = Translation::from(mode).isa(config, offer);
    if let Some(lacking) = told.isa.iter().find(|name| !isa.has(name)) {
        return Err(format!(
            "its guest was told that its harts have {lacking}, which mmu = {mode} does not offer here: {REMEDY}"
        ));
    }
    let ours = [isa.cbom_block, isa.cboz_block, isa.cbop_block];
    if told.blocks.iter().zip(ours).any(|(told, ours)| *told != 0 && *told != ours) {
        let theirs = told.blocks;
        return Err(format!("its guest was told of cache blocks of {theirs:?} bytes, and these harts have {ours:?}"));
    }
    let lacks = |mode: &&u8| !offer.formats.iter().any(|format| format.mode == **mode);
    if let Some(mode) = told.formats.iter().find(lacks) {
        let name = Format::of_vs_mode((*mode).into()).map_or("an unknown one", |format| format.name);
        return Err(format!("its guest may use page tables of the format {name}, which these harts lack"));
    }
    let has_vectors = told.vlenb != 0;
    if has_vectors && told.vlenb as usize != offer.vlenb {
        let (theirs, ours) = (8 * u64::from(told.vlenb), 8 * offer.vlenb);
        return Err(format!("its vector registers have {theirs} bits, and these harts' {ours}"));
    }
    let svadu = offer.svadu(config);
    if told.svadu != svadu {
        return Err(format!("its guest was told svadu = {}, and it is to have {svadu}", told.svadu));
    }
    Ok(())
}

/// Checks the pages that its kernels share, and the facts that they were told there.
fn check_root_caches(state: &State, config: &VmConfig, offer: &Offer) -> Result<(), String> {
    let is_possible = |cache: &RootCacheState| {
        cache.at.is_multiple_of(PAGE_BYTES)
            && config.has_ram(cache.at, PAGE_BYTES)
            && cache.places as usize <= MOST_PLACES
    };
    if let Some(id) = state.vcpus.iter().position(|vcpu| vcpu.root_cache.is_some_and(|cache| !is_possible(&cache))) {
        return Err(format!("vCPU {id} of its snapshot shares a root cache that cannot be"));
    }
    let mode = offer.mode(config);
    if state.is_tagged() && !Translation::from(mode).is_tagged() {
        return Err(format!(
            "its guest was told by its root cache that no change of address spaces needs a fence, and with mmu = {mode} some do: \
             restore it on shadow tables (--mmu)"
        ));
    }
    Ok(())
}

/// Checks the memory that its kernels share for their own guests.
fn check_nested(state: &State, config: &VmConfig) -> Result<(), String> {
    let is_possible = |at: u64| at.is_multiple_of(PAGE_BYTES) && config.has_ram(at, shmem_size::RV64 as u64);
    let shares = |vcpu: &VcpuState| vcpu.nested.and_then(|nested| nested.shared);
    match state.vcpus.iter().position(|vcpu| shares(vcpu).is_some_and(|at| !is_possible(at))) {
        Some(id) => Err(format!("vCPU {id} of its snapshot shares memory by SBI NACL that cannot be")),
        None => Ok(()),
    }
}

/// Checks the address spaces of its kernel, and the programs that it runs.
fn check_spaces(state: &State, config: &VmConfig, offer: &Offer) -> Result<(), String> {
    let is_root = |satp: u64| {
        let Satp { mode, ppn, .. } = Satp::decode(satp);
        config.has_ram(ppn << 12, PAGE_BYTES) && offer.formats.iter().any(|format| u64::from(format.mode) == mode)
    };
    if state.spaces.iter().any(|space| space.root.is_some_and(|root| !is_root(root))) {
        return Err("an address space of its snapshot has a root that these harts, or its memory, do not have".into());
    }
    let is_offered = |kernel: &KernelState| {
        let mode = Satp::decode(kernel.satp).mode;
        mode == 0 || offer.formats.iter().any(|format| u64::from(format.mode) == mode)
    };
    let is_possible = |kernel: &KernelState| {
        kernel.page.is_multiple_of(PAGE_BYTES) && config.has_ram(kernel.page, PAGE_BYTES) && is_offered(kernel)
    };
    let runs = |vcpu: &VcpuState| vcpu.kernel.is_some();
    let is_wild = |vcpu: &VcpuState| vcpu.is_supervisor || vcpu.kernel.is_some_and(|kernel| !is_possible(&kernel));
    if let Some(id) = state.vcpus.iter().position(|vcpu| runs(vcpu) && is_wild(vcpu)) {
        return Err(format!("vCPU {id} of its snapshot runs a program that cannot be"));
    }
    let mode = offer.mode(config);
    if state.vcpus.iter().any(runs) && !Translation::from(mode).has_way(Way::Soft, config.nested) {
        return Err(format!(
            "its kernel runs programs in the way soft, which mmu = {mode} does not have: restore it with --mmu lazy"
        ));
    }
    Ok(())
}

/// Checks the facts that the guest was told of the rest: the devices.
fn check_devices(told: &Told, config: &VmConfig, offer: &Offer) -> Result<(), String> {
    if told.has_balloon != config.balloon_bytes.is_some() {
        return Err("it had a memory balloon, and is to have none, or the other way round".into());
    }
    if told.mac != config.mac {
        return Err("it had another network card, or none".into());
    }
    if told.has_rng != config.rng {
        return Err("it had a source of random bytes, and is to have none, or the other way round".into());
    }
    if told.has_virtio_console != config.virtio_console {
        return Err("it had a virtio console, and is to have none, or the other way round".into());
    }
    if told.ports != config.ports {
        return Err("it had other ports: give it as many, by the same names, in their order (--port)".into());
    }
    if !config.shares.iter().map(|share| &share.tag).eq(&told.shares) {
        return Err("it had other shared folders: give it as many, by the same names, in their order (--share)".into());
    }
    let disks = disks(config, offer);
    if disks.len() != told.disks.len() {
        let (had, has) = (told.disks.len(), disks.len());
        return Err(format!("it had {had} disks, and is to have {has}: give it the same, in their order (--disk)"));
    }
    match disks.iter().zip(&told.disks).position(|(ours, theirs)| ours != theirs) {
        None => Ok(()),
        Some(at) => {
            let named = |disk: &DiskState| {
                let how = if disk.is_read_only { ", read-only" } else { "" };
                format!("{} sectors{how}", disk.sectors)
            };
            let (had, has) = (named(&told.disks[at]), named(&disks[at]));
            Err(format!("its disk {at} had {had}, and has {has}: give it the same disk (--disk)"))
        }
    }
}

/// Returns the state of the VM's disks for a snapshot.
pub(crate) fn disks(config: &VmConfig, offer: &Offer) -> Vec<DiskState> {
    let ports = config.disks.iter().filter_map(|number| offer.disks.get(*number));
    let state = |port: &Arc<Mutex<Port>>| {
        let port = port.lock();
        DiskState { sectors: port.device().sectors(), is_read_only: port.device().is_read_only() }
    };
    ports.map(state).collect()
}

/// The time from a VM's first state to the start of the machine to which it comes, at most.
const AHEAD_SECONDS: u64 = 60;

/// Returns the least time that the machine's clock has to show, where guests read that themselves: the latest that any
/// of those VMs has seen. `None` if none goes on from a snapshot.
pub fn clock<'a>(vms: impl IntoIterator<Item = &'a VmConfig>) -> Option<u64> {
    let time = |vm: &VmConfig| {
        let told = State::decode(&vm.restore.as_ref()?.0)?.told;
        // One that arrives runs on elsewhere until it is here: the clock is to be ahead of it then.
        Some(if vm.incoming {
            told.time.saturating_add(told.timebase.saturating_mul(AHEAD_SECONDS))
        } else {
            told.time
        })
    };
    vms.into_iter().filter_map(time).filter(|time| *time < MOST_TIME).max()
}
