//! When Gnomon writes to the page that a vCPU's kernel shares.

use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::vcpu::VcpuRun;
use mmu::gstage::Ready;

/// The vCPU has another root since: the page says so, if the kernel shares one. Where it cannot be written now, the next time.
#[inline(never)]
pub(crate) fn note<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    if run.root_cache.is_none() {
        return;
    }
    let root = run.satp();
    let VcpuRun { vm, views, context, root_cache: Some(cache), .. } = run else { return };
    let mut changed = cache.clone();
    let has_lane = context.lane.changes_roots();
    if changed.follow(root, |root| has_lane && views.lane_loads(root)) {
        let (first, contents) = changed.contents();
        if vm.write(g, first, &contents, &mut Ready::Never, env).is_ok() {
            *cache = changed;
        }
    }
}
