//! Guests in mode `steered`: what comes to Gnomon are access faults, by poison in their shadow tables ([`mmu::shadow`]), or
//! guest-page faults, where it is a G-stage that denies them the frame which poison leads to ([`crate::device::offer::Denial`]).

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::outcome::{Faulted, Known};
use crate::vm::vcpu::{Unexplained, VcpuRun};
use mmu::shadow::GuestFence;
use mmu::two_stage::{self, TINST_PTE_READ, TINST_PTE_WRITE};
use rv::{Access, Addr, Exception, Exit, Trap};

/// Times in a row that an instruction makes an access fault for no reason that Gnomon knows of, after which it is the guest's.
const MOST: u32 = 4;

/// Handles a guest-page fault, by poison.
// Of all guest-page faults those of guests behind a G-stage of their own are not to pay for it.
#[inline(never)]
pub(crate) fn denied_frame<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, env: &mut E) -> Faulted {
    forget_implicit(&mut run.context.exit);
    denied(access, run, env, |run, env| super::fault(g, run, access, env))
}

/// Handles either of them, of which that is known.
pub(super) fn known_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, known: Known, env: &mut E) -> Faulted {
    forget_implicit(&mut run.context.exit);
    denied(access, run, env, |run, env| super::known_fault(g, run, access, known, env))
}

/// Handles an access fault: by poison, or by memory that cannot be accessed so (an AMO or LR/SC where the platform
/// allows none).
pub(crate) fn access_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Faulted {
    let access = match exception {
        Exception::FetchAccess => Access::Fetch,
        Exception::LoadAccess => Access::Load,
        _ => Access::Store,
    };
    denied(access, run, env, |run, env| super::fault(g, run, access, env))
}

/// Forgets the trapped instruction if the fault is by a pointer to poison, which tells nothing of it.
fn forget_implicit(exit: &mut Exit) {
    if matches!(exit.tinst, TINST_PTE_READ | TINST_PTE_WRITE) {
        exit.tinst = 0;
    }
}

#[inline(always)]
fn denied<E: Env>(
    access: Access,
    run: &mut VcpuRun,
    env: &mut E,
    fault: impl FnOnce(&mut VcpuRun, &mut E) -> Faulted,
) -> Faulted {
    run.follow_lane();
    run.shared.counters.exits_steered.bump();
    match fault(run, env) {
        Faulted::Known if is_unexplained(run) => {
            Faulted::Inject(Trap::new(two_stage::access_fault(access), run.context.exit.tval))
        }
        Faulted::Known => {
            // A fence by address need not end what a hart remembers of a pointer to poison, which is a valid one.
            env.fence_guest_root();
            Faulted::Known
        }
        faulted => faulted,
    }
}

/// Returns whether a fault is unexplained: the entries allowed the access before. Either another hart had just filled
/// one, or this hart knew one as poison still, which it has forgotten now: then the fault does not come again and
/// again, unless other harts drop what they fill as often. Or it is no poison that denies it.
fn is_unexplained(run: &mut VcpuRun) -> bool {
    let memory = run.vm.memory.lock();
    let shadow = memory.as_ref().and_then(|memory| memory.shadow.as_ref());
    let emptied = shadow.map_or(0, |shadow| shadow.emptied());
    drop(memory);
    let known = &mut run.shadow.unexplained;
    let exits = run.shared.counters.exits.get();
    let (pc, tval) = (run.context.pc, run.context.exit.tval);
    let is_same = (pc, tval, exits - 1, emptied) == (known.pc, known.tval, known.exit, known.emptied);
    let times = if is_same { known.times + 1 } else { 1 };
    *known = Unexplained { pc, tval, exit: exits, emptied, times };
    times >= MOST
}

/// Brings the entry of the vCPU's last page fault up to date, now and then. A guest that has made an entry valid may
/// wait for hardware to see it, without a fence. Hardware would at some time.
pub(crate) fn look_again<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    const PAGE_FAULTS: [u64; 3] =
        [Exception::FetchPage.code(), Exception::LoadPage.code(), Exception::StorePage.code()];
    let trap = env.trap_regs();
    let Some(root) = run.shadow.root.filter(|root| root.steers && PAGE_FAULTS.contains(&trap.vscause)) else { return };
    let fence = GuestFence { range: Some((Addr::new(trap.vstval), 1)), asid: Some(root.asid) };
    super::fence(g, run, &fence, env);
}
