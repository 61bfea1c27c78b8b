//! Regions of guest memory: their protection, and the objects behind them.

use alloc::collections::BTreeMap;
use bitflags::bitflags;
use core::fmt;
use rv::{Access, Gpa, Hpa, Pfn, Space};

bitflags! {
    /// The accesses that a guest may make to a region.
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
    /// Returns whether it allows `access`.
    pub(crate) const fn allows(self, access: Access) -> bool {
        self.contains(match access {
            Access::Load => Prot::R,
            Access::Store => Prot::W,
            Access::Fetch | Access::LoadExec => Prot::X,
        })
    }
}

/// The object behind a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Object {
    /// Memory that is zero until it is written.
    Anonymous,
    /// Originals, the host's, which VMs share. They are never written: a page that the guest stores to, with the
    /// 2 MiB around it where the policy allows, becomes a copy of its own.
    Image {
        /// The home of the original behind the region's first page; the others follow. Their frames hold the image and
        /// stay as long as the address space exists, except those that may go ([`crate::frames::Originals`]).
        first: Pfn<Hpa>,
    },
}

/// A stretch of guest physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Region<In: Space = Gpa> {
    /// Its first page.
    pub start: Pfn<In>,
    /// Its length in pages.
    pub pages: u64,
    /// The accesses that the guest may make to it.
    pub prot: Prot,
    /// The object behind it.
    pub object: Object,
}

impl<In: Space> Region<In> {
    /// The number of the page after its last.
    pub(super) fn end(&self) -> u64 {
        self.start.raw() + self.pages
    }
}

/// The regions of an address space, by their first pages. They are disjoint.
#[derive(Debug)]
pub(super) struct Regions<In: Space> {
    by_start: BTreeMap<u64, Region<In>>,
    /// Counts the changes.
    pub generation: u64,
}

impl<In: Space> Regions<In> {
    pub const fn new() -> Self {
        Self { by_start: BTreeMap::new(), generation: 0 }
    }

    /// Checks whether a region may be added, by its own properties and those of the others. It must lie below `end`.
    pub fn check(&self, region: &Region<In>, end: Pfn<In>) -> Result<(), RegionError<In>> {
        if region.pages == 0 {
            return Err(RegionError::Empty);
        }
        if region.start.raw().checked_add(region.pages).is_none_or(|last| last > end.raw()) {
            return Err(RegionError::TooHigh { end });
        }
        if region.prot.is_empty() || (region.prot.contains(Prot::W) && !region.prot.contains(Prot::R)) {
            return Err(RegionError::BadProt(region.prot));
        }
        // The one that holds its first page, or the next.
        let inside = self.by_start.range(region.start.raw()..region.end()).next().map(|(_, other)| other);
        if let Some(other) = self.get(region.start).or(inside) {
            return Err(RegionError::Overlap(*other));
        }
        Ok(())
    }

    /// Adds a region that has been checked, in O(log n).
    pub fn add(&mut self, region: Region<In>) {
        self.by_start.insert(region.start.raw(), region);
        self.generation += 1;
    }

    /// Removes the region that begins at `start`, in O(log n).
    pub fn remove(&mut self, start: Pfn<In>) -> Option<Region<In>> {
        let removed = self.by_start.remove(&start.raw())?;
        self.generation += 1;
        Some(removed)
    }

    /// All of them, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Region<In>> + Clone {
        self.by_start.values()
    }

    /// The region that holds `page`.
    pub fn get(&self, page: Pfn<In>) -> Option<&Region<In>> {
        let (_, region) = self.by_start.range(..=page.raw()).next_back()?;
        Some(region).filter(|region| page.raw() < region.end())
    }

    /// Returns the regions from the one on that holds `page`.
    pub fn from(&self, page: Pfn<In>) -> impl Iterator<Item = &Region<In>> {
        self.get(page).into_iter().flat_map(|first| self.by_start.range(first.start.raw()..).map(|(_, region)| region))
    }
}

/// The reason why a region cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionError<In: Space = Gpa> {
    /// No pages.
    Empty,
    /// An end beyond what the format translates.
    TooHigh {
        /// The first page that the format cannot translate.
        end: Pfn<In>,
    },
    /// Pages in common with this region.
    Overlap(Region<In>),
    /// A page of an earlier region that is still mapped, or whose contents are kept.
    Mapped(Pfn<In>),
    /// A protection that allows nothing, or W without R.
    BadProt(Prot),
}

impl<In: Space> fmt::Display for RegionError<In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionError::Empty => write!(f, "the region has no pages"),
            RegionError::TooHigh { end } => write!(f, "the region goes beyond {:?}", end.base()),
            RegionError::Overlap(other) => write!(f, "the region overlaps the one at {:?}", other.start.base()),
            RegionError::Mapped(page) => write!(f, "the page at {:?} is still in use", page.base()),
            RegionError::BadProt(prot) => write!(f, "no table can express the protection {prot:?}"),
        }
    }
}
