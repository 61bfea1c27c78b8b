//! The answers to requests on the control channel ([`abi::control`]).
//!
//! Nothing is done before a request comes, and no more than one request at a time: the next has its turn 0.1 ms later,
//! so a flood of them does not keep a hart from its guest. No answer waits for a vCPU or a device.

use crate::control::connections;
use crate::control::debug;
use crate::control::power;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::serial;
use crate::life::lifecycle;
use crate::life::snapshot::{self, take};
use crate::measure::probe::Noted;
use crate::vm::vms::Wish;
use crate::vm::{Departure, Phase, Vm};
use abi::control::frame::{Bad, Frame, decode, encode};
use abi::control::{
    Answer, Events, Hello, MOST_ANSWER_BYTES, MOST_EVENTS, MOST_MS, MOST_OUTPUT, MOST_TYPED, Request, Trace, VmInfo,
    VmState, Vms, Whose,
};
use abi::record::EndReason;
use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use mmu::frames::Owner;
use rv::PAGE_BYTES;

/// Answers the next request, when the line has interrupted, or the rest of its input is due.
pub fn attend<E: Env>(g: &Gnomon, env: &mut E) {
    if let Some(frame) = g.channel.next()
        && let Some(answer) = answer_frame(g, frame, env)
    {
        g.channel.send(answer);
    }
    if g.channel.is_due() {
        env.attend_soon(None);
    }
}

/// Continues with requests that had to wait.
#[inline]
pub fn go_on<E: Env>(g: &Gnomon, env: &mut E) {
    if g.channel.is_due() {
        attend(g, env);
    }
}

/// Answers a frame. A frame that is no message has no answer, since no client waits for one.
pub fn answer_frame<E: Env>(g: &Gnomon, frame: Result<Frame, Bad>, env: &mut E) -> Option<Vec<u8>> {
    let (number, answer) = match frame.and_then(|frame| decode(&frame)) {
        Ok((number, request)) => (number, answer(g, request, env)),
        // Its version is in the frame.
        Err(Bad::Version { number, .. }) => (number, refuse("this Gnomon is of another version")),
        Err(Bad::Malformed { number }) => (number, refuse("this Gnomon knows no such request")),
        Err(Bad::TooLong | Bad::Garbled) => return None,
    };
    let encoded = encode(number, &answer);
    let is_fit = encoded.len() <= MOST_ANSWER_BYTES;
    Some(if is_fit { encoded } else { encode(number, &refuse("the answer would be too long")) })
}

fn refuse(why: &str) -> Answer {
    Answer::Refused(why.into())
}

/// Does what is asked for.
fn answer<E: Env>(g: &Gnomon, request: Request, env: &mut E) -> Answer {
    match request {
        Request::Hello => {
            Answer::Hello(Hello { version: env!("CARGO_PKG_VERSION").into(), harts: g.harts.len() as u32 })
        }
        Request::Vms => Answer::Vms(vms(g, env)),
        Request::Counters(whose) => match counters(g, whose) {
            Some(all) => Answer::Counters(all.into_iter().map(|(name, count)| (name.to_string(), count)).collect()),
            None => refuse(NO_VM),
        },
        Request::Values(whose) => match counters(g, whose) {
            Some(all) => Answer::Values(all.into_iter().map(|(_, count)| count).collect()),
            None => refuse(NO_VM),
        },
        Request::Tunables => {
            Answer::Tunables(g.tunables.each().map(|(name, value)| (name.into(), value.to_string())).collect())
        }
        Request::Set(setting) => match g.tunables.set(&setting) {
            Ok(()) => {
                // It may be one that has to be looked after.
                env.go_on_soon();
                Answer::Done
            }
            Err(why) => Answer::Refused(why.to_string()),
        },
        Request::Pause(number) => with_vm(g, number, |vm| match state(g, vm) {
            VmState::Paused => refuse("it is paused already"),
            _ if lifecycle::pause(g, vm, env) => Answer::Done,
            state => Answer::Refused(format!("it is {}", state.name())),
        }),
        Request::Resume(number) => with_vm(g, number, |vm| match lifecycle::resume(g, vm, env) {
            true => Answer::Done,
            false => refuse("it is not paused"),
        }),
        Request::Harts(ms) => {
            let now = env.now();
            let times = g.harts.iter().map(|hart| hart.probe.times(now)).collect();
            g.asked.ask(until(g, ms, now));
            kick(g, |noted| !noted.is_on() || noted.has_lapsed(now), env);
            Answer::Harts(times)
        }
        Request::Trace(Trace { ms, vm, hart }) => {
            let Some(taken) = g.harts.get(hart as usize) else { return refuse("there is no such hart") };
            if !g.harts.iter().all(|hart| hart.probe.make_room(g.harts.len())) {
                return refuse("there is no memory for a trace");
            }
            g.asked.ask_for_exits(vm, until(g, ms, env.now()));
            kick(g, |noted| !noted.is_on(), env);
            let (events, lost) = taken.probe.take(MOST_EVENTS);
            Answer::Events(Events { timebase: g.offer.timebase, events, lost })
        }
        Request::Load(number, wish) => with_vm(g, number, |vm| snapshot::load(g, vm, wish, env)),
        Request::Save(number, wish) => with_vm(g, number, |vm| take::ask(g, vm, wish, env)),
        Request::Output { vm, from } => match g.console.read(vm, from, MOST_OUTPUT) {
            Some(output) => Answer::Output(output),
            // Says why.
            None => with_vm(g, vm, |_| refuse("it has no console")),
        },
        Request::Type(number, bytes) => with_vm(g, number, |vm| {
            let bytes = &bytes[..bytes.len().min(MOST_TYPED)];
            Answer::Taken(serial::type_in(g, vm, bytes, env) as u32)
        }),
        Request::Port(number, port, wish) => match g.vms.numbered(number) {
            Some(vm) => {
                let answer = connections::ask(g, &vm, port, &wish, env);
                answer.unwrap_or_else(|| refuse("it has no such port"))
            }
            None if has_ended(g, number) => refuse(ENDED),
            // The request waits until the VM starts: the connection exists from the VM's start on.
            None => Answer::Later,
        },
        Request::Power(number, _) if g.vms.wishes(|wish| wish.number == number).any(|found| found) => {
            refuse("it waits for another VM's end; gnomon destroy cancels it")
        }
        Request::Power(number, wish) => with_vm(g, number, |vm| power::ask(g, vm, wish, env)),
        Request::Debug(number, wish) => with_vm(g, number, |vm| debug::ask(g, vm, wish, env)),
        Request::Stop(number) => {
            // One that waits for another's end never starts.
            g.vms.cancel(|wish| wish.number == number, &EndReason::Requested);
            if g.vms.wishes(|wish| wish.number == number).any(|found| found) {
                return Answer::Done;
            }
            with_vm(g, number, |vm| {
                lifecycle::depart(g, vm, Departure::End(EndReason::Requested), env);
                Answer::Done
            })
        }
    }
}

const NO_VM: &str = "there is no such VM, or not yet";

/// Returns the counters of a VM, vCPU or hart, in the order of their names.
fn counters(g: &Gnomon, whose: Whose) -> Option<Vec<(&'static str, u64)>> {
    let Whose::Vm(number) = whose else { return Some(g.host_counters().into_iter().collect()) };
    let gone = g.vms.reports().iter().find(|report| report.number == number).cloned();
    Some(gone.or_else(|| Some(g.report(&*g.vms.numbered(number)?)))?.counters().collect())
}

/// Returns the host time `ms` milliseconds from now.
fn until(g: &Gnomon, ms: u32, now: u64) -> u64 {
    now.saturating_add(g.offer.timebase.saturating_mul(ms.min(MOST_MS).into()) / 1000)
}

/// Kicks those harts that do not know yet that they are asked to take notes.
fn kick<E: Env>(g: &Gnomon, is_unaware: impl Fn(&Noted) -> bool, env: &mut E) {
    (0..g.harts.len()).filter(|hart| is_unaware(&g.harts[*hart].probe)).for_each(|hart| g.kick(hart, env));
}

const ENDED: &str = "it has ended";

fn has_ended(g: &Gnomon, number: u64) -> bool {
    g.vms.reports().iter().any(|report| report.number == number)
}

/// Does something with the VM of that number.
fn with_vm(g: &Gnomon, number: u64, act: impl FnOnce(&Arc<Vm>) -> Answer) -> Answer {
    match g.vms.numbered(number) {
        Some(vm) => act(&vm),
        None if has_ended(g, number) => refuse(ENDED),
        None => refuse("it is not there yet, or never was"),
    }
}

/// Returns all VMs that exist or are to be created, and those that are gone.
fn vms<E: Env>(g: &Gnomon, env: &E) -> Vms {
    let mut vms: Vec<VmInfo> = g.vms.wishes(wished).collect();
    vms.extend(g.vms.all().map(|vm| info(g, &vm)));
    // One that leaves its wish, or its slot, between is in neither, or twice.
    vms.sort_by_key(|vm| (vm.number, vm.state == VmState::Waiting));
    vms.dedup_by_key(|vm| vm.number);
    Vms { now: env.now(), timebase: g.offer.timebase, vms, lost: Vec::new(), ports: Vec::new(), disks: Vec::new() }
}

fn wished(wish: &Wish) -> VmInfo {
    let config = &wish.config;
    VmInfo {
        number: wish.number,
        name: config.name.clone(),
        state: if wish.end.is_some() { VmState::Ending } else { VmState::Waiting },
        mode: config.mmu,
        vcpus: config.vcpus,
        memory_bytes: config.memory_bytes,
        resident_bytes: 0,
        since: None,
    }
}

fn info(g: &Gnomon, vm: &Vm) -> VmInfo {
    let since = vm.since.load(Relaxed);
    VmInfo {
        number: vm.handle.number,
        name: vm.config.name.clone(),
        state: state(g, vm),
        mode: Some(g.offer.mode(&vm.config)),
        vcpus: vm.config.vcpus,
        memory_bytes: vm.config.memory_bytes,
        resident_bytes: g.frames().usage(Owner::Vm(vm.slot() as u16)).guest * PAGE_BYTES,
        since: (since != 0).then_some(since),
    }
}

fn state(g: &Gnomon, vm: &Vm) -> VmState {
    let is_given_away = vm.savings.lock().is_given_away;
    let arrives = vm.config.incoming && vm.memory.lock().is_some();
    let phase = vm.phase.lock();
    match &*phase {
        Phase::Running => match g.vms.tenant(vm, |tenant| tenant.paused.is_some()) {
            Some(true) if is_given_away => VmState::GivenAway,
            Some(true) => VmState::Paused,
            _ => VmState::Running,
        },
        Phase::Created if arrives => VmState::Arriving,
        Phase::Created | Phase::Leaving(Departure::Reboot) => VmState::Starting,
        Phase::Leaving(Departure::End(_)) => VmState::Ending,
        Phase::Ended => VmState::Ended,
    }
}
