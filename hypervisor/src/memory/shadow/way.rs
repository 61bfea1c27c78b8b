//! The way that a vCPU takes to the UART, on shadow tables.

use crate::hart::env::Env;
use crate::vm::Memory;
use crate::vm::fetch;
use crate::vm::vcpu::{VcpuRun, Way};
use core::sync::atomic::Ordering;
use lane::BriefExits;
use rv::Mode;
use rv::csr::status;

/// Remembers the way by which a store of the vCPU's is about to reach the UART, if it is supervisor mode's without SUM,
/// which might have led to a page of user mode.
pub(crate) fn remember_way<E: Env>(run: &mut VcpuRun, env: &E) {
    let (context, satp) = (&run.context, run.bank.csrs.vsatp);
    if env.privilege() != Mode::Supervisor || env.status() & status::SUM != 0 {
        return;
    }
    let mut way = Way::of(context, satp);
    if context.exit.tinst == 0 {
        let guard = run.vm.memory.lock();
        // While the lock is held, the tables are not edited.
        let (edits, mem) = (run.vm.tlb.edits.load(Ordering::SeqCst), env.mem());
        let is_known = context.brief.has(&context.exit) && run.shadow.way.is_valid(context, satp);
        if is_known && run.shadow.way.insn(context.pc, edits, &mem).is_some() {
            return;
        }
        let Some(Memory { space, .. }) = guard.as_ref() else { return };
        let there = fetch::place(space, satp, Mode::Supervisor, context.pc, &mem);
        let Some(there) = there else { return };
        way = way.by(context.pc, there, edits);
    }
    run.shadow.way = way;
    run.context.brief = BriefExits::like(&run.context.exit);
}
