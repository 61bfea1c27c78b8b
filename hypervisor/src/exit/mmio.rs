//! Loads and stores that reach a device of the board.

use super::code::{fetch, refetch};
use super::inject::deny;
use crate::device::Target;
use crate::device::{Answer, uart};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::host_events;
use crate::io::outside::{Output, Reach};
use crate::vm::outcome::{Brief, Known, Outcome};
use crate::vm::vcpu::VcpuRun;
use core::sync::atomic::Ordering;
use rv::insn::{MemInsn, MemOp, byte_store, byte_store_from_tinst};
use rv::{Access, Mode, PhysMem};

/// Handles a guest-page fault that may be of a `sb` to the register by which the UART sends: output makes so many of
/// them.
// Within the handling of all exits, its frame would be theirs.
#[inline(never)]
pub(super) fn sends(run: &mut VcpuRun) -> Brief {
    let exit = &run.context.exit;
    // norm:mtval2_htval_virtaddr: bits 1:0 of the address are those of the virtual address.
    let is_first = exit.tval & 3 == uart::START & 3;
    match byte_store_from_tinst(exit.tinst).filter(|_| is_first) {
        Some(store) if send(run, store) => {
            run.shared.counters.exits_store.bump();
            Brief::OVER
        }
        _ => Brief::NO,
    }
}

/// Sends by a page fault on shadow tables, by a way that the vCPU remembers.
#[inline(never)]
pub(super) fn sends_by_way<M: PhysMem>(run: &mut VcpuRun, privilege: impl FnOnce() -> Mode, mem: &M) -> Brief {
    let context = &run.context;
    if !run.shadow.way.is_valid(context, run.bank.csrs.vsatp) || privilege() != Mode::Supervisor {
        return Brief::NO;
    }
    let store = match context.exit.tinst {
        tinst if !tells_instruction(tinst) => {
            // Taking the frame of its code away waits for this hart to leave its guest; until then the frame is the
            // guest's.
            let insn = run.shadow.way.insn(context.pc, run.vm.tlb.edits.load(Ordering::Acquire), mem);
            insn.and_then(|insn| byte_store(insn, &context.x, context.exit.tval)).map(|rs| (rs, 4))
        }
        tinst => byte_store_from_tinst(tinst),
    };
    match store {
        None => Brief::NO,
        Some(store) if send(run, store) => {
            count_by_way(run);
            Brief::OVER
        }
        Some((rs, length)) => Brief::not(Known::Sends { rs, length }),
    }
}

/// Returns whether `tinst` describes the instruction: it may be 0, or describe an implicit access.
const fn tells_instruction(tinst: u64) -> bool {
    tinst & 1 != 0
}

fn count_by_way(run: &VcpuRun) {
    run.shared.counters.exits_page_fault.bump();
    if !tells_instruction(run.context.exit.tinst) {
        run.shared.counters.mmio_decoded.bump();
    }
}

/// Sends a register's byte for an instruction of that length, if nothing else comes of it; else nothing has happened.
#[inline(always)]
fn send(run: &mut VcpuRun, (rs, length): (u8, u8)) -> bool {
    let byte = run.context.x[usize::from(rs)] as u8;
    if !run.vm.devices.uart.try_lock().is_some_and(|mut uart| uart.take(byte)) {
        return false;
    }
    let counters = &run.shared.counters;
    counters.exits.bump();
    counters.mmio_uart.bump();
    counters.faults_mmio.bump();
    run.context.skip(length.into());
    true
}

/// Handles a page fault of a store that is known to send a byte, if that has further effects.
pub(super) fn send_whatever_comes<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (rs, length): (u8, u8),
    env: &mut E,
) -> Outcome {
    count_by_way(run);
    let insn = MemInsn { op: MemOp::Store { rs, width: 1 }, length };
    perform(g, run, insn, (Target::Device(0), 0), env)
}

/// Handles a load or store that reaches a device of the board, at that offset of its registers, from which on it has so
/// many bytes.
pub(super) fn access<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    access: Access,
    (target, offset, left): (Target, u64, u64),
    env: &mut E,
) -> Outcome {
    let insn = match MemInsn::from_tinst(run.context.exit.tinst, run.context.exit.tval) {
        Some(insn) => insn,
        None => {
            run.shared.counters.mmio_decoded.bump();
            let Some(insn) = fetch(run, env) else { return refetch(g, run, env) };
            match MemInsn::decode(insn, &run.context.x, run.context.exit.tval) {
                Some(insn) => insn,
                // Not a plain load or store, or one that begins in another page. Devices take no others.
                None => return deny(run, access, env),
            }
        }
    };
    let is_store = matches!(insn.op, MemOp::Store { .. });
    if is_store != (access == Access::Store) {
        return refetch(g, run, env);
    }
    if u64::from(insn.op.width()) > left {
        count(run, target);
        return deny(run, access, env);
    }
    if is_store && (target, offset) == (Target::Device(0), 0) {
        run.vm.translation.remember_way(run, env);
    }
    perform(g, run, insn, (target, offset), env)
}

fn count(run: &VcpuRun, target: Target) {
    let counters = &run.shared.counters;
    match target {
        Target::Plic => counters.mmio_plic.bump(),
        Target::Device(0) => counters.mmio_uart.bump(),
        Target::Device(_) => counters.mmio_other.bump(),
    }
}

/// Returns whether an access to the target may have sent something to other VMs.
const fn may_send(target: Target) -> bool {
    !matches!(target, Target::Plic | Target::Device(0))
}

/// Performs a load or store of all its bytes at an offset of a device's registers.
#[inline]
fn perform<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    insn: MemInsn,
    (target, offset): (Target, u64),
    env: &mut E,
) -> Outcome {
    count(run, target);
    let VcpuRun { vm, context, shared, .. } = &mut *run;
    let board = &mut Reach { vcpu: Some(shared.id), ..Reach::new(g, vm, env, Output::Print) };
    let answer = match insn.op {
        MemOp::Load { rd, width, .. } => match vm.devices.load(target, offset, width, board) {
            Answer::Done(value) => {
                context.set(rd, insn.op.extend(value));
                Answer::Done(())
            }
            Answer::Later => Answer::Later,
            Answer::Again => Answer::Again,
            Answer::Refused => Answer::Refused,
        },
        MemOp::Store { rs, width } => vm.devices.store(target, (offset, width), context.x[usize::from(rs)], board),
    };
    match answer {
        Answer::Done(()) => {
            shared.counters.faults_mmio.bump();
            context.skip(insn.length.into());
            if may_send(target) {
                host_events::deliver(g, env);
            }
            Outcome::Resume
        }
        Answer::Again => {
            shared.counters.faults_mmio.bump();
            host_events::deliver(g, env);
            Outcome::Resume
        }
        Answer::Later => Outcome::Later,
        Answer::Refused => {
            let access = if matches!(insn.op, MemOp::Store { .. }) { Access::Store } else { Access::Load };
            deny(run, access, env)
        }
    }
}
