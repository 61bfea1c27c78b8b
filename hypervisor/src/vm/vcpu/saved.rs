//! A vCPU's part of a snapshot: both directions, by one list of registers.

use super::csrs::{VsCsrs, supervisor_csrs};
use super::features::Features;
use super::nested::Nested;
use super::pmu::Pmu;
use super::program::Program;
use super::root_cache::RootCache;
use super::run::VcpuRun;
use super::shared::{hsm, request};
use crate::device::offer::{GuestTimer, Offer};
use abi::snapshot::bytes::Bytes;
use abi::snapshot::{Csrs, NEVER, NestedCsrs, NestedState, VcpuState};
use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use lane::VectorCsrs;
use rv::csr::status;
use rv::system::number;
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

/// The list of the CSRs of the hypervisor extension that are views of no other, by their names in [`NestedCsrs`] and in [`number`].
macro_rules! nested_csrs {
    ($each:ident! { $($args:tt)* }) => {
        $each! {
            $($args)*
            [
                hstatus HSTATUS, hedeleg HEDELEG, hideleg HIDELEG, hie HIE, hcounteren HCOUNTEREN, htimedelta HTIMEDELTA, htval HTVAL,
                htinst HTINST, hgatp HGATP, henvcfg HENVCFG, hvip HVIP, vsstatus VSSTATUS, vstvec VSTVEC, vsscratch VSSCRATCH,
                vsepc VSEPC, vscause VSCAUSE, vstval VSTVAL, vsatp VSATP, vstimecmp VSTIMECMP
            ]
        }
    };
}

/// The values of a list of CSRs, as L1 reads them.
macro_rules! read {
    ($nested:ident $limits:ident [$($name:ident $number:ident),*]) => {
        NestedCsrs { $($name: $nested.read(number::$number, &$limits).unwrap_or(0)),* }
    };
}

/// Writes all CSRs of a list, as L1 does: so fields take legal values only.
macro_rules! write {
    ($nested:ident $from:ident $limits:ident [$($name:ident $number:ident),*]) => {
        $($nested.write(number::$number, $from.$name, &$limits);)*
    };
}

impl VcpuRun {
    /// Saves the hypervisor extension.
    fn save_nested(&self, offer: &Offer) -> Option<NestedState> {
        let nested = self.nested.as_deref()?;
        let (runs_l2, mut known) = (nested.runs_l2 || nested.goes_on.is_some(), nested.clone());
        if nested.runs_l2 {
            known.other = self.bank.csrs;
            known.end_run();
        }
        let limits = nested.limits(offer, 0);
        Some(NestedState {
            csrs: nested_csrs!(read! { known limits }),
            runs_l2,
            shared: nested.shared.map(Addr::raw),
            owes: nested.owes,
            swaps: nested.swaps,
        })
    }

    /// Restores the hypervisor extension of a vCPU that has it. If L2 is to run, the vCPU enters it before anything else.
    fn restore_nested(&mut self, saved: &VcpuState, offer: &Offer) {
        let (Some(nested), Some(from)) = (&mut self.nested, &saved.nested) else { return };
        let (limits, csrs) = (nested.limits(offer, 0), &from.csrs);
        nested_csrs!(write! { nested csrs limits });
        // Checked before.
        nested.shared = from.shared.map(Addr::new);
        (nested.owes, nested.swaps) = (from.owes && !from.runs_l2, from.swaps);
        if from.runs_l2 {
            nested.goes_on = Some(core::mem::replace(&mut self.bank.mode, Mode::Supervisor));
        }
    }

    /// Saves a vCPU that is on no hart, at guest time `time`.
    pub(crate) fn save(&self, time: u64, offer: &Offer) -> VcpuState {
        if self.shared.hsm.load(Ordering::SeqCst) == hsm::STOPPED {
            // What is left in its registers is nothing of the guest's.
            return VcpuState {
                timer: NEVER,
                v: Bytes(alloc::vec![0; self.bank.vector.bytes.len()]),
                ..VcpuState::default()
            };
        }
        let posted = self.shared.posted.load(Ordering::SeqCst);
        let (csrs, satp) = match self.nested.as_deref() {
            // Those of its kernel, which are aside.
            Some(Nested { runs_l2: true, other, .. }) => {
                let common = &self.bank.csrs;
                (&VsCsrs { scounteren: common.scounteren, senvcfg: common.senvcfg, ..*other }, other.vsatp)
            }
            _ => (&self.bank.csrs, self.satp()),
        };
        let mode = self.nested.as_deref().and_then(|nested| nested.goes_on).unwrap_or(self.bank.mode);
        let is_due = csrs.hvip & Interrupt::VsTimer.bit() != 0 || posted & request::TIMER != 0;
        let zero = self.vm.time_zero.load(Ordering::Relaxed);
        let timer = match offer.timer {
            GuestTimer::Sstc => csrs.vstimecmp,
            GuestTimer::Sbi if self.deadline == NEVER => NEVER,
            GuestTimer::Sbi => self.deadline.wrapping_sub(zero),
        };
        VcpuState {
            is_started: true,
            is_supervisor: mode == Mode::Supervisor,
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
            csrs: Csrs { satp, ..supervisor_csrs!(saved! { csrs }) },
            is_software_pending: csrs.hvip & Interrupt::VsSoft.bit() != 0 || posted & request::SOFTWARE != 0,
            timer: if is_due && offer.timer == GuestTimer::Sbi { timer.min(time) } else { timer },
            delegates_misaligned: self.features.delegates_misaligned,
            is_locked: self.features.is_locked,
            root_cache: self.root_cache.as_ref().map(|cache| cache.save()),
            counters: self.pmu.as_ref().map(|pmu| pmu.save(&self.shared.counters)).unwrap_or_default(),
            nested: self.save_nested(offer),
            kernel: self.program.as_ref().and_then(|program| program.save()),
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
        self.restore_nested(saved, offer);
        self.program = saved.kernel.as_ref().map(|kernel| Box::new(Program::restore(kernel)));
        // An event may be due, and its line may be high.
        self.shared.posted.fetch_or(request::EVENTS, Ordering::SeqCst);
    }
}
