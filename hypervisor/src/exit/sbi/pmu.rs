//! PMU (SBI 2.0, chapter 11): a kernel configures, starts, stops and reads counters of the hart that it calls from.

use super::encoding::{Args, Reply};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::VcpuRun;
use crate::vm::vcpu::pmu::{COUNTERS, Pmu};
use sbi_spec::pmu;

/// Handles a call; `None` if there is no such function.
pub(super) fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Option<Reply> {
    let (counter, set) = (args[0], (args[0], args[1]));
    let [_, _, flags, index, data, _] = args;
    let offered = run.events_offered(&g.offer);
    let totals = &run.shared.counters;
    let own = run.pmu.get_or_insert_default();
    let reply = match function {
        pmu::NUM_COUNTERS => Ok(COUNTERS as u64),
        pmu::COUNTER_GET_INFO => Pmu::info(counter),
        pmu::COUNTER_CONFIG_MATCHING => own.configure(set, flags, (index, data), offered, totals),
        pmu::COUNTER_START => own.start(set, flags, index, totals),
        pmu::COUNTER_STOP => own.stop(set, flags, totals),
        pmu::COUNTER_FW_READ => own.firmware(counter, totals),
        // Their upper halves, on RV32.
        pmu::COUNTER_FW_READ_HI => own.firmware(counter, totals).map(|_| 0),
        // Optional. Kernels look for it, so that it is no call of what is not there.
        pmu::SNAPSHOT_SET_SHMEM => Err(Error::NotSupported),
        _ => return None,
    };
    if matches!(function, pmu::COUNTER_CONFIG_MATCHING | pmu::COUNTER_START | pmu::COUNTER_STOP) {
        env.follow_counters(run);
    }
    Some(reply)
}
