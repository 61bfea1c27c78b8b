//! The guest's code at an exit.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::fetch;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::VcpuRun;
use mmu::shadow::GuestFence;
use rv::Addr;

/// Makes the hart fetch the guest's code again, because it changed since the trap, or is elsewhere. The hart then
/// follows the guest's present tables.
pub(super) fn refetch<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let code = GuestFence { range: Some((Addr::new(run.context.pc), 4)), asid: None };
    run.vm.translation.fence(g, run, &code, env);
    env.fence_instructions();
    Outcome::Resume
}

/// Returns the instruction that trapped: the trap value or, where that is 0, as the specification allows (QEMU's is for
/// WRS.NTO), the one in memory. `None` as for [`fetch`].
pub(super) fn trapped<E: Env>(run: &VcpuRun, env: &mut E) -> Option<u64> {
    match run.context.exit.tval {
        0 => fetch(run, env).map(u64::from),
        insn => Some(insn),
    }
}

/// Reads the vCPU's present instruction. `None` if it cannot be fetched: the guest changed its tables
/// since the trap.
pub(super) fn fetch<E: Env>(run: &VcpuRun, env: &mut E) -> Option<u32> {
    let guard = run.vm.memory.lock();
    let satp = run.vm.translation.satp(run, env);
    fetch::instruction(&guard.as_ref()?.space, satp, env.privilege(), run.context.pc, &env.mem())
}
