//! Moving a vCPU's registers between its box and the hart. The trap vector saves a part at every exit; this is the
//! rest, moved only when the hart changes vCPUs.

use super::bank::with_bank;
use super::{GuestHart, S_INTERRUPTS};
use crate::seat::Seat;
use hypervisor::device::offer::{GuestMode, GuestTimer, Offer};
use hypervisor::vm::vcpu::{VcpuRun, VsCsrs, supervisor_csrs};
use metal::{csr, float, vector};
use rv::csr::status;

const CLEAN: u64 = 2 << status::FS_SHIFT | 2 << status::VS_SHIFT;
const ON: u64 = status::FS | status::VS;

/// Writes all CSRs of a list to the bank.
macro_rules! write {
    ($bank:ident $csrs:ident [$($own:ident $name:ident),*]) => { $($bank::$name::write($csrs.$own);)* };
}

/// Reads all CSRs of a list from the bank.
macro_rules! read {
    ($bank:ident $csrs:ident [$($own:ident $name:ident),*]) => { $($csrs.$own = $bank::$name::read();)* };
}

impl GuestHart {
    /// Loads the CSRs except the root, which is loaded when the translation is set.
    ///
    /// # Safety
    /// No guest's CSRs are loaded that have not been saved.
    pub unsafe fn load_csrs(&mut self, csrs: &VsCsrs, offer: &Offer) {
        // SAFETY: the guest's registers have no effect until it is entered, and `scounteren` and
        // `senvcfg` govern U mode, where Gnomon never is.
        unsafe {
            with_bank!(self.mode, |bank| {
                supervisor_csrs!(write! { bank csrs });
            });
            match self.mode {
                GuestMode::Virtual => csr::hvip::write(csrs.hvip),
                GuestMode::Supervisor => {
                    csr::mip::clear(S_INTERRUPTS);
                    csr::mip::set(csrs.hvip >> 1 & S_INTERRUPTS);
                }
            }
            csr::scounteren::write(csrs.scounteren);
            if self.has_envcfg {
                csr::senvcfg::write(csrs.senvcfg);
            }
            if self.has_countinhibit {
                csr::mcountinhibit::write(csrs.scountinhibit);
            }
            if offer.timer == GuestTimer::Sstc {
                self.set_comparator_of_world(csrs.vstimecmp);
            }
        }
    }

    /// Leaves no guest in the hart: no interrupt of it that would end a wait, and no table that could be
    /// walked ahead of time. An ended VM's tables may be anything by then, and between one VM's `hgatp`
    /// and another's `vsatp` a walk would put one's translations under the other's VMID.
    pub fn clear_csrs(&self, offer: &Offer) {
        // SAFETY: the guest's registers, and roots that no one is behind.
        unsafe {
            match self.mode {
                GuestMode::Virtual => {
                    csr::vsie::write(0);
                    csr::hvip::write(0);
                }
                GuestMode::Supervisor => {
                    csr::sie::write(0);
                    csr::mip::clear(S_INTERRUPTS);
                }
            }
            if offer.timer == GuestTimer::Sstc {
                self.set_comparator(u64::MAX);
            }
        }
        self.leave_tables();
    }

    /// Leaves no guest's tables in the hart. First those of the guest: behind another G-stage, or none, they would lead elsewhere.
    pub fn leave_tables(&self) {
        // SAFETY: roots that no one is behind.
        unsafe {
            self.load_guest_root(0);
            if self.mode == GuestMode::Virtual {
                csr::hgatp::write(0);
            }
        }
    }

    /// Saves what [`GuestHart::load_csrs`] loads.
    pub fn save_csrs(&self, csrs: &mut VsCsrs, offer: &Offer) {
        with_bank!(self.mode, |bank| {
            supervisor_csrs!(read! { bank csrs });
        });
        if offer.timer == GuestTimer::Sstc {
            csrs.vstimecmp = self.comparator();
        }
        csrs.hvip = match self.mode {
            GuestMode::Virtual => csr::hvip::read(),
            GuestMode::Supervisor => (csr::mip::read() & S_INTERRUPTS) << 1,
        };
        csrs.scounteren = csr::scounteren::read();
        if self.has_countinhibit {
            csrs.scountinhibit = csr::mcountinhibit::read();
        }
        if self.has_envcfg {
            csrs.senvcfg = csr::senvcfg::read();
        }
    }

    /// Loads floating point and vectors, after the CSRs. In VS mode they are marked clean: what the
    /// guest changes becomes dirty. In S mode their states are the guest's own.
    pub fn load_registers(&self, run: &VcpuRun, offer: &Offer) {
        let state = match self.mode {
            GuestMode::Virtual => CLEAN,
            GuestMode::Supervisor => run.bank.csrs.vsstatus,
        };
        if offer.isa.has("d") {
            self.set_status(status::FS, ON);
            // SAFETY: FS is on, and the hart has D.
            unsafe { float::restore(&run.bank.float) };
            self.set_status(status::FS, state);
        }
        if !run.bank.vector.bytes.is_empty() {
            self.set_status(status::VS, ON);
            // SAFETY: VS is on, the hart has V, and the buffer was sized for its vlenb.
            unsafe { vector::restore(&run.bank.vector.bytes, &run.bank.vector.csrs) };
            self.set_status(status::VS, state);
        }
    }

    /// Saves floating point and vectors, after the CSRs. In VS mode only if the guest may have changed them since they
    /// were loaded: they are dirty, or it has them on. (QEMU 10.0 marks only the guest's own state dirty where a CSR
    /// such as fcsr is written, and the guest may mark that clean.) If they are not offered they stay off: they are not
    /// saved, so guests may not use them. In S mode nothing tells: a guest may mark clean what it has changed.
    pub fn save_registers(&self, run: &mut VcpuRun, offer: &Offer) {
        if self.mode == GuestMode::Supervisor {
            self.set_status(ON, ON);
        }
        let now = self.status();
        let may_have_changed = |field| now & field == field || now & field != 0 && run.bank.csrs.vsstatus & field != 0;
        if may_have_changed(status::FS) && offer.isa.has("d") {
            // SAFETY: FS is on, and the hart has D.
            unsafe { float::save(&mut run.bank.float) };
        }
        if may_have_changed(status::VS) && !run.bank.vector.bytes.is_empty() {
            // SAFETY: VS is on; the buffer was sized for the hart's vlenb.
            run.bank.vector.csrs = unsafe { vector::save(&mut run.bank.vector.bytes) };
        }
        // Dirty becomes clean; what is off stays off.
        if now & status::FS != 0 {
            self.set_status(status::FS, CLEAN);
        }
        if now & status::VS != 0 {
            self.set_status(status::VS, CLEAN);
        }
    }

    /// Returns the bytes in a vector register of this hart, which has V.
    pub fn vector_bytes(&self) -> usize {
        self.set_status(status::VS, ON);
        csr::vlenb::read() as usize
    }

    /// Returns the host's `status`, with the states of floating point and vectors.
    pub(super) fn status(&self) -> u64 {
        match self.seat {
            Seat::Firmware => csr::mstatus::read(),
            Seat::Payload => csr::sstatus::read(),
        }
    }

    /// Replaces the bits `mask`, which are FS or VS, of the host's `status`.
    pub(super) fn set_status(&self, mask: u64, bits: u64) {
        // SAFETY: FS and VS say what may be used, and Gnomon's compiled code uses neither.
        unsafe {
            match self.seat {
                Seat::Firmware => {
                    csr::mstatus::clear(mask & !bits);
                    csr::mstatus::set(mask & bits);
                }
                Seat::Payload => {
                    csr::sstatus::clear(mask & !bits);
                    csr::sstatus::set(mask & bits);
                }
            }
        }
    }
}
