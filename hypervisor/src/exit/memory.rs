//! Guest-page faults, page faults and access faults, by what the fault is about: memory that is made ready, a device, nothing, or
//! the guest's own tables. A vCPU whose memory has to be read from the swap device waits here ([`wait_for_memory`]).

use super::inject::{deny, inject};
use super::mmio;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::shadow::brief as shadow;
use crate::vm::Unreachable;
use crate::vm::outcome::{Faulted, Known, Outcome};
use crate::vm::vcpu::VcpuRun;
use alloc::format;
use rv::{Access, Addr, Exception, Gpa};

/// Handles a guest-page fault: the guest touched a guest physical page that the G-stage does not allow (yet). Or it is
/// no page of the guest's: a steered guest was denied a frame.
pub(super) fn guest_page_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, env: &mut E) -> Outcome {
    if let Some(faulted) = run.vm.translation.denied_frame(g, run, access, env) {
        return settled(g, run, faulted, env);
    }
    let (counters, exit) = (&run.shared.counters, &run.context.exit);
    match access {
        Access::Store => counters.exits_store.bump(),
        Access::Load | Access::LoadExec => counters.exits_load.bump(),
        Access::Fetch => counters.exits_fetch.bump(),
    }
    // norm:mtval2_htval_virtaddr: bits 1:0 of the address are those of the virtual address, except for implicit
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
    if !is_implicit && !run.vm.in_ram(gpa.raw(), 1) {
        return outside_ram(g, run, access, gpa, env);
    }
    match run.vm.translation.touch(g, run, (gpa, needed), env) {
        Ok(_) => {
            run.shared.counters.faults_memory.bump();
            Outcome::Resume
        }
        Err(Unreachable::Hole) if !is_implicit => outside_ram(g, run, access, gpa, env),
        Err(Unreachable::Hole | Unreachable::Denied) => deny(run, access, env),
        Err(Unreachable::OutOfFrames(e)) => Outcome::kill(format!("no memory for {gpa}: {e}")),
        Err(why @ (Unreachable::Lost(_) | Unreachable::Out { .. } | Unreachable::OriginalOut { .. })) => {
            Outcome::kill(format!("{why}"))
        }
        Err(Unreachable::Waits { since }) => wait_for_memory(g, run, since),
        // The VM is leaving, and this vCPU about to be parked; or the guest faults again for the rest.
        Err(Unreachable::Gone | Unreachable::Later) => Outcome::Resume,
    }
}

/// Handles a page fault that came to Gnomon.
// A call of its own would cost a twentieth of most.
#[inline(always)]
pub(super) fn page_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Outcome {
    let faulted = run.vm.translation.page_fault(g, run, exception, env);
    settled(g, run, faulted, env)
}

/// Handles an access fault that came to Gnomon.
#[inline(never)]
pub(super) fn access_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Outcome {
    let faulted = run.vm.translation.access_fault(g, run, exception, env);
    settled(g, run, faulted, env)
}

/// Handles a fault on shadow tables of which something is known.
pub(super) fn known_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, known: Known, env: &mut E) -> Outcome {
    let faulted = shadow::known_fault(g, run, known, env);
    settled(g, run, faulted, env)
}

/// Returns the outcome of a fault: mostly the guest just continues.
#[inline(always)]
fn settled<E: Env>(g: &Gnomon, run: &mut VcpuRun, faulted: Faulted, env: &mut E) -> Outcome {
    match faulted {
        Faulted::Settled => Outcome::Resume,
        other => unsettled(g, run, other, env),
    }
}

/// Handles the rare results of a fault, after which the guest does not just continue.
// What it takes would be in the frame of all exits.
#[inline(never)]
fn unsettled<E: Env>(g: &Gnomon, run: &mut VcpuRun, faulted: Faulted, env: &mut E) -> Outcome {
    match faulted {
        Faulted::Settled | Faulted::Known => Outcome::Resume,
        Faulted::Waits { since } => wait_for_memory(g, run, since),
        Faulted::Inject(trap) => inject(run, &trap, env),
        Faulted::NoRam { access, gpa } => outside_ram(g, run, access, gpa, env),
        Faulted::Fatal(message) => Outcome::kill(message),
    }
}

/// Makes the vCPU wait for an event of the pager's, unless there were any since there were `before` of them.
#[cold]
#[inline(never)]
pub(crate) fn wait_for_memory(g: &Gnomon, run: &VcpuRun, before: u64) -> Outcome {
    // The vCPU is held before the count is read; the waker counts the event before it looks for held vCPUs.
    run.hold();
    if g.pager.events() == before { Outcome::Later } else { Outcome::Resume }
}

/// Handles an access to guest physical memory where there is no RAM.
#[inline]
fn outside_ram<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, gpa: Addr<Gpa>, env: &mut E) -> Outcome {
    match run.vm.device_at(gpa.raw()) {
        Some(there) if access != Access::Fetch => mmio::access(g, run, access, there, env),
        _ => deny(run, access, env),
    }
}
