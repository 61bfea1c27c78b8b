//! A hypervisor that goes through the H extension, one feature at a time: CSRs, entries, traps, fences, accesses to its guest's memory.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "hypervisor CSRs")]

mod guest;

use core::sync::atomic::Ordering::Relaxed;
use guest::{ALL, CODE, DATA, Stage};
use guests::paging::page;
use guests::user::User;
use guests::{Check, board, ensure, ensure_eq, run};
use metal::csr;
use rv::Mode;
use rv::csr::hstatus;

guests::entry_point!(main);

fn main() {
    ensure_hypervisor();
    run("nested/csrs", csrs);
    run("nested/call", call);
    run("nested/faults", faults);
}

fn ensure_hypervisor() {
    assert!(board().has("h"), "the device tree does not tell of the H extension");
}

/// Fields that can be written, and fields that cannot.
fn csrs() -> Check {
    // SAFETY: no guest runs, and each is written again before one does.
    unsafe {
        csr::hedeleg::write(u64::MAX);
        ensure_eq!(csr::hedeleg::read() & 0xf0_0e00, 0, "hedeleg, bits that are read-only 0");
        csr::hedeleg::write(0);
        csr::hideleg::write(0x444);
        ensure_eq!(csr::hideleg::read() & 0x444, 0x444, "hideleg");
        csr::hideleg::write(0);
        csr::hstatus::write(hstatus::SPVP | hstatus::VTVM | hstatus::VTW | hstatus::VTSR);
        ensure_eq!(csr::hstatus::read() >> 32 & 3, 2, "hstatus.VSXL");
        csr::hstatus::write(0);
        csr::vsscratch::write(0x1234_5678_9abc_def0);
        ensure_eq!(csr::vsscratch::read(), 0x1234_5678_9abc_def0, "vsscratch");
        csr::vsepc::write(u64::MAX);
        ensure_eq!(csr::vsepc::read() & 1, 0, "vsepc, bit 0");
        csr::htval::write(0);
        csr::hvip::write(0x444);
        ensure_eq!(csr::hvip::read(), 0x444, "hvip");
        ensure_eq!(csr::hip::read() & 0x444, 0x444, "hip");
        csr::hvip::write(0);
    }
    Ok(())
}

/// A page with code at [`CODE`], one with data at [`DATA`], and a stage that maps them.
fn machine(code: &[u32], vmid: u64) -> (Stage, &'static guests::paging::Page) {
    let (text, data) = (page(), page());
    let stage = Stage::new(vmid);
    let mut bytes = [0; 256];
    for (slot, insn) in bytes.chunks_mut(4).zip(code) {
        slot.copy_from_slice(&insn.to_le_bytes());
    }
    text.fill(&bytes);
    stage.map(CODE, text.address(), ALL);
    stage.map(DATA, data.address(), ALL);
    (stage, data)
}

/// `addi a0, a0, 1; ecall; j .-8`
const CALLS: [u32; 3] = [0x0015_0513, 0x0000_0073, 0xff9f_f06f];

fn call() -> Check {
    let (stage, _) = machine(&CALLS, 1);
    guest::enter(&stage);
    let mut user = User::at(CODE);
    for n in 1..10 {
        let trap = guest::run(&mut user, Mode::Supervisor);
        ensure_eq!((trap.cause, trap.epc, user.x[10]), (10, CODE + 4, n), "cause, epc and a0 of a call");
        let status = csr::hstatus::read();
        ensure!(status & (hstatus::SPV | hstatus::SPVP) == hstatus::SPV | hstatus::SPVP, "hstatus {status:#x}");
        user.pc += 4;
    }
    let trap = guest::run(&mut user, Mode::User);
    ensure_eq!((trap.cause, csr::hstatus::read() & hstatus::SPVP), (8, 0), "cause and SPVP of a call from VU mode");
    Ok(())
}

/// `ld a0, (a1); sd a0, 8(a1); ecall`
const COPIES: [u32; 3] = [0x0005_b503, 0x00a5_b423, 0x0000_0073];

fn faults() -> Check {
    let (stage, data) = machine(&COPIES, 2);
    data.0[0].store(77, Relaxed);
    guest::enter(&stage);
    let mut user = User::at(CODE);
    user.x[11] = DATA + 0x5000;
    let trap = guest::run(&mut user, Mode::Supervisor);
    ensure_eq!((trap.cause, trap.tval), (21, DATA + 0x5000), "cause and stval of a load from a hole");
    ensure_eq!(csr::htval::read(), (DATA + 0x5000) >> 2, "htval");
    ensure!(csr::hstatus::read() & hstatus::GVA != 0, "hstatus.GVA");
    user.x[11] = DATA;
    let trap = guest::run(&mut user, Mode::Supervisor);
    ensure_eq!((trap.cause, user.x[10], data.0[1].load(Relaxed)), (10, 77, 77), "cause, a0, and the copy");
    Ok(())
}
