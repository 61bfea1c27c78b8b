//! A debugger at a VM ([`abi::control::debug`]): breakpoints, steps, registers, memory.
//!
//! A breakpoint is a `c.ebreak` in the guest's memory. Breakpoint exceptions come to Gnomon while a debugger is
//! attached; those that are not the debugger's are given to the guest as ever. The VM is changed while it stands still
//! only: so no vCPU has trapped at a breakpoint that is gone when its exit is handled. A vCPU that steps has `sie` 0
//! meanwhile, so that no interrupt leads away.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::life::lifecycle;
use crate::life::undone::{Done, Undone, answer, refuse};
use crate::vm::breaks::{Break, Held, State};
use crate::vm::fetch::{Astray, Roots, guest_physical};
use crate::vm::vcpu::supervisor_csrs;
use crate::vm::vcpu::{VcpuRun, request};
use crate::vm::{Unreachable, Vm};
use abi::control::Answer;
use abi::control::debug::{Debug, F0, FCSR, MOST_BREAKS, MOST_READ, MOST_WRITE, PC, Registers, Stopped};
use alloc::boxed::Box;
use alloc::vec::Vec;
use mmu::gstage::Ready;
use rv::csr::{hstatus, status};
use rv::system::{System, number};
use rv::{Access, Addr, Gpa, Mode, PAGE_BYTES, Request, step};

/// Handles an `ebreak` of the vCPU on this hart. If that is the debugger's, its VM stops, and the vCPU finds that when
/// it is about to enter its guest.
pub fn stops<E: Env>(g: &Gnomon, run: &VcpuRun, env: &mut E) -> bool {
    let vm = &run.vm;
    if !vm.breaks.is_on() {
        return false;
    }
    let roots = Roots { satp: vm.translation.satp(run, env), ..run.roots() };
    let Ok(gpa) = physical(vm, roots, run.context.pc, env) else { return false };
    {
        let mut state = vm.breaks.state.lock();
        let Some(found) = state.all.iter().find(|at| at.gpa == gpa).copied() else { return false };
        let id = run.shared.id;
        let stopped = if found.is_for_step { Stopped::Stepped(id) } else { Stopped::AtBreak(id) };
        // Others that come to one at the same time do so again when they go on.
        state.stopped.get_or_insert(stopped);
    }
    if !lifecycle::pause(g, vm, env) {
        // The other vCPUs are paused already, or another request has just paused the VM.
        g.post(&run.shared, request::PAUSE, env);
    }
    true
}

/// Does what a debugger asks for.
pub fn ask<E: Env>(g: &Gnomon, vm: &Vm, wish: Debug, env: &mut E) -> Answer {
    answer(act(g, vm, wish, env))
}

fn act<E: Env>(g: &Gnomon, vm: &Vm, wish: Debug, env: &mut E) -> Done<Answer> {
    if wish == Debug::Attach {
        return attach(g, vm, env);
    }
    if !vm.breaks.is_on() {
        return refuse("no debugger is attached to it");
    }
    match wish {
        Debug::Halt => return halt(g, vm, env),
        Debug::Detach => return detach(g, vm, env),
        Debug::State => return state(g, vm, env).map(Answer::Stopped),
        _ if !is_still(g, vm) => return refuse("it has not stopped"),
        Debug::Registers(vcpu)
        | Debug::SetRegister { vcpu, .. }
        | Debug::SetVector { vcpu, .. }
        | Debug::Step(vcpu)
            if with(g, vm, vcpu, is_between_worlds).unwrap_or(false) =>
        {
            return refuse("it was restored from a snapshot, and has not gone on yet: resume it first");
        }
        _ => {}
    }
    match wish {
        Debug::Registers(vcpu) => return with(g, vm, vcpu, |run| Answer::Registers(Box::new(registers(run)))),
        Debug::SetRegister { vcpu, register, value } => with(g, vm, vcpu, |run| set_register(run, register, value))??,
        Debug::Vector { vcpu, register } => {
            let bytes = with(g, vm, vcpu, |run| vector(run, register).map(|bytes| bytes.to_vec()));
            return bytes?
                .filter(|bytes| bytes.len() <= MOST_READ as usize)
                .map(Answer::Memory)
                .map_or_else(no_register, Ok);
        }
        Debug::SetVector { vcpu, register, bytes } => with(g, vm, vcpu, |run| match vector(run, register) {
            Some(old) if old.len() == bytes.len() => {
                old.copy_from_slice(&bytes);
                dirty(run, status::VS);
                Ok(())
            }
            _ => no_register(),
        })??,
        Debug::Read { vcpu, at, bytes } => return read(g, vm, (vcpu, at, bytes), env).map(Answer::Memory),
        Debug::Write { vcpu, at, bytes } => {
            if bytes.len() > MOST_WRITE || at % PAGE_BYTES + bytes.len() as u64 > PAGE_BYTES {
                return refuse("these are too many bytes, or on two pages");
            }
            let gpa = physical(vm, roots(g, vm, vcpu)?, at, env)?;
            vm.write(g, gpa, &bytes, &mut Ready::Never, env)?;
        }
        Debug::Break { vcpu, at } => set(g, vm, (roots(g, vm, vcpu)?, at, false), env)?,
        Debug::Unbreak(gva) => lift(g, vm, |at| !at.is_for_step && at.gva == gva, env)?,
        Debug::Continue => {
            vm.breaks.state.lock().stopped = None;
            forget_code(g, vm, env);
            lifecycle::resume(g, vm, env);
        }
        Debug::Step(vcpu) => make_step(g, vm, vcpu, env)?,
        Debug::Attach | Debug::Halt | Debug::Detach | Debug::State => {}
    }
    Ok(Answer::Done)
}

fn attach<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Done<Answer> {
    if vm.savings.lock().is_on() {
        return refuse("a snapshot of it is being taken");
    }
    if vm.breaks.set_on(true) {
        return refuse("another debugger is attached to it");
    }
    *vm.breaks.state.lock() = State::default();
    let halted = halt(g, vm, env);
    if halted.is_err() {
        vm.breaks.set_on(false);
    }
    halted
}

fn detach<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Done<Answer> {
    if !is_still(g, vm) {
        // It may be about to start over; then there is nothing of the debugger's left in it.
        return match halt(g, vm, env) {
            Ok(_) => Err(Undone::Later),
            Err(_) => {
                *vm.breaks.state.lock() = State::default();
                vm.breaks.set_on(false);
                Ok(Answer::Done)
            }
        };
    }
    lift(g, vm, |_| true, env)?;
    state(g, vm, env)?;
    vm.breaks.set_on(false);
    forget_code(g, vm, env);
    lifecycle::resume(g, vm, env);
    Ok(Answer::Done)
}

/// Stops the VM: the vCPUs that have not stopped are asked to leave their harts.
fn halt<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Done<Answer> {
    if lifecycle::pause(g, vm, env) {
        return Ok(Answer::Done);
    }
    let out = g.vms.tenant(vm, |tenant| {
        let aside = tenant.paused.as_ref()?;
        let is_out = |id| !tenant.parked.contains_key(&id) && !aside.iter().any(|run| run.shared.id == id);
        Some(vm.vcpus.iter().filter(|vcpu| is_out(vcpu.id)).collect::<Vec<_>>())
    });
    let Some(out) = out.flatten() else { return refuse("it does not run: it starts, or comes to its end") };
    out.into_iter().for_each(|vcpu| g.post(vcpu, request::PAUSE, env));
    Ok(Answer::Done)
}

/// Returns whether all vCPUs have left their harts.
fn is_still(g: &Gnomon, vm: &Vm) -> bool {
    g.vms.tenant(vm, |tenant| tenant.is_still()) == Some(true)
}

/// Returns whether the VM has stopped, and why. Breakpoints for a step are removed then.
fn state<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Done<Stopped> {
    if !is_still(g, vm) {
        return Ok(Stopped::Not);
    }
    lift(g, vm, |at| at.is_for_step, env)?;
    let (step, stopped) = {
        let mut state = vm.breaks.state.lock();
        (state.step.take(), state.stopped)
    };
    if let Some((vcpu, held)) = step {
        with(g, vm, vcpu, |run| release_interrupts(run, held))?;
    }
    Ok(stopped.unwrap_or(Stopped::Halted))
}

/// Returns whether the vCPU has the integer registers of L2 and the CSRs of L1: it is about to enter L2.
fn is_between_worlds(run: &mut VcpuRun) -> bool {
    run.nested.as_deref().is_some_and(|nested| nested.goes_on.is_some())
}

/// Does something with a vCPU of a VM that stands still.
fn with<T>(g: &Gnomon, vm: &Vm, vcpu: u32, act: impl FnOnce(&mut VcpuRun) -> T) -> Done<T> {
    let done = g.vms.tenant(vm, |tenant| {
        let aside = tenant.paused.iter_mut().flatten().find(|run| run.shared.id == vcpu);
        aside.or_else(|| tenant.parked.get_mut(&vcpu)).map(|run| act(run))
    });
    done.flatten().map_or_else(|| refuse("it has no such vCPU"), Ok)
}

fn registers(run: &VcpuRun) -> Registers {
    macro_rules! registers {
        ($run:ident [$($own:ident $name:ident),*]) => {
            Registers {
                x: $run.context.x,
                pc: $run.context.pc,
                is_supervisor: $run.bank.mode == Mode::Supervisor,
                satp: $run.roots().satp,
                f: $run.bank.float.f,
                fcsr: $run.bank.float.fcsr,
                vlenb: ($run.bank.vector.bytes.len() / 32) as u32,
                vector: {
                    let csrs = &$run.bank.vector.csrs;
                    [csrs.vstart, csrs.vl, csrs.vtype, csrs.vcsr]
                },
                $($name: $run.bank.csrs.$own),*
            }
        };
    }
    supervisor_csrs!(registers! { run })
}

fn no_register<T>() -> Done<T> {
    refuse("it has no such register")
}

fn set_register(run: &mut VcpuRun, register: u8, value: u64) -> Done<()> {
    match register {
        0..PC => run.context.set(register, value),
        PC => run.context.pc = value & !1,
        F0..FCSR => {
            run.bank.float.f[usize::from(register - F0)] = value;
            dirty(run, status::FS);
        }
        FCSR => {
            run.bank.float.fcsr = value & 0xff;
            dirty(run, status::FS);
        }
        _ => return no_register(),
    }
    Ok(())
}

/// The bytes of a vector register; `None` without V, or without that register.
fn vector(run: &mut VcpuRun, register: u8) -> Option<&mut [u8]> {
    let vlenb = run.bank.vector.bytes.len() / 32;
    run.bank.vector.bytes.chunks_exact_mut(vlenb.max(1)).nth(register.into())
}

/// Marks registers dirty unless they are off, so that the guest's kernel saves them when it changes tasks. While L2 runs, they are L1's, too.
fn dirty(run: &mut VcpuRun, field: u64) {
    let mark = |status: &mut u64| *status |= if *status & field != 0 { field } else { 0 };
    mark(&mut run.bank.csrs.vsstatus);
    if let Some(nested) = run.nested.as_deref_mut().filter(|nested| nested.runs_l2) {
        mark(&mut nested.other.vsstatus);
    }
}

fn roots(g: &Gnomon, vm: &Vm, vcpu: u32) -> Done<Roots> {
    with(g, vm, vcpu, |run| run.roots())
}

/// Translates a virtual address by the guest's own tables, whatever they allow.
fn physical<E: Env>(vm: &Vm, roots: Roots, gva: u64, env: &E) -> Done<Addr<Gpa>> {
    let guard = vm.memory.lock();
    let Some(memory) = guard.as_ref() else { return refuse("it has no memory now") };
    let any = Request { sum: true, mxr: true, hs_mxr: true, ..Request::supervisor(Access::Load) };
    match guest_physical(&memory.space, roots, Addr::new(gva), &any, &env.mem()) {
        Ok(gpa) => Ok(gpa),
        Err(Astray::Refused) => refuse("the guest's tables lead nowhere there"),
        Err(Astray::Away(_)) => refuse("the guest's tables for it are not in memory now"),
    }
}

fn read<E: Env>(g: &Gnomon, vm: &Vm, (vcpu, at, bytes): (u32, u64, u32), env: &mut E) -> Done<Vec<u8>> {
    let gpa = physical(vm, roots(g, vm, vcpu)?, at, env)?;
    let count = u64::from(bytes.min(MOST_READ)).min(PAGE_BYTES - at % PAGE_BYTES);
    let mut into = alloc::vec![0; count as usize];
    vm.read(g, gpa, &mut into, &mut Ready::Never, env)?;
    Ok(into)
}

/// Puts a breakpoint there, unless there is one.
fn set<E: Env>(g: &Gnomon, vm: &Vm, (roots, gva, is_for_step): (Roots, u64, bool), env: &mut E) -> Done<()> {
    if gva % 2 != 0 {
        return refuse("no instruction begins at an odd address");
    }
    let gpa = physical(vm, roots, gva, env)?;
    {
        let state = vm.breaks.state.lock();
        if state.all.iter().any(|at| at.gpa == gpa) {
            return Ok(());
        }
        // A step has room always.
        if state.all.len() >= MOST_BREAKS && !is_for_step {
            return refuse("it has as many breakpoints as there may be");
        }
    }
    let mut original = [0; 2];
    vm.read(g, gpa, &mut original, &mut Ready::Never, env)?;
    vm.write(g, gpa, &step::C_EBREAK.to_le_bytes(), &mut Ready::Never, env)?;
    vm.breaks.state.lock().all.push(Break { gva, gpa, original, is_for_step });
    Ok(())
}

/// Removes those breakpoints. If the guest has written something else there by now, that stays.
fn lift<E: Env>(g: &Gnomon, vm: &Vm, which: impl Fn(&Break) -> bool, env: &mut E) -> Done<()> {
    loop {
        let found = vm.breaks.state.lock().all.iter().copied().find(|at| which(at));
        let Some(found) = found else { return Ok(()) };
        let mut now = [0; 2];
        let there = vm.read(g, found.gpa, &mut now, &mut Ready::Never, env);
        let back = match there {
            Ok(()) if now == step::C_EBREAK.to_le_bytes() => {
                vm.write(g, found.gpa, &found.original, &mut Ready::Never, env)
            }
            there => there,
        };
        if back.is_err_and(Unreachable::is_for_now) {
            return Err(Undone::Later);
        }
        vm.breaks.state.lock().all.retain(|at| *at != found);
    }
}

/// Makes the vCPUs forget the code that they have fetched, before they go on.
fn forget_code<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) {
    vm.vcpus.iter().for_each(|vcpu| g.post(vcpu, request::FENCE_I, env));
}

/// Returns where a step may lead in the other world of a vCPU that is a hypervisor: to L1's trap handler, or to L2.
fn in_other_world(run: &mut VcpuRun) -> Option<(Roots, u64)> {
    let (nested, roots) = (run.nested.as_deref()?, run.other_roots()?);
    let at = if nested.runs_l2 { nested.other.vstvec & !3 } else { run.bank.csrs.vsepc };
    (nested.runs_l2 || nested.csrs.hstatus & hstatus::SPV != 0).then_some((roots, at))
}

/// Disables the interrupts that could lead a vCPU away from its next instruction: its guest's, and those of its guest's guest.
fn hold_interrupts(run: &mut VcpuRun) -> Held {
    let running = core::mem::take(&mut run.bank.csrs.vsie);
    match run.nested.as_deref_mut().filter(|nested| nested.runs_l2) {
        Some(nested) => Held { own: core::mem::take(&mut nested.other.vsie), l2: running },
        None => Held { own: running, l2: 0 },
    }
}

/// Enables them again, in whichever world the vCPU is now. It may have been started over meanwhile, and have set its own.
fn release_interrupts(run: &mut VcpuRun, held: Held) {
    let restore = |sie: &mut u64, held: u64| *sie = if *sie == 0 { held } else { *sie };
    match run.nested.as_deref_mut() {
        Some(nested) if nested.runs_l2 => {
            restore(&mut nested.other.vsie, held.own);
            restore(&mut run.bank.csrs.vsie, held.l2);
        }
        Some(nested) => {
            restore(&mut run.bank.csrs.vsie, held.own);
            let csrs = &mut nested.csrs;
            if held.l2 != 0 && csrs.hie & csrs.hideleg == 0 {
                csrs.hie |= held.l2 << 1 & csrs.hideleg;
                // It has been told of the exit by other values.
                nested.owes |= nested.shared.is_some();
            }
        }
        None => restore(&mut run.bank.csrs.vsie, held.own),
    }
}

/// Lets that vCPU execute one instruction, while the others stay where they are.
fn make_step<E: Env>(g: &Gnomon, vm: &Vm, vcpu: u32, env: &mut E) -> Done<()> {
    let is_aside = g.vms.tenant(vm, |tenant| tenant.paused.iter().flatten().any(|run| run.shared.id == vcpu));
    if is_aside != Some(true) {
        return refuse("this vCPU is not started");
    }
    let (now, roots) = with(g, vm, vcpu, |run| (registers(run), run.roots()))?;
    let is_later = core::cell::Cell::new(false);
    let mut fetch = |at: u64| {
        let mut half = |at: u64| {
            let mut bytes = [0; 2];
            let gpa = physical(vm, roots, at, env).ok()?;
            let there = vm.read(g, gpa, &mut bytes, &mut Ready::Never, env);
            is_later.set(is_later.get() || there.is_err_and(Unreachable::is_for_now));
            there.is_ok().then_some(u32::from(u16::from_le_bytes(bytes)))
        };
        let low = half(at)?;
        if low & 3 == 3 { Some(half(at.wrapping_add(2))? << 16 | low) } else { Some(low) }
    };
    let insn = fetch(now.pc);
    let mut next = Vec::with_capacity(step::MOST + 1);
    step::successors((now.pc, &now.x), now.sepc, &mut fetch, |at| next.push(at));
    if is_later.get() {
        return Err(Undone::Later);
    }
    let is_wait = insn.and_then(System::decode) == Some(System::Wfi);
    if is_wait || next == [now.pc] {
        // WFI may do nothing, and what jumps to itself has arrived.
        with(g, vm, vcpu, |run| run.context.skip(if is_wait { 4 } else { 0 }))?;
        vm.breaks.state.lock().stopped = Some(Stopped::Stepped(vcpu));
        return Ok(());
    }
    // It may trap, too.
    next.push(now.stvec & !3);
    let own = next.into_iter().filter(|at| *at != now.pc).map(|at| (roots, at));
    let mut count = 0;
    for (roots, at) in own.chain(with(g, vm, vcpu, in_other_world)?) {
        match set(g, vm, (roots, at, true), env) {
            Ok(()) => count += 1,
            Err(Undone::Later) => return Err(Undone::Later),
            // Nothing is there: then a trap comes first.
            Err(Undone::Refused(_)) => {}
        }
    }
    if count == 0 {
        return refuse("no instruction can follow: neither this one's successors nor its trap handler are mapped");
    }
    let uses_sie = insn.is_some_and(|insn| System::access_to(insn, number::SIE).is_some());
    let held = if uses_sie { None } else { Some((vcpu, with(g, vm, vcpu, hold_interrupts)?)) };
    {
        let mut state = vm.breaks.state.lock();
        state.stopped = None;
        state.step = held;
    }
    forget_code(g, vm, env);
    let run = g.vms.tenant(vm, |tenant| {
        let aside = tenant.paused.as_mut()?;
        let at = aside.iter().position(|run| run.shared.id == vcpu)?;
        Some(aside.swap_remove(at))
    });
    run.flatten().into_iter().for_each(|run| g.start(run, env));
    Ok(())
}
