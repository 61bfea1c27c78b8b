//! The SBI extension NACL (SBI 2.0, chapter 15), as a hypervisor uses it.
#![expect(unsafe_code, reason = "the guest is entered by a call")]

use crate::paging::Page;
use crate::{Text, ensure, ram, sbi};
use core::arch::global_asm;
use core::sync::atomic::Ordering::Relaxed;
use metal::csr;
use sbi_spec::nacl::{EID_NACL, SET_SHMEM, SYNC_SRET};

/// Calls the extension. Returns the error.
pub fn call(function: usize, args: [u64; 3]) -> i64 {
    sbi::call(EID_NACL, function, [args[0], args[1], args[2], 0, 0, 0]).0
}

/// The memory that is shared.
#[derive(Debug)]
pub struct Shared {
    /// Its three pages.
    pub pages: &'static [Page],
}

impl Shared {
    /// Shares three pages.
    ///
    /// # Errors
    /// The call's.
    pub fn new() -> Result<Self, Text> {
        // One more than needed, so that the address is no multiple of their sum.
        let pages = &ram::pages(4)[1..];
        let error = call(SET_SHMEM, [pages[0].address(), 0, 0]);
        ensure!(error == 0, "set_shmem: {error}");
        Ok(Self { pages })
    }

    fn index(csr: u64) -> usize {
        ((csr & 0xc00) >> 2 | csr & 0xff) as usize
    }

    /// Returns the value of a CSR there.
    #[must_use]
    pub fn csr(&self, csr: u64) -> u64 {
        let at = Self::index(csr);
        self.pages[1 + at / 512].0[at % 512].load(Relaxed)
    }

    /// Writes a CSR there, to be taken up at the next call.
    pub fn write(&self, csr: u64, value: u64) {
        let at = Self::index(csr);
        self.pages[1 + at / 512].0[at % 512].store(value, Relaxed);
        self.pages[0].0[0xf80 / 8 + at / 64].fetch_or(1 << (at % 64), Relaxed);
    }

    /// Asks for a fence: the number of its entry, the first page and their count, its type, and the VMID.
    pub fn fence(&self, n: usize, words: [u64; 2], kind: u64, vmid: u64) {
        let entry = 0x800 / 8 + 4 * n;
        self.pages[0].0[entry + 1].store(words[0], Relaxed);
        self.pages[0].0[entry + 3].store(words[1], Relaxed);
        self.pages[0].0[entry].store(1 << 63 | kind << 56 | vmid << 16, Relaxed);
    }

    /// Shares it no more.
    pub fn end(self) {
        let _ = call(SET_SHMEM, [u64::MAX, u64::MAX, 0]);
    }
}

global_asm!(
    ".section .text.nacl, \"ax\"",
    // a0: where to keep this program's registers; a6 and a7: the call. Returns at the guest's next trap, with its a0, a1 and a2.
    ".global guest_nacl_sret",
    "guest_nacl_sret:",
    ".irp n, 1,2,3,4,8,9,18,19,20,21,22,23,24,25,26,27",
    "sd x\\n, 8*\\n(a0)",
    ".endr",
    "csrr t0, stvec",
    "sd t0, 0(a0)",
    "csrw sscratch, a0",
    "la t0, 1f",
    "csrw stvec, t0",
    "mv a7, a1",
    "mv a6, a2",
    "ecall",
    // It returns for an error only.
    "csrr t1, sscratch",
    "j 2f",
    ".balign 4",
    "1:",
    "csrr t1, sscratch",
    "2:",
    ".irp n, 1,2,3,4,8,9,18,19,20,21,22,23,24,25,26,27",
    "ld x\\n, 8*\\n(t1)",
    ".endr",
    "ld t0, 0(t1)",
    "csrw stvec, t0",
    "mv a1, a2",
    "ret",
);

unsafe extern "C" {
    fn guest_nacl_sret(keep: *mut [u64; 32], extension: usize, function: usize) -> Values;
}

/// Registers of the guest's at its trap.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Values {
    /// a0.
    pub a0: u64,
    /// a2.
    pub a2: u64,
}

/// Enters the guest at `pc` by one call, in supervisor mode, with those values in registers of these numbers. Returns a0 and a2 at its next trap.
pub fn enter(shared: &Shared, x: &[(usize, u64)], pc: u64) -> Values {
    for (n, value) in x {
        shared.pages[0].0[*n].store(*value, Relaxed);
    }
    let mut keep = [0; 32];
    // SAFETY: the guest has memory of its own only, and comes back to the assembly.
    unsafe {
        csr::sepc::write(pc);
        csr::sstatus::set(rv::csr::status::SPP);
        guest_nacl_sret(&raw mut keep, EID_NACL, SYNC_SRET)
    }
}
