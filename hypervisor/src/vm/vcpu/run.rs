//! The part of a vCPU that one hart, queue or list owns at a time.

use super::adapts::Adapts;
use super::csrs::VsCsrs;
use super::features::Features;
use super::looks::Looks;
use super::nested::{Collapsed, Nested};
use super::pmu::{EventsOffered, Pmu};
use super::program::Program;
use super::root_cache::RootCache;
use super::shared::{NOWHERE, Vcpu, hsm, request};
use super::unexplained::Unexplained;
use super::watch::Watch;
use super::way::Way;
use crate::device::offer::Offer;
use crate::vm::fetch::Roots;
use crate::vm::{Translation, Vm};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use lane::context::token;
use lane::{BriefCauses, BriefExits, Context, FenceLog, FloatState, VectorCsrs};
use mmu::frames::Frames;
use mmu::gstage::Ready;
use mmu::ids::IdSlot;
use mmu::shadow::{Root, Views};
use rv::{Exit, Gva, Hpa, Mode, Pfn};

/// A vCPU's vector state.
#[derive(Clone, Debug)]
pub struct VectorState {
    /// v0 to v31, 32 × `vlenb` bytes; empty without V.
    pub bytes: Vec<u8>,
    /// The CSRs.
    pub csrs: VectorCsrs,
}

/// The tables that translate the addresses of a vCPU's guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tables {
    /// The guest's own, behind its VM's G-stage table.
    TwoStage,
    /// Shadow tables alone.
    Shadow,
}

/// The tables that a vCPU begins with.
impl From<Translation> for Tables {
    fn from(translation: Translation) -> Self {
        match translation {
            Translation::TwoStage | Translation::Adaptive => Self::TwoStage,
            Translation::Shadow(_) => Self::Shadow,
        }
    }
}

/// The part of a vCPU that exactly one hart, queue or list owns at any time: the owner of the box may run it.
pub struct VcpuRun {
    /// The shared part.
    pub shared: Arc<Vcpu>,
    /// Its VM.
    pub vm: Arc<Vm>,
    /// Integer registers and the last exit.
    pub context: Context,
    /// The registers of its guest's privilege world, apart from the integer ones.
    pub bank: Bank,
    /// Host time at which the timer interrupt is due, for guests without Sstc; else `u64::MAX`.
    pub deadline: u64,
    /// The hart it last ran on, or [`NOWHERE`].
    pub last_hart: usize,
    /// Its VMID there, behind a G-stage.
    pub vmid: IdSlot,
    /// The tables that translate its guest's addresses now. Only mode `adaptive` changes them.
    pub tables: Tables,
    /// In that mode: what its roots cost.
    pub adapts: Option<Box<Adapts>>,
    /// The firmware features that its kernel has asked for.
    pub features: Features,
    /// The page that its kernel shares, if it does.
    pub root_cache: Option<Box<RootCache>>,
    /// The time at which it is looked at even if it makes no exit, and the findings of the last look.
    pub watch: Watch,
    /// The findings of looks for coalescing.
    pub looks: Looks,
    /// Its state on shadow tables.
    pub shadow: ShadowState,
    /// The hypervisor extension, if its guest is offered that.
    pub nested: Option<Box<Nested>>,
    /// ASIDs beyond those that its guest has, a bit for each of theirs: none on shadow tables, where all are virtual.
    pub asids_beyond: u64,
    /// The root of its VM's G-stage table, from its first load behind one until it is parked.
    pub g_root: Option<Pfn<Hpa>>,
    /// The memory that is being made ready for the fault that it makes next. Nothing while it is parked.
    pub ready: Ready,
    /// The counters of SBI PMU, from the first call about them on.
    pub pmu: Option<Box<Pmu>>,
    /// Its kernel, from the first program on that this runs by call.
    pub program: Option<Box<Program>>,
}

/// The registers of one privilege world (VS and VU mode, or S and U mode of a hart without H) of a vCPU, apart from the integer ones.
#[derive(Clone, Debug)]
pub struct Bank {
    /// The guest's privilege, while not loaded.
    pub mode: Mode,
    /// CSRs, while not loaded.
    pub csrs: VsCsrs,
    /// Floating point, while no hart holds it.
    pub float: FloatState,
    /// Vectors, while no hart holds them.
    pub vector: VectorState,
}

/// The state of a vCPU on shadow tables.
pub struct ShadowState {
    /// Its root, from its first load until it is parked.
    pub root: Option<Root>,
    /// The roots that it has used.
    pub views: Views,
    /// The fences in its log that are accounted for.
    pub logged: u64,
    /// The lane's changes of roots that [`ShadowState::root`] and `satp` follow.
    pub changes: u64,
    /// Access faults that nothing on shadow tables explains.
    pub unexplained: Unexplained,
    /// The way by which it reaches the UART, while such exits may be brief ([`Context::brief`]).
    pub way: Way,
    /// Its VM has other vCPUs, so its faults try to share the lock of the VM's memory.
    pub shares: bool,
    /// The number of faults in a row that shared the lock in vain, and of those since that did not try.
    pub in_vain: (u8, u8),
}

impl ShadowState {
    /// Returns whether the next fault tries to share the lock of its VM's memory: not if the last ones then took it exclusively, except now and
    /// then.
    pub const fn is_to_share(&mut self) -> bool {
        /// Faults of a kind that come in a row, as stores to tables do.
        const ROW: u8 = 16;
        const NOW_AND_THEN: u8 = 8;
        self.in_vain.1 = (self.in_vain.1 + 1) % NOW_AND_THEN;
        self.in_vain.0 < ROW || self.in_vain.1 == 0
    }

    /// Notes whether a fault that tried to share the lock was answered so.
    pub const fn has_shared(&mut self, is_answered: bool) {
        self.in_vain.0 = if is_answered { 0 } else { self.in_vain.0.saturating_add(1) };
    }
}

/// `vsstatus` at a vCPU's start: 64-bit user mode, everything else off.
const VSSTATUS_AT_START: u64 = rv::csr::status::UXL_64;

impl VcpuRun {
    /// Makes a stopped vCPU. `vlenb` is the length of a vector register in bytes, 0 without V.
    #[must_use]
    pub fn new(vm: Arc<Vm>, shared: Arc<Vcpu>, vlenb: usize, causes: BriefCauses) -> Box<Self> {
        let (views, has_others) = (vm.translation.views(&vm.config), vm.config.vcpus > 1);
        let (brief, has_hypervisor, vcpu) = (vm.translation.brief(), vm.config.nested, shared.id);
        let collapses = vm.collapses();
        let context = Context { brief_causes: causes, brief, ..Context::new(shared.id) };
        let (adapts, vm_tables) = (vm.translation.adapts(shared.id), vm.translation.into());
        Box::new(Self {
            shared,
            vm,
            context,
            bank: Bank {
                mode: Mode::Supervisor,
                csrs: VsCsrs::default(),
                float: FloatState::ZERO,
                vector: VectorState { bytes: alloc::vec![0; 32 * vlenb], csrs: VectorCsrs::default() },
            },
            deadline: u64::MAX,
            last_hart: NOWHERE,
            vmid: IdSlot::new(),
            tables: vm_tables,
            adapts,
            features: Features::default(),
            pmu: None,
            program: None,
            root_cache: None,
            watch: Watch::default(),
            looks: Looks::default(),
            shadow: ShadowState {
                root: None,
                views,
                logged: 0,
                changes: 0,
                unexplained: Unexplained::NONE,
                way: Way::NONE,
                shares: has_others,
                in_vain: (0, 0),
            },
            nested: has_hypervisor.then(|| Box::new(Nested::new(vcpu, 0, collapses))),
            asids_beyond: 0,
            g_root: None,
            ready: Ready::Nothing,
        })
    }

    /// Returns whether its guest is a hypervisor whose own guest runs.
    #[must_use]
    pub fn runs_l2(&self) -> bool {
        self.nested.as_ref().is_some_and(|nested| nested.runs_l2)
    }

    /// Returns whether its kernel waits for a program that it runs by call.
    #[must_use]
    pub fn runs_program(&self) -> bool {
        self.program.as_ref().is_some_and(|program| program.runs)
    }

    /// Returns whether counters of SBI PMU run for which its hart takes samples, and makes no exit brief.
    #[must_use]
    pub fn samples(&self) -> bool {
        self.pmu.as_ref().is_some_and(|pmu| pmu.samples())
    }

    /// Returns the properties of its machine that decide which events SBI PMU has.
    #[must_use]
    pub const fn events_offered(&self, offer: &Offer) -> EventsOffered {
        EventsOffered { misaligned: offer.emulates_misaligned, hypervisor: self.nested.is_some() }
    }

    /// Counts `n` firmware events of SBI PMU, if its kernel uses that.
    pub fn count_firmware(&mut self, code: usize, n: u64) {
        if let Some(pmu) = &mut self.pmu {
            pmu.count(code, n);
        }
    }

    /// Ends its mappings of pages that its kernel has shared.
    pub fn unmap_shared(&self) {
        if let Some(mappings) = &self.vm.tlb.mappings {
            mappings.release(self.shared.id);
        }
    }

    /// Returns whether its guest is a hypervisor whose own guest runs on collapsed tables.
    #[must_use]
    pub fn collapses(&self) -> bool {
        self.nested.as_ref().is_some_and(|nested| nested.runs_l2 && nested.collapsed.is_some())
    }

    /// Returns whether something that takes memory comes before it enters its guest, or the guest of that.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        let lacks_root = |collapsed: &Collapsed| collapsed.root.is_none();
        self.nested.as_ref().is_some_and(|nested| {
            let lacks_root = nested.runs_l2 && nested.collapsed.as_deref().is_some_and(lacks_root);
            nested.goes_on.is_some() || nested.owes || lacks_root
        })
    }

    /// Marks the vCPU as started, in case that it was suspended.
    pub fn awake(&self) {
        let _ = self.shared.hsm.compare_exchange(hsm::SUSPENDED, hsm::STARTED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns whether nothing is to be done before it enters its guest, on a hart that has fenced for that TLB
    /// generation of its VM.
    #[inline(always)]
    #[must_use]
    pub fn may_enter(&self, fenced: impl FnOnce() -> u64) -> bool {
        self.shared.posted.load(Ordering::SeqCst) == 0
            && self.vm.tlb.generation.load(Ordering::SeqCst) == fenced()
            && self.vm.translation.may_enter(self)
    }

    /// Forgets how it reaches the UART.
    pub fn forget_way(&mut self) {
        self.context.brief = BriefExits::NONE;
    }

    /// Gives back what was being made ready for it.
    pub fn discard_ready(&mut self, frames: &Frames) {
        core::mem::replace(&mut self.ready, Ready::Nothing).discard(frames);
    }

    /// Marks its exit as one that is to be made again when a device, or the console, can go on.
    pub fn hold(&self) {
        self.vm.hold(self.shared.id);
    }

    /// Accounts for Gnomon's own writes to the lane's log, whose count was `before`: these are no fences of the lane's.
    #[inline(always)]
    pub const fn has_logged(&mut self, before: u64) {
        self.shadow.logged = self.shadow.logged.wrapping_add(self.context.lane.log.count().wrapping_sub(before));
    }

    /// Counts what the lane has done since the last time: from the timer, when the vCPU leaves its hart, and at the fences of an
    /// adaptive one.
    pub fn count_lane(&mut self) {
        let counters = &self.shared.counters;
        counters.lane_page.add(self.context.lane.count_by_asid() - counters.lane_page.get());
        let (lane, logged) = (&self.context.lane, self.context.lane.log.count());
        let wide = lane.wide_fences() - counters.lane_all.get();
        counters.lane_all.add(wide);
        counters
            .lane_page_global
            .add(logged.wrapping_sub(self.shadow.logged) - wide * (FenceLog::<Gva>::EVERYTHING / token::STEP));
        self.shadow.logged = logged;
        counters.lane_satp.add(lane.changes() - counters.lane_satp.get());
        counters.lane_satp_read.add(lane.reads() - counters.lane_satp_read.get());
    }

    /// Returns the value that its guest has written to `satp`, on shadow tables.
    #[must_use]
    pub fn satp(&self) -> u64 {
        let lane = &self.context.lane;
        if lane.changes() == self.shadow.changes { self.bank.csrs.vsatp } else { self.shadow.views.key(lane.place()) }
    }

    /// Returns the roots of the world that runs, of a vCPU that is on no hart.
    #[must_use]
    pub fn roots(&self) -> Roots {
        match self.nested.as_deref() {
            Some(nested) if nested.runs_l2 => Roots { satp: self.bank.csrs.vsatp, hgatp: Some(nested.csrs.hgatp) },
            _ => Roots { satp: self.satp(), hgatp: None },
        }
    }

    /// Returns the roots of the world that does not run.
    #[must_use]
    pub fn other_roots(&self) -> Option<Roots> {
        let nested = self.nested.as_deref()?;
        Some(Roots { satp: nested.other.vsatp, hgatp: (!nested.runs_l2).then_some(nested.csrs.hgatp) })
    }

    /// Follows the lane, on shadow tables: the present root and `satp` are known then. [`crate::memory::translation`]
    /// calls it before anything looks at either, and faults do themselves.
    #[inline(always)]
    pub fn follow_lane(&mut self) {
        if self.context.lane.changes() != self.shadow.changes {
            self.follow();
        }
    }

    #[cold]
    #[inline(never)]
    fn follow(&mut self) {
        let (root, satp) = self.shadow.views.follow(self.context.lane.place());
        (self.shadow.root, self.bank.csrs.vsatp) = (Some(root), satp);
        self.shadow.changes = self.context.lane.changes();
    }

    /// Puts it into the state of SBI HSM's `hart_start`: at `pc` in supervisor mode with a0 = hart id,
    /// a1 = `opaque`, translation and interrupts off. Registers that the SBI leaves undefined are
    /// zero, so that nothing of an earlier life shows.
    pub fn reset(&mut self, pc: u64, opaque: u64) {
        self.clear(pc, opaque);
        self.bank.csrs.vstimecmp = u64::MAX;
        self.deadline = u64::MAX;
        self.features = Features::default();
        self.pmu = None;
        self.root_cache = None;
        self.program = None;
        self.unmap_shared();
        if let Some(nested) = &mut self.nested {
            nested.reset();
        }
        self.watch = Watch::default();
        self.looks = Looks::default();
        self.vm.events.lock().start(self.shared.id);
        // Whatever was asked of an earlier life is moot; the external line is not of the vCPU.
        self.shared.posted.store(request::EXTERNAL | request::FENCE_I, Ordering::Release);
        let _ = self.shared.fences.lock().take();
    }

    /// Puts it into the same state at the end of a non-retentive suspend (SBI 2.0, chapter 9.4). Events from outside
    /// stay: its timer, pending interrupts, the requests of others. It is on no hart, and has forgotten its
    /// translations.
    pub fn resume_at(&mut self, pc: u64, opaque: u64) {
        let VsCsrs { hvip, vstimecmp, .. } = self.bank.csrs;
        self.clear(pc, opaque);
        (self.bank.csrs.hvip, self.bank.csrs.vstimecmp) = (hvip, vstimecmp);
    }

    /// Resets the vCPU's own registers, as a part of [`VcpuRun::reset`].
    fn clear(&mut self, pc: u64, opaque: u64) {
        self.context.x = [0; 32];
        self.context.pc = pc;
        self.context.exit = Exit::default();
        self.context.x[10] = self.shared.id.into();
        self.context.x[11] = opaque;
        self.bank.mode = Mode::Supervisor;
        self.bank.csrs = VsCsrs {
            vsstatus: VSSTATUS_AT_START,
            // Programs read the clock without asking (Linux's vDSO); firmware allows it, so do we.
            scounteren: rv::csr::COUNTEREN_BASE,
            ..VsCsrs::default()
        };
        self.bank.float = FloatState::ZERO;
        self.bank.vector.bytes.fill(0);
        self.bank.vector.csrs = VectorCsrs::default();
        // No hart's registers are this life's.
        self.last_hart = NOWHERE;
    }
}
