//! TIME and IPI (SBI 2.0, chapters 6 and 7).

use super::encoding::{Args, Reply, named, targets};
use crate::device::offer::GuestTimer;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::hart::harts::each;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::{VcpuRun, request};
use sbi_spec::{spi, time};

/// Handles TIME: sets the deadline in guest time, and withdraws an earlier interrupt.
pub(super) fn set_timer<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, deadline: u64, env: &mut E) -> Reply {
    if function != time::SET_TIMER {
        return Err(Error::NotSupported);
    }
    set_deadline(g, run, deadline, env);
    Ok(0)
}

/// Sets the guest's next timer deadline, which is valid.
#[inline(always)]
pub(super) fn set_deadline<E: Env>(g: &Gnomon, run: &mut VcpuRun, deadline: u64, env: &mut E) {
    match g.offer.timer {
        GuestTimer::Sstc => env.set_guest_deadline(deadline),
        GuestTimer::Sbi => {
            run.deadline = run.vm.host_time(deadline, env.now());
            env.set_timer_interrupt(false);
        }
    }
}

/// Handles IPI: sends supervisor software interrupts.
pub(super) fn send_ipi<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Reply {
    if function != spi::SEND_IPI {
        return Err(Error::NotSupported);
    }
    for vcpu in targets(run, args[0], args[1])? {
        run.shared.counters.inject_software.bump();
        g.post(&vcpu, request::SOFTWARE, env);
    }
    Ok(0)
}

/// Sends IPIs if no lock has to be waited for, and returns whether they were sent. If not, the caller may proceed as if
/// nothing were done: vCPUs that have the interrupt already may get it again.
#[inline(always)]
pub(super) fn send_ipi_briefly<E: Env>(g: &Gnomon, run: &VcpuRun, (mask, base): (u64, u64), env: &mut E) -> bool {
    let Ok(named) = named(run.vm.vcpus.len(), mask, base) else { return false };
    let mut sent = 0;
    for id in each(named) {
        sent += 1;
        if id == run.shared.id as usize {
            env.set_software_interrupt(true);
        } else if !g.post_briefly(&run.vm.vcpus[id], request::SOFTWARE, env) {
            return false;
        }
    }
    run.shared.counters.inject_software.add(sent);
    true
}
