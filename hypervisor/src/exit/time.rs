//! Reads of `time` by guests, on harts that have no such CSR.
//!
//! Machine mode of such harts offers `time` by a memory-mapped counter, `mtime` (privileged specification, "Machine Timer
//! Registers" and "Hardware Performance Monitor"). A guest's read is an illegal instruction there. In the firmware seat it comes to
//! Gnomon, which does not delegate illegal instructions on such harts; in the payload seat the firmware emulates it.

use crate::hart::env::Env;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::VcpuRun;
use rv::Mode;
use rv::csr::COUNTEREN_TM;
use rv::system::{CsrInsn, names_csr, number};

/// Carries out the instruction `insn` of the vCPU's, which trapped from mode `from`, if it reads `time` and may. `None` if it is
/// another one, writes (`time` is read-only), or reads in user mode without the permission of the guest's `scounteren`
/// (where that has no bit of `time`, it counts as set): then it is illegal for the guest, too.
#[inline(always)]
pub(super) fn read<E: Env>(run: &mut VcpuRun, insn: u64, from: Mode, env: &mut E) -> Option<Outcome> {
    if names_csr(insn, number::TIME) { emulate(run, insn, from, env) } else { None }
}

// Apart, so that the path of all other instructions stays short.
#[cold]
#[inline(never)]
fn emulate<E: Env>(run: &mut VcpuRun, insn: u64, from: Mode, env: &mut E) -> Option<Outcome> {
    let access = CsrInsn::of(insn as u32).filter(|access| !access.writes())?;
    if from == Mode::User && env.user_counters() & COUNTEREN_TM == 0 {
        return None;
    }
    run.context.set(access.rd, run.vm.guest_time(env.now()));
    run.context.skip(4);
    run.shared.counters.time_reads.bump();
    Some(Outcome::Resume)
}
