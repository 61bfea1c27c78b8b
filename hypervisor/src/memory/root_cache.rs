//! The occasions on which Gnomon writes to the page that a vCPU's kernel shares.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::vcpu::{ShadowState, VcpuRun};
use mmu::gstage::Ready;

/// Notes in the shared page that the vCPU has another root, if the kernel shares one. If the page cannot be written
/// now, it is the next time.
#[inline(never)]
pub(crate) fn note<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    let root = run.satp();
    let VcpuRun { vm, shadow: ShadowState { views, .. }, root_cache: Some(cache), .. } = run else { return };
    if let Some(next) = cache.after(root, |root| views.lane_loads(root)) {
        let (at, contents) = next.differing(cache);
        if vm.write(g, at, &contents, &mut Ready::Never, env).is_ok() {
            **cache = next;
        }
    }
}
