//! Reads of `hpmcounter3` and those after it by guests. They trap, since the hart's own are not the guest's: the values are those of SBI
//! PMU's hardware counters.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::VcpuRun;
use crate::vm::vcpu::pmu::{FIRST_CSR, HARDWARE};
use rv::Mode;
use rv::system::System;

/// Carries out the instruction `insn` of the vCPU's, which trapped from mode `from`, if it reads such a counter and may. `None` if it is
/// another one, writes (they are read-only), or reads in user mode without the permission of the guest's `scounteren`: then it is
/// illegal for the guest, too.
pub(super) fn read<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: u64, from: Mode, env: &mut E) -> Option<Outcome> {
    const FIRST_BIT: u16 = FIRST_CSR & 31;
    let System::Csr(access) = System::decode(u32::try_from(insn).ok()?)? else { return None };
    let counter = access.csr.checked_sub(FIRST_CSR).filter(|n| usize::from(*n) < HARDWARE)?;
    let is_denied = from == Mode::User && env.user_counters() & 1 << (FIRST_BIT + counter) == 0;
    if !g.offer.has_pmu || access.writes() || is_denied {
        return None;
    }
    let value = run.pmu.as_ref().map_or(0, |pmu| pmu.hardware(counter.into(), &run.shared.counters));
    run.context.set(access.rd, value);
    run.context.skip(4);
    run.shared.counters.pmu_reads.bump();
    Some(Outcome::Resume)
}
