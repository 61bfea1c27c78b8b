//! A guest of this guest: VS mode behind a G-stage of four tables.

use core::sync::atomic::Ordering::Relaxed;
use guests::paging::{AD, Page, leaf, page, pointer};
use guests::ram;
use guests::trap::Trap;
use guests::user::User;
use metal::{csr, fence};
use rv::csr::{atp, hstatus};
use rv::{Mode, PteFlags};

/// Where the guest's code is, for itself.
pub const CODE: u64 = 0x8000_0000;
/// A page of data, for itself.
pub const DATA: u64 = CODE + 0x1000;

/// Rights of a page of the guest's.
pub const ALL: PteFlags = PteFlags::R.union(PteFlags::W).union(PteFlags::X).union(PteFlags::U).union(AD);

/// A G-stage in the format Sv39x4.
pub struct Stage {
    root: &'static [Page],
    mega: &'static Page,
    small: &'static Page,
    /// The VMID.
    pub vmid: u64,
}

impl Stage {
    /// One that maps the GiB from [`CODE`] on by two more tables, the first 2 MiB of it by pages.
    pub fn new(vmid: u64) -> Self {
        let root = ram::pages(4);
        let stage = Self { root, mega: page(), small: page(), vmid };
        root[0].0[(CODE >> 30) as usize].store(pointer(stage.mega.address()), Relaxed);
        stage.mega.0[0].store(pointer(stage.small.address()), Relaxed);
        stage
    }

    /// Maps a page of the first 2 MiB. No fence.
    pub fn map(&self, at: u64, to: u64, flags: PteFlags) {
        self.small.0[(at >> 12 & 511) as usize].store(leaf(to, flags), Relaxed);
    }

    /// Its `hgatp`.
    pub fn hgatp(&self) -> u64 {
        8 << atp::MODE_SHIFT | self.vmid << atp::ID_SHIFT | self.root[0].address() >> 12
    }
}

/// Runs the guest until its next trap to here.
pub fn run(user: &mut User, mode: Mode) -> Trap {
    // SAFETY: the next `sret` enters the guest, which has memory of its own only.
    unsafe { csr::hstatus::set(hstatus::SPV) };
    user.run_in(mode)
}

/// Makes this hart run guests by that stage.
pub fn enter(stage: &Stage) {
    // SAFETY: concerns guests only.
    unsafe { csr::hgatp::write(stage.hgatp()) };
    fence::gvma_all();
}
