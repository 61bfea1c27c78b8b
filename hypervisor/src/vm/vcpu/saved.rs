//! A vCPU's part of a snapshot: both directions, by one list of registers.

use super::csrs::supervisor_csrs;
use super::features::Features;
use super::pmu::Pmu;
use super::root_cache::RootCache;
use super::run::VcpuRun;
use super::shared::{hsm, request};
use crate::device::offer::{GuestTimer, Offer};
use abi::snapshot::bytes::Bytes;
use abi::snapshot::{Csrs, NEVER, VcpuState};
use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use lane::VectorCsrs;
use rv::csr::status;
use rv::{Addr, Interrupt, Mode};

/// The bits that a guest can set in its `sstatus`.
const STATUS: u64 = status::SIE | status::SPIE | status::SPP | status::VS | status::FS | status::SUM | status::MXR;
const FCSR: u64 = 0xff;
const COUNTERS: u64 = 0xffff_ffff;

/// The saved values of a list of CSRs, and of those that trap to Gnomon or are U mode's.
macro_rules! saved {
    ($csrs:ident [$($own:ident $name:ident),*]) => {
        Csrs { satp: 0, scounteren: $csrs.scounteren, senvcfg: $csrs.senvcfg, $($name: $csrs.$own),* }
    };
}

/// Restores all CSRs of a list.
macro_rules! restore {
    ($csrs:ident $from:ident [$($own:ident $name:ident),*]) => { $($csrs.$own = $from.$name;)* };
}

impl VcpuRun {
    /// Saves a vCPU that is on no hart, at guest time `time`.
    pub(crate) fn save(&self, time: u64) -> VcpuState {
        if self.shared.hsm.load(Ordering::SeqCst) == hsm::STOPPED {
            // What is left in its registers is nothing of the guest's.
            return VcpuState {
                timer: NEVER,
                v: Bytes(alloc::vec![0; self.bank.vector.bytes.len()]),
                ..VcpuState::default()
            };
        }
        let (csrs, posted) = (&self.bank.csrs, self.shared.posted.load(Ordering::SeqCst));
        let zero = self.vm.time_zero.load(Ordering::Relaxed);
        let is_due = csrs.hvip & Interrupt::VsTimer.bit() != 0 || posted & request::TIMER != 0;
        // One of the two is not in use, and says never.
        let deadline = if self.deadline == NEVER { NEVER } else { self.deadline.wrapping_sub(zero) };
        let timer = deadline.min(csrs.vstimecmp);
        VcpuState {
            is_started: true,
            is_supervisor: self.bank.mode == Mode::Supervisor,
            x: self.context.x,
            pc: self.context.pc,
            f: self.bank.float.f,
            fcsr: self.bank.float.fcsr,
            v: Bytes(self.bank.vector.bytes.clone()),
            vector: [
                self.bank.vector.csrs.vstart,
                self.bank.vector.csrs.vl,
                self.bank.vector.csrs.vtype,
                self.bank.vector.csrs.vcsr,
            ],
            csrs: Csrs { satp: self.satp(), ..supervisor_csrs!(saved! { csrs }) },
            is_software_pending: csrs.hvip & Interrupt::VsSoft.bit() != 0 || posted & request::SOFTWARE != 0,
            timer: if is_due { timer.min(time) } else { timer },
            delegates_misaligned: self.features.delegates_misaligned,
            is_locked: self.features.is_locked,
            root_cache: self.root_cache.as_ref().map(|cache| cache.save()),
            counters: self.pmu.as_ref().map(|pmu| pmu.save(&self.shared.counters)).unwrap_or_default(),
        }
    }

    /// Restores a vCPU that has just been reset, at host time `now`. Values that no guest can write are masked.
    pub(crate) fn restore(&mut self, saved: &VcpuState, offer: &Offer, now: u64) {
        self.context.x = saved.x;
        self.context.x[0] = 0;
        self.context.pc = saved.pc & !1;
        self.bank.mode = if saved.is_supervisor { Mode::Supervisor } else { Mode::User };
        self.bank.float.f = saved.f;
        self.bank.float.fcsr = saved.fcsr & FCSR;
        if saved.v.0.len() == self.bank.vector.bytes.len() {
            self.bank.vector.bytes.copy_from_slice(&saved.v.0);
            let [vstart, vl, vtype, vcsr] = saved.vector;
            self.bank.vector.csrs = VectorCsrs { vstart, vl, vtype, vcsr };
        }
        let (csrs, from) = (&mut self.bank.csrs, &saved.csrs);
        supervisor_csrs!(restore! { csrs from });
        csrs.vsstatus = from.sstatus & STATUS | status::UXL_64;
        csrs.vsatp = from.satp;
        csrs.scounteren = from.scounteren & COUNTERS;
        csrs.senvcfg = from.senvcfg;
        csrs.hvip = if saved.is_software_pending { Interrupt::VsSoft.bit() } else { 0 };
        let due = self.vm.host_time(saved.timer, now);
        match offer.timer {
            GuestTimer::Sstc => csrs.vstimecmp = saved.timer,
            GuestTimer::Sbi if saved.timer != NEVER && due <= now => csrs.hvip |= Interrupt::VsTimer.bit(),
            GuestTimer::Sbi => self.deadline = due,
        }
        self.features = Features { delegates_misaligned: saved.delegates_misaligned, is_locked: saved.is_locked };
        self.root_cache = saved.root_cache.map(|it| {
            // Checked before. What its places have is out of date, and does no harm.
            Box::new(RootCache::new(Addr::new(it.at), it.places as usize, it.is_tagged))
        });
        self.pmu = Pmu::restore(&saved.counters, self.events_offered(offer), &self.shared.counters);
        // An event may be due, and its line may be high.
        self.shared.posted.fetch_or(request::EVENTS, Ordering::SeqCst);
    }
}
