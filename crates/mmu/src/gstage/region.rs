//! What the guest finds where.

use bitflags::bitflags;
use core::fmt;
use rv::{Access, Gpa, Hpa, Pfn};

bitflags! {
    /// What a guest may do with a region.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Prot: u8 {
        /// Load.
        const R = 1;
        /// Store. Needs R: the tables cannot say otherwise.
        const W = 2;
        /// Fetch.
        const X = 4;
        /// All three: RAM.
        const RWX = 7;
    }
}

impl Prot {
    /// Whether it allows that.
    pub(crate) const fn allows(self, access: Access) -> bool {
        self.contains(match access {
            Access::Load => Prot::R,
            Access::Store => Prot::W,
            Access::Fetch | Access::LoadExec => Prot::X,
        })
    }
}

/// What is behind a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Object {
    /// Memory that is zero until it is written.
    Anonymous,
    /// Originals, the host's, which VMs share. They are never written: a page that the guest stores to, with the
    /// 2 MiB around it where the policy allows, becomes a copy of its own.
    Image {
        /// The home of the original behind the region's first page; the others follow. Their frames hold the image and stay
        /// as long as the address space exists, but for those that may go ([`crate::frames::Originals`]).
        first: Pfn<Hpa>,
    },
}

/// A stretch of guest physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Region {
    /// Its first page.
    pub start: Pfn<Gpa>,
    /// Its length in pages.
    pub pages: u64,
    /// What the guest may do there.
    pub prot: Prot,
    /// What it finds there.
    pub object: Object,
}

impl Region {
    /// The number of the page after its last.
    pub(super) fn end(&self) -> u64 {
        self.start.raw() + self.pages
    }
}

/// The one of some regions, by address, that holds `page`.
pub(super) fn region_in(regions: &[Region], page: Pfn<Gpa>) -> Option<&Region> {
    let at = regions.partition_point(|region| region.start <= page).checked_sub(1)?;
    Some(&regions[at]).filter(|region| page.raw() < region.end())
}

/// Those from the one on that holds `page`, or is next.
pub(super) fn regions_from(regions: &[Region], page: Pfn<Gpa>) -> &[Region] {
    &regions[regions.partition_point(|region| region.end() <= page.raw())..]
}

/// Why a region cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionError {
    /// It has no pages.
    Empty,
    /// It ends beyond what the format translates.
    TooHigh {
        /// The first page that the format cannot translate.
        end: Pfn<Gpa>,
    },
    /// It shares pages with this one.
    Overlap(Region),
    /// Its protection allows nothing, or W without R.
    BadProt(Prot),
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionError::Empty => write!(f, "the region has no pages"),
            RegionError::TooHigh { end } => write!(f, "the region goes beyond {:?}", end.base()),
            RegionError::Overlap(other) => write!(f, "the region overlaps the one at {:?}", other.start.base()),
            RegionError::BadProt(prot) => write!(f, "no table can express the protection {prot:?}"),
        }
    }
}
