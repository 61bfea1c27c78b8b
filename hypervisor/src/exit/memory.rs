//! Guest physical memory: what is made ready at its first touch, what is not there, and the code at an exit.

use super::inject::inject;
use super::mmio;
use super::outcome::Outcome;
use crate::board::Device;
use crate::env::Env;
use crate::fetch;
use crate::gnomon::Gnomon;
use crate::shadow;
use crate::vcpu::VcpuRun;
use crate::vm::Unreachable;
use alloc::format;
use alloc::sync::Arc;
use mmu::shadow::GuestFence;
use mmu::two_stage::access_fault;
use rv::{Access, Addr, Gpa, Trap};

/// The guest touched a guest physical page that the G-stage does not allow (yet).
pub(super) fn guest_page_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, env: &mut E) -> Outcome {
    let exit = run.context.exit;
    // norm:htval: bits 1:0 of the address are those of the virtual address, except for implicit
    // accesses, whose addresses are aligned.
    let is_implicit = exit.tinst == mmu::two_stage::TINST_PTE_READ || exit.tinst == mmu::two_stage::TINST_PTE_WRITE;
    let low = if is_implicit { 0 } else { exit.tval & 3 };
    let gpa = Addr::new(exit.tval2 << 2 | low);
    // For a table the access is the walker's own, whatever the guest's instruction was.
    let needed = match exit.tinst {
        mmu::two_stage::TINST_PTE_READ => Access::Load,
        mmu::two_stage::TINST_PTE_WRITE => Access::Store,
        _ => access,
    };
    let vm = Arc::clone(&run.vm);
    match vm.reach(g, gpa, needed, env) {
        Ok(_) => {
            run.shared.counters.faults_memory.bump();
            Outcome::Resume
        }
        Err(Unreachable::Hole) if !is_implicit => outside_ram(g, run, access, gpa, env),
        Err(Unreachable::Hole | Unreachable::Denied) => deny(run, access, env),
        Err(Unreachable::OutOfFrames(e)) => Outcome::kill(format!("no memory for {gpa}: {e}")),
        // The VM is leaving; this vCPU is about to be parked.
        Err(Unreachable::Gone) => Outcome::Resume,
    }
}

/// An access to guest physical memory where there is no RAM.
pub(crate) fn outside_ram<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    access: Access,
    gpa: Addr<Gpa>,
    env: &mut E,
) -> Outcome {
    match Device::at(gpa) {
        Some(device) if access != Access::Fetch => mmio::access(g, run, access, device, env),
        _ => deny(run, access, env),
    }
}

/// Nothing is there: what a machine answers with an access fault.
pub(super) fn deny<E: Env>(run: &mut VcpuRun, access: Access, env: &mut E) -> Outcome {
    run.shared.counters.faults_denied.bump();
    let trap = Trap::new(access_fault(access), run.context.exit.tval);
    inject(run, &trap, env)
}

/// The guest's code is not what it was at the trap, or where it was: the hart looks again, and finds what the guest's
/// tables say now.
pub(super) fn refetch<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let code = GuestFence { range: Some((Addr::new(run.context.pc), 4)), asid: None };
    if run.root.is_some() {
        shadow::fence(g, run, &code, env);
    } else {
        code.pages().into_iter().flatten().for_each(|page| env.fence_guest(Some(page)));
    }
    env.fence_instructions();
    Outcome::Resume
}

/// Reads the vCPU's present instruction. `None` if it cannot be fetched: the guest changed its tables
/// since the trap.
pub(super) fn fetch<E: Env>(run: &VcpuRun, env: &mut E) -> Option<u32> {
    let guard = run.vm.memory.lock();
    // On shadow tables the hart's register is Gnomon's.
    let satp = if run.root.is_some() { run.csrs.vsatp } else { env.vsatp() };
    fetch::instruction(&guard.as_ref()?.space, satp, env.privilege(), run.context.pc, &env.mem())
}
