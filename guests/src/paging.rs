//! Address spaces of a guest's own, and a pool of pages for tables and tests.
#![expect(unsafe_code, reason = "satp")]

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use metal::{csr, fence};
use rv::csr::atp;
use rv::format::{SV39, SV48, SV57};
use rv::{Addr, Format, Gva, Hpa, Level, Pfn, Pte, PteFlags};

/// A page of 512 doublewords that anybody may read and write.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Page(pub [AtomicU64; 512]);

const POOL_PAGES: usize = 192;
static POOL: [Page; POOL_PAGES] = [const { Page([const { AtomicU64::new(0) }; 512]) }; POOL_PAGES];
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A zero page of the pool. There are enough for a guest's life, so none is given back.
///
/// # Panics
/// If there are not.
#[must_use]
pub fn page() -> &'static Page {
    &POOL[TAKEN.fetch_add(1, Relaxed)]
}

/// Whether the address lies in the pool.
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

fn table_at(pfn: Pfn<Hpa>) -> &'static Page {
    let start = POOL.as_ptr().expose_provenance() as u64;
    &POOL[((pfn.base().raw() - start) / rv::PAGE_BYTES) as usize]
}

impl Space {
    /// A new one.
    #[must_use]
    pub fn new(format: &'static Format, asid: u64) -> Self {
        let space = Self { format, root: page(), asid };
        for gib in 0..16 {
            space.slot(gib << 30, Level::GIGA).store(leaf(gib << 30, RWX), Relaxed);
        }
        space
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
    /// If a leaf or a table that is not from the pool is in the way.
    #[must_use]
    pub fn slot(&self, at: u64, level: Level) -> &'static AtomicU64 {
        let (mut table, at) = (self.root, Addr::<Gva>::new(at));
        for step in self.format.levels_down() {
            let slot = &table.0[self.format.index(at, step)];
            if step == level {
                return slot;
            }
            match Pte(slot.load(Relaxed)).decode::<Hpa>(step, rv::Caps::default()) {
                rv::Entry::Table(next) => table = table_at(next),
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
    // SAFETY: every space maps Rust's memory to itself, so nothing moves.
    unsafe { csr::satp::write(0) };
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
