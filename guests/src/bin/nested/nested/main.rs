//! A hypervisor that goes through the H extension, one feature at a time: CSRs, entries, traps, delegation, interrupts, fences, accesses to its
//! guest's memory; and the code after each instruction of the extension.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "hypervisor CSRs and instructions")]

mod dirty;
mod interrupts;
mod memory;
mod nacl;
mod runs;
mod traps;
mod wild;

use guests::hypervisor::stage as guest;
use guests::{Check, board, code, ensure, ensure_eq, run};
use metal::csr;
use rv::csr::hstatus;

guests::entry_point!(main);

fn main() {
    if board().bootargs == "cost" {
        run("nested/cost", runs::cost);
        return;
    }
    assert!(board().has("h"), "the device tree does not tell of the H extension");
    run("nested/csrs", csrs);
    traps::run_all();
    memory::run_all();
    dirty::run_all();
    interrupts::run_all();
    runs::run_all();
    nacl::run_all();
    wild::run_all();
}

/// Puts the extension into the state in which most checks begin: nothing is delegated, nothing is pending.
fn reset() {
    // SAFETY: no guest runs.
    unsafe {
        csr::hstatus::write(0);
        csr::hedeleg::write(0);
        csr::hideleg::write(0);
        csr::hvip::write(0);
        csr::hie::write(0);
        csr::vsie::write(0);
        csr::vsstatus::write(0);
        csr::vsatp::write(0);
        csr::henvcfg::write(0);
        csr::htimedelta::write(0);
        if board().has("sstc") {
            // QEMU's raises its interrupt whether or not henvcfg.STCE is set.
            csr::vstimecmp::write(u64::MAX);
        }
    }
}

/// Fields that can be written, and fields that cannot.
fn csrs() -> Check {
    reset();
    // SAFETY: no guest runs, and each is written again before one does.
    unsafe {
        csr::hedeleg::write(u64::MAX);
        ensure_eq!(csr::hedeleg::read() & 0xf0_0e00, 0, "hedeleg, bits that are read-only 0");
        ensure_eq!(csr::hedeleg::read() & 0xb1fd, 0xb1fd, "hedeleg, bits that can be set");
        csr::hideleg::write(0x444);
        ensure_eq!(csr::hideleg::read() & 0x444, 0x444, "hideleg");
        csr::hstatus::write(hstatus::SPVP | hstatus::VTVM | hstatus::VTW | hstatus::VTSR);
        let status = csr::hstatus::read();
        ensure_eq!(status >> 32 & 3, 2, "hstatus.VSXL");
        ensure_eq!(status & (hstatus::VTVM | hstatus::VTW | hstatus::VTSR), 0x70_0000, "what traps");
        csr::vsscratch::write(0x1234_5678_9abc_def0);
        ensure_eq!(csr::vsscratch::read(), 0x1234_5678_9abc_def0, "vsscratch");
        csr::vsepc::write(u64::MAX - 1);
        ensure_eq!(csr::vsepc::read(), u64::MAX - 1, "vsepc");
        csr::hvip::write(u64::MAX);
        ensure_eq!(csr::hvip::read() & 0xfff, 0x444, "hvip");
        ensure_eq!(csr::hip::read() & 0x444, 0x444, "hip");
        ensure_eq!(csr::vsip::read() & 0x222, 0x222, "vsip, of what is delegated");
        csr::vsip::write(0);
        ensure_eq!(csr::hvip::read() & 0x444, 0x440, "hvip, after vsip.SSIP was cleared");
        csr::hideleg::write(0);
        ensure_eq!(csr::vsip::read() & 0x222, 0, "vsip, of what is not delegated");
        csr::hie::write(0x444);
        ensure_eq!(csr::vsie::read() & 0x222, 0, "vsie, of what is not delegated");
        csr::hideleg::write(0x444);
        ensure_eq!(csr::vsie::read() & 0x222, 0x222, "vsie, a view of hie");
        csr::hgatp::write(8 << 60 | 0x1234);
        ensure_eq!(csr::hgatp::read(), 8 << 60 | 0x1234, "hgatp");
        csr::hgatp::write(5 << 60 | 0x4321);
        ensure!(csr::hgatp::read() >> 60 != 5, "hgatp takes a reserved MODE");
        csr::hgatp::write(0);
    }
    reset();
    Ok(())
}
