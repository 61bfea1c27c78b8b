//! Fences of L1's for translations of its guests.

use super::state::state;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::collapsed::{self, Fenced};
use crate::memory::nested;
use crate::vm::vcpu::VcpuRun;
use mmu::shadow::GuestFence;

/// Does a fence of all translations of L1's guests, which another vCPU of L1's asked for.
pub fn fence_all<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    if run.nested.is_none() {
        return;
    }
    nested::fence(g, run, (None, None), env);
    if run.vm.collapses() {
        // What that has compared is by L2's own tables, too.
        return;
    }
    if run.runs_l2() {
        // The hart has the VMID of the present root, which stays; the others are not used again.
        env.fence_guest(None, None);
        let views = &mut state(run).views;
        let present = *views.id();
        views.forget_ids();
        *views.id() = present;
    } else {
        vvma(g, run, env);
    }
}

/// Does a fence of L1's for translations by L2's own tables, of whichever VMID: all are forgotten.
pub(super) fn vvma<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    if run.vm.collapses() {
        collapsed::fence(g, run, &Fenced::Own(GuestFence { range: None, asid: None }), env);
        return;
    }
    env.forget_nested(state(run));
}
