//! Loads and stores that reach a device of the board.

use super::code::{fetch, refetch};
use super::inject::deny;
use super::outcome::Outcome;
use crate::board::Device;
use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::lines;
use crate::serial;
use crate::vcpu::VcpuRun;
use crate::vm::Devices;
use alloc::sync::Arc;
use rv::Access;
use rv::insn::{MemInsn, MemOp};

/// A load or store that reaches a device of the board.
pub(super) fn access<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, device: Device, env: &mut E) -> Outcome {
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
    let vm = Arc::clone(&run.vm);
    let mut devices = vm.devices.lock();
    match device {
        Device::Uart(offset) => {
            run.shared.counters.mmio_uart.bump();
            if !uart_access(g, run, &mut devices, offset, insn.op, env) {
                return Outcome::Yield;
            }
            serial::accessed(g, &vm, devices, env);
        }
        Device::Plic(offset) => {
            run.shared.counters.mmio_plic.bump();
            if !plic_access(run, &mut devices, offset, insn.op) {
                return deny(run, access, env);
            }
            lines::update(g, &vm, devices, env);
        }
    }
    run.shared.counters.faults_mmio.bump();
    run.context.skip(insn.length.into());
    Outcome::Resume
}

/// Every width reads or writes one register, as QEMU's board does. Returns false if the console has no room for a byte: the
/// guest tries again.
fn uart_access<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    devices: &mut Devices,
    offset: u64,
    op: MemOp,
    env: &mut E,
) -> bool {
    match op {
        MemOp::Load { rd, .. } => {
            let value = devices.uart.read(offset);
            run.context.set(rd, op.extend(value.into()));
            true
        }
        MemOp::Store { rs, .. } => {
            if !devices.uart.can_send() {
                serial::send(g, &run.vm, &mut devices.uart, env);
                if !devices.uart.can_send() {
                    return false;
                }
            }
            devices.uart.write(offset, run.context.x[usize::from(rs)] as u8);
            serial::send(g, &run.vm, &mut devices.uart, env);
            true
        }
    }
}

/// Only whole, aligned words.
fn plic_access(run: &mut VcpuRun, devices: &mut Devices, offset: u64, op: MemOp) -> bool {
    let (MemOp::Load { width, .. } | MemOp::Store { width, .. }) = op;
    if width != 4 || !offset.is_multiple_of(4) {
        return false;
    }
    match op {
        MemOp::Load { rd, .. } => {
            let value = devices.read_plic(offset);
            run.context.set(rd, op.extend(value.into()));
        }
        MemOp::Store { rs, .. } => devices.write_plic(offset, run.context.x[usize::from(rs)] as u32),
    }
    true
}
