//! Loads and stores that reach a device of the board.

use super::code::{fetch, refetch};
use super::inject::deny;
use super::outcome::Outcome;
use crate::device::{Answer, uart};
use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::lines;
use crate::serial::{Output, Reach};
use crate::vcpu::VcpuRun;
use crate::vm::Target;
use rv::Access;
use rv::insn::{MemInsn, MemOp, byte_store_from_tinst};

/// A guest-page fault of a `sb` to where the UART takes bytes to send: output makes so many of them. It is done if nothing else comes
/// of it; else nothing has happened.
// Within the handling of all exits, its frame would be theirs.
#[inline(never)]
pub(super) fn sends(run: &mut VcpuRun) -> bool {
    let exit = &run.context.exit;
    // norm:mtval2_htval_virtaddr: bits 1:0 of the address are those of the virtual address.
    let is_there = exit.tval2 == uart::START >> 2 && exit.tval & 3 == uart::START & 3;
    let Some((rs, length)) = byte_store_from_tinst(exit.tinst).filter(|_| is_there) else { return false };
    let byte = run.context.x[usize::from(rs)] as u8;
    if !run.vm.devices.try_lock().is_some_and(|mut devices| devices.uart.take(byte)) {
        return false;
    }
    let counters = &run.shared.counters;
    counters.exits.bump();
    counters.exits_store.bump();
    counters.mmio_uart.bump();
    counters.faults_mmio.bump();
    run.context.skip(length.into());
    true
}

/// A load or store that reaches a device of the board, at that offset of its registers, from which on it has so many bytes.
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
    let counters = &run.shared.counters;
    match target {
        Target::Plic => counters.mmio_plic.bump(),
        Target::Device(0) => counters.mmio_uart.bump(),
        Target::Device(_) => counters.mmio_other.bump(),
    }
    if u64::from(insn.op.width()) > left {
        return deny(run, access, env);
    }
    let VcpuRun { vm, context, shared, .. } = &mut *run;
    let mut devices = vm.devices.lock();
    let outside = &mut Reach { g, vm, env, output: Output::Print };
    let answer = match insn.op {
        MemOp::Load { rd, width, .. } => match devices.load(target, offset, width, outside) {
            Answer::Done(value) => {
                context.set(rd, insn.op.extend(value));
                Answer::Done(())
            }
            Answer::Later => Answer::Later,
            Answer::Refused => Answer::Refused,
        },
        MemOp::Store { rs, width } => devices.store(target, (offset, width), context.x[usize::from(rs)], outside),
    };
    match answer {
        Answer::Done(()) => {
            lines::settle(g, vm, (devices, target), env);
            shared.counters.faults_mmio.bump();
            context.skip(insn.length.into());
            Outcome::Resume
        }
        Answer::Later => {
            // Before the lock is let go: only then can the device wake it.
            vm.hold(shared.id);
            Outcome::Later
        }
        Answer::Refused => {
            drop(devices);
            deny(run, access, env)
        }
    }
}
