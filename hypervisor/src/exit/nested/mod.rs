//! Guests that are hypervisors (L1), and their guests (L2): the exits of L2, and what L1 does with its hypervisor extension.
//!
//! | event | function |
//! |---|---|
//! | L1 executes an instruction of the extension | [`instruction`] |
//! | L1's `sret` enters L2 | `world::enter` |
//! | L2 traps to Gnomon | [`handle`] |
//! | L2 faults, fences or writes `satp` on collapsed tables | `collapsed::page_fault`, `collapsed::instruction` |
//! | a trap of L2's is L1's | `world::reflect` |
//! | L1 calls NACL | `nacl::call` |
//! | an interrupt of L1's, or an interrupt of L2's that is L1's to take | [`interrupt`] |

mod collapsed;
mod fences;
mod instruction;
mod memory;
pub(super) mod nacl;
mod shared;
mod state;
mod world;

pub use fences::fence_all;
pub(super) use instruction::instruction;
pub use shared::settle;
pub use world::interrupt;

use crate::exit::time;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::VcpuRun;
use rv::csr::{COUNTEREN_TM, hstatus};
use rv::system::{WFI, WRS_NTO};
use rv::{Access, Cause, Exception, Interrupt, Mode};
use state::state;
use world::{Reflected, reflect};

/// Handles an exit of L2.
pub fn handle<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let exit = run.context.exit;
    let counters = &run.shared.counters;
    counters.exits.bump();
    counters.nested_exits.bump();
    match Cause::from_register(exit.cause) {
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
        Cause::Exception(Exception::StoreGuestPage) => memory::guest_page_fault(g, run, Access::Store, env),
        Cause::Exception(Exception::LoadGuestPage) => memory::guest_page_fault(g, run, Access::Load, env),
        Cause::Exception(Exception::FetchGuestPage) => memory::guest_page_fault(g, run, Access::Fetch, env),
        Cause::Exception(Exception::StorePage) if run.collapses() => collapsed::page_fault(g, run, Access::Store, env),
        Cause::Exception(Exception::LoadPage) if run.collapses() => collapsed::page_fault(g, run, Access::Load, env),
        Cause::Exception(Exception::FetchPage) if run.collapses() => collapsed::page_fault(g, run, Access::Fetch, env),
        Cause::Exception(Exception::VirtualInstruction) => virtual_instruction(g, run, env),
        Cause::Exception(Exception::IllegalInstruction) if reads_time(run, env) => Outcome::Resume,
        Cause::Exception(exception) => world::own_or_reflect(g, run, Reflected::of(exception, &exit), env),
        cause @ (Cause::Interrupt(_) | Cause::Unknown(_)) => Outcome::kill(alloc::format!(
            "vCPU {} trapped with {cause:?} at {:#x} in its guest's guest, which Gnomon does not know how to handle",
            run.shared.id,
            run.context.pc
        )),
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

/// Handles an instruction of L2's that only a hypervisor may execute. It is L1's to handle; but waits may be those that Gnomon makes trap.
fn virtual_instruction<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let exit = run.context.exit;
    let traps_waits = state(run).csrs.hstatus & hstatus::VTW != 0;
    // QEMU does not report WRS.NTO.
    let insn = if exit.tval == 0 { memory::fetch(run, env).unwrap_or(0) } else { exit.tval };
    if let Some(outcome) = collapsed::instruction(g, run, insn, env) {
        return outcome;
    }
    match insn {
        WFI if !traps_waits && env.privilege() == Mode::Supervisor => {
            run.context.skip(4);
            run.shared.counters.wfis.bump();
            Outcome::Wait
        }
        WRS_NTO if !traps_waits => {
            run.context.skip(4);
            run.shared.counters.wrs_ntos.bump();
            Outcome::Yield
        }
        _ => reflect(g, run, Reflected::of(Exception::VirtualInstruction, &exit), env),
    }
}
