//! TIME and IPI (SBI 2.0, chapters 6 and 7).

use super::encoding::{Args, Reply, targets};
use super::error::Error;
use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::offer::GuestTimer;
use crate::vcpu::{VcpuRun, request};
use sbi_spec::{spi, time};

/// TIME: the deadline in guest time; an earlier interrupt is withdrawn.
pub(super) fn set_timer<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, deadline: u64, env: &mut E) -> Reply {
    if function != time::SET_TIMER {
        return Err(Error::NotSupported);
    }
    match g.offer.timer {
        GuestTimer::Sstc => env.set_guest_deadline(deadline),
        GuestTimer::Sbi => {
            run.deadline = run.vm.host_time(deadline, env.now());
            env.set_timer_interrupt(false);
        }
    }
    Ok(0)
}

/// IPI: supervisor software interrupts.
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
