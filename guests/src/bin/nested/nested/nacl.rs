//! The SBI extension NACL: CSRs, fences and entries by shared memory; and lies in it.

use crate::guest::{ALL, CODE, DATA, machine};
use crate::reset;
use core::sync::atomic::Ordering::Relaxed;
use guests::hypervisor::nacl::{Shared, call, enter};
use guests::paging::page;
use guests::random::Random;
use guests::{Check, board, ensure, ensure_eq, ram, run, sbi, trap};
use metal::csr;
use rv::csr::hstatus;
use sbi_spec::nacl::{EID_NACL, PROBE_FEATURE, SET_SHMEM, SYNC_CSR, SYNC_HFENCE, SYNC_SRET};

const NO_SHMEM: i64 = -9;
const ALL_OF_THEM: u64 = u64::MAX;
const VSSCRATCH: u64 = 0x240;
const VSIE: u64 = 0x204;
const VSIP: u64 = 0x244;
const HSTATUS: u64 = 0x600;
const HIDELEG: u64 = 0x603;
const HIE: u64 = 0x604;
const HVIP: u64 = 0x645;
const HTVAL: u64 = 0x643;

pub fn run_all() {
    if !sbi::probe(EID_NACL) {
        return;
    }
    run("nested/nacl-csrs", csrs);
    run("nested/nacl-fences", fences);
    run("nested/nacl-entry", entry);
    run("nested/nacl-lies", lies);
}

crate::code! {
    counts: "ld a0, (a1)", "addi a2, a2, 1", "ecall";
}

fn csrs() -> Check {
    reset();
    for function in [SYNC_CSR, SYNC_HFENCE, SYNC_SRET] {
        ensure_eq!(call(function, [ALL_OF_THEM, 0, 0]), NO_SHMEM, "function {function} without shared memory");
    }
    let features = |n| sbi::call(EID_NACL, PROBE_FEATURE, [n, 0, 0, 0, 0, 0]);
    ensure_eq!([0, 1, 2, 3, 4].map(features), [(0, 1), (0, 1), (0, 1), (0, 1), (0, 0)], "features");
    let at = ram::pages(3)[0].address();
    let refused = [[at + 8, 0, 0], [at, 0, 1], [at, 1, 0], [0x1000, 0, 0], [board().ram_end() - 4096, 0, 0]];
    let errors = refused.map(|args| call(SET_SHMEM, args));
    ensure_eq!(errors, [-3, -3, -5, -5, -5], "bad shared memory");
    let shared = Shared::new()?;
    shared.write(VSSCRATCH, 77);
    ensure!(csr::vsscratch::read() != 77, "vsscratch, before it is synchronised");
    ensure_eq!(call(SYNC_CSR, [VSSCRATCH, 0, 0]), 0, "sync_csr");
    ensure_eq!(csr::vsscratch::read(), 77, "vsscratch, after");
    // SAFETY: the guest's own.
    unsafe { csr::vsscratch::write(78) };
    ensure_eq!(shared.csr(VSSCRATCH), 78, "vsscratch in shared memory, after a write of the CSR");
    // A write of one CSR does not undo what is still to be taken up of another.
    shared.write(HTVAL, 11);
    // SAFETY: the guest's own.
    unsafe { csr::vsscratch::write(79) };
    ensure_eq!(call(SYNC_CSR, [VSSCRATCH, 0, 0]), 0, "sync_csr of vsscratch");
    ensure_eq!(call(SYNC_CSR, [HTVAL, 0, 0]), 0, "sync_csr of htval");
    ensure_eq!((csr::htval::read(), csr::vsscratch::read()), (11, 79), "htval and vsscratch");
    shared.write(HSTATUS, u64::MAX);
    shared.write(HTVAL, 5);
    ensure_eq!(call(SYNC_CSR, [ALL_OF_THEM, 0, 0]), 0, "sync_csr of all");
    ensure_eq!(shared.csr(HSTATUS), 0x2_0070_03c0, "hstatus in shared memory has what the CSR takes");
    ensure_eq!((csr::htval::read(), csr::hstatus::read()), (5, 0x2_0070_03c0), "htval and hstatus");
    reset();
    // Views of CSRs that are written for the same call: the views' bits are there afterwards.
    for (csr, value) in [(VSIE, 0x202), (VSIP, 0x2), (HIDELEG, 0x444), (HIE, 0x40), (HVIP, 0x400)] {
        shared.write(csr, value);
    }
    ensure_eq!(call(SYNC_CSR, [ALL_OF_THEM, 0, 0]), 0, "sync_csr of views");
    let found = (csr::hideleg::read(), csr::hie::read(), csr::hvip::read(), csr::vsie::read(), csr::vsip::read());
    ensure_eq!(found, (0x444, 0x404, 0x404, 0x202, 0x202), "hideleg, hie, hvip, vsie and vsip");
    ensure_eq!((shared.csr(HIE), shared.csr(VSIE)), (0x404, 0x202), "hie and vsie in shared memory");
    reset();
    for bad in [0x100, 0x1600, 0x6ff, u64::MAX - 1] {
        ensure_eq!(call(SYNC_CSR, [bad, 0, 0]), -3, "sync_csr of {bad:#x}");
    }
    ensure_eq!(call(SYNC_HFENCE, [60, 0, 0]), -3, "sync_hfence of entry 60");
    shared.end();
    Ok(())
}

fn fences() -> Check {
    reset();
    let (stage, first) = machine(counts(), 30);
    let second = page();
    first.0[0].store(1, Relaxed);
    second.0[0].store(2, Relaxed);
    let shared = Shared::new()?;
    let seen = |shared: &Shared| {
        shared.write(HSTATUS, hstatus::SPV | hstatus::SPVP);
        enter(shared, &[(11, DATA)], CODE).a0
    };
    ensure_eq!(seen(&shared), 1, "at first");
    // Of an address and a VMID; of an address; of a VMID; of everything. In each entry.
    for (n, kind) in [2, 0, 3, 1].into_iter().cycle().take(60).enumerate() {
        let (to, value) = if n % 2 == 0 { (second, 2) } else { (first, 1) };
        stage.map(DATA, to.address(), ALL);
        shared.fence(n, [DATA >> 12, 1], kind, 30);
        ensure_eq!(seen(&shared), value, "after fence {n}, of kind {kind}");
        ensure_eq!(shared.pages[0].0[0x800 / 8 + 4 * n].load(Relaxed) >> 63, 0, "pending bit of fence {n}");
    }
    shared.end();
    Ok(())
}

fn entry() -> Check {
    reset();
    let (_, data) = machine(counts(), 31);
    data.0[0].store(4711, Relaxed);
    let shared = Shared::new()?;
    let own = csr::hstatus::read();
    for n in 0..10 {
        shared.pages[0].0[0x208 / 8].store(hstatus::SPV | hstatus::SPVP | hstatus::VTSR, Relaxed);
        shared.pages[0].0[0x200 / 8].store(1, Relaxed);
        let found = enter(&shared, &[(11, DATA), (12, n)], CODE);
        ensure_eq!((found.a0, found.a2), (4711, n + 1), "a0 and a2 at the guest's call");
        ensure_eq!((csr::scause::read(), csr::sepc::read()), (10, CODE + 4), "scause and sepc");
        ensure_eq!(csr::hstatus::read(), own, "hstatus is this program's again");
        let guests = shared.pages[0].0[0x208 / 8].load(Relaxed);
        ensure_eq!(guests & 0x70_0180, hstatus::SPV | hstatus::SPVP | hstatus::VTSR, "the guest's hstatus");
    }
    // A fault tells where, without a read of a CSR.
    shared.pages[0].0[0x208 / 8].store(hstatus::SPV | hstatus::SPVP, Relaxed);
    let _ = enter(&shared, &[(11, DATA + 0x4000)], CODE);
    ensure_eq!(
        (csr::scause::read(), shared.csr(HTVAL)),
        (21, (DATA + 0x4000) >> 2),
        "scause, and htval in shared memory"
    );
    shared.pages[0].0[0x200 / 8].store(0, Relaxed);
    shared.end();
    Ok(())
}

/// Random words in shared memory: what comes of it is this program's own affair, and it goes on.
fn lies() -> Check {
    reset();
    let mut random = Random::of(45);
    for n in 0..300 {
        let shared = Shared::new()?;
        for page in shared.pages {
            page.0.iter().for_each(|word| word.store(random.any_bits(), Relaxed));
        }
        let error = call(SYNC_CSR, [ALL_OF_THEM, 0, 0]);
        ensure_eq!(error, 0, "sync_csr of random words, round {n}");
        // Not what would interrupt this program, nor SPV.
        reset();
        ensure_eq!(call(SYNC_HFENCE, [ALL_OF_THEM, 0, 0]), 0, "sync_hfence of random words, round {n}");
        let found = trap::catch(|| {});
        ensure!(found.is_none(), "a trap, round {n}: {found:x?}");
        shared.end();
    }
    reset();
    Ok(())
}
