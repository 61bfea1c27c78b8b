//! Guests that are hypervisors (L1), and their guests (L2): the exits of L2, and what L1 does with its hypervisor extension.
//!
//! | event | function |
//! |---|---|
//! | L1 executes an instruction of the extension | [`instruction`] |
//! | L1 goes on to the next such instruction | `runs::run_on` |
//! | L1's `sret` enters L2 | `world::enter` |
//! | L2 traps to Gnomon | [`handle`] |
//! | L2 executes an instruction that is illegal in S mode | `supervisor::instruction` |
//! | L2 faults, fences or writes `satp` on collapsed tables | `collapsed::page_fault`, `collapsed::instruction` |
//! | a trap of L2's is L1's | `world::reflect` |
//! | L1 calls NACL | `nacl::call` |
//! | an interrupt of L1's, or an interrupt of L2's that is L1's to take | [`interrupt`] |

mod collapsed;
mod fences;
mod insn;
mod instruction;
mod memory;
pub(super) mod nacl;
mod runs;
mod shared;
mod state;
mod supervisor;
mod world;

pub use fences::fence_all;
pub use world::interrupt;

use crate::control::debug;
use crate::device::offer::GuestMode;
use crate::exit::memory::wait_for_memory;
use crate::exit::time;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::collapsed as tables;
use crate::vm::Unreachable;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::VcpuRun;
use rv::csr::COUNTEREN_TM;
use rv::system::System;
use rv::{Access, Cause, Exception, Interrupt, Mode};
use state::state;
use world::Reflected;

/// Handles an instruction of L1's, from that mode, which trapped because it concerns the H extension. `None` if it is illegal there.
pub(super) fn instruction<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (insn, from): (u64, Mode),
    env: &mut E,
) -> Option<Outcome> {
    run.nested.as_ref()?;
    let insn = System::decode(u32::try_from(insn).ok()?)?;
    let outcome = instruction::execute(g, run, (insn, from), env)?;
    run.shared.of_guests().traps.bump();
    Some(match (insn, outcome) {
        (System::Csr(_), Outcome::Resume) => runs::run_on(g, run, false, env),
        (System::Fence(_), Outcome::Resume) => runs::run_on(g, run, true, env),
        (_, outcome) => outcome,
    })
}

/// Makes the vCPU ready for the world that it is about to run: L2 has a root, and is entered if a snapshot was taken while it ran; L1 has been
/// told of L2's last exit. Returns how the vCPU goes on instead, if that cannot be done now: its guest must not be entered then.
pub fn settle<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Option<Outcome> {
    if let Some(outcome) = world::go_on(g, run, env).or_else(|| tables::settle(g, run, env)) {
        return Some(outcome);
    }
    match shared::pay(g, run, env) {
        Ok(()) => None,
        Err(Unreachable::Waits { since }) => Some(wait_for_memory(g, run, since)),
        Err(Unreachable::Gone | Unreachable::Later) => Some(Outcome::Resume),
        Err(why) => Some(Outcome::kill(alloc::format!("no memory for what its guest's exit tells it: {why}"))),
    }
}

/// Handles an exit of L2.
pub fn handle<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    match exit_of_l2(g, run, env) {
        // L1's handler begins with accesses to the extension's CSRs.
        Outcome::Resume if !run.runs_l2() => runs::run_on(g, run, true, env),
        outcome => outcome,
    }
}

fn exit_of_l2<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let exit = run.context.exit;
    let (own, counters) = (&run.shared.counters, run.shared.of_guests());
    own.exits.bump();
    counters.exits.bump();
    match Cause::from_register(exit.cause) {
        Cause::Interrupt(Interrupt::MTimer | Interrupt::STimer) => {
            own.exits_timer.bump();
            counters.exits_timer.bump();
            Outcome::Timer
        }
        Cause::Interrupt(Interrupt::MSoft | Interrupt::SSoft) => {
            own.exits_kick.bump();
            counters.exits_kick.bump();
            Outcome::Kicked
        }
        Cause::Interrupt(Interrupt::MExternal | Interrupt::SExternal) => {
            own.exits_external.bump();
            counters.exits_external.bump();
            Outcome::External
        }
        Cause::Exception(Exception::Breakpoint) if debug::stops(g, run, env) => Outcome::Resume,
        Cause::Exception(exception) => by_exception(g, run, exception, env),
        cause @ (Cause::Interrupt(_) | Cause::Unknown(_)) => Outcome::kill(alloc::format!(
            "vCPU {} trapped with {cause:?} at {:#x} in its guest's guest, which Gnomon does not know how to handle",
            run.shared.id,
            run.context.pc
        )),
    }
}

/// Handles an exception of L2's.
fn by_exception<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Outcome {
    let exception = match exception {
        // In S mode itself: its kernel is in VS mode as L1 sees it.
        Exception::EcallFromS => Exception::EcallFromVs,
        exception => exception,
    };
    let counters = run.shared.of_guests();
    let (counter, faulting) = match exception {
        Exception::StoreGuestPage => (&counters.exits_guest_page, Some(Access::Store)),
        Exception::LoadGuestPage => (&counters.exits_guest_page, Some(Access::Load)),
        Exception::FetchGuestPage => (&counters.exits_guest_page, Some(Access::Fetch)),
        Exception::StorePage if run.collapses() => (&counters.exits_page_fault, Some(Access::Store)),
        Exception::LoadPage if run.collapses() => (&counters.exits_page_fault, Some(Access::Load)),
        Exception::FetchPage if run.collapses() => (&counters.exits_page_fault, Some(Access::Fetch)),
        Exception::VirtualInstruction => (&counters.exits_virtual, None),
        Exception::EcallFromVs => (&counters.exits_ecall, None),
        _ => (&counters.exits_other, None),
    };
    counter.bump();
    match (faulting, exception) {
        (Some(access), Exception::StorePage | Exception::LoadPage | Exception::FetchPage) => {
            collapsed::page_fault(g, run, access, env)
        }
        (Some(access), _) => memory::guest_page_fault(g, run, access, env),
        (None, Exception::VirtualInstruction) => insn::virtual_instruction(g, run, env),
        (None, Exception::IllegalInstruction) if reads_time(run, env) => Outcome::Resume,
        (None, Exception::IllegalInstruction) if g.offer.guest == GuestMode::Supervisor => {
            supervisor::instruction(g, run, env)
        }
        (None, _) => world::own_or_reflect(g, run, Reflected::of(exception, &run.context.exit), env),
    }
}

/// Carries out L2's read of `time`, on harts that lack it, if that is what has trapped and it may.
fn reads_time<E: Env>(run: &mut VcpuRun, env: &mut E) -> bool {
    let insn = run.context.exit.tval;
    let (rd, delta) = ((insn >> 7 & 31) as u8, state(run).csrs.htimedelta);
    if state(run).csrs.hcounteren & COUNTEREN_TM == 0 || time::read(run, insn, env.privilege(), env).is_none() {
        return false;
    }
    let time = run.context.x[usize::from(rd)].wrapping_add(delta);
    run.context.set(rd, time);
    true
}
