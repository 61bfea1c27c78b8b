//! Exits: what a trap out of a guest means, and what is done about it.
//!
//! [`handle`] works on a snapshot of the trap and says with an [`Outcome`] how the vCPU goes on.
//! Whatever the guest did ends in one of them (BLAME): it goes on, gets a trap, or its VM ends with
//! a message.

use crate::board::Device;
use crate::env::{Env, VsTrapRegs};
use crate::fetch;
use crate::gnomon::{Gnomon, GuestMode};
use crate::sbi;
use crate::shadow;
use crate::vcpu::{VcpuRun, request};
use crate::vm::{Departure, Devices, Unreachable, Vm};
use abi::record::EndReason;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use mmu::shadow::GuestFence;
use mmu::two_stage::access_fault;
use rv::csr::status;
use rv::insn::{MemInsn, MemOp};
use rv::{Access, Addr, Cause, Exception, Gpa, Interrupt, Mode, Trap};
use spin::MutexGuard;

/// How a vCPU goes on after an exit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// In the guest, at `context.pc`.
    Resume,
    /// Gnomon's timer is due: slices, deadlines.
    Timer,
    /// Another hart wants this one to look at what was posted.
    Kicked,
    /// A device of the host wants attention.
    External,
    /// It waits for an interrupt.
    Wait,
    /// It waits for a store of another hart: it may as well let others run.
    Yield,
    /// It stops (SBI hart_stop).
    Stop,
    /// Its VM ends or starts over.
    Depart(Departure),
}

impl Outcome {
    /// The guest did what nobody can answer.
    #[must_use]
    pub fn kill(message: String) -> Self {
        Outcome::Depart(Departure::End(EndReason::Killed { message }))
    }
}

/// Handles an exit of the vCPU loaded on this hart.
pub fn handle<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let exit = run.context.exit;
    let counters = &run.shared.counters;
    counters.exits.bump();
    run.count_lane();
    let counters = &run.shared.counters;
    match Cause::from_register(exit.cause) {
        Cause::Exception(Exception::StoreGuestPage) => {
            counters.exits_store.bump();
            guest_page_fault(g, run, Access::Store, env)
        }
        Cause::Exception(Exception::LoadGuestPage) => {
            counters.exits_load.bump();
            guest_page_fault(g, run, Access::Load, env)
        }
        Cause::Exception(Exception::FetchGuestPage) => {
            counters.exits_fetch.bump();
            guest_page_fault(g, run, Access::Fetch, env)
        }
        Cause::Exception(e) if e == sbi_call(g.offer.guest) => {
            counters.exits_ecall.bump();
            run.context.skip(4);
            sbi::call(g, run, env)
        }
        Cause::Exception(Exception::VirtualInstruction) => {
            counters.exits_virtual.bump();
            privileged_instruction(g, run, env)
        }
        // In S mode that is how what traps does, among what is illegal.
        Cause::Exception(Exception::IllegalInstruction) if g.offer.guest == GuestMode::Supervisor => {
            counters.exits_illegal.bump();
            privileged_instruction(g, run, env)
        }
        Cause::Exception(e @ (Exception::FetchPage | Exception::LoadPage | Exception::StorePage))
            if run.root.is_some() =>
        {
            counters.exits_page_fault.bump();
            let access = match e {
                Exception::FetchPage => Access::Fetch,
                Exception::LoadPage => Access::Load,
                _ => Access::Store,
            };
            shadow::page_fault(g, run, access, env)
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
        // Access faults that reach Gnomon come from memory that is mapped but cannot be accessed so
        // (an AMO or LR/SC where the platform allows none): the guest's own, as on bare metal.
        Cause::Exception(e @ (Exception::FetchAccess | Exception::LoadAccess | Exception::StoreAccess)) => {
            counters.exits_other.bump();
            inject(run, &Trap::new(e, exit.tval), env)
        }
        // The guest's own as well, on harts that cannot delegate them (`medeleg` and `hedeleg` are WARL).
        Cause::Exception(
            e @ (Exception::FetchMisaligned
            | Exception::IllegalInstruction
            | Exception::Breakpoint
            | Exception::LoadMisaligned
            | Exception::StoreMisaligned
            | Exception::EcallFromU
            | Exception::FetchPage
            | Exception::LoadPage
            | Exception::StorePage),
        ) => {
            counters.exits_other.bump();
            inject(run, &Trap::new(e, exit.tval), env)
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

/// The guest touched a guest physical page that the G-stage does not allow (yet).
fn guest_page_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, env: &mut E) -> Outcome {
    let exit = run.context.exit;
    // norm:htval: bits 1:0 of the address are those of the virtual address, except for implicit
    // accesses, whose addresses are aligned.
    let is_implicit = exit.tinst == mmu::two_stage::TINST_PTE_READ || exit.tinst == mmu::two_stage::TINST_PTE_WRITE;
    let low = if is_implicit { 0 } else { exit.tval & 3 };
    let gpa = Addr::new(exit.tval2 << 2 | low);
    // For a table the access is the walker's own, whatever the guest's instruction was.
    let needed = match exit.tinst {
        mmu::two_stage::TINST_PTE_READ => Access::Load,
        mmu::two_stage::TINST_PTE_WRITE => Access::Store,
        _ => access,
    };
    let vm = Arc::clone(&run.vm);
    match vm.reach(g, gpa, needed, env) {
        Ok(_) => {
            run.shared.counters.faults_memory.bump();
            Outcome::Resume
        }
        Err(Unreachable::Hole) if !is_implicit => outside_ram(g, run, access, gpa, env),
        Err(Unreachable::Hole | Unreachable::Denied) => deny(run, access, env),
        Err(Unreachable::OutOfFrames(e)) => Outcome::kill(format!("no memory for {gpa}: {e}")),
        // The VM is leaving; this vCPU is about to be parked.
        Err(Unreachable::Gone) => Outcome::Resume,
    }
}

/// An access to guest physical memory where there is no RAM.
pub(crate) fn outside_ram<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    access: Access,
    gpa: Addr<Gpa>,
    env: &mut E,
) -> Outcome {
    match Device::at(gpa) {
        Some(device) if access != Access::Fetch => device_access(g, run, access, device, env),
        _ => deny(run, access, env),
    }
}

/// Nothing is there: what a machine answers with an access fault.
fn deny<E: Env>(run: &mut VcpuRun, access: Access, env: &mut E) -> Outcome {
    run.shared.counters.faults_denied.bump();
    let trap = Trap::new(access_fault(access), run.context.exit.tval);
    inject(run, &trap, env)
}

/// Delivers an exception to the guest, as hardware would take it.
pub fn inject<E: Env>(run: &mut VcpuRun, trap: &Trap, env: &mut E) -> Outcome {
    let mut regs = env.trap_regs();
    let is_fetch = matches!(trap.exception, Exception::FetchAccess | Exception::FetchPage | Exception::FetchGuestPage);
    if is_fetch && run.context.pc == regs.vstvec & !3 {
        // It would fault there again, for ever: RISC-V has no double fault, so Gnomon calls it one.
        return Outcome::kill(format!(
            "vCPU {} cannot fetch its own trap handler at {:#x} ({:?}; first trapped from {:#x})",
            run.shared.id, run.context.pc, trap.exception, regs.vsepc
        ));
    }
    run.shared.counters.inject_exception.bump();
    run.context.pc = enter_trap(&mut regs, trap, run.context.pc, env.privilege());
    env.set_trap_regs(&regs);
    env.set_privilege(Mode::Supervisor);
    Outcome::Resume
}

/// The change of the guest's trap registers at a trap (privileged spec, "Trap Entry", for a trap to S);
/// returns where the guest goes on. `pc` and `from` are where and in which mode it was.
pub fn enter_trap(regs: &mut VsTrapRegs, trap: &Trap, pc: u64, from: Mode) -> u64 {
    regs.vsepc = pc;
    regs.vscause = trap.exception.code();
    regs.vstval = trap.tval;
    let was_enabled = regs.vsstatus & status::SIE != 0;
    regs.vsstatus &= !(status::SPP | status::SPIE | status::SIE);
    if from == Mode::Supervisor {
        regs.vsstatus |= status::SPP;
    }
    if was_enabled {
        regs.vsstatus |= status::SPIE;
    }
    // Exceptions go to BASE in either mode of `stvec`.
    regs.vstvec & !3
}

/// What a guest's kernel calls the SBI by.
fn sbi_call(guest: GuestMode) -> Exception {
    match guest {
        GuestMode::Virtual => Exception::EcallFromVs,
        GuestMode::Supervisor => Exception::EcallFromS,
    }
}

/// An instruction that Gnomon chose to trap, or one that only a hypervisor may execute; from guests in S
/// mode, any that is illegal.
fn privileged_instruction<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    const WFI: u64 = 0x1050_0073;
    // Zawrs: traps where WFI does, but in user mode as well.
    const WRS_NTO: u64 = 0x00d0_0073;
    let exit = run.context.exit;
    // The spec lets `tval` be zero (QEMU's is, for WRS.NTO).
    let insn = match exit.tval {
        0 => fetch(run, env).map_or(0, u64::from),
        insn => insn,
    };
    match (insn, env.privilege()) {
        (WFI, Mode::Supervisor) => {
            run.context.skip(4);
            return Outcome::Wait;
        }
        (WRS_NTO, _) => {
            run.context.skip(4);
            return Outcome::Yield;
        }
        _ => {}
    }
    if let Some(outcome) = shadow::translation_instruction(g, run, insn, env) {
        return outcome;
    }
    // The guest's machine has no H extension: to it a virtual instruction is an illegal one. One that
    // was illegal to begin with is so with the hart's own `tval`.
    let tval = if exit.cause == Exception::IllegalInstruction.code() { exit.tval } else { insn };
    inject(run, &Trap::new(Exception::IllegalInstruction, tval), env)
}

/// A load or store that reaches a device of the board.
fn device_access<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, device: Device, env: &mut E) -> Outcome {
    let insn = match MemInsn::from_tinst(run.context.exit.tinst) {
        Some(insn) => insn,
        None => {
            run.shared.counters.mmio_decoded.bump();
            let Some(insn) = fetch(run, env) else { return refetch(g, run, env) };
            match MemInsn::decode(insn) {
                Some(insn) => insn,
                // Not a plain load or store. Devices take no others.
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
            uart_access(g, run, &mut devices, offset, insn.op);
            update_uart_line(g, &vm, devices, env);
        }
        Device::Plic(offset) => {
            run.shared.counters.mmio_plic.bump();
            if !plic_access(run, &mut devices, offset, insn.op) {
                return deny(run, access, env);
            }
            update_lines(g, &vm, devices, env);
        }
    }
    run.shared.counters.faults_mmio.bump();
    run.context.skip(insn.length.into());
    Outcome::Resume
}

/// The guest's code is not what it was at the trap, or where it was: the hart looks again, and finds what the guest's
/// tables say now.
fn refetch<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let code = GuestFence { range: Some((Addr::new(run.context.pc), 4)), asid: None };
    if run.root.is_some() {
        shadow::fence(g, run, &code, env);
    } else {
        code.pages().into_iter().flatten().for_each(|page| env.fence_guest(Some(page)));
    }
    env.fence_instructions();
    Outcome::Resume
}

/// Every width reads or writes one register, as QEMU's board does.
fn uart_access(g: &Gnomon, run: &mut VcpuRun, devices: &mut Devices, offset: u64, op: MemOp) {
    match op {
        MemOp::Load { rd, .. } => {
            let value = devices.uart.read(offset);
            run.context.set(rd, op.extend(value.into()));
        }
        MemOp::Store { rs, .. } => {
            if let Some(byte) = devices.uart.write(offset, run.context.x[usize::from(rs)] as u8) {
                g.console.lock().guest_output(run.vm.index, byte);
            }
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
            let value = devices.plic.read(offset);
            run.context.set(rd, op.extend(value.into()));
        }
        MemOp::Store { rs, .. } => devices.plic.write(offset, run.context.x[usize::from(rs)] as u32),
    }
    true
}

/// Passes the PLIC's lines to the vCPUs, after an access to it or a change of its inputs.
pub fn update_lines<E: Env>(g: &Gnomon, vm: &Vm, devices: MutexGuard<'_, Devices>, env: &mut E) {
    for vcpu in &vm.vcpus {
        let high = devices.plic.interrupts_hart(vcpu.id);
        if vcpu.external.swap(high, Ordering::SeqCst) != high {
            vcpu.counters.inject_external.bump();
            g.post(vcpu, request::EXTERNAL, env);
        }
    }
}

/// The same after an access to the UART: mostly its line has not changed.
pub fn update_uart_line<E: Env>(g: &Gnomon, vm: &Vm, mut devices: MutexGuard<'_, Devices>, env: &mut E) {
    if devices.pass_line() {
        update_lines(g, vm, devices, env);
    }
}

/// Reads the vCPU's present instruction. `None` if it cannot be fetched: the guest changed its tables
/// since the trap.
fn fetch<E: Env>(run: &VcpuRun, env: &mut E) -> Option<u32> {
    let guard = run.vm.memory.lock();
    // On shadow tables the hart's register is Gnomon's.
    let satp = if run.root.is_some() { run.csrs.vsatp } else { env.vsatp() };
    fetch::instruction(&guard.as_ref()?.space, satp, env.privilege(), run.context.pc, env.mem())
}

/// Looks, from the timer, for a guest that can make no progress: one that faults on fetching its own
/// trap handler inside its own tables, where no exit tells.
pub fn is_trapped_for_ever<E: Env>(run: &VcpuRun, env: &E) -> Option<String> {
    let regs = env.trap_regs();
    let fetch_fault = [Exception::FetchPage.code(), Exception::FetchAccess.code()].contains(&regs.vscause);
    let handler = regs.vstvec & !3;
    (fetch_fault && run.context.pc == handler && regs.vsepc == handler && regs.vstval == handler)
        .then(|| format!("vCPU {} faults for ever on fetching its own trap handler at {handler:#x}", run.shared.id))
}
