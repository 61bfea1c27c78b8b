//! RFENCE (SBI 2.0, chapter 8). A call returns when no target can use a translation, or an
//! instruction, from before it: those in the guest have left it, and all fence before they enter.

use super::encoding::{Args, Reply, targets};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::hart::harts;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::{NOWHERE, VcpuRun, request};
use core::sync::atomic::Ordering;
use mmu::shadow::GuestFence;
use rv::{Addr, Asid};
use sbi_spec::pmu::firmware_event;
use sbi_spec::rfnc;

pub(super) fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Reply {
    let [mask, base, start, size, asid, _] = args;
    let (mut requests, mut fence) = (request::FENCES, None);
    let sent = match function {
        rfnc::REMOTE_FENCE_I => {
            requests = request::FENCE_I;
            firmware_event::FENCE_I_SENT
        }
        rfnc::REMOTE_SFENCE_VMA => {
            fence = Some(GuestFence { range: range(start, size), asid: None });
            firmware_event::SFENCE_VMA_SENT
        }
        rfnc::REMOTE_SFENCE_VMA_ASID => {
            fence = Some(GuestFence { range: range(start, size), asid: Some(Asid(asid as u16)) });
            firmware_event::SFENCE_VMA_ASID_SENT
        }
        // Whatever they are about, they become one of everything.
        rfnc::REMOTE_HFENCE_GVMA_VMID
        | rfnc::REMOTE_HFENCE_GVMA
        | rfnc::REMOTE_HFENCE_VVMA_ASID
        | rfnc::REMOTE_HFENCE_VVMA
            if run.nested.is_some() =>
        {
            requests = request::HFENCES;
            match function {
                rfnc::REMOTE_HFENCE_GVMA_VMID => firmware_event::HFENCE_GVMA_VMID_SENT,
                rfnc::REMOTE_HFENCE_GVMA => firmware_event::HFENCE_GVMA_SENT,
                rfnc::REMOTE_HFENCE_VVMA_ASID => firmware_event::HFENCE_VVMA_ASID_SENT,
                _ => firmware_event::HFENCE_VVMA_SENT,
            }
        }
        _ => return Err(Error::NotSupported),
    };
    let mut on_harts = 0u64;
    for vcpu in targets(run, mask, base)? {
        run.shared.counters.fences_remote.bump();
        run.count_firmware(sent, 1);
        if let Some(fence) = fence {
            vcpu.fences.lock().push(fence);
        }
        vcpu.posted.fetch_or(requests, Ordering::SeqCst);
        let is_urgent = fence.is_none_or(|fence| run.vm.translation.is_urgent(&vcpu, &fence));
        let hart = vcpu.hart.load(Ordering::SeqCst);
        if hart != NOWHERE && is_urgent {
            on_harts |= 1 << hart;
        }
    }
    harts::drive_out(&g.harts, run.vm.slot(), env, on_harts);
    Ok(0)
}

/// Returns the range of a fence; `None` for the whole address space, if start and size are 0, or size is all ones (SBI
/// 2.0, chapter 8), or the range wraps.
fn range(start: u64, size: u64) -> Option<(Addr<rv::Gva>, u64)> {
    let whole = size == 0 || size == u64::MAX || start.checked_add(size).is_none();
    (!whole).then(|| (Addr::new(start), size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(range(0, 0), None);
        assert_eq!(range(0x1000, u64::MAX), None);
        assert_eq!(range(u64::MAX - 1, 4096), None);
        assert_eq!(range(0x1000, 8192), Some((Addr::new(0x1000), 8192)));
    }
}
