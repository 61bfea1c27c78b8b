//! Exits: what a trap out of a guest means, and what is done about it.
//!
//! Some exits are [brief](handle_brief). For all others, on the full path, [`handle`] works on a snapshot of the trap and
//! says with an [`Outcome`] how the vCPU goes on. Whatever the guest did ends in one of them (BLAME): it goes on, gets a
//! trap, or its VM ends with a message.

mod brief;
mod code;
mod counters;
mod inject;
mod memory;
mod misaligned;
mod mmio;
pub mod nested;
pub mod sbi;
mod time;
pub mod vmspace;
pub mod watch;

pub use crate::vm::outcome::{Brief, Faulted, Kind, Known, Outcome};
pub use brief::{go_on, handle_brief, kind_of, kind_of_instruction, send_byte};
pub use inject::{enter_trap, inject};
pub(crate) use memory::wait_for_memory;

use crate::control::debug;
use crate::device::offer::GuestMode;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::vcpu::VcpuRun;
use alloc::format;
use memory::{access_fault, guest_page_fault, page_fault};
use rv::system::{WFI, WRS_NTO};
use rv::{Access, Cause, Exception, Interrupt, Mode, Trap};

/// Handles an exit of the vCPU loaded on this hart.
// A call of its own would save as many registers as a short exit has instructions to spare.
#[inline(always)]
pub fn handle<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let exit = &run.context.exit;
    let counters = &run.shared.counters;
    counters.exits.bump();
    // Before all else: what an SBI call costs is mostly its way here.
    if exit.cause == g.offer.guest.sbi_call().code() {
        counters.exits_ecall.bump();
        run.context.skip(4);
        return sbi::call(g, run, env);
    }
    // Next what a guest's kernel does about translation, on shadow tables.
    if exit.cause == g.offer.guest.privileged().code() {
        match g.offer.guest {
            GuestMode::Virtual => counters.exits_virtual.bump(),
            GuestMode::Supervisor => counters.exits_illegal.bump(),
        }
        return privileged_instruction(g, run, env);
    }
    match Cause::from_register(exit.cause) {
        Cause::Exception(Exception::StoreGuestPage) => guest_page_fault(g, run, Access::Store, env),
        Cause::Exception(Exception::LoadGuestPage) => guest_page_fault(g, run, Access::Load, env),
        Cause::Exception(Exception::FetchGuestPage) => guest_page_fault(g, run, Access::Fetch, env),
        Cause::Exception(e @ (Exception::FetchPage | Exception::LoadPage | Exception::StorePage)) => {
            page_fault(g, run, e, env)
        }
        Cause::Interrupt(Interrupt::MTimer | Interrupt::STimer) => {
            counters.exits_timer.bump();
            Outcome::Timer
        }
        Cause::Interrupt(Interrupt::MSoft | Interrupt::SSoft) => {
            counters.exits_kick.bump();
            Outcome::Kicked
        }
        Cause::Interrupt(Interrupt::MExternal | Interrupt::SExternal) => {
            counters.exits_external.bump();
            Outcome::External
        }
        Cause::Exception(e @ (Exception::FetchAccess | Exception::LoadAccess | Exception::StoreAccess)) => {
            access_fault(g, run, e, env)
        }
        // The guest's own too, while a debugger is attached.
        Cause::Exception(Exception::Breakpoint) if debug::stops(g, run, env) => Outcome::Resume,
        Cause::Exception(Exception::IllegalInstruction) => {
            counters.exits_illegal.bump();
            illegal_instruction(g, run, env)
        }
        Cause::Exception(e @ (Exception::LoadMisaligned | Exception::StoreMisaligned)) => {
            counters.exits_other.bump();
            misaligned::access(g, run, e, env)
        }
        // The guest's own as well, on harts that cannot delegate them (`medeleg` and `hedeleg` are WARL).
        Cause::Exception(
            e @ (Exception::FetchMisaligned
            | Exception::Breakpoint
            | Exception::EcallFromU
            | Exception::SoftwareCheck
            | Exception::HardwareError),
        ) => {
            counters.exits_other.bump();
            let trap = Trap::new(e, exit.tval);
            inject(run, &trap, env)
        }
        cause @ (Cause::Exception(_) | Cause::Interrupt(_) | Cause::Unknown(_)) => {
            counters.exits_other.bump();
            Outcome::kill(format!(
                "vCPU {} trapped with {cause:?} at {:#x} (tval {:#x}), which Gnomon does not know how to handle",
                run.shared.id, run.context.pc, exit.tval
            ))
        }
    }
}

/// Handles an instruction that Gnomon chose to trap, or one that only a hypervisor may execute; from guests in S mode,
/// any that is illegal.
// As `handle`: by a call, it takes 30 instructions more.
#[inline(always)]
fn privileged_instruction<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let Some(insn) = code::trapped(run, env) else { return code::refetch(g, run, env) };
    let from = env.privilege();
    match (insn, from) {
        (WFI, Mode::Supervisor) => {
            run.context.skip(4);
            run.shared.counters.wfis.bump();
            return Outcome::Wait;
        }
        // Zawrs: traps where WFI does, but in user mode as well.
        (WRS_NTO, _) => {
            run.context.skip(4);
            run.shared.counters.wrs_ntos.bump();
            return Outcome::Yield;
        }
        _ => {}
    }
    if let Some(outcome) = run.vm.translation.instruction(g, run, (insn, from), env) {
        return outcome;
    }
    if let Some(outcome) = time::read(run, insn, from, env) {
        return outcome;
    }
    if let Some(outcome) = nested::instruction(g, run, (insn, from), env) {
        return outcome;
    }
    unusual_instruction(g, run, (insn, from), env)
}

/// Handles an instruction that only guests which measure, and faulty ones, execute.
#[cold]
#[inline(never)]
fn unusual_instruction<E: Env>(g: &Gnomon, run: &mut VcpuRun, (insn, from): (u64, Mode), env: &mut E) -> Outcome {
    if let Some(outcome) = counters::read(g, run, insn, from, env) {
        return outcome;
    }
    let exit = run.context.exit;
    // The guest's machine has no H extension, or its user mode may not use it: to it a virtual instruction is an illegal one. One that
    // was illegal to begin with is so with the hart's own `tval`.
    let tval = if exit.cause == Exception::IllegalInstruction.code() { exit.tval } else { insn };
    inject(run, &Trap::new(Exception::IllegalInstruction, tval), env)
}

/// Handles an illegal instruction of a guest in VS mode. It is the guest's own, except a read of the `time` CSR on a hart
/// that lacks this CSR.
#[cold]
#[inline(never)]
fn illegal_instruction<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let Some(insn) = code::trapped(run, env) else { return code::refetch(g, run, env) };
    let from = env.privilege();
    if let Some(outcome) = time::read(run, insn, from, env) {
        return outcome;
    }
    inject(run, &Trap::new(Exception::IllegalInstruction, run.context.exit.tval), env)
}
