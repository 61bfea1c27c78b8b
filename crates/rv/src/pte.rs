//! Page-table entries: the bits, and what they mean.
//!
//! [`Pte`] is the scalar in memory; [`Entry`] is its meaning at a level. Policy code sees meanings,
//! never masks. Law: `Entry::encode(p.decode(l, c)) == p` for every `p` that is not reserved or
//! invalid (tests below).

use crate::addr::{Pfn, Space};
use crate::format::Level;
use bitflags::bitflags;

bitflags! {
    /// The flag bits of an entry (privileged spec, "Sv39 page table entry").
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub struct PteFlags: u64 {
        /// Valid.
        const V = 1 << 0;
        /// Readable.
        const R = 1 << 1;
        /// Writable.
        const W = 1 << 2;
        /// Executable.
        const X = 1 << 3;
        /// Accessible to user mode.
        const U = 1 << 4;
        /// Global.
        const G = 1 << 5;
        /// Accessed.
        const A = 1 << 6;
        /// Dirty.
        const D = 1 << 7;
        /// Reserved for software, lower bit.
        const RSW0 = 1 << 8;
        /// Reserved for software, upper bit.
        const RSW1 = 1 << 9;
        /// Svpbmt: non-cacheable.
        const PBMT_NC = 1 << 61;
        /// Svpbmt: I/O.
        const PBMT_IO = 1 << 62;
        /// Svnapot: the entry is one of a naturally aligned power-of-two range.
        const N = 1 << 63;
    }
}

const PPN_SHIFT: u32 = 10;
const PPN_MASK: u64 = ((1 << 44) - 1) << PPN_SHIFT;
const RESERVED_MASK: u64 = 0x7f << 54;
const PBMT_MASK: u64 = PteFlags::PBMT_NC.bits() | PteFlags::PBMT_IO.bits();
const _: () = assert!(PPN_MASK & RESERVED_MASK == 0 && PteFlags::all().bits() & (PPN_MASK | RESERVED_MASK) == 0);

/// Extensions that give meaning to otherwise reserved PTE bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caps {
    /// Svnapot: bit N of leaves.
    pub svnapot: bool,
    /// Svpbmt: bits 62:61 of leaves (the PBMTE bit of the `envcfg` that governs the stage).
    pub svpbmt: bool,
}

/// A page-table entry as it stands in memory. All values are possible.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pte(pub u64);

/// The reason why an entry with V=1 is reserved (each makes a page fault).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// R=0 and W=1.
    WriteOnly,
    /// A bit of 60:54 is set, or one whose extension is absent.
    ReservedBits,
    /// A pointer with A, D, U, N or PBMT set, or a pointer at level 0.
    BadPointer,
    /// PBMT=3, or an undefined Svnapot size.
    BadAttribute,
    /// A superpage whose frame is not aligned to its size (norm:Sv39_superpage_align_fault).
    Misaligned,
}

/// A leaf: where it maps to, and how.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leaf<S: Space> {
    /// The first page of the mapping (aligned to the level's size; for Svnapot, to 16 pages).
    pub pfn: Pfn<S>,
    /// Every flag but V and N.
    pub flags: PteFlags,
    /// The leaf is one entry of a 64 KiB Svnapot range.
    pub napot: bool,
}

/// The meaning of an entry at its level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<S: Space> {
    /// V=0. The other 63 bits are the software's.
    Invalid,
    /// A pointer to the next table.
    Table(Pfn<S>),
    /// A mapping.
    Leaf(Leaf<S>),
    /// V=1, but not a legal entry.
    Reserved(Why),
}

impl Pte {
    /// An entry that maps nothing.
    pub const INVALID: Pte = Pte(0);

    /// The flag bits.
    #[must_use]
    pub const fn flags(self) -> PteFlags {
        PteFlags::from_bits_truncate(self.0)
    }

    /// The frame that a valid entry leads to, Svnapot aside.
    #[must_use]
    pub const fn pfn<S: Space>(self) -> Pfn<S> {
        Pfn::new((self.0 & PPN_MASK) >> PPN_SHIFT)
    }

    /// Returns the entry with another frame.
    #[must_use]
    pub const fn leading_to<S: Space>(self, pfn: Pfn<S>) -> Pte {
        Pte(self.0 & !PPN_MASK | pfn.raw() << PPN_SHIFT)
    }

    /// Returns whether this is a pointer to the next table, if it is legal at all: valid, and no leaf.
    #[must_use]
    pub const fn is_pointer(self) -> bool {
        const KIND: u64 = PteFlags::V.union(PteFlags::R).union(PteFlags::W).union(PteFlags::X).bits();
        self.0 & KIND == PteFlags::V.bits()
    }

    /// The meaning of this entry in a table of `level` whose output space is `S`, following
    /// steps 3 to 5 of the spec's "Virtual Address Translation Process".
    // Faults decode one entry each.
    #[inline(always)]
    #[must_use]
    pub fn decode<S: Space>(self, level: Level, caps: Caps) -> Entry<S> {
        let flags = self.flags();
        if !flags.contains(PteFlags::V) {
            return Entry::Invalid;
        }
        if flags.contains(PteFlags::W) && !flags.contains(PteFlags::R) {
            return Entry::Reserved(Why::WriteOnly);
        }
        if self.0 & RESERVED_MASK != 0 {
            return Entry::Reserved(Why::ReservedBits);
        }
        let pfn = self.pfn();
        let pbmt = self.0 & PBMT_MASK;
        let napot = flags.contains(PteFlags::N);
        if !flags.intersects(PteFlags::R | PteFlags::X) {
            // "For non-leaf PTEs, the D, A, and U bits are reserved", and so are those of Svnapot and Svpbmt.
            let bad = PteFlags::A | PteFlags::D | PteFlags::U;
            if flags.intersects(bad) || pbmt != 0 || napot || level == Level::PAGE {
                return Entry::Reserved(Why::BadPointer);
            }
            return Entry::Table(pfn);
        }
        if (napot && !caps.svnapot) || (pbmt != 0 && !caps.svpbmt) {
            return Entry::Reserved(Why::ReservedBits);
        }
        if pbmt == PBMT_MASK {
            return Entry::Reserved(Why::BadAttribute);
        }
        let pfn = if napot {
            // Svnapot defines one size: 64 KiB at level 0, ppn[3:0] = 1000.
            if level != Level::PAGE || pfn.raw() & 0xf != 0x8 {
                return Entry::Reserved(Why::BadAttribute);
            }
            pfn.align_down(16)
        } else {
            pfn
        };
        if !pfn.is_aligned(level.pages()) {
            return Entry::Reserved(Why::Misaligned);
        }
        Entry::Leaf(Leaf { pfn, flags: flags.difference(PteFlags::V | PteFlags::N), napot })
    }
}

impl<S: Space> Entry<S> {
    /// The entry in memory. A reserved entry encodes as invalid: none is written on purpose.
    #[must_use]
    #[inline(always)]
    pub fn encode(self) -> Pte {
        match self {
            Entry::Invalid | Entry::Reserved(_) => Pte::INVALID,
            Entry::Table(pfn) => Pte(pfn.raw() << PPN_SHIFT | PteFlags::V.bits()),
            Entry::Leaf(Leaf { pfn, flags, napot }) => {
                let (pfn, n) = if napot { (pfn.raw() | 0x8, PteFlags::N) } else { (pfn.raw(), PteFlags::empty()) };
                Pte(pfn << PPN_SHIFT | (flags | PteFlags::V | n).bits())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Hpa;

    const ALL: Caps = Caps { svnapot: true, svpbmt: true };

    #[test]
    fn encode_undoes_decode() {
        for low in 0..1024u64 {
            for high in [0, 1 << 61, 1 << 62, 3 << 61, 1 << 63, 1 << 54] {
                for ppn in [0u64, 8, 512, 513, 1 << 43] {
                    for level in [Level::PAGE, Level::MEGA, Level::GIGA] {
                        let pte = Pte(high | ppn << 10 | low);
                        match pte.decode::<Hpa>(level, ALL) {
                            Entry::Invalid | Entry::Reserved(_) => {}
                            // RSW and G of a pointer are ignored by hardware and dropped by us.
                            Entry::Table(p) => assert_eq!(p.raw(), ppn),
                            leaf => assert_eq!(leaf.encode(), pte, "{leaf:?}"),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn superpage_alignment_is_checked() {
        let pte = Pte(513 << 10 | 0xcf);
        assert_eq!(pte.decode::<Hpa>(Level::MEGA, ALL), Entry::Reserved(Why::Misaligned));
        assert!(matches!(pte.decode::<Hpa>(Level::PAGE, ALL), Entry::Leaf(_)));
    }

    #[test]
    fn napot_is_reserved_without_the_extension() {
        let pte = Pte(1 << 63 | 0x18 << 10 | 0xcf);
        assert_eq!(pte.decode::<Hpa>(Level::PAGE, Caps::default()), Entry::Reserved(Why::ReservedBits));
        let Entry::Leaf(leaf) = pte.decode::<Hpa>(Level::PAGE, ALL) else { panic!("a leaf") };
        assert_eq!((leaf.pfn.raw(), leaf.napot), (0x10, true));
    }
}
