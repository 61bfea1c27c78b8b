//! The state of a vCPU's hypervisor extension, and its CSRs with what L1's machine lets them hold.

use crate::device::offer::GuestTimer;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::vcpu::nested::Limits;
use crate::vm::vcpu::{Nested, VcpuRun};
use rv::csr::envcfg;

/// Returns the nested state of a vCPU that has one.
pub(super) fn state(run: &mut VcpuRun) -> &mut Nested {
    run.nested.as_deref_mut().expect("a vCPU with the H extension")
}

/// Returns the limits of L1's CSRs at L1's time `time`.
pub(super) fn limits(g: &Gnomon, svadu: bool, time: u64) -> Limits<'_> {
    Limits { formats: &g.offer.formats, henvcfg: environment(g, svadu), time }
}

/// Returns the bits of `henvcfg` that L1 can set: those of the extensions that its machine has.
fn environment(g: &Gnomon, svadu: bool) -> u64 {
    let isa = &g.offer.isa;
    let with = |has, bits| if has { bits } else { 0 };
    Limits::ENVIRONMENT
        | with(isa.has("zicbom"), envcfg::USER_CBO)
        | with(isa.has("zicboz"), envcfg::CBZE)
        | with(g.offer.timer == GuestTimer::Sstc, envcfg::STCE)
        | with(svadu, envcfg::ADUE)
}

/// Writes a CSR for L1.
pub(super) fn write<E: Env>(g: &Gnomon, run: &mut VcpuRun, (csr, value): (u16, u64), env: &mut E) {
    let limits = limits(g, run.vm.svadu, run.vm.guest_time(env.now()));
    let nested = state(run);
    let world = nested.world();
    nested.write(csr, value, &limits);
    if nested.world() != world {
        env.set_world(run);
    }
}
