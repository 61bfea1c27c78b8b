//! The legacy calls (SBI 2.0, chapter 5), for guests that know no others. Each is an extension of its own; a reply is in a0
//! alone, and a hart mask lies in the guest's memory.

use super::encoding::{Answer, Args, Reply, again, at_once};
use super::fences;
use super::signals::{send_ipi, set_timer};
use crate::exit;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::serial;
use crate::vm::fetch;
use crate::vm::fetch::{Astray, Roots};
use crate::vm::outcome::Outcome;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::{VcpuRun, request};
use crate::vm::{Departure, Unreachable};
use abi::record::EndReason;
use core::sync::atomic::Ordering;
use rv::csr::status;
use rv::{Access, Addr, Exception, Gva, PAGE_BYTES, Request, Trap};
use sbi_spec::legacy as spec;
use sbi_spec::pmu::firmware_event;
use sbi_spec::{rfnc, spi, time};

/// The extensions of the legacy calls.
pub(super) const EIDS: core::ops::RangeInclusive<usize> = spec::LEGACY_SET_TIMER..=spec::LEGACY_SHUTDOWN;

/// The value that `getchar` returns when there is no byte.
const NOTHING: u64 = u64::MAX;

/// Handles a call of one of [`EIDS`].
pub(super) fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, extension: usize, args: Args, env: &mut E) -> Outcome {
    let answer = match extension {
        spec::LEGACY_CONSOLE_PUTCHAR => match serial::print_in_order(g, &run.vm, &[args[0] as u8], env) {
            0 => Answer::Again,
            _ => Answer::Reply(Ok(0)),
        },
        spec::LEGACY_SHUTDOWN => Answer::Outcome(Outcome::Depart(Departure::End(EndReason::Poweroff))),
        spec::LEGACY_SEND_IPI..=spec::LEGACY_REMOTE_SFENCE_VMA_ASID => match hart_mask(g, run, args[0], env) {
            Ok(mask) => Answer::Reply(to_harts(g, run, extension, (mask, args), env)),
            Err(None) => Answer::Outcome(at_once(run)),
            Err(Some(trap)) => {
                // As a load by the guest's own instruction would.
                run.context.pc = run.context.pc.wrapping_sub(4);
                Answer::Outcome(exit::inject(run, &trap, env))
            }
        },
        _ => Answer::Reply(own(g, run, extension, args, env)),
    };
    match answer {
        Answer::Outcome(outcome) => outcome,
        Answer::Again => again(run, env),
        Answer::Reply(reply) => {
            run.context.x[10] = reply.unwrap_or_else(|error| error as i64 as u64);
            Outcome::Resume
        }
    }
}

/// Calls about this hart.
fn own<E: Env>(g: &Gnomon, run: &mut VcpuRun, extension: usize, args: Args, env: &mut E) -> Reply {
    match extension {
        spec::LEGACY_SET_TIMER => {
            run.count_firmware(firmware_event::SET_TIMER, 1);
            set_timer(g, run, time::SET_TIMER, args[0], env)
        }
        spec::LEGACY_CONSOLE_GETCHAR => {
            let vm = run.vm.clone();
            let mut uart = vm.devices.uart.lock();
            let byte = uart.take_received();
            serial::input_taken(g, &vm, uart, env);
            Ok(byte.map_or(NOTHING, u64::from))
        }
        spec::LEGACY_CLEAR_IPI => {
            run.shared.posted.fetch_and(!request::SOFTWARE, Ordering::SeqCst);
            env.set_software_interrupt(false);
            Ok(0)
        }
        _ => Err(Error::NotSupported),
    }
}

/// Calls about the harts of a mask; those that do not exist are left out.
fn to_harts<E: Env>(g: &Gnomon, run: &mut VcpuRun, extension: usize, (mask, args): (u64, Args), env: &mut E) -> Reply {
    let [_, start, size, asid, ..] = args;
    let fence =
        |function, run: &mut VcpuRun, env: &mut E| fences::call(g, run, function, [mask, 0, start, size, asid, 0], env);
    match extension {
        spec::LEGACY_SEND_IPI => send_ipi(g, run, spi::SEND_IPI, [mask, 0, 0, 0, 0, 0], env),
        spec::LEGACY_REMOTE_FENCE_I => fence(rfnc::REMOTE_FENCE_I, run, env),
        spec::LEGACY_REMOTE_SFENCE_VMA => fence(rfnc::REMOTE_SFENCE_VMA, run, env),
        spec::LEGACY_REMOTE_SFENCE_VMA_ASID => fence(rfnc::REMOTE_SFENCE_VMA_ASID, run, env),
        _ => Err(Error::NotSupported),
    }
}

/// Reads the hart mask at `at`, a virtual address; 0 stands for all harts. Harts that do not exist are not in what this
/// returns. The error is the trap of a load there; none if its memory is not ready yet.
fn hart_mask<E: Env>(g: &Gnomon, run: &mut VcpuRun, at: u64, env: &mut E) -> Result<u64, Option<Trap>> {
    let existing = 1u64.checked_shl(run.vm.vcpus.len() as u32).map_or(u64::MAX, |end| end - 1);
    if at == 0 {
        return Ok(existing);
    }
    let has = |bit| env.status() & bit != 0;
    let (sum, mxr) = (has(status::SUM), has(status::MXR));
    let request = Request { access: Access::Load, mode: env.privilege(), sum, mxr, hs_mxr: false };
    let roots = Roots { satp: run.vm.translation.satp(run, env), hgatp: None };
    let mut bytes = [0; 8];
    let mut done = 0;
    while done < bytes.len() {
        let gva = Addr::<Gva>::new(at.wrapping_add(done as u64));
        let part = (PAGE_BYTES - gva.page_offset()).min((bytes.len() - done) as u64) as usize;
        let gpa = {
            let guard = run.vm.memory.lock();
            guard.as_ref().map(|memory| fetch::guest_physical(&memory.space, roots, gva, &request, &env.mem()))
        };
        let part_of = &mut bytes[done..done + part];
        let read = match gpa {
            Some(Ok(gpa)) => run.vm.read(g, gpa, part_of, &mut run.ready, env),
            // The call is made again when that table is in memory.
            Some(Err(Astray::Away(table))) => {
                run.vm.reach(g, (table, Access::Load), &mut run.ready, env).and(Err(Unreachable::Later))
            }
            Some(Err(Astray::Refused)) | None => Err(Unreachable::Hole),
        };
        read.map_err(|why| (!why.is_for_now()).then(|| Trap::new(Exception::LoadPage, gva.raw())))?;
        done += part;
    }
    Ok(u64::from_le_bytes(bytes) & existing)
}
