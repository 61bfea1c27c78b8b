//! L2's instructions on harts without the H extension, where L2 runs in S mode itself: what such a hart calls illegal may be a virtual instruction to
//! L1, or legal (privileged spec, table "Virtual-instruction exceptions").

use super::collapsed;
use super::insn::{trapped, waits_or_reflects};
use super::state::{limits, state};
use super::world::{Reflected, own_or_reflect, watch_timers};
use crate::device::offer::GuestTimer;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::VcpuRun;
use crate::vm::vcpu::pmu::{FIRST_CSR, HARDWARE};
use core::ops::{Range, RangeInclusive};
use rv::csr::{COUNTEREN_TM, envcfg};
use rv::system::{CsrInsn, System, number};
use rv::{Exception, Mode};

/// The supervisor CSRs that each machine has. VU mode's accesses to them are virtual instructions.
const SUPERVISOR: [u16; 11] = [
    number::SSTATUS,
    number::SIE,
    number::STVEC,
    number::SCOUNTEREN,
    number::SENVCFG,
    number::SSCRATCH,
    number::SEPC,
    number::SCAUSE,
    number::STVAL,
    number::SIP,
    number::SATP,
];

/// Handles an instruction of L2's that is illegal in S mode, or in U mode.
pub(super) fn instruction<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let insn = trapped(run, env);
    if let Some(outcome) = collapsed::instruction(g, run, insn, env) {
        return outcome;
    }
    let decoded = u32::try_from(insn).ok().and_then(System::decode);
    if let Some(System::Csr(access)) = decoded
        && let Some(outcome) = comparator(g, run, access, env)
    {
        return outcome;
    }
    if decoded.is_some_and(|insn| is_virtual(g, run, insn, env)) {
        return waits_or_reflects(g, run, insn, env);
    }
    let trap = Reflected::of(Exception::IllegalInstruction, &run.context.exit);
    own_or_reflect(g, run, trap, env)
}

/// Accesses `stimecmp` for L2's kernel, if L1 lets it. The comparator is one of Gnomon's.
fn comparator<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: CsrInsn, env: &mut E) -> Option<Outcome> {
    let csrs = &state(run).csrs;
    let may = csrs.henvcfg & envcfg::STCE != 0 && csrs.hcounteren & COUNTEREN_TM != 0;
    if access.csr != number::STIMECMP
        || g.offer.timer != GuestTimer::Sstc
        || !may
        || env.privilege() != Mode::Supervisor
    {
        return None;
    }
    let old = env.watched_comparator();
    if access.writes() {
        env.set_watched_comparator(access.apply(old, &run.context.x));
        watch_timers(run, env);
    }
    run.context.set(access.rd, old);
    run.context.skip(4);
    Some(Outcome::Resume)
}

/// Returns whether an instruction that is illegal in S mode is a virtual instruction to L1: one that HS mode could execute.
fn is_virtual<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: System, env: &E) -> bool {
    match insn {
        System::GuestLoad(_)
        | System::GuestStore(_)
        | System::Sret
        | System::Wfi
        | System::WrsNto
        | System::Fence(_)
        | System::SfenceWInval
        | System::SfenceInvalIr => true,
        System::Csr(access) => is_virtual_access(g, run, access, env),
        System::Ecall | System::Ebreak | System::Mret | System::WrsSto => false,
    }
}

fn is_virtual_access<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: CsrInsn, env: &E) -> bool {
    /// `cycle`, `time` and `instret`.
    const COUNTERS: RangeInclusive<u16> = 0xc00..=0xc02;
    /// Those of SBI PMU.
    const HPM: Range<u16> = FIRST_CSR..FIRST_CSR + HARDWARE as u16;
    if access.writes_read_only() {
        return false;
    }
    let has_sstc = g.offer.timer == GuestTimer::Sstc;
    match access.csr {
        csr if COUNTERS.contains(&csr) || HPM.contains(&csr) && g.offer.has_pmu => true,
        number::STIMECMP | number::VSTIMECMP => has_sstc,
        // From VS mode only if L1 makes accesses to it trap.
        number::SATP => true,
        csr if SUPERVISOR.contains(&csr) => env.privilege() == Mode::User,
        csr => {
            let time = run.vm.guest_time(env.now());
            let nested = state(run);
            let limits = limits(g, nested, time);
            nested.read(csr, &limits).is_some()
        }
    }
}
