//! Fences of L1's for translations of its guests.

use super::state::state;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::nested;
use crate::vm::vcpu::VcpuRun;

/// Does a fence of all translations of L1's guests, which another vCPU of L1's asked for.
pub fn fence_all<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    if run.nested.is_none() {
        return;
    }
    nested::fence(g, run, (None, None), env);
    if run.runs_l2() {
        // The hart has the VMID of the present root, which stays; the others are not used again.
        env.fence_guest(None, None);
        let views = &mut state(run).views;
        let present = *views.id();
        views.forget_ids();
        *views.id() = present;
    } else {
        vvma(run, env);
    }
}

/// Does a fence of L1's for translations by L2's own tables, of whichever VMID: all are forgotten.
pub(super) fn vvma<E: Env>(run: &mut VcpuRun, env: &mut E) {
    env.forget_nested(state(run));
}
