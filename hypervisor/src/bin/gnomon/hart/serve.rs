//! The requests that others make of a vCPU, done before it enters its guest.

use super::{Hart, Leaves};
use crate::guest::Line;
use core::sync::atomic::Ordering;
use hypervisor::exit::{self, sbi};
use hypervisor::vm::vcpu::{VcpuRun, request};
use metal::fence;
use mmu::shadow::GuestFence;
use sbi_spec::pmu::firmware_event as received;

impl Hart {
    /// Does what was posted to the vCPU, unless it is to leave its hart.
    pub(super) fn serve(&mut self, run: &mut VcpuRun) -> Option<Leaves> {
        let posted = run.shared.posted.swap(0, Ordering::SeqCst);
        if posted & request::PARK != 0 {
            return Some(Leaves::ForPark);
        }
        if posted & request::PAUSE != 0 {
            // All else is for later.
            run.shared.posted.fetch_or(posted & !request::PAUSE, Ordering::SeqCst);
            return Some(Leaves::ForPause);
        }
        if posted & request::FENCES != 0 {
            let fences = run.shared.fences.lock().take();
            let fences = fences.unwrap_or_else(|| alloc::vec![GuestFence { range: None, asid: None }]);
            for fence in &fences {
                let of_asid = fence.asid.is_some();
                let event = if of_asid { received::SFENCE_VMA_ASID_RECEIVED } else { received::SFENCE_VMA_RECEIVED };
                run.count_firmware(event, 1);
                run.vm.translation.fence(self.g, run, fence, self);
            }
        }
        if posted & request::HFENCES != 0 {
            exit::nested::fence_all(self.g, run, self);
        }
        if posted & request::FENCE_I != 0 {
            fence::instruction();
            run.count_firmware(received::FENCE_I_RECEIVED, 1);
        }
        if posted & request::SOFTWARE != 0 {
            self.guest.set_line(Line::Software, true);
            run.count_firmware(received::IPI_RECEIVED, 1);
        }
        if posted & request::TIMER != 0 {
            self.raise_timer(run);
        }
        if posted & request::EXTERNAL != 0 {
            self.guest.set_line(Line::External, run.shared.external.load(Ordering::SeqCst));
        }
        if posted & request::EVENTS != 0 {
            if let Some(nested) = run.nested.as_deref_mut().filter(|nested| nested.runs_l2) {
                nested.waits_events = true;
                return None;
            }
            if let Some(program) = run.program.as_deref_mut().filter(|program| program.runs) {
                program.waits_events = true;
                return None;
            }
            sbi::deliver(run, self);
        }
        None
    }
}
