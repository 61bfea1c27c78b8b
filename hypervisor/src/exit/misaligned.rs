//! Misaligned accesses of guests, on harts that trap them: Gnomon makes them byte by byte, as firmware does (SBI, chapter 18).
//!
//! Each byte is accessed as the guest would, by the hart's own translation: so the guest's rights, its A and D bits and the
//! protection of shadow tables count. If a byte faults, the exit becomes that fault. After it the guest makes the whole
//! access again. Bytes that were stored before stay so: misaligned accesses need not be atomic. Other harts see the hart in its guest meanwhile:
//! they take no page away that its TLB still knows.

use super::code;
use super::inject::inject;
use super::memory::{access_fault, guest_page_fault, page_fault};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::VcpuRun;
use rv::insn::{MemOp, PlainAccess};
use rv::{Access, Exception, Exit, Trap};
use sbi_spec::pmu::firmware_event;

/// The result of an attempt to make a misaligned access.
pub(super) enum Attempt {
    /// The vCPU goes on so.
    Outcome(Outcome),
    /// The guest's own trap.
    Own(Trap),
    /// A byte has faulted: that is the vCPU's exit now.
    Faulted,
}

/// Handles a misaligned access that came to Gnomon.
#[cold]
#[inline(never)]
pub(super) fn access<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Outcome {
    match attempt(g, run, exception, env) {
        Attempt::Outcome(outcome) => outcome,
        Attempt::Own(trap) => inject(run, &trap, env),
        Attempt::Faulted => faulted(g, run, env),
    }
}

/// Attempts to make a misaligned access. It is the guest's own if its kernel has asked for that (SBI FWFT), or if it
/// is by an instruction that cannot be made byte by byte: an AMO, LR, SC, or a vector access.
pub(super) fn attempt<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Attempt {
    let trap = Trap::new(exception, run.context.exit.tval);
    if !g.offer.emulates_misaligned || run.features.delegates_misaligned {
        return Attempt::Own(trap);
    }
    let Some(insn) = code::fetch(run, env) else { return Attempt::Outcome(code::refetch(g, run, env)) };
    let is_load = exception == Exception::LoadMisaligned;
    run.count_firmware(if is_load { firmware_event::MISALIGNED_LOAD } else { firmware_event::MISALIGNED_STORE }, 1);
    let found = PlainAccess::decode(insn, &run.context.x).filter(|found| !found.is_float || g.offer.isa.has("d"));
    let Some(found) = found else { return Attempt::Own(trap) };
    if !env.begin_accesses(run) {
        // The guest makes the access again when that is done.
        return Attempt::Outcome(Outcome::Resume);
    }
    let done = perform(run, &found, env);
    env.end_emulation();
    match done {
        Ok(()) => {
            run.shared.counters.misaligned.bump();
            run.context.skip(found.length.into());
            Attempt::Outcome(Outcome::Resume)
        }
        Err(fault) => {
            run.context.exit = fault;
            Attempt::Faulted
        }
    }
}

/// Makes the access.
///
/// # Errors
/// The fault of one of its bytes.
fn perform<E: Env>(run: &mut VcpuRun, access: &PlainAccess, env: &mut E) -> Result<(), Exit> {
    let addresses = || (0..u64::from(access.op.width())).map(|n| (n, access.at.wrapping_add(n)));
    match access.op {
        MemOp::Load { rd, .. } => {
            let mut value = 0;
            for (n, at) in addresses() {
                value |= u64::from(env.load_byte(at)?) << (8 * n);
            }
            let value = access.extend(value);
            if access.is_float { env.set_float_register(rd, value) } else { run.context.set(rd, value) }
        }
        MemOp::Store { rs, .. } => {
            let value = if access.is_float { env.float_register(rs) } else { run.context.x[usize::from(rs)] };
            for (n, at) in addresses() {
                env.store_byte(at, (value >> (8 * n)) as u8)?;
            }
        }
    }
    Ok(())
}

/// Handles the fault of a byte, like one of the guest's own instruction.
fn faulted<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let exit = run.context.exit;
    match Exception::from_code(exit.cause) {
        Some(Exception::LoadGuestPage) => guest_page_fault(g, run, Access::Load, env),
        Some(Exception::StoreGuestPage) => guest_page_fault(g, run, Access::Store, env),
        Some(e @ (Exception::LoadPage | Exception::StorePage)) => page_fault(g, run, e, env),
        Some(e @ (Exception::LoadAccess | Exception::StoreAccess)) => access_fault(g, run, e, env),
        // A byte makes no other fault. Whatever the hart says, the guest has made it.
        Some(e) => inject(run, &Trap::new(e, exit.tval), env),
        None => Outcome::kill(alloc::format!(
            "a byte at {:#x} was refused for an unknown cause, {:#x}",
            exit.tval,
            exit.cause
        )),
    }
}
