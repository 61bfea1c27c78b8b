//! Instructions of the hypervisor extension that L1 executes.

use super::fences::vvma;
use super::memory::access;
use super::shared;
use super::state::{limits, state};
use super::world::{self, interrupt};
use crate::device::offer::GuestTimer;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::nested;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::VcpuRun;
use rv::csr::hstatus;
use rv::system::{CsrInsn, FenceInsn, FenceKind, System, number};
use rv::{Access, Addr, Mode, Vmid};

/// Executes an instruction of L1's, from that mode, that concerns the H extension. `None` if it is illegal there.
pub(super) fn execute<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (insn, from): (System, Mode),
    env: &mut E,
) -> Option<Outcome> {
    let may_access = from == Mode::Supervisor || state(run).csrs.hstatus & hstatus::HU != 0;
    match insn {
        System::GuestLoad(load) if may_access => {
            let kind = if load.is_fetch { Access::LoadExec } else { Access::Load };
            let at = run.context.x[usize::from(load.rs1)];
            let done = access(g, run, (at, load.width, kind), env, |parts, mem| parts.read(mem));
            Some(done.map_or_else(
                |outcome| outcome,
                |raw| {
                    run.context.set(load.rd, load.extend(raw));
                    Outcome::Resume
                },
            ))
        }
        System::GuestStore(store) if may_access => {
            let (at, value) = (run.context.x[usize::from(store.rs1)], run.context.x[usize::from(store.rs2)]);
            let done = access(g, run, (at, store.width, Access::Store), env, |parts, mem| {
                parts.write(value, mem);
                value
            });
            Some(done.map_or_else(|outcome| outcome, |_| Outcome::Resume))
        }
        _ if from != Mode::Supervisor => None,
        System::Sret => Some(world::enter(g, run, env)),
        System::Fence(fence) => fenced(g, run, fence, env),
        System::Csr(insn) => csr(g, run, insn, env),
        _ => None,
    }
}

/// Does a fence of L1's for its guests.
fn fenced<E: Env>(g: &Gnomon, run: &mut VcpuRun, fence: FenceInsn, env: &mut E) -> Option<Outcome> {
    let register = |n: u8| (n != 0).then(|| run.context.x[usize::from(n)]);
    let (address, id) = (register(fence.rs1), register(fence.rs2));
    match fence.kind {
        FenceKind::HinvalGvma | FenceKind::HinvalVvma if !g.offer.isa.has("svinval") => return None,
        FenceKind::HfenceGvma | FenceKind::HinvalGvma => {
            // norm:hfence-gvma_op: rs1 holds the address shifted right by 2.
            let at = address.map(|at| Addr::new(at << 2));
            let vmid = id.map(|id| Vmid(id as u16 & rv::csr::atp::VMID_BITS as u16));
            nested::fence(g, run, (at.map(|at| (at, 1)), vmid), env);
        }
        FenceKind::HfenceVvma | FenceKind::HinvalVvma => vvma(g, run, env),
        FenceKind::Sfence | FenceKind::Sinval => return None,
    }
    run.shared.of_guests().fences.bump();
    run.context.skip(4);
    Some(Outcome::Resume)
}

/// Accesses a CSR of the extension for L1.
fn csr<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: CsrInsn, env: &mut E) -> Option<Outcome> {
    let has_sstc = g.offer.timer == GuestTimer::Sstc;
    if insn.writes_read_only() || insn.csr == number::VSTIMECMP && !has_sstc {
        return None;
    }
    let time = run.vm.guest_time(env.now());
    let VcpuRun { context, nested: Some(nested), .. } = &mut *run else { unreachable!("it has the H extension") };
    let limits = limits(g, nested, time);
    let old = nested.read(insn.csr, &limits)?;
    if insn.writes() {
        let world = nested.world();
        nested.write(insn.csr, insn.apply(old, &context.x), &limits);
        if nested.world() != world {
            env.set_world(run);
        }
        shared::tell(g, run, env);
    }
    run.shared.of_guests().csrs.bump();
    run.context.set(insn.rd, old);
    run.context.skip(4);
    if matches!(insn.csr, number::HVIP | number::HIP | number::HIE | number::HIDELEG | number::VSTIMECMP) {
        interrupt(g, run, env);
    }
    Some(Outcome::Resume)
}
