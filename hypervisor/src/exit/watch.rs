//! The watch over guests that can make no progress, and of which no exit need tell.
//!
//! A kernel whose trap handler cannot be fetched traps there for ever: RISC-V has no double fault. On hardware it
//! would spin until somebody turns the machine off; here its VM ends with a message. That takes proof, for user mode
//! can make each single look suspicious (a jump to the handler's address is a fetch fault there, and the timer may come at the
//! handler's first instruction):
//!
//! 1. the vCPU is in supervisor mode at its handler, and came there from supervisor mode by a fetch fault at the
//!    handler;
//! 2. the guest's tables refuse the fetch;
//! 3. the look before found the same, with the same registers, and the vCPU has run since.

use super::memory;
use crate::env::{Env, VsTrapRegs};
use crate::vcpu::VcpuRun;
use alloc::format;
use alloc::string::String;
use rv::csr::status;
use rv::{Exception, Mode};

/// What the looks at a vCPU know of each other.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Watch {
    due: u64,
    last: Option<Stuck>,
}

/// The state of a vCPU that seems to be stuck: all of it that a kernel's progress would change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stuck {
    registers: [u64; 32],
    trap: VsTrapRegs,
}

impl Watch {
    /// Host time of the next look.
    #[must_use]
    pub const fn due(&self) -> u64 {
        self.due
    }

    /// The vCPU comes to a hart, at host time `now`: for the first time, to be looked at in `interval` ticks; else no sooner
    /// than in `least` ticks, so that it runs between two looks.
    pub fn load(&mut self, now: u64, interval: u64, least: u64) {
        self.due = if self.due == 0 { now.saturating_add(interval) } else { self.due.max(now.saturating_add(least)) };
    }
}

/// Looks at the vCPU that is loaded, at host time `now`; the next look comes `interval` ticks later.
///
/// Returns what there is to say if it is proven that the guest will never again execute an instruction.
pub fn look<E: Env>(run: &mut VcpuRun, (now, interval): (u64, u64), env: &mut E) -> Option<String> {
    run.watch.due = now.saturating_add(interval);
    let found = stuck(run, env);
    let is_proof = found.is_some() && found == run.watch.last;
    // All but never is there anything to write down.
    if found.is_some() || run.watch.last.is_some() {
        run.watch.last = found;
    }
    is_proof.then(|| {
        format!(
            "vCPU {} cannot fetch its own trap handler at {:#x}, and faults for ever",
            run.shared.id, run.context.pc
        )
    })
}

fn stuck<E: Env>(run: &VcpuRun, env: &mut E) -> Option<Stuck> {
    let trap = env.trap_regs();
    let handler = trap.vstvec & !3;
    let is_fetch_fault = [Exception::FetchPage.code(), Exception::FetchAccess.code()].contains(&trap.vscause);
    let is_at_handler = [run.context.pc, trap.vsepc, trap.vstval].iter().all(|at| *at == handler);
    let is_kernel = env.privilege() == Mode::Supervisor && trap.vsstatus & status::SPP != 0;
    (is_kernel && is_at_handler && is_fetch_fault && memory::fetch(run, env).is_none())
        .then_some(Stuck { registers: run.context.x, trap })
}
