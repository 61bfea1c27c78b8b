//! The encoding of calls (SBI 2.0, chapter 3): arguments, replies, errors, hart masks.

use crate::exit::wait_for_memory;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::hart::harts::each;
use crate::vm::Unreachable;
use crate::vm::outcome::Outcome;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::{Vcpu, VcpuRun};
use abi::bundle::MAX_VCPUS;
use alloc::sync::Arc;

/// The result that a call returns to the guest: a value, or an error.
pub(in crate::exit) type Reply = Result<u64, Error>;

/// The result of handling a call.
pub(in crate::exit) enum Answer {
    /// With a reply.
    Reply(Reply),
    /// With something else; what is to be said to the guest has been said.
    Outcome(Outcome),
    /// The call cannot be done now: the guest makes the same call again.
    Again,
}

/// The arguments a0 to a5 of a call.
pub(in crate::exit) type Args = [u64; 6];

/// Writes the reply to the guest's registers.
pub(in crate::exit) fn answer(run: &mut VcpuRun, reply: Reply) {
    let (error, value) = match reply {
        Ok(value) => (0, value),
        Err(e) => (e as i64 as u64, 0),
    };
    run.context.x[10] = error;
    run.context.x[11] = value;
}

/// Returns the vCPUs that a hart mask names, of `count`, as a set; an error if it names one that does not exist (SBI
/// 2.0, chapter 3.1).
#[inline(always)]
pub(super) fn named(count: usize, mask: u64, base: u64) -> Result<u64, Error> {
    const { assert!(MAX_VCPUS < 64, "a set of vCPUs is a word") };
    let all = (1 << count) - 1;
    match base {
        u64::MAX => Ok(all),
        // The mask covers 64 harts from `base`: every bit set must be a hart that exists.
        0..64 if mask & !(all >> base) == 0 => Ok(mask << base),
        _ if mask == 0 => Ok(0),
        _ => Err(Error::InvalidParam),
    }
}

/// Returns the vCPUs that a hart mask names, one after the other.
pub(super) fn targets(run: &VcpuRun, mask: u64, base: u64) -> Result<impl Iterator<Item = Arc<Vcpu>> + use<>, Error> {
    let vm = Arc::clone(&run.vm);
    Ok(each(named(vm.vcpus.len(), mask, base)?).map(move |id| Arc::clone(&vm.vcpus[id])))
}

/// Returns the answer to a call that cannot reach memory. That is `error`, unless memory is only not ready yet and
/// nothing has happened: then the `ecall` is executed once more, after the pending interrupts, or when the memory is
/// there.
pub(in crate::exit) fn unreached(g: &Gnomon, run: &mut VcpuRun, why: Unreachable, error: Error) -> Answer {
    match why {
        Unreachable::Waits { since } => {
            run.context.pc = run.context.pc.wrapping_sub(4);
            Answer::Outcome(wait_for_memory(g, run, since))
        }
        // The VM is leaving, and this vCPU about to be parked; or there is more to be done.
        Unreachable::Later | Unreachable::Gone => Answer::Outcome(at_once(run)),
        _ => Answer::Reply(Err(error)),
    }
}

/// Makes the guest execute the `ecall` once more, after the pending interrupts.
pub(in crate::exit) fn at_once(run: &mut VcpuRun) -> Outcome {
    run.context.pc = run.context.pc.wrapping_sub(4);
    Outcome::Resume
}

/// Makes the guest execute the `ecall` once more when the console has room. Nothing has happened yet.
pub(super) fn again<E: Env>(run: &mut VcpuRun, env: &mut E) -> Outcome {
    run.context.pc = run.context.pc.wrapping_sub(4);
    run.hold();
    // The UART's moment releases it. After the hold, so that the moment finds it.
    run.vm.devices.ask(0);
    env.attend_soon(Some(run.vm.slot()));
    Outcome::Later
}
