//! Guests that are hypervisors: what the hart's registers are while such a guest runs, and while its own guest does.

use super::bank::with_bank;
use super::{GuestHart, S_INTERRUPTS, VS_INTERRUPTS};
use crate::seat::Seat;
use hypervisor::device::offer::{GuestMode, GuestTimer, Offer};
use hypervisor::vm::vcpu::{Nested, VsCsrs, World};
use metal::{csr, fence};
use mmu::ids::IdSlot;
use rv::csr::{COUNTEREN_BASE, COUNTEREN_TM, envcfg, hstatus, status};
use rv::{Addr, Gpa, Interrupt, L2Gpa, Vmid};

impl GuestHart {
    /// Returns whether the loaded guest's own guest runs.
    pub fn runs_l2(&self) -> bool {
        matches!(self.nesting.world, World::L2(_))
    }

    /// Returns whether L2 runs in S mode, whose comparator would go by the host's time: Gnomon watches L2's.
    pub fn watches_l2(&self) -> bool {
        self.mode == GuestMode::Supervisor && self.runs_l2()
    }

    /// Exchanges the CSRs in the hart for those of the other world, which `nested` says is the one that runs. No table translates
    /// afterwards. Returns the `vsatp` of that world.
    pub fn change_world(&mut self, nested: &mut Nested, offer: &Offer) -> u64 {
        let mut now = VsCsrs::default();
        self.save_csrs(&mut now, offer);
        now.vsatp = self.guest_root();
        self.leave_tables();
        let status = self.used(now.vsstatus);
        let mut next = core::mem::replace(&mut nested.other, now);
        // Common to both worlds.
        (next.scounteren, next.senvcfg) = (now.scounteren, now.senvcfg);
        if nested.runs_l2 {
            self.nesting.held = now.hvip;
        } else {
            next.hvip = self.held(offer);
            next.vsstatus |= dirtied(status, next.vsstatus);
        }
        self.set_world(nested.world());
        // SAFETY: what was in the hart is saved.
        unsafe { self.load_csrs(&next, offer) };
        next.vsatp
    }

    /// Returns L1's `hvip`, which is held back while L2 runs. A comparator of its own says itself whether it is due.
    fn held(&self, offer: &Offer) -> u64 {
        match offer.timer {
            GuestTimer::Sstc => self.nesting.held & !Interrupt::VsTimer.bit(),
            GuestTimer::Sbi => self.nesting.held,
        }
    }

    /// Saves what of L1 is in the hart while L2 runs.
    fn save_held(&self, nested: &mut Nested) {
        nested.other.hvip = self.nesting.held;
        let used = self.used(self.guest_status());
        nested.other.vsstatus |= dirtied(used, nested.other.vsstatus);
    }

    /// Returns FS and VS as they tell whether L2, whose `sstatus` that is, has changed the registers. In S mode nothing tells: a kernel may mark
    /// clean what it has changed.
    fn used(&self, l2: u64) -> u64 {
        match self.mode {
            GuestMode::Virtual => self.status(),
            GuestMode::Supervisor => l2 | status::FS | status::VS,
        }
    }

    /// Makes the hart ready for the world that a vCPU runs, before its CSRs are loaded.
    pub fn begin_world(&mut self, nested: &Nested) {
        self.nesting.held = nested.other.hvip;
        self.set_world(nested.world());
    }

    /// Lets L2 use floating point and vectors as L1's `sstatus` says, after they have been loaded.
    pub fn limit_extensions(&self) {
        if let (GuestMode::Virtual, Some(rights)) = (self.mode, self.nesting.rights()) {
            self.set_extensions(Some(rights.status));
        }
    }

    /// Ends the world that a vCPU runs, after its CSRs have been saved: what of L1 is in the hart is saved, too.
    pub fn end_world(&mut self, nested: &mut Nested) {
        if self.runs_l2() {
            self.save_held(nested);
        }
        self.set_world(World::Own);
    }

    /// Returns L1's time at which L2's comparator raises its interrupt; `u64::MAX` is never. Only with Sstc, while L2 runs.
    pub fn comparator_of_l2(&self) -> u64 {
        match (self.nesting.rights(), self.comparator()) {
            (Some(rights), at) if at != u64::MAX && rights.henvcfg & envcfg::STCE != 0 => {
                at.wrapping_sub(rights.htimedelta)
            }
            _ => u64::MAX,
        }
    }

    /// Raises or lowers a line of L1's, while L2 runs.
    pub(super) const fn hold(&mut self, bit: u64, high: bool) {
        self.nesting.held = if high { self.nesting.held | bit } else { self.nesting.held & !bit };
    }

    /// Returns L1's pending interrupts, while L2 runs.
    pub const fn held_interrupts(&self) -> u64 {
        self.nesting.held
    }

    /// Returns L2's pending interrupts.
    pub fn undelegated_interrupts(&self) -> u64 {
        match self.mode {
            GuestMode::Virtual => csr::hip::read() & VS_INTERRUPTS,
            GuestMode::Supervisor => (csr::mip::read() & S_INTERRUPTS) << 1,
        }
    }

    /// Raises or lowers L2's timer interrupt, in S mode, while L2 runs.
    pub fn set_timer_of_l2(&self, high: bool) {
        let bit = Interrupt::STimer.bit();
        // SAFETY: an interrupt of the guest's, which Gnomon never takes.
        unsafe {
            if high {
                csr::mip::set(bit);
            } else {
                csr::mip::clear(bit);
            }
        }
    }

    /// Returns whether an interrupt is pending that ends a wait of L2's, or of a program's: one of its own, or one of its kernel's.
    pub(super) fn wakes_other(&self) -> bool {
        match &self.nesting.world {
            World::L2(rights) => self.nesting.held & rights.wakes != 0,
            World::Program(_) => self.program_interrupts() != 0,
            World::Own | World::Leaving => false,
        }
    }

    /// Returns whether a program of the loaded guest's kernel runs.
    pub fn runs_program(&self) -> bool {
        matches!(self.nesting.world, World::Program(_))
    }

    /// Returns the pending interrupts that the kernel of the program has enabled, by their bits in `sip`.
    pub fn program_interrupts(&self) -> u64 {
        match (self.nesting.world, self.mode) {
            (World::Program(enabled), GuestMode::Virtual) => csr::vs::sip::read() & enabled,
            // QEMU 10.0 shows STIP of Sstc in `mip` alone.
            (World::Program(enabled), GuestMode::Supervisor) => csr::mip::read() & S_INTERRUPTS & enabled,
            _ => 0,
        }
    }

    /// Takes the kernel's `sie` from the hart, for a program to run. Returns it.
    pub fn take_enabled(&self) -> u64 {
        // SAFETY: the guest's interrupts.
        with_bank!(self.mode, |bank| unsafe {
            let enabled = bank::sie::read();
            bank::sie::write(0);
            enabled
        })
    }

    /// Makes the hart ready for a program of a kernel that has enabled those interrupts; its `sie` is 0.
    pub fn begin_program(&mut self, enabled: u64) {
        self.nesting.enter(World::Program(enabled), self.mode);
        self.delegate();
    }

    /// Ends that. Returns the kernel's `sie`.
    pub fn end_program(&mut self) -> u64 {
        let World::Program(enabled) = self.nesting.enter(World::Own, self.mode) else { return 0 };
        self.delegate();
        enabled
    }

    /// Gives the kernel its `sie` back.
    pub fn give_enabled(&self, enabled: u64) {
        // SAFETY: the guest's interrupts.
        with_bank!(self.mode, |bank| unsafe { bank::sie::write(enabled) });
    }

    /// Runs the loaded guest for that world.
    pub fn set_world(&mut self, world: World) {
        let before = self.nesting.enter(world, self.mode);
        if before == world {
            return;
        }
        self.delegate();
        self.set_traps();
        let rights = self.nesting.rights().copied();
        if rights.is_none() && !matches!(before, World::L2(_)) {
            return;
        }
        let (hideleg, hcounteren) = match rights {
            Some(rights) => (rights.hideleg, rights.hcounteren & COUNTEREN_BASE),
            None => (VS_INTERRUPTS, COUNTEREN_BASE),
        };
        match self.mode {
            // SAFETY: concerns guests only.
            GuestMode::Virtual => unsafe {
                csr::hideleg::write(hideleg);
                csr::hie::write(0);
                csr::hcounteren::write(hcounteren);
            },
            GuestMode::Supervisor => {
                // S mode has no `htimedelta`: Gnomon reads L2's time.
                let time = if rights.is_some_and(|rights| rights.htimedelta != 0) { COUNTEREN_TM } else { 0 };
                // SAFETY: the guest's interrupts and counters. Those that are not its own stay disabled.
                unsafe {
                    csr::mie::clear(S_INTERRUPTS);
                    csr::mideleg::write(hideleg >> 1 & S_INTERRUPTS);
                    csr::mcounteren::write(hcounteren & !time);
                }
            }
        }
        self.set_environment();
        if self.mode == GuestMode::Virtual {
            self.set_time();
            self.set_extensions(rights.map(|rights| rights.status));
        }
    }

    /// Makes instructions trap as the world, and Gnomon, want it.
    pub(super) fn set_traps(&self) {
        const TRAPS: u64 = hstatus::VTW | hstatus::VTSR;
        let traps = self.nesting.traps();
        match self.mode {
            GuestMode::Virtual => {
                let traps = traps | if self.traps_translation { hstatus::VTVM } else { 0 };
                // SAFETY: concerns guests only.
                unsafe {
                    csr::hstatus::clear((TRAPS | hstatus::VTVM) & !traps);
                    csr::hstatus::set(traps);
                }
            }
            GuestMode::Supervisor => {
                let tw = if traps & hstatus::VTW != 0 { status::TW } else { 0 };
                let tsr = if traps & hstatus::VTSR != 0 { status::TSR } else { 0 };
                // SAFETY: concerns guests only: Gnomon's own mode is above those that the bits are about. TVM is set since the start.
                unsafe {
                    csr::mstatus::clear((status::TW | status::TSR) & !(tw | tsr));
                    csr::mstatus::set(tw | tsr);
                }
            }
        }
    }

    /// Sets whether Gnomon sets A and D for a guest behind a G-stage, if that differs from the last guest's.
    pub fn set_sets_ad(&mut self, on: bool) {
        if on != self.sets_ad {
            self.sets_ad = on;
            self.delegate();
        }
    }

    /// Returns whether Gnomon sets A and D for the loaded guest.
    pub const fn sets_ad(&self) -> bool {
        self.sets_ad
    }

    /// Sets whether hardware sets A and D for a guest behind a G-stage.
    pub fn set_svadu(&mut self, on: bool) {
        self.nesting.svadu = on;
        self.set_environment();
    }

    /// Writes `henvcfg`; in S mode `menvcfg`.
    pub(super) fn set_environment(&self) {
        let most = self.henvcfg | if self.nesting.svadu { envcfg::ADUE } else { 0 };
        let value = match self.nesting.rights() {
            Some(rights) => most & rights.henvcfg | rights.henvcfg & envcfg::FIOM,
            None => most,
        };
        // SAFETY: concerns guests only.
        unsafe {
            match self.mode {
                GuestMode::Virtual => csr::henvcfg::write(value),
                GuestMode::Supervisor if !self.has_envcfg => {}
                GuestMode::Supervisor if self.watches_l2() => csr::menvcfg::write(value & !envcfg::STCE),
                GuestMode::Supervisor => csr::menvcfg::write(value),
            }
        }
    }

    /// Writes `htimedelta`.
    pub(super) fn set_time(&self) {
        let delta = self.nesting.rights().map_or(0, |rights| rights.htimedelta);
        // SAFETY: concerns guests only.
        unsafe { csr::htimedelta::write(delta.wrapping_sub(self.nesting.time_zero)) };
    }

    /// Lets L2 use floating point and vectors as L1's `sstatus` says; or L1 again, whose registers may have changed then.
    fn set_extensions(&self, l1: Option<u64>) {
        self.set_status(self.offered, l1.unwrap_or(self.offered));
        let mxr = l1.map_or(0, |l1| l1 & status::MXR);
        // SAFETY: Gnomon reads no page by it that it could not read before.
        unsafe {
            match self.seat {
                Seat::Firmware => {
                    csr::mstatus::clear(status::MXR & !mxr);
                    csr::mstatus::set(mxr);
                }
                Seat::Payload => {
                    csr::sstatus::clear(status::MXR & !mxr);
                    csr::sstatus::set(mxr);
                }
            }
        }
    }

    /// Removes translations of L2 by the root whose VMID that is.
    pub fn fence_nested(&self, id: IdSlot, page: Option<Addr<L2Gpa>>) {
        let vmid = Vmid(id.id());
        match page {
            Some(page) => fence::gvma_page(Addr::<Gpa>::new(page.raw()), vmid),
            None => fence::gvma_vmid(vmid),
        }
    }

    /// Returns whether an interrupt is pending in the hart's own registers that the loaded world has enabled.
    pub(super) fn own_pending(&self) -> bool {
        with_bank!(self.mode, |bank| bank::sip::read() & bank::sie::read() != 0)
    }
}

/// Returns the fields FS and VS that are dirty by the hart's `status`, where L1's own `sstatus` lets them be used.
const fn dirtied(status: u64, l1: u64) -> u64 {
    let fs = if l1 & status::FS != 0 && status & status::FS == status::FS { status::FS } else { 0 };
    let vs = if l1 & status::VS != 0 && status & status::VS == status::VS { status::VS } else { 0 };
    fs | vs
}
