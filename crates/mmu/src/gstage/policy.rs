//! The policy of an address space: leaf sizes, images, residence, A and D; and the leaves that follow from it.

use super::region::Prot;
use rv::{Access, Entry, Hpa, Leaf, Pfn, Pte, PteFlags};

/// The software bit of leaves whose frames belong to the VM.
pub const OWNED: PteFlags = PteFlags::RSW0;

/// The leaf sizes in use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Superpages {
    /// 4 KiB only.
    Never,
    /// 2 MiB where a region and the host's memory have room, else 4 KiB.
    Mega,
    /// Like [`Superpages::Mega`], and 1 GiB where the caller gives all of it, and joins it
    /// ([`super::AddressSpace::join`]).
    Giga,
}

/// The treatment of image pages that the guest only reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Images {
    /// Mapped from the host's own frames.
    Shared,
    /// Copied from the first touch on, for guests whose hardware may write where the G-stage forbids it.
    Private,
}

/// The permission to take memory from the guest for a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Residence {
    /// The guest's memory stays.
    Wired,
    /// The guest's memory may go, and comes back when it is touched.
    Pageable,
}

/// The way to find out which pages the guest has used (A) and changed (D).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ad {
    /// A by making pages idle, when memory is short; D by withholding W, but only of pages of which the swap device has
    /// a copy.
    AsNeeded,
    /// Like [`Ad::AsNeeded`], but D of all pages.
    Faults,
    /// The hardware sets them (Svadu, for G-stage tables: `menvcfg.ADUE`).
    Hardware,
}

/// The rules by which an address space is filled, and emptied.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Policy {
    /// The leaf sizes in use.
    pub superpages: Superpages,
    /// The treatment of images.
    pub images: Images,
    /// The permission to take its memory.
    pub residence: Residence,
    /// The way to find out which pages the guest uses.
    pub ad: Ad,
}

impl Policy {
    /// An entry that maps `pfn` for a guest that may do `prot`.
    pub(super) fn leaf(pfn: Pfn<Hpa>, prot: Prot, ownership: PteFlags) -> Pte {
        let mut flags = PteFlags::U | PteFlags::A | ownership;
        flags.set(PteFlags::R, prot.contains(Prot::R));
        flags.set(PteFlags::X, prot.contains(Prot::X));
        flags.set(PteFlags::W | PteFlags::D, prot.contains(Prot::W));
        Entry::Leaf(Leaf { pfn, flags, napot: false }).encode()
    }

    /// Like [`Policy::leaf`], for a page of the VM's own that has not been written so far: a write will show.
    pub(super) fn clean_leaf(&self, pfn: Pfn<Hpa>, prot: Prot) -> Pte {
        match self.ad {
            Ad::Hardware => Pte(Self::leaf(pfn, prot, OWNED).0 & !PteFlags::D.bits()),
            Ad::AsNeeded | Ad::Faults => Self::leaf(pfn, prot.difference(Prot::W), OWNED),
        }
    }

    /// Returns the entry for zeroes of the VM's own that are mapped by a first access. With a dirty log they count as a change of what may have
    /// been there.
    pub(super) fn first_leaf(&self, pfn: Pfn<Hpa>, (prot, access): (Prot, Access), is_logged: bool) -> Pte {
        let is_clean = self.ad != Ad::AsNeeded && access != Access::Store && !is_logged && self.sees_writes();
        if is_clean { self.clean_leaf(pfn, prot) } else { Self::leaf(pfn, prot, OWNED) }
    }

    /// Returns whether a write to a page shows that its leaf does not allow. Hardware that sets A and D in a guest's
    /// tables does not ask the G-stage everywhere, nor mark its leaves (QEMU): where it may write so, this is false.
    pub(super) fn sees_writes(&self) -> bool {
        self.images == Images::Shared
    }
}
