//! The SBI that guests call: version 2.0 with base, TIME, IPI, RFENCE, HSM, SRST, DBCN and PMU, the legacy calls, and of version 3.0
//! FWFT and SSE; and an extension of Gnomon's own.
//! Numbers come from the `sbi-spec` crate.

mod base;
mod console;
pub(super) mod encoding;
mod features;
mod fences;
mod hart_state;
mod legacy;
mod pmu;
mod root_cache;
mod signals;
mod software_events;

pub use crate::vm::sbi_error::Error;
pub use software_events::deliver;

use crate::device::offer::GuestTimer;
use crate::exit::{nested, vmspace};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::Departure;
use crate::vm::outcome::{Brief, Kind, Outcome};
use crate::vm::vcpu::VcpuRun;
use abi::record::EndReason;
use abi::root_cache::{EXTENSION as OWN, SET_PAGE};
use abi::tunable::Id;
use alloc::format;
use base::Offered;
use core::sync::atomic::Ordering;
use encoding::{Answer, Args, again, answer, unreached};
use lane::Context;
use sbi_spec::{base as spec_base, dbcn, fwft, hsm, nacl, pmu as spec_pmu, rfnc, spi, srst, sse, time};
use signals::{send_ipi, set_timer};

/// Handles an SBI call of the loaded vCPU; `pc` is already past the `ecall`.
pub fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let x = &run.context.x;
    let args: Args = [x[10], x[11], x[12], x[13], x[14], x[15]];
    let (extension, function) = (x[17] as usize, x[16] as usize);
    let counters = &run.shared.counters;
    let reply = match extension {
        spec_base::EID_BASE => {
            counters.sbi_base.bump();
            base::call(function, args[0], Some(offered(g, run)))
        }
        time::EID_TIME => {
            counters.sbi_time.bump();
            set_timer(g, run, function, args[0], env)
        }
        spi::EID_SPI => {
            counters.sbi_ipi.bump();
            send_ipi(g, run, function, args, env)
        }
        rfnc::EID_RFNC => {
            counters.sbi_rfence.bump();
            fences::call(g, run, function, args, env)
        }
        hsm::EID_HSM => {
            counters.sbi_hsm.bump();
            match hart_state::call(g, run, function, args, env) {
                Answer::Reply(reply) => reply,
                Answer::Outcome(outcome) => return outcome,
                Answer::Again => return again(run, env),
            }
        }
        srst::EID_SRST => {
            counters.sbi_srst.bump();
            match reset(function, args) {
                Ok(departure) => return Outcome::Depart(departure),
                Err(e) => Err(e),
            }
        }
        dbcn::EID_DBCN => {
            counters.sbi_dbcn.bump();
            match console::call(g, run, function, args, env) {
                Answer::Reply(reply) => reply,
                Answer::Outcome(outcome) => return outcome,
                Answer::Again => return again(run, env),
            }
        }
        _ if legacy::EIDS.contains(&extension) => {
            counters.sbi_legacy.bump();
            return legacy::call(g, run, extension, args, env);
        }
        _ => return seldom(g, run, (extension, function), args, env),
    };
    if let Err(error) = reply {
        refused(g, run, error, (extension, function));
    }
    answer(run, reply);
    Outcome::Resume
}

/// Returns the kind of the vCPU's call, if it is one of those that kernels make all the time, and that are over at
/// once.
#[inline(always)]
pub(crate) fn kind_of_brief(context: &Context) -> Option<Kind> {
    match (context.x[17] as usize, context.x[16] as usize) {
        (time::EID_TIME, time::SET_TIMER) => Some(Kind::Timer),
        (spi::EID_SPI, spi::SEND_IPI) => Some(Kind::Ipi),
        (spec_base::EID_BASE, _) => Some(Kind::Base),
        _ => None,
    }
}

/// Sets the timer; `pc` is still at the `ecall`.
#[inline(always)]
pub(crate) fn set_timer_briefly<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Brief {
    signals::set_deadline(g, run, run.context.x[10], env);
    if g.offer.timer == GuestTimer::Sbi {
        env.deadline_changed(run);
    }
    run.shared.counters.sbi_time.bump();
    over(run, 0)
}

/// Sends IPIs, unless a vCPU that waits off its hart is among the targets.
#[inline(always)]
pub(crate) fn send_ipi_briefly<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Brief {
    if !signals::send_ipi_briefly(g, run, (run.context.x[10], run.context.x[11]), env) {
        return Brief::NO;
    }
    run.shared.counters.sbi_ipi.bump();
    over(run, 0)
}

/// Handles a call of the base extension, if it has that function.
#[inline(always)]
pub(crate) fn call_base_briefly(run: &mut VcpuRun) -> Brief {
    let Ok(value) = base::call(run.context.x[16] as usize, run.context.x[10], None) else {
        return Brief::NO;
    };
    run.shared.counters.sbi_base.bump();
    over(run, value)
}

/// Returns the extensions that probes find here, and not everywhere. NACL is on machines with the H extension, unless they are to do
/// without.
fn offered(g: &Gnomon, run: &VcpuRun) -> Offered {
    Offered { nacl: run.nested.is_some() && g.tunables.is_on(Id::Nacl), pmu: g.offer.has_pmu }
}

/// Ends a brief call.
#[inline(always)]
fn over(run: &mut VcpuRun, value: u64) -> Brief {
    run.shared.counters.exits.bump();
    run.shared.counters.exits_ecall.bump();
    run.context.skip(4);
    answer(run, Ok(value));
    Brief::OVER
}

/// Handles the extensions that are seldom called, and unknown ones. They are apart so that the others cost no more for
/// them.
#[cold]
#[inline(never)]
fn seldom<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (extension, function): (usize, usize),
    args: Args,
    env: &mut E,
) -> Outcome {
    let found = match extension {
        fwft::EID_FWFT => {
            run.shared.counters.sbi_fwft.bump();
            features::call(g, run, function, args).map(Answer::Reply)
        }
        sse::EID_SSE => {
            run.shared.counters.sbi_sse.bump();
            software_events::call(g, run, function, args, env)
        }
        OWN if function == SET_PAGE => {
            run.shared.counters.sbi_root_cache.bump();
            root_cache::call(g, run, function, args, env)
        }
        OWN => vmspace::call(g, run, function, args, env),
        spec_pmu::EID_PMU if g.offer.has_pmu => {
            run.shared.counters.sbi_pmu.bump();
            pmu::call(g, run, function, args, env).map(Answer::Reply)
        }
        nacl::EID_NACL if run.nested.is_some() => {
            run.shared.counters.sbi_nacl.bump();
            run.shared.of_guests().traps.bump();
            nested::nacl::call(g, run, function, args, env)
                .map(|done| done.unwrap_or_else(|why| unreached(g, run, why, Error::Failed)))
        }
        _ => None,
    };
    let reply = match found {
        Some(Answer::Reply(reply)) => reply,
        Some(Answer::Outcome(outcome)) => return outcome,
        Some(Answer::Again) => return again(run, env),
        None => {
            refused(g, run, Error::NotSupported, (extension, function));
            Err(Error::NotSupported)
        }
    };
    answer(run, reply);
    Outcome::Resume
}

/// Counts a call of what is not there, and says the first of each VM.
#[cold]
#[inline(never)]
fn refused(g: &Gnomon, run: &VcpuRun, error: Error, (extension, function): (usize, usize)) {
    if error != Error::NotSupported {
        return;
    }
    run.shared.counters.sbi_unknown.bump();
    if !run.vm.has_called_unknown.swap(true, Ordering::Relaxed) {
        let name = &run.vm.config.name;
        g.console.say(&format!(
            "{name} has made an SBI call that Gnomon does not have: extension {extension:#x}, function {function}; further \
             ones are counted as sbi.unknown"
        ));
    }
}

/// Handles SRST: shutdown, or a reboot of this VM; warm is as cold.
fn reset(function: usize, args: Args) -> Result<Departure, Error> {
    if function != srst::SYSTEM_RESET {
        return Err(Error::NotSupported);
    }
    // Type and reason are 32 bits wide; the rest of the registers does not count.
    let (kind, reason) = (args[0] as u32, args[1] as u32);
    // Reasons from 0xE0000000 on are for SBI implementations and vendors; Gnomon has none.
    if reason > srst::RESET_REASON_SYSTEM_FAILURE {
        return Err(Error::InvalidParam);
    }
    match kind {
        srst::RESET_TYPE_SHUTDOWN if reason == srst::RESET_REASON_SYSTEM_FAILURE => {
            Ok(Departure::End(EndReason::SystemFailure))
        }
        srst::RESET_TYPE_SHUTDOWN => Ok(Departure::End(EndReason::Poweroff)),
        srst::RESET_TYPE_COLD_REBOOT | srst::RESET_TYPE_WARM_REBOOT => Ok(Departure::Reboot),
        // Types 0xF0000000.. are for vendors, of which Gnomon has none.
        0xf000_0000.. => Err(Error::NotSupported),
        _ => Err(Error::InvalidParam),
    }
}
