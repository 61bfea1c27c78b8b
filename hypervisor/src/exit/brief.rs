//! Brief exits: exits that are over so soon that their hart need not say that it has left the guest.
//!
//! A brief exit waits for no other hart: if a lock is held, the exit is handled like all others. It changes the VM's
//! tables with the VM's `memory` held, and only in ways that no other hart has to be told of.

use super::memory;
use super::mmio;
use crate::exit::sbi;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::collapsed::brief as collapsed;
use crate::memory::shadow::brief as shadow;
use crate::vm::outcome::{Brief, Kind, Known, Outcome};
use crate::vm::vcpu::{Tables, VcpuRun};
use rv::{Exception, Mode, PhysMem};

/// Sends a byte by the UART, if an exit of which the trap vector has found that it may do so does so and nothing else comes of it
/// ([`lane::BriefExits`]). Otherwise it may be known what it is.
#[inline(always)]
pub fn send_byte<M: PhysMem>(run: &mut VcpuRun, privilege: impl FnOnce() -> Mode, mem: &M) -> Brief {
    debug_assert!(run.context.brief.has(&run.context.exit));
    if run.context.brief.are_of_guest_page() { mmio::sends(run) } else { mmio::sends_by_way(run, privilege, mem) }
}

/// Returns the kind of the vCPU's exit by this cause, one of those that it has named ([`lane::BriefCauses`]) and not by
/// an instruction. `None` if it is not brief.
#[inline(always)]
#[must_use]
pub fn kind_of(run: &VcpuRun, cause: u64) -> Option<Kind> {
    const VIRTUAL_SBI_CALL: u64 = Exception::EcallFromVs.code();
    const SBI_CALL: u64 = Exception::EcallFromS.code();
    match cause {
        VIRTUAL_SBI_CALL | SBI_CALL => sbi::kind_of_brief(&run.context),
        _ => (run.tables == Tables::Shadow).then_some(Kind::Fault),
    }
}

/// Returns the kind of an exit by the instruction that its trap value is.
#[inline(always)]
#[must_use]
pub fn kind_of_instruction(run: &VcpuRun) -> Option<Kind> {
    if run.tables == Tables::TwoStage { None } else { shadow::kind_of_instruction(run) }
}

/// Handles an exit of that kind, if it is a brief one. It changes no other integer registers of the guest's than `pc` and those that a
/// call does not preserve; it reads those, and all where an instruction has trapped.
#[inline(always)]
pub fn handle_brief<E: Env>(kind: Kind, g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Brief {
    match kind {
        Kind::Timer => sbi::set_timer_briefly(g, run, env),
        Kind::Ipi => sbi::send_ipi_briefly(g, run, env),
        Kind::Base => sbi::call_base_briefly(run),
        Kind::Fault | Kind::Fence | Kind::Satp => shadow::handle(kind, g, run, env),
        Kind::FaultOfL2 => collapsed::fault(g, run, env),
        Kind::FenceOfL2 => collapsed::fence(run, env),
    }
}

/// Handles an exit that might have been brief, and of which something is known instead.
pub fn go_on<E: Env>(g: &Gnomon, run: &mut VcpuRun, known: Known, env: &mut E) -> Outcome {
    run.shared.counters.exits.bump();
    match known {
        Known::Sends { rs, length } => mmio::send_whatever_comes(g, run, (rs, length), env),
        Known::NoRam(_) | Known::Fault => memory::known_fault(g, run, known, env),
    }
}
