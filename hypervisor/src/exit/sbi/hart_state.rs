//! HSM (SBI 2.0, chapter 9): vCPUs start, stop and rest.

use super::encoding::{Answer, Args, Reply, answer};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::Phase;
use crate::vm::outcome::Outcome;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::{VcpuRun, hsm, request};
use core::sync::atomic::Ordering;
use sbi_spec::hsm as spec;

pub(super) fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Answer {
    match function {
        spec::HART_START => Answer::Reply(start(g, run, args, env)),
        spec::HART_STOP => {
            run.shared.hsm.store(hsm::STOP_PENDING, Ordering::Release);
            Answer::Outcome(Outcome::Stop)
        }
        spec::HART_GET_STATUS => Answer::Reply(status(run, args[0])),
        spec::HART_SUSPEND => match suspend(run, args) {
            Ok(outcome) => {
                run.shared.hsm.store(hsm::SUSPENDED, Ordering::Release);
                Answer::Outcome(outcome)
            }
            Err(error) => Answer::Reply(Err(error)),
        },
        _ => Answer::Reply(Err(Error::NotSupported)),
    }
}

/// Suspend types from here to the next default one are a platform's; those below are reserved. Bit 31 says that state is lost.
const PLATFORM: u32 = 0x1000_0000;

/// Suspends the vCPU, retentively or not. The hart itself stays as it is: losing its state gains a VM nothing, but is
/// what a kernel may ask for.
fn suspend(run: &mut VcpuRun, [kind, pc, opaque, ..]: Args) -> Result<Outcome, Error> {
    const LOSES: u32 = spec::suspend_type::NON_RETENTIVE;
    // The type is 32 bits wide.
    let kind = kind as u32;
    if (1..PLATFORM).contains(&(kind & !LOSES)) {
        return Err(Error::InvalidParam);
    }
    if kind & LOSES != 0 && !run.vm.in_ram(pc, 2) {
        return Err(Error::InvalidAddress);
    }
    match kind {
        spec::suspend_type::RETENTIVE => {
            answer(run, Ok(0));
            Ok(Outcome::Wait)
        }
        LOSES => Ok(Outcome::Sleep { pc, opaque }),
        _ => Err(Error::NotSupported),
    }
}

fn status(run: &VcpuRun, hart: u64) -> Reply {
    let vcpu = run.vm.vcpus.get(hart as usize).ok_or(Error::InvalidParam)?;
    Ok(vcpu.hsm.load(Ordering::Acquire).into())
}

fn start<E: Env>(g: &Gnomon, run: &VcpuRun, args: Args, env: &mut E) -> Reply {
    let [hart, pc, opaque, ..] = args;
    let vcpu = run.vm.vcpus.get(hart as usize).ok_or(Error::InvalidParam)?;
    if !run.vm.in_ram(pc, 2) {
        return Err(Error::InvalidAddress);
    }
    if vcpu.hsm.load(Ordering::Acquire) != hsm::STOPPED {
        return Err(Error::AlreadyAvailable);
    }
    // Held until the vCPU is started, so that the VM's end either comes first or collects it.
    let phase = run.vm.phase.lock();
    if *phase != Phase::Running {
        return Err(Error::Failed);
    }
    // Stopped, but its hart has not given it up yet (or another start was faster).
    let target =
        g.vms.tenant(&run.vm, |tenant| Some((tenant.parked.remove(&vcpu.id)?, tenant.paused.is_some()))).flatten();
    let (mut target, is_paused) = target.ok_or(Error::AlreadyAvailable)?;
    target.reset(pc, opaque);
    if is_paused {
        target.shared.posted.fetch_or(request::PAUSE, Ordering::SeqCst);
    }
    target.shared.hsm.store(hsm::STARTED, Ordering::Release);
    g.start(target, env);
    Ok(0)
}
