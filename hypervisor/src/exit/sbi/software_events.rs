//! SSE (SBI 3.0, chapter 17): the calls about [`crate::vm::events`], and how an event comes to a vCPU.

use super::encoding::{Answer, Args, Reply, unreached};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::Unreachable;
use crate::vm::events::{ATTRIBUTES, Place};
use crate::vm::outcome::Outcome;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::{VcpuRun, VsTrapRegs, hsm, request};
use core::ops::Range;
use core::sync::atomic::Ordering;
use rv::{Access, Addr, Gpa};
use sbi_spec::sse;

/// Handles a call; `None` if there is no such function.
pub(super) fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Option<Answer> {
    let hart = run.shared.id;
    // Ids are 32 bits wide.
    let id = args[0] as u32;
    let vm = run.vm.clone();
    let here = |result: Result<(), Error>| result.map(|()| hart);
    let concerned = match function {
        sse::READ_ATTRS | sse::WRITE_ATTRS => return Some(attributes(g, run, function, args, env)),
        sse::COMPLETE => {
            let (mut place, regs) = place_of(run, env);
            let done = vm.events.lock().complete(hart, &mut place);
            if done.is_ok() {
                put(run, &place, regs, env);
                come(g, run, hart, env);
                // It goes on where the event has interrupted it, with the registers of then.
                return Some(Answer::Outcome(Outcome::Resume));
            }
            here(done)
        }
        sse::REGISTER => here(vm.events.lock().register(hart, id, (args[1], args[2]))),
        sse::UNREGISTER => here(vm.events.lock().unregister(hart, id)),
        sse::ENABLE => vm.events.lock().enable(hart, id),
        sse::DISABLE => here(vm.events.lock().disable(hart, id)),
        sse::INJECT => vm.events.lock().inject(id, args[1]),
        sse::HART_UNMASK => here(vm.events.lock().unmask(hart)),
        sse::HART_MASK => here(vm.events.lock().mask(hart)),
        _ => return None,
    };
    Some(Answer::Reply(concerned.map(|concerned| {
        come(g, run, concerned, env);
        0
    })))
}

/// Makes a hart check whether an event comes to it.
fn come<E: Env>(g: &Gnomon, run: &VcpuRun, hart: u32, env: &mut E) {
    let is_due = run.vm.events.lock().is_due(hart);
    if is_due && let Some(vcpu) = run.vm.vcpus.get(hart as usize) {
        g.post(vcpu, request::EVENTS, env);
    }
}

/// Delivers the event that is due to the loaded vCPU: [`request::EVENTS`].
pub fn deliver<E: Env>(run: &mut VcpuRun, env: &mut E) {
    let (mut place, regs) = place_of(run, env);
    let comes = run.vm.events.lock().enter(run.shared.id, &mut place);
    if comes {
        run.shared.counters.inject_event.bump();
        put(run, &place, regs, env);
    }
}

fn place_of<E: Env>(run: &VcpuRun, env: &E) -> (Place, VsTrapRegs) {
    let (regs, x) = (env.trap_regs(), &run.context.x);
    let place = Place {
        pc: run.context.pc,
        mode: env.privilege(),
        status: regs.vsstatus,
        sepc: regs.vsepc,
        a6_a7: [x[16], x[17]],
    };
    (place, regs)
}

fn put<E: Env>(run: &mut VcpuRun, place: &Place, regs: VsTrapRegs, env: &mut E) {
    run.context.pc = place.pc;
    [run.context.x[16], run.context.x[17]] = place.a6_a7;
    env.set_trap_regs(&VsTrapRegs { vsstatus: place.status, vsepc: place.sepc, ..regs });
    env.set_privilege(place.mode);
}

/// Which attributes a call names, and where they are in the guest's memory.
type Attributes = (Range<usize>, Addr<Gpa>);

fn named(run: &VcpuRun, args: Args) -> Result<Attributes, Error> {
    let [_, first, count, low, high, _] = args;
    let (first, count) = (first as u32 as usize, count as u32 as usize);
    if count == 0 {
        return Err(Error::InvalidParam);
    }
    if first + count > ATTRIBUTES {
        return Err(Error::BadRange);
    }
    if low & 7 != 0 || high != 0 || !run.vm.in_ram(low, 8 * count as u64) {
        return Err(Error::InvalidAddress);
    }
    Ok((first..first + count, Addr::new(low)))
}

/// Reads or writes attributes.
fn attributes<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Answer {
    let (which, at) = match named(run, args) {
        Ok(named) => named,
        Err(error) => return Answer::Reply(Err(error)),
    };
    let access = if function == sse::READ_ATTRS { Access::Store } else { Access::Load };
    if let Err(why) = run.vm.reach_all(g, (at, 8 * which.len(), access), &mut run.ready, env) {
        return unreached(g, run, why, Error::InvalidAddress);
    }
    let event = args[0] as u32;
    let done = match function {
        sse::READ_ATTRS => read(g, run, event, (which, at), env),
        _ => write(g, run, event, (which, at), env),
    };
    match done {
        Ok(reply) => Answer::Reply(reply),
        // Another hart has taken the page away meanwhile.
        Err(why) => unreached(g, run, why, Error::InvalidAddress),
    }
}

fn read<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    event: u32,
    (which, at): Attributes,
    env: &mut E,
) -> Result<Reply, Unreachable> {
    let all = match run.vm.events.lock().read(run.shared.id, event) {
        Ok(all) => all,
        Err(error) => return Ok(Err(error)),
    };
    let mut bytes = [0; 8 * ATTRIBUTES];
    let bytes = &mut bytes[..8 * which.len()];
    for (value, bytes) in all[which].iter().zip(bytes.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    run.vm.write(g, at, bytes, &mut run.ready, env)?;
    Ok(Ok(0))
}

fn write<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    event: u32,
    (which, at): Attributes,
    env: &mut E,
) -> Result<Reply, Unreachable> {
    let mut bytes = [0; 8 * ATTRIBUTES];
    run.vm.read(g, at, &mut bytes[..8 * which.len()], &mut run.ready, env)?;
    let mut values = [0; ATTRIBUTES];
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = u64::from_le_bytes(*bytes);
    }
    let is_started = |hart: u64| {
        let vcpu = usize::try_from(hart).ok().and_then(|hart| run.vm.vcpus.get(hart));
        vcpu.is_some_and(|vcpu| [hsm::STARTED, hsm::SUSPENDED].contains(&vcpu.hsm.load(Ordering::Acquire)))
    };
    let who = (run.shared.id, event);
    let written = run.vm.events.lock().write(who, which.start, &values[..which.len()], is_started);
    Ok(written.map(|()| 0))
}
