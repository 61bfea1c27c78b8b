//! The state of a hart's hypervisor extension, and the world that runs.

use super::csrs::{HypervisorCsrs, VS_INTERRUPTS};
use super::misses::Misses;
use crate::vm::vcpu::csrs::VsCsrs;
use alloc::boxed::Box;
use lane::FenceLog;
use mmu::shadow::{Root, Views};
use rv::csr::{envcfg, hstatus, status};
use rv::{Addr, Exception, Gpa, Interrupt, L2Gpa, L2Gva, Mode, Pfn, Request};

const PAGE_FAULTS: u64 = Exception::FetchPage.bit() | Exception::LoadPage.bit() | Exception::StorePage.bit();

/// The state of a hart's hypervisor extension, as a guest that is a hypervisor sees it.
#[derive(Clone, Debug)]
pub struct Nested {
    /// The hypervisor CSRs.
    pub csrs: HypervisorCsrs,
    /// The CSRs of the world that does not run: L2's, as L1 sees them in the VS-level CSRs; while L2 runs, L1's own.
    pub other: VsCsrs,
    /// Set while L2 runs: the virtualization mode V that L1 believes in.
    pub runs_l2: bool,
    /// L2's privilege, if the vCPU is to enter L2 before L1 executes anything: it was restored from a snapshot.
    pub goes_on: Option<Mode>,
    /// The tables that translate L2's guest physical addresses, by which it was entered last.
    pub root: Option<Root<L2Gpa>>,
    /// L1's `hgatp` that they stand for.
    pub root_of: u64,
    /// The guest-page fault that L1 was told of last, until it enters L2 again.
    pub reflected: Option<Refused>,
    /// The page of that fault, until L2 makes another one.
    pub told: Option<Pfn<L2Gpa>>,
    /// The memory that L1 shares with Gnomon by the SBI extension NACL, if it does.
    pub shared: Option<Addr<Gpa>>,
    /// L1 has not been told there of the last exit.
    pub owes: bool,
    /// `hstatus` is still to be swapped there, if L1 wants that.
    pub swaps: bool,
    /// A software event of L1's is due, which cannot be delivered while L2 runs.
    pub waits_events: bool,
    /// While L2 runs: its `hvip` and `vstimecmp` as L1 knows them.
    pub kept: (u64, u64),
    /// The roots that L1's values of `hgatp` have led to.
    pub views: Views<L2Gpa>,
    /// L1's fences by address of all VMIDs.
    pub log: FenceLog<L2Gpa>,
    /// The bits of `henvcfg` that L1 can set.
    pub environment: u64,
    /// The places after which runs have found nothing.
    pub misses: Misses,
    /// The tables by which L2 runs instead, if they are collapsed.
    pub collapsed: Option<Box<Collapsed>>,
}

/// The roots of a vCPU in collapsed tables, which lead from L2's virtual addresses to the host's.
#[derive(Clone, Debug)]
pub struct Collapsed {
    /// The root by which L2 runs, or ran last.
    pub root: Option<Root<L2Gva>>,
    /// L1's `hgatp` and L2's `vsatp` that it stands for.
    pub root_of: (u64, u64),
    /// The roots that L2's values of `vsatp` have led to, by that `hgatp`.
    pub views: Views<L2Gva>,
    /// Fences by address of L2's virtual addresses, of all its ASIDs.
    pub log: FenceLog<L2Gva>,
    /// The guest-page fault that L1 was told of last, until it enters L2 again.
    pub refused: Option<RefusedOwn>,
}

/// An access of L2's that L1's G-stage refused, as L2's own tables see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusedOwn {
    /// The address of the instruction.
    pub pc: u64,
    /// The address of the access.
    pub at: Addr<L2Gva>,
    /// The access.
    pub request: Request,
}

impl Collapsed {
    /// Roots that a vCPU remembers.
    const VIEWS: usize = 256;

    /// Nothing yet, of vCPU number `vcpu`.
    fn new(vcpu: u32) -> Self {
        let (views, log) = (Views::new(Self::VIEWS, 0), FenceLog::new(vcpu));
        Self { root: None, root_of: (0, 0), views, log, refused: None }
    }
}

/// An access of L2's that L1's G-stage refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The address of the instruction.
    pub pc: u64,
    /// The address of the access.
    pub at: Addr<L2Gpa>,
    /// The access, as L1's G-stage sees it.
    pub request: Request,
}

/// The world that a hart runs, as far as the hart's own registers depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum World {
    /// A guest that is about to enter none of its own: its traps are its own, and its `sret` does not trap.
    Own,
    /// L1, whose next `sret` enters L2 (`hstatus.SPV`). A trap that it takes before sets SPV to 0, so all its exceptions come to Gnomon.
    Leaving,
    /// L2.
    L2(Rights),
    /// A program that the guest's kernel runs by call, with the interrupts that the kernel has enabled (`sie`): its exceptions and these interrupts
    /// end the run, and none is taken.
    Program(u64),
}

/// The rights of L2, as L1 has given them: values of the hart's registers, before they are combined with what Gnomon allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// Exceptions that are L2's own.
    pub hedeleg: u64,
    /// Interrupts that are L2's own.
    pub hideleg: u64,
    /// VTVM, VTW and VTSR.
    pub hstatus: u64,
    /// The environment of VS and VU mode.
    pub henvcfg: u64,
    /// The counters that VS mode reads.
    pub hcounteren: u64,
    /// The distance of L2's `time` from L1's.
    pub htimedelta: u64,
    /// FS, VS and MXR of L1's `sstatus`, which concern VS mode as well.
    pub status: u64,
    /// L1's interrupts that end L2's run, by their bits in `hvip`.
    pub wakes: u64,
}

impl Rights {
    /// The bits of `sstatus` that concern VS mode.
    pub const STATUS: u64 = status::FS | status::VS | status::MXR;
}

impl Nested {
    /// Makes the state after a reset, of vCPU number `vcpu`. Bits of `henvcfg` that L1 can set are `environment`.
    #[must_use]
    pub fn new(vcpu: u32, environment: u64, collapses: bool) -> Self {
        Self {
            csrs: HypervisorCsrs::default(),
            other: VsCsrs { vsstatus: status::UXL_64, ..VsCsrs::default() },
            runs_l2: false,
            goes_on: None,
            root: None,
            root_of: 0,
            waits_events: false,
            reflected: None,
            told: None,
            shared: None,
            owes: false,
            swaps: false,
            kept: (0, 0),
            views: Views::new(Self::VIEWS, 0),
            log: FenceLog::new(vcpu),
            environment,
            misses: Misses::default(),
            collapsed: collapses.then(|| Box::new(Collapsed::new(vcpu))),
        }
    }

    /// Forgets the roots of collapsed tables, which the vCPU has been taken from: L1's `hgatp` is another.
    pub fn forget_collapsed(&mut self, hgatp: u64) {
        if let Some(collapsed) = &mut self.collapsed {
            collapsed.views = Views::new(Collapsed::VIEWS, 0);
            (collapsed.root_of, collapsed.refused) = ((hgatp, 0), None);
        }
    }

    /// Roots that a vCPU remembers.
    const VIEWS: usize = 32;

    /// Resets the registers: the roots stay known.
    pub fn reset(&mut self) {
        self.csrs = HypervisorCsrs::default();
        self.other = VsCsrs { vsstatus: status::UXL_64, ..VsCsrs::default() };
        (self.runs_l2, self.goes_on) = (false, None);
        (self.reflected, self.told, self.shared, self.owes, self.swaps) = (None, None, None, false, false);
        self.collapsed.iter_mut().for_each(|collapsed| collapsed.refused = None);
        self.waits_events = false;
    }

    /// Returns the world that runs.
    #[must_use]
    pub const fn world(&self) -> World {
        let csrs = &self.csrs;
        if self.runs_l2 {
            // On collapsed tables its page faults, fences and accesses to `satp` come to Gnomon.
            let (faults, traps) = if self.collapsed.is_some() { (PAGE_FAULTS, hstatus::VTVM) } else { (0, 0) };
            return World::L2(Rights {
                hedeleg: csrs.hedeleg & !faults,
                hideleg: csrs.hideleg,
                hstatus: csrs.hstatus & (hstatus::VTVM | hstatus::VTW | hstatus::VTSR) | traps,
                henvcfg: csrs.henvcfg,
                hcounteren: csrs.hcounteren,
                htimedelta: csrs.htimedelta,
                status: self.other.vsstatus & Rights::STATUS,
                wakes: (self.other.vsie << 1) & VS_INTERRUPTS,
            });
        }
        if csrs.hstatus & hstatus::SPV != 0 { World::Leaving } else { World::Own }
    }

    /// Makes the CSRs what L1 knows once L2 has made an exit: [`Nested::other`] has L2's, as they were in the hart.
    pub const fn end_run(&mut self) {
        // Of its lines, L2 can change VSSIP only.
        let (own, (hvip, vstimecmp)) = (Interrupt::VsSoft.bit(), self.kept);
        self.other.hvip = self.other.hvip & own | hvip & !own;
        if self.csrs.henvcfg & envcfg::STCE == 0 {
            self.other.vstimecmp = vstimecmp;
        }
        let (delegated, csrs) = (self.csrs.hideleg, &mut self.csrs);
        csrs.hie = csrs.hie & !delegated | self.other.vsie << 1 & delegated;
    }

    /// Returns L1's `hip` at L1's time `time`, while L1 runs.
    #[must_use]
    pub const fn hip(&self, time: u64) -> u64 {
        self.other.hvip | if self.timer_is_due(time) { Interrupt::VsTimer.bit() } else { 0 }
    }

    /// Returns whether L2's comparator raises its interrupt at L1's time `time`, while L1 runs.
    const fn timer_is_due(&self, time: u64) -> bool {
        self.csrs.henvcfg & envcfg::STCE != 0 && time.wrapping_add(self.csrs.htimedelta) >= self.other.vstimecmp
    }

    /// Returns L2's interrupts that are L1's to take, by their bits in `hie`, at L1's time `time`, while L1 runs.
    #[must_use]
    pub const fn undelegated(&self, time: u64) -> u64 {
        self.hip(time) & self.csrs.hie & !self.csrs.hideleg
    }
}
