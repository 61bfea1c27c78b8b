//! Guests in mode `steered`: what comes to Gnomon are access faults, by poison in their shadow tables ([`mmu::shadow`]).

use crate::env::Env;
use crate::exit::Faulted;
use crate::gnomon::Gnomon;
use crate::offer::Offer;
use crate::vcpu::VcpuRun;
use crate::vm::Memory;
use abi::bundle::VmConfig;
use alloc::string::String;
use mmu::shadow::GuestFence;
use rv::{Access, Addr, Asid, BriefExits, Exception, Gva, PAGE_BYTES, Trap};

/// Times in a row that an instruction makes an access fault for no reason that Gnomon knows of, after which it is the guest's.
const MOST: u32 = 4;

/// Whether a VM can be steered.
///
/// # Errors
/// A message, if not.
pub(super) fn check(config: &VmConfig, offer: &Offer) -> Result<(), String> {
    if !offer.denies_frames {
        return Err("mmu `steered` needs the firmware seat: faults are steered by what PMP denies".into());
    }
    if config.svadu {
        return Err("mmu `steered` has A and D set by the guest (Svade): leave out `svadu`".into());
    }
    Ok(())
}

/// An access fault: by poison, or by memory that cannot be accessed so (an AMO or LR/SC where the platform allows none).
pub(crate) fn access_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Faulted {
    run.shared.counters.exits_steered.bump();
    let access = match exception {
        Exception::FetchAccess => Access::Fetch,
        Exception::LoadAccess => Access::Load,
        _ => Access::Store,
    };
    match super::fault(g, run, access, env) {
        Faulted::Known if is_unexplained(run) => Faulted::Inject(Trap::new(exception, run.context.exit.tval)),
        faulted => faulted,
    }
}

/// The entry allowed the access before. Either another hart had just filled it, or this hart knew it as poison still, which it has
/// forgotten now: then the same will not come again and again. Or it is no poison that denies it.
fn is_unexplained(run: &mut VcpuRun) -> bool {
    let exits = run.shared.counters.exits.get();
    let found = (run.context.pc, run.context.exit.tval, exits - 1);
    let known = &mut run.unexplained;
    known.times = if found == (known.pc, known.tval, known.exit) { known.times + 1 } else { 1 };
    (known.pc, known.tval, known.exit) = (found.0, found.1, exits);
    known.times >= MOST
}

/// A fence of one page, of the vCPU's own. Says whether it is done: most are, for their tables are known.
#[inline(always)]
pub(super) fn fence_page<E: Env>(run: &mut VcpuRun, gva: Addr<Gva>, asid: Option<Asid>, env: &mut E) -> bool {
    let Some(root) = run.root.as_ref().filter(|root| root.steers && asid.is_none_or(|asid| asid == root.asid)) else {
        return false;
    };
    let page = gva.align_down(PAGE_BYTES);
    let mut memory = run.vm.memory.lock();
    let Some(Memory { space, shadow: Some(shadow) }) = memory.as_mut() else { return false };
    if !shadow.fence_in_known_table(root, page, space, &mut env.mem()) {
        return false;
    }
    drop(memory);
    run.context.brief = BriefExits::NONE;
    match asid {
        None => {
            run.context.lane.log.push(page);
            run.logged = run.context.lane.log.count();
        }
        Some(asid) => run.views.outdate_others(Some(asid)),
    }
    env.fence_guest(Some(page), None);
    true
}

/// A guest that has made an entry valid may wait for hardware to see it, without a fence. Hardware would at some time; so the entry
/// by which it took its last page fault is brought up to date now and then.
pub(crate) fn look_again<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    const PAGE_FAULTS: [u64; 3] =
        [Exception::FetchPage.code(), Exception::LoadPage.code(), Exception::StorePage.code()];
    let trap = env.trap_regs();
    let Some(root) = run.root.filter(|root| root.steers && PAGE_FAULTS.contains(&trap.vscause)) else { return };
    let fence = GuestFence { range: Some((Addr::new(trap.vstval), 1)), asid: Some(root.asid) };
    super::fence(g, run, &fence, env);
}
