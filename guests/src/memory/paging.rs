//! Address spaces of a guest's own, and a pool of pages for tables and tests.
#![expect(unsafe_code, reason = "satp")]

use crate::{access, board, ram};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use metal::{csr, fence};
use rv::csr::atp;
use rv::format::{SV39, SV48, SV57};
use rv::{Addr, Format, Gva, Hpa, Level, Pte, PteFlags};

/// A page of 512 doublewords that all code may read and write.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Page(pub [AtomicU64; 512]);

const POOL_PAGES: usize = 192;
static POOL: [Page; POOL_PAGES] = [const { Page([const { AtomicU64::new(0) }; 512]) }; POOL_PAGES];
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A zero page of the pool, or of free RAM when the pool is used up. There are enough for a guest's
/// life, so none is given back.
///
/// # Panics
/// If there are not.
#[must_use]
pub fn page() -> &'static Page {
    POOL.get(TAKEN.fetch_add(1, Relaxed)).unwrap_or_else(|| &ram::pages(1)[0])
}

/// Returns whether the address lies in the pool.
#[must_use]
pub fn is_pool(at: u64) -> bool {
    let start = POOL.as_ptr().expose_provenance() as u64;
    (start..start + size_of_val(&POOL) as u64).contains(&at)
}

impl Page {
    /// Its address.
    #[must_use]
    pub fn address(&self) -> u64 {
        core::ptr::from_ref(self).expose_provenance() as u64
    }

    /// Puts code (or any bytes) at its start; fetches see it on this hart.
    pub fn fill(&self, bytes: &[u8]) {
        for (slot, chunk) in self.0.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            slot.store(u64::from_le_bytes(word), Relaxed);
        }
        fence::instruction();
    }
}

/// Leaf flags: readable, writable, executable, accessed and dirty.
pub const RWX: PteFlags = RW.union(PteFlags::X);
/// Leaf flags: readable, writable, accessed and dirty.
pub const RW: PteFlags = PteFlags::R.union(PteFlags::W).union(AD);
/// Leaf flags: readable, accessed and dirty.
pub const RO: PteFlags = PteFlags::R.union(AD);
/// Leaf flags: executable only, accessed and dirty.
pub const XO: PteFlags = PteFlags::X.union(AD);
/// Leaf flags: accessed and dirty.
pub const AD: PteFlags = PteFlags::A.union(PteFlags::D);

/// Virtual addresses for tests start here: free in every address space.
pub const TEST_VA: u64 = 0x10_0000_0000;

/// An address space that maps the first 16 GiB, devices and RAM, to themselves.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    format: &'static Format,
    root: &'static Page,
    asid: u64,
}

/// The entry that maps `at` as a leaf.
#[must_use]
pub fn leaf(at: u64, flags: PteFlags) -> u64 {
    rv::Entry::Leaf(rv::Leaf { pfn: Addr::<Hpa>::new(at).pfn(), flags, napot: false }).encode().0
}

/// The entry that points to the table at `at`.
#[must_use]
pub fn pointer(at: u64) -> u64 {
    rv::Entry::Table(Addr::<Hpa>::new(at).pfn()).encode().0
}

/// The setter of the A and D bits of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdBits {
    /// Svade: an access that finds one clear faults.
    Software,
    /// Svadu: hardware sets them.
    Hardware,
}

impl AdBits {
    /// The device tree's promise: with both extensions, Svade until the guest asks for more. Where it names neither
    /// (both behaviours are allowed), an access tells; that leaves paging off.
    #[must_use]
    pub fn of_this_machine() -> Self {
        match (board().has("svade"), board().has("svadu")) {
            (true, _) => Self::Software,
            (false, true) => Self::Hardware,
            (false, false) => Self::probe(),
        }
    }

    /// The result of an access that finds both clear; leaves paging off.
    #[must_use]
    pub fn probe() -> Self {
        let space = Space::new(&SV39, 0);
        space.map(TEST_VA, page().address(), PteFlags::R);
        space.enter();
        let found = access::ld(TEST_VA);
        leave();
        if found.is_ok() { Self::Hardware } else { Self::Software }
    }
}

/// The number of ASID bits of this hart. Finding out switches paging on and off.
#[must_use]
pub fn asid_bits() -> u32 {
    let wanted = Space::new(&SV39, 0xffff).satp();
    // SAFETY: everything is mapped to itself.
    unsafe { csr::satp::write(wanted) };
    let bits = csr::satp::read() >> atp::ID_SHIFT & 0xffff;
    leave();
    bits.trailing_ones()
}

impl Space {
    /// A new one.
    #[must_use]
    pub fn new(format: &'static Format, asid: u64) -> Self {
        Self::rooted(page(), format, asid)
    }

    /// A new one in a given root, a zero page.
    #[must_use]
    pub fn rooted(root: &'static Page, format: &'static Format, asid: u64) -> Self {
        let space = Self { format, root, asid };
        for gib in 0..16 {
            space.slot(gib << 30, Level::GIGA).store(leaf(gib << 30, RWX), Relaxed);
        }
        space
    }

    /// Returns the same tables under another ASID.
    #[must_use]
    pub fn with_asid(self, asid: u64) -> Self {
        Self { asid, ..self }
    }

    /// Its format.
    #[must_use]
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// Its root table.
    #[must_use]
    pub fn root(&self) -> &'static Page {
        self.root
    }

    /// The formats that this hart has. Finding out switches paging on and off.
    pub fn formats() -> impl Iterator<Item = &'static Format> {
        [&SV39, &SV48, &SV57].into_iter().filter(|format| {
            let satp = Space::new(format, 0).satp();
            // SAFETY: everything is mapped to itself; a mode that is not there leaves satp as it is.
            unsafe { csr::satp::write(satp) };
            let is_there = csr::satp::read() == satp;
            leave();
            is_there
        })
    }

    /// The entry that a walk for `at` finds at `level`; tables on the way are made.
    ///
    /// # Panics
    /// If a leaf is in the way, or a table that is neither from the pool nor in free RAM.
    #[must_use]
    pub fn slot(&self, at: u64, level: Level) -> &'static AtomicU64 {
        let (mut table, at) = (self.root, Addr::<Gva>::new(at));
        for step in self.format.levels_down() {
            let slot = &table.0[self.format.index(at, step)];
            if step == level {
                return slot;
            }
            match Pte(slot.load(Relaxed)).decode::<Hpa>(step, rv::Caps::default()) {
                rv::Entry::Table(next) => table = ram::page_at(next.base().raw()),
                rv::Entry::Invalid => {
                    table = page();
                    slot.store(pointer(table.address()), Relaxed);
                }
                other => panic!("{other:?} in the way to {at}"),
            }
        }
        unreachable!("no such level")
    }

    /// Maps a page. No fence: new entries need one before they are relied on.
    pub fn map(&self, at: u64, to: u64, flags: PteFlags) {
        self.slot(at, Level::PAGE).store(leaf(to, flags), Relaxed);
    }

    /// The `satp` of this space.
    #[must_use]
    pub fn satp(&self) -> u64 {
        let root = self.root.address() >> rv::PAGE_SHIFT;
        u64::from(self.format.mode) << atp::MODE_SHIFT | self.asid << atp::ID_SHIFT | root
    }

    /// Makes this hart translate by it, after a full fence.
    pub fn enter(&self) {
        fence::sfence_all();
        self.switch();
    }

    /// Makes this hart translate by it, without any fence.
    pub fn switch(&self) {
        // SAFETY: code, stack and devices are mapped to themselves.
        unsafe { csr::satp::write(self.satp()) };
    }
}

/// Turns paging off on this hart.
pub fn leave() {
    go_bare();
    fence::sfence_all();
}

/// Switches paging off without any fence.
pub fn go_bare() {
    // SAFETY: every space maps Rust's memory to itself, so nothing moves.
    unsafe { csr::satp::write(0) };
}

/// Changes to the space of a `satp`, as a kernel without ASIDs does, such as xv6: fences everything before and after.
pub fn change(satp: u64) {
    fence::sfence_all();
    // SAFETY: as above.
    unsafe { csr::satp::write(satp) };
    fence::sfence_all();
}

/// `sfence.vma` for one page, of every ASID.
pub fn fence_page(at: u64) {
    // SAFETY: a fence.
    unsafe { core::arch::asm!("sfence.vma {}, x0", in(reg) at, options(nostack)) };
}

/// `sfence.vma` for one ASID.
pub fn fence_asid(asid: u64) {
    // SAFETY: a fence.
    unsafe { core::arch::asm!("sfence.vma x0, {}", in(reg) asid, options(nostack)) };
}

/// `sfence.vma` for one page of one ASID.
pub fn fence_page_asid(at: u64, asid: u64) {
    // SAFETY: a fence.
    unsafe { core::arch::asm!("sfence.vma {}, {}", in(reg) at, in(reg) asid, options(nostack)) };
}
