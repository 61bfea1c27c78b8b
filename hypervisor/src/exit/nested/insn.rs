//! L2's instructions that only a hypervisor may execute, or that L1 or Gnomon makes trap.

use super::state::state;
use super::world::{Reflected, reflect};
use super::{collapsed, memory};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::VcpuRun;
use rv::csr::hstatus;
use rv::system::{WFI, WRS_NTO};
use rv::{Exception, Mode};

/// Handles an instruction of L2's that only a hypervisor may execute. It is L1's to handle; but waits may be those that Gnomon makes trap.
pub(super) fn virtual_instruction<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let insn = trapped(run, env);
    if let Some(outcome) = collapsed::instruction(g, run, insn, env) {
        return outcome;
    }
    waits_or_reflects(g, run, insn, env)
}

/// Returns L2's instruction that has trapped. QEMU does not report WRS.NTO.
pub(super) fn trapped<E: Env>(run: &mut VcpuRun, env: &E) -> u64 {
    match run.context.exit.tval {
        0 => memory::fetch(run, env).unwrap_or(0),
        insn => insn,
    }
}

/// Handles a virtual instruction of L2's: a wait that L1 does not make trap is Gnomon's, all others are L1's.
pub(super) fn waits_or_reflects<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: u64, env: &mut E) -> Outcome {
    let exit = run.context.exit;
    let traps_waits = state(run).csrs.hstatus & hstatus::VTW != 0;
    match insn {
        WFI if !traps_waits && env.privilege() == Mode::Supervisor => {
            run.context.skip(4);
            run.shared.counters.wfis.bump();
            Outcome::Wait
        }
        WRS_NTO if !traps_waits => {
            run.context.skip(4);
            run.shared.counters.wrs_ntos.bump();
            Outcome::Yield
        }
        _ => reflect(g, run, Reflected::of(Exception::VirtualInstruction, &exit), env),
    }
}
