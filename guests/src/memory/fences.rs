//! Every kind of fence for translations, as data: what it covers, and how it is made.
#![expect(unsafe_code, reason = "Svinval's instructions")]

use crate::sbi::{ALL_HARTS, SUCCESS, remote_fence};
use crate::{board, paging};
use core::arch::asm;
use metal::fence;
use sbi_spec::rfnc::{REMOTE_SFENCE_VMA, REMOTE_SFENCE_VMA_ASID};

/// Which harts a fence reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// This one.
    Local,
    /// All, this one included.
    Everybody,
}

/// One kind of fence.
#[derive(Clone, Copy, Debug)]
pub struct Fence {
    /// Its name, for messages.
    pub name: &'static str,
    /// The harts that it reaches.
    pub reach: Reach,
    /// True if it orders leaf entries of some addresses only: a change of pointers needs another.
    pub is_by_address: bool,
    /// True if it orders one ASID only, and no global entries.
    pub is_by_asid: bool,
    make: fn(u64, u64),
}

const PAGE: u64 = rv::PAGE_BYTES;
/// The size that SBI takes for the whole address space, as does a size of zero from address zero.
const WHOLE: u64 = u64::MAX;

const fn local(name: &'static str, is_by_address: bool, is_by_asid: bool, make: fn(u64, u64)) -> Fence {
    Fence { name, reach: Reach::Local, is_by_address, is_by_asid, make }
}

const fn remote(name: &'static str, is_by_address: bool, is_by_asid: bool, make: fn(u64, u64)) -> Fence {
    Fence { name, reach: Reach::Everybody, is_by_address, is_by_asid, make }
}

const SFENCE: [Fence; 4] = [
    local("sfence.vma", false, false, |_, _| fence::sfence_all()),
    local("sfence.vma va", true, false, |at, _| paging::fence_page(at)),
    local("sfence.vma asid", false, true, |_, asid| paging::fence_asid(asid)),
    local("sfence.vma va, asid", true, true, paging::fence_page_asid),
];

/// `sinval.vma` with its operands, between the two fences that it needs.
macro_rules! sinval {
    ($operands:literal, $($register:ident),*) => {
        // SAFETY: fences.
        unsafe {
            asm!(".option push", ".option arch, +svinval", "sfence.w.inval", concat!("sinval.vma ", $operands),
                 "sfence.inval.ir", ".option pop", $($register = in(reg) $register,)* options(nostack))
        }
    };
}

const SVINVAL: [Fence; 4] = [
    local("sinval.vma", false, false, |_, _| sinval!("x0, x0",)),
    local("sinval.vma va", true, false, |at, _| sinval!("{at}, x0", at)),
    local("sinval.vma asid", false, true, |_, asid| sinval!("x0, {asid}", asid)),
    local("sinval.vma va, asid", true, true, |at, asid| sinval!("{at}, {asid}", at, asid)),
];

fn call(fid: usize, start: u64, bytes: u64, asid: u64) {
    let error = remote_fence(fid, 0, ALL_HARTS, start, bytes, asid);
    assert!(error == SUCCESS, "fence {fid} of {bytes:#x} bytes at {start:#x}: error {error}");
}

const RFENCE: [Fence; 8] = [
    remote("SBI fence", false, false, |_, _| call(REMOTE_SFENCE_VMA, 0, 0, 0)),
    remote("SBI fence by size", false, false, |at, _| call(REMOTE_SFENCE_VMA, at, WHOLE, 0)),
    remote("SBI fence of a page", true, false, |at, _| call(REMOTE_SFENCE_VMA, at, PAGE, 0)),
    remote("SBI fence of a range", true, false, |at, _| call(REMOTE_SFENCE_VMA, at - 64 * PAGE, 600 * PAGE, 0)),
    remote("SBI fence of an ASID", false, true, |_, asid| call(REMOTE_SFENCE_VMA_ASID, 0, 0, asid)),
    remote("SBI fence of an ASID by size", false, true, |at, asid| call(REMOTE_SFENCE_VMA_ASID, at, WHOLE, asid)),
    remote("SBI fence of an ASID's page", true, true, |at, asid| call(REMOTE_SFENCE_VMA_ASID, at, PAGE, asid)),
    remote("SBI fence of an ASID's range", true, true, |at, asid| {
        call(REMOTE_SFENCE_VMA_ASID, at - 4 * PAGE, 8 * PAGE, asid);
    }),
];

/// Every kind that this machine has.
pub fn all() -> impl Iterator<Item = Fence> + Clone {
    let svinval: &[Fence] = if board().has("svinval") { &SVINVAL } else { &[] };
    SFENCE.iter().chain(svinval).chain(&RFENCE).copied()
}

/// Those that reach every hart.
pub fn remotes() -> impl Iterator<Item = Fence> + Clone {
    all().filter(|fence| fence.reach == Reach::Everybody)
}

/// Those that order pointers, too.
pub fn wide() -> impl Iterator<Item = Fence> + Clone {
    all().filter(|fence| !fence.is_by_address)
}

impl Fence {
    /// Makes it; `at` and `asid` matter to the kinds that have them.
    pub fn make(&self, at: u64, asid: u64) {
        (self.make)(at, asid);
    }
}
