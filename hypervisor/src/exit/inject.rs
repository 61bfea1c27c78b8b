//! Delivery of exceptions to the guest, as by hardware.

use crate::hart::env::Env;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::{VcpuRun, VsTrapRegs};
use mmu::two_stage::access_fault;
use rv::csr::{hstatus, status};
use rv::{Access, Mode, Trap};

/// Delivers an exception to the guest. The guest goes on in its handler, wherever that is: user mode alone can
/// bring about any exception at any address, so none may end the VM. A kernel that cannot fetch its handler is
/// [`super::watch`]'s to find.
pub fn inject<E: Env>(run: &mut VcpuRun, trap: &Trap, env: &mut E) -> Outcome {
    let mut regs = env.trap_regs();
    run.shared.counters.inject_exception.bump();
    run.context.pc = enter_trap(&mut regs, trap, run.context.pc, env.privilege());
    env.set_trap_regs(&regs);
    env.set_privilege(Mode::Supervisor);
    if run.nested.is_some() {
        nested_trap(run, env);
    }
    Outcome::Resume
}

/// A hypervisor has taken a trap. As its virtualization mode was 0, `hstatus.SPV` is so then, and `hstatus.GVA`.
#[cold]
pub(super) fn nested_trap<E: Env>(run: &mut VcpuRun, env: &mut E) {
    let Some(nested) = run.nested.as_deref_mut().filter(|nested| !nested.runs_l2) else { return };
    nested.csrs.hstatus &= !(hstatus::SPV | hstatus::GVA);
    env.set_world(run);
}

/// Answers an access to nothing, like a machine: with an access fault.
pub(super) fn deny<E: Env>(run: &mut VcpuRun, access: Access, env: &mut E) -> Outcome {
    run.shared.counters.faults_denied.bump();
    let trap = Trap::new(access_fault(access), run.context.exit.tval);
    inject(run, &trap, env)
}

/// Changes the guest's trap registers as at a trap (privileged spec, "Trap Entry", for a trap to S); returns the
/// address at which the guest continues. `pc` and `from` are the guest's address and mode before.
pub fn enter_trap(regs: &mut VsTrapRegs, trap: &Trap, pc: u64, from: Mode) -> u64 {
    enter_at(regs, (trap.exception.code(), trap.tval), pc, from)
}

/// Like [`enter_trap`], for any cause, as `scause` has it: interrupts as well.
pub(super) fn enter_at(regs: &mut VsTrapRegs, (cause, tval): (u64, u64), pc: u64, from: Mode) -> u64 {
    const INTERRUPT: u64 = 1 << 63;
    regs.vsepc = pc;
    regs.vscause = cause;
    regs.vstval = tval;
    let was_enabled = regs.vsstatus & status::SIE != 0;
    regs.vsstatus &= !(status::SPP | status::SPIE | status::SIE);
    if from == Mode::Supervisor {
        regs.vsstatus |= status::SPP;
    }
    if was_enabled {
        regs.vsstatus |= status::SPIE;
    }
    // Exceptions go to BASE in either mode of `stvec`.
    let base = regs.vstvec & !3;
    let is_vectored = regs.vstvec & 3 == 1 && cause & INTERRUPT != 0;
    if is_vectored { base.wrapping_add((cause & !INTERRUPT) << 2) } else { base }
}
