//! Moving a vCPU's registers between its box and the hart. What every exit saves is the trap
//! vector's; this is the rest, moved only when the hart changes vCPUs.

use crate::seat::SeatHart;
use hypervisor::gnomon::{GuestTimer, Offer};
use hypervisor::vcpu::{VcpuRun, VsCsrs};
use metal::{csr, float, vector};
use rv::csr::status;

const FS_CLEAN: u64 = 2 << status::FS_SHIFT;
const VS_CLEAN: u64 = 2 << status::VS_SHIFT;

/// Loads the CSRs.
///
/// # Safety
/// No guest's CSRs are loaded that have not been saved; `hgatp` is this vCPU's.
pub unsafe fn load_csrs(csrs: &VsCsrs, offer: &Offer) {
    // SAFETY: VS-level registers have no effect until a guest is entered, and the S-level ones among
    // them (`scounteren`, `senvcfg`) govern U mode, where Gnomon never is.
    unsafe {
        csr::vsstatus::write(csrs.vsstatus);
        csr::vsie::write(csrs.vsie);
        csr::vstvec::write(csrs.vstvec);
        csr::vsscratch::write(csrs.vsscratch);
        csr::vsepc::write(csrs.vsepc);
        csr::vscause::write(csrs.vscause);
        csr::vstval::write(csrs.vstval);
        csr::hvip::write(csrs.hvip);
        csr::scounteren::write(csrs.scounteren);
        csr::senvcfg::write(csrs.senvcfg);
        if offer.timer == GuestTimer::Sstc {
            csr::vstimecmp::write(csrs.vstimecmp);
        }
        // Last: until now nothing could walk this guest's tables, and since `clear_csrs` nobody's.
        csr::vsatp::write(csrs.vsatp);
    }
}

/// Leaves no guest in the hart: no interrupt of it that would end a wait, and no table that could be
/// walked ahead of time. An ended VM's tables may be anything by then, and between one VM's `hgatp` and
/// another's `vsatp` a walk would put one's translations under the other's VMID.
pub fn clear_csrs(offer: &Offer) {
    // SAFETY: VS-level registers, and a G-stage root that no one is behind.
    unsafe {
        csr::vsie::write(0);
        csr::hvip::write(0);
        if offer.timer == GuestTimer::Sstc {
            csr::vstimecmp::write(u64::MAX);
        }
        csr::vsatp::write(0);
        csr::hgatp::write(0);
    }
}

/// Saves the CSRs.
pub fn save_csrs(offer: &Offer) -> VsCsrs {
    VsCsrs {
        vsstatus: csr::vsstatus::read(),
        vsie: csr::vsie::read(),
        vstvec: csr::vstvec::read(),
        vsscratch: csr::vsscratch::read(),
        vsepc: csr::vsepc::read(),
        vscause: csr::vscause::read(),
        vstval: csr::vstval::read(),
        vsatp: csr::vsatp::read(),
        hvip: csr::hvip::read(),
        vstimecmp: if offer.timer == GuestTimer::Sstc { csr::vstimecmp::read() } else { u64::MAX },
        scounteren: csr::scounteren::read(),
        senvcfg: csr::senvcfg::read(),
    }
}

/// Loads floating point and vectors, and marks them clean: what the guest changes becomes dirty.
pub fn load_registers(run: &VcpuRun, seat: &SeatHart, offer: &Offer) {
    if offer.isa.has("d") {
        seat.set_status(status::FS, FS_CLEAN);
        // SAFETY: FS is on, and the hart has D.
        unsafe { float::restore(&run.float) };
        seat.set_status(status::FS, FS_CLEAN);
    }
    if !run.vector.bytes.is_empty() {
        seat.set_status(status::VS, VS_CLEAN);
        // SAFETY: VS is on, the hart has V, and the buffer was sized for its vlenb.
        unsafe { vector::restore(&run.vector.bytes, &run.vector.csrs) };
        seat.set_status(status::VS, VS_CLEAN);
    }
}

/// Saves floating point and vectors, if the guest has changed them since they were loaded. Where they
/// are not offered they stay off: nobody saves them, so nobody may use them.
pub fn save_registers(run: &mut VcpuRun, seat: &SeatHart) {
    let now = seat.status();
    if now & status::FS == status::FS {
        // SAFETY: FS is dirty, so it is on and the hart has D.
        unsafe { float::save(&mut run.float) };
    }
    if now & status::VS == status::VS && !run.vector.bytes.is_empty() {
        // SAFETY: VS is dirty, so it is on; the buffer was sized for the hart's vlenb.
        run.vector.csrs = unsafe { vector::save(&mut run.vector.bytes) };
    }
    // Dirty becomes clean; what is off stays off.
    if now & status::FS != 0 {
        seat.set_status(status::FS, FS_CLEAN);
    }
    if now & status::VS != 0 {
        seat.set_status(status::VS, VS_CLEAN);
    }
}
