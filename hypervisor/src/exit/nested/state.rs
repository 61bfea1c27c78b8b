//! The state of a vCPU's hypervisor extension, and its CSRs with what L1's machine lets them hold.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::vcpu::nested::Limits;
use crate::vm::vcpu::{Nested, VcpuRun};

/// Returns the nested state of a vCPU that has one.
pub(super) fn state(run: &mut VcpuRun) -> &mut Nested {
    run.nested.as_deref_mut().expect("a vCPU with the H extension")
}

/// Returns the limits of L1's CSRs at L1's time `time`.
pub(super) fn limits<'g>(g: &'g Gnomon, nested: &Nested, time: u64) -> Limits<'g> {
    nested.limits(&g.offer, time)
}

/// Writes a CSR for L1.
pub(super) fn write<E: Env>(g: &Gnomon, run: &mut VcpuRun, (csr, value): (u16, u64), env: &mut E) {
    let time = run.vm.guest_time(env.now());
    let nested = state(run);
    let limits = limits(g, nested, time);
    let world = nested.world();
    nested.write(csr, value, &limits);
    if nested.world() != world {
        env.set_world(run);
    }
}
