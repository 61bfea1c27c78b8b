//! A guest of this guest: VS mode behind a G-stage of its own.
#![expect(unsafe_code, reason = "hypervisor CSRs, and code that is put elsewhere")]

use crate::paging::{AD, Page, leaf, page, pointer};
use crate::ram;
use crate::trap::Trap;
use crate::user::User;
use core::sync::atomic::Ordering::Relaxed;
use metal::{csr, fence};
use rv::csr::{atp, hstatus};
use rv::{Mode, PteFlags};

/// The guest's address of its code.
pub const CODE: u64 = 0x8000_0000;
/// The guest's address of a page of data.
pub const DATA: u64 = CODE + 0x1000;
/// An address of the guest's where nothing is.
pub const HOLE: u64 = CODE + 0x5000;

/// All rights of a page of the guest's.
pub const ALL: PteFlags = PteFlags::R.union(PteFlags::W).union(PteFlags::X).union(PteFlags::U).union(AD);

/// A G-stage in the format Sv39x4.
#[derive(Debug)]
pub struct Stage {
    root: &'static [Page],
    mega: &'static Page,
    small: &'static Page,
    vmid: u64,
}

impl Stage {
    /// Makes one that maps nothing. Of the GiB from [`CODE`] on, the first 2 MiB have entries for pages.
    #[must_use]
    pub fn new(vmid: u64) -> Self {
        let stage = Self { root: ram::pages(4), mega: page(), small: page(), vmid };
        stage.root[0].0[(CODE >> 30) as usize].store(pointer(stage.mega.address()), Relaxed);
        stage.mega.0[0].store(pointer(stage.small.address()), Relaxed);
        stage
    }

    /// Maps a page of the first 2 MiB. No fence.
    pub fn map(&self, at: u64, to: u64, flags: PteFlags) {
        self.small.0[(at >> 12 & 511) as usize].store(leaf(to, flags), Relaxed);
    }

    /// Returns its entry for a page of the first 2 MiB.
    #[must_use]
    pub fn entry(&self, at: u64) -> u64 {
        self.small.0[(at >> 12 & 511) as usize].load(Relaxed)
    }

    /// Puts a table below the root, for the GiB from `at` on. No fence.
    pub fn link(&self, at: u64, table: &Page) {
        self.root[0].0[(at >> 30) as usize].store(pointer(table.address()), Relaxed);
    }

    /// Maps 2 MiB. No fence.
    pub fn map_mega(&self, at: u64, to: u64, flags: PteFlags) {
        self.mega.0[(at >> 21 & 511) as usize].store(leaf(to, flags), Relaxed);
    }

    /// Maps 2 MiB by a table of pages. No fence.
    pub fn link_mega(&self, at: u64, table: &Page) {
        self.mega.0[(at >> 21 & 511) as usize].store(pointer(table.address()), Relaxed);
    }

    /// Returns a stage of the same tables with another VMID.
    #[must_use]
    pub const fn with_vmid(&self, vmid: u64) -> Self {
        Self { vmid, ..*self }
    }

    /// Its `hgatp`.
    #[must_use]
    pub fn hgatp(&self) -> u64 {
        8 << atp::MODE_SHIFT | self.vmid << atp::ID_SHIFT | self.root[0].address() >> 12
    }

    /// Makes this hart run guests by it.
    pub fn enter(&self) {
        self.switch();
        fence::gvma_all();
    }

    /// Does so without a fence.
    pub fn switch(&self) {
        // SAFETY: concerns guests only.
        unsafe { csr::hgatp::write(self.hgatp()) };
    }
}

/// Returns a stage that maps a page with that code at [`CODE`], and one with data at [`DATA`], and the latter.
#[must_use]
pub fn machine(code: &[u8], vmid: u64) -> (Stage, &'static Page) {
    let (text, data, stage) = (page(), page(), Stage::new(vmid));
    text.fill(code);
    stage.map(CODE, text.address(), ALL);
    stage.map(DATA, data.address(), ALL);
    stage.enter();
    (stage, data)
}

/// Runs the guest until its next trap to here.
pub fn run(user: &mut User, mode: Mode) -> Trap {
    // SAFETY: the next `sret` enters the guest, which has memory of its own only.
    unsafe { csr::hstatus::set(hstatus::SPV) };
    user.run_in(mode)
}

/// Runs that code in a machine of its own until its first trap to here.
pub fn run_once(code: &[u8], mode: Mode) -> Trap {
    let _ = machine(code, 7);
    run(&mut User::at(CODE), mode)
}

/// Code of guests, which runs wherever it is put: a function for each that returns its bytes.
#[macro_export]
macro_rules! code {
    ($($name:ident: $($insn:literal),+;)*) => {$(
        core::arch::global_asm!(
            ".section .rodata.guest_code, \"a\"",
            ".balign 64",
            ".option push",
            ".option arch, +h, +svinval, +f, +d",
            ".option norelax",
            concat!("guest_code_", stringify!($name), ":"),
            $($insn,)*
            concat!("guest_code_", stringify!($name), "_end:"),
            ".option pop",
        );

        #[expect(unsafe_code, reason = "the bounds of code that is put elsewhere")]
        fn $name() -> &'static [u8] {
            unsafe extern "C" {
                #[link_name = concat!("guest_code_", stringify!($name))]
                static START: u8;
                #[link_name = concat!("guest_code_", stringify!($name), "_end")]
                static END: u8;
            }
            // SAFETY: both symbols are of one section, the end behind the start.
            unsafe {
                let bytes = (&raw const END).byte_offset_from(&raw const START) as usize;
                core::slice::from_raw_parts(&raw const START, bytes)
            }
        }
    )*};
}
