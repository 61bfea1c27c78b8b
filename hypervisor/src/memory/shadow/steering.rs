//! Fences of one page as brief exits, for guests on shadow tables in every mode; and the check whether a VM can be steered
//! ([`mmu::shadow`]).

use crate::device::offer::{Denial, Offer};
use crate::hart::env::Env;
use crate::vm::Memory;
use crate::vm::vcpu::VcpuRun;
use abi::bundle::VmConfig;
use alloc::string::String;
use rv::{Addr, Asid, Gva, PAGE_BYTES};

/// Checks whether a VM can be steered.
///
/// # Errors
/// A message, if not.
pub(super) fn check(config: &VmConfig, offer: &Offer) -> Result<(), String> {
    if offer.denial == Denial::Nobody {
        return Err(
            "mmu `steered` needs frames that guests are denied, but RAM of this machine ends behind what its harts' \
             G-stage maps: use mmu `lazy`, or the firmware seat"
                .into(),
        );
    }
    if offer.svadu(config) {
        return Err("mmu `steered` has A and D set by the guest (Svade): leave out `svadu`".into());
    }
    Ok(())
}

/// Does a fence of one page, of the vCPU's own, as a brief exit. Returns whether it is done: most are, because the tables exist. The
/// others take the full path ([`super::fence`]).
#[inline(always)]
pub(super) fn fence_page<E: Env>(run: &mut VcpuRun, gva: Addr<Gva>, asid: Option<Asid>, env: &mut E) -> bool {
    let Some(root) = run.shadow.root.as_ref().filter(|root| asid.is_none_or(|asid| asid == root.asid)) else {
        return false;
    };
    let page = gva.align_down(PAGE_BYTES);
    // The lock's holder may wait for this hart.
    let Some(mut memory) = run.vm.memory.try_lock() else { return false };
    let Some(Memory { space, shadow: Some(shadow), .. }) = memory.as_mut() else { return false };
    if !shadow.alone(&mut env.mem(), |shadow, mem| shadow.fence_in_known_table(root, page, space, mem)) {
        return false;
    }
    drop(memory);
    run.forget_way();
    let logged = run.context.lane.log.count();
    match asid {
        None => run.context.lane.log.push(page),
        Some(asid) => run.shadow.views.outdate_others(Some(asid), &mut run.context.lane.log),
    }
    run.has_logged(logged);
    env.fence_guest(Some(page), None);
    true
}
