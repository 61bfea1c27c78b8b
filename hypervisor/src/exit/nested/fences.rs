//! Fences of L1's for translations of its guests.

use super::state::state;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::nested;
use crate::vm::vcpu::VcpuRun;
use rv::Vmid;

/// Does a fence of all translations of L1's guests, which another vCPU of L1's asked for.
pub fn fence_all<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    if run.nested.is_none() {
        return;
    }
    nested::fence(g, run, (None, None), env);
    if run.runs_l2() {
        // The hart has its VMID.
        env.fence_guest(None, None);
    } else {
        vvma(run, None, env);
    }
}

/// Does a fence of L1's for translations by L2's own tables, of that VMID or of the one in `hgatp`, which may be another than that of the tables
/// used last: all are forgotten.
pub(super) fn vvma<E: Env>(run: &mut VcpuRun, _: Option<Vmid>, env: &mut E) {
    env.forget_nested(state(run));
}
