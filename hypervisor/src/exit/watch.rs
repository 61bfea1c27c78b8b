//! The watch over guests that can make no progress, possibly without any exit.
//!
//! A kernel whose trap handler cannot be fetched traps there for ever: RISC-V has no double fault. On hardware it would
//! spin until the machine is turned off; here its VM ends with a message. That takes proof, for user mode can make each
//! single look suspicious (a jump to the handler's address is a fetch fault there, and the timer may come at the
//! handler's first instruction):
//!
//! 1. the vCPU is in supervisor mode at its handler, and came there from supervisor mode by a fetch fault at the
//!    handler;
//! 2. the guest's tables refuse the fetch;
//! 3. the look before found the same, with the same registers, and the vCPU has run since.

use super::code;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::vcpu::{Concern, Stuck, VcpuRun};
use alloc::format;
use alloc::string::String;
use rv::csr::status;
use rv::{Exception, Mode};

/// Looks at the vCPU that is loaded, at host time `now`; the next look comes `interval` ticks later.
///
/// Returns a message if it is proven that the guest will never again execute an instruction.
// Once a second: what it takes is not to be in the frame of each tick.
#[cold]
#[inline(never)]
pub fn look<E: Env>(g: &Gnomon, run: &mut VcpuRun, (now, interval): (u64, u64), env: &mut E) -> Option<String> {
    let found = look_for_each(g, run, (now, interval), env);
    let least = (g.offer.timebase / MOST_PER_SECOND).min(interval).max(1);
    run.watch.lets_run(env.now().saturating_add(least));
    found
}

/// Looks at a vCPU in a second, at most.
const MOST_PER_SECOND: u64 = 10_000;

fn look_for_each<E: Env>(g: &Gnomon, run: &mut VcpuRun, (now, interval): (u64, u64), env: &mut E) -> Option<String> {
    if run.watch.takes(Concern::Fences, now) {
        run.vm.translation.relax(g, run, env);
        if run.watch.due() > now {
            return None;
        }
    }
    if run.watch.is_for(Concern::Root, now) {
        run.vm.translation.choose(g, run, now, env);
        if run.watch.due() > now {
            return None;
        }
    }
    if run.watch.is_for(Concern::Pages, now) {
        run.vm.translation.gather(g, run, now, env);
        if run.watch.due() > now {
            return None;
        }
    }
    run.vm.translation.look_again(g, run, env);
    let found = stuck(run, env);
    let is_proof = run.watch.looked(found, now.saturating_add(interval));
    is_proof.then(|| {
        format!(
            "vCPU {} cannot fetch its own trap handler at {:#x}, and faults for ever",
            run.shared.id, run.context.pc
        )
    })
}

fn stuck<E: Env>(run: &VcpuRun, env: &mut E) -> Option<Stuck> {
    if run.runs_l2() {
        // Its hypervisor goes on.
        return None;
    }
    let trap = env.trap_regs();
    let handler = trap.vstvec & !3;
    let is_fetch_fault = [Exception::FetchPage.code(), Exception::FetchAccess.code()].contains(&trap.vscause);
    let is_at_handler = [run.context.pc, trap.vsepc, trap.vstval].iter().all(|at| *at == handler);
    let is_kernel = env.privilege() == Mode::Supervisor && trap.vsstatus & status::SPP != 0;
    (is_kernel && is_at_handler && is_fetch_fault && code::fetch(run, env).is_none())
        .then_some(Stuck { registers: run.context.x, trap })
}
