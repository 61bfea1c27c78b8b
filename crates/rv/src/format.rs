//! Page-table formats as data: levels, root size, mode numbers.

use crate::addr::{Addr, PAGE_SHIFT, Space};

/// A level of a table, numbered as the spec's walk numbers `i`: 0 holds 4 KiB leaves, 1 holds
/// 2 MiB leaves, 2 holds 1 GiB leaves, and so on up to the root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Level(u8);

impl Level {
    /// The level of 4 KiB leaves.
    pub const PAGE: Level = Level(0);
    /// The level of 2 MiB leaves.
    pub const MEGA: Level = Level(1);
    /// The level of 1 GiB leaves.
    pub const GIGA: Level = Level(2);

    /// The spec's `i`.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The level below, or `None` from level 0.
    #[must_use]
    pub const fn down(self) -> Option<Level> {
        match self.0.checked_sub(1) {
            Some(below) => Some(Level(below)),
            None => None,
        }
    }

    /// Base pages that a leaf of this level maps.
    #[must_use]
    pub const fn pages(self) -> u64 {
        1 << (9 * self.0)
    }

    /// Bytes that a leaf of this level maps.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// log2 of [`Level::bytes`]; also the lowest address bit of this level's index.
    #[must_use]
    pub const fn shift(self) -> u32 {
        PAGE_SHIFT + 9 * self.0 as u32
    }
}

/// Entries in a frame of a table.
pub const ENTRIES: usize = 512;

/// A page-table format. The constants of this module are all that exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// The spec's name, such as `Sv39x4`.
    pub name: &'static str,
    /// Number of levels (the spec's LEVELS).
    pub levels: u8,
    /// Index bits that the root has beyond 9: 2 for G-stage formats, else 0
    /// (norm:H_vm_gpatrans: "the root page table is 16 KiB").
    pub root_extra_bits: u8,
    /// The MODE field's value in `satp`/`vsatp`/`hgatp`.
    pub mode: u8,
}

/// Sv39, for `satp` and `vsatp`.
pub const SV39: Format = Format { name: "Sv39", levels: 3, root_extra_bits: 0, mode: 8 };
/// Sv48, for `satp` and `vsatp`.
pub const SV48: Format = Format { name: "Sv48", levels: 4, root_extra_bits: 0, mode: 9 };
/// Sv57, for `satp` and `vsatp`.
pub const SV57: Format = Format { name: "Sv57", levels: 5, root_extra_bits: 0, mode: 10 };
/// Sv39x4, for `hgatp`.
pub const SV39X4: Format = Format { name: "Sv39x4", levels: 3, root_extra_bits: 2, mode: 8 };
/// Sv48x4, for `hgatp`.
pub const SV48X4: Format = Format { name: "Sv48x4", levels: 4, root_extra_bits: 2, mode: 9 };
/// Sv57x4, for `hgatp`.
pub const SV57X4: Format = Format { name: "Sv57x4", levels: 5, root_extra_bits: 2, mode: 10 };

impl Format {
    /// The format that a `vsatp` or `satp` MODE field selects, or `None` for Bare and for
    /// reserved values.
    #[must_use]
    pub const fn of_vs_mode(mode: u64) -> Option<&'static Format> {
        match mode {
            8 => Some(&SV39),
            9 => Some(&SV48),
            10 => Some(&SV57),
            _ => None,
        }
    }

    /// The G-stage format of an `hgatp` mode; `None` for Bare and for reserved modes.
    #[must_use]
    pub const fn of_g_mode(mode: u64) -> Option<&'static Format> {
        match mode {
            8 => Some(&SV39X4),
            9 => Some(&SV48X4),
            10 => Some(&SV57X4),
            _ => None,
        }
    }

    /// The level of the root table.
    #[must_use]
    pub const fn root_level(&self) -> Level {
        Level(self.levels - 1)
    }

    /// Every level, the root first.
    pub fn levels_down(&self) -> impl Iterator<Item = Level> + use<> {
        (0..self.levels).rev().map(Level)
    }

    /// Significant address bits of the input: 39 for Sv39, 41 for Sv39x4.
    #[must_use]
    pub const fn input_bits(&self) -> u32 {
        PAGE_SHIFT + 9 * self.levels as u32 + self.root_extra_bits as u32
    }

    /// Base pages that the root table occupies: 1, or 4 for G-stage formats.
    #[must_use]
    pub const fn root_pages(&self) -> u64 {
        1 << self.root_extra_bits
    }

    /// Returns whether this is a G-stage format, whose inputs are zero-extended, not sign-extended.
    #[must_use]
    pub const fn is_g_stage(&self) -> bool {
        self.root_extra_bits != 0
    }

    /// Entries in a table of `level`: 512, or 2048 in a G-stage root.
    #[must_use]
    pub const fn entries(&self, level: Level) -> usize {
        if level.0 == self.levels - 1 { ENTRIES << self.root_extra_bits } else { ENTRIES }
    }

    /// The index into a table of `level` that `addr` selects (the spec's `va.vpn[i]`).
    #[must_use]
    pub const fn index<S: Space>(&self, addr: Addr<S>, level: Level) -> usize {
        (addr.raw() >> level.shift()) as usize & (self.entries(level) - 1)
    }

    /// The index that `addr` selects in its frame of a table of `level`: a root may have several ([`Format::root_frame`]).
    #[must_use]
    pub const fn index_in_frame<S: Space>(&self, addr: Addr<S>, level: Level) -> usize {
        (addr.raw() >> level.shift()) as usize % ENTRIES
    }

    /// Which frame of the root `addr` selects, from 0.
    #[must_use]
    pub const fn root_frame<S: Space>(&self, addr: Addr<S>) -> usize {
        self.index(addr, self.root_level()) / ENTRIES
    }

    /// Returns whether `addr` is one the format can translate at all: sign-extended from the top bit for
    /// VS-stage formats, zero-extended for G-stage formats (norm:H_vm_gpatrans).
    #[must_use]
    pub const fn fits<S: Space>(&self, addr: Addr<S>) -> bool {
        let bits = self.input_bits();
        if self.is_g_stage() {
            addr.raw() >> bits == 0
        } else {
            let shift = 64 - bits;
            (((addr.raw() << shift) as i64) >> shift) as u64 == addr.raw()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Gpa, Gva};

    #[test]
    fn sv39x4_root_is_sixteen_kib() {
        // Treating it as 4 KiB would alias high addresses.
        assert_eq!(SV39X4.root_pages(), 4);
        assert_eq!(SV39X4.index(Addr::<Gpa>::new(1 << 40), SV39X4.root_level()), 1024);
        let third = Addr::<Gpa>::new(1 << 40 | 7 << 30);
        assert_eq!((SV39X4.root_frame(third), SV39X4.index_in_frame(third, SV39X4.root_level())), (2, 7));
        assert_eq!(SV39X4.input_bits(), 41);
    }

    #[test]
    fn canonical_means_sign_extended_for_vs_and_zero_extended_for_g() {
        assert!(SV39.fits(Addr::<Gva>::new(0xffff_ffc0_0000_0000)));
        assert!(!SV39.fits(Addr::<Gva>::new(0x0000_0040_0000_0000)));
        assert!(SV39X4.fits(Addr::<Gpa>::new((1 << 41) - 1)));
        assert!(!SV39X4.fits(Addr::<Gpa>::new(1 << 41)));
        assert!(!SV39X4.fits(Addr::<Gpa>::new(0xffff_ffff_ffff_f000)));
    }

    #[test]
    fn levels_go_down_to_pages() {
        assert_eq!(SV48.root_level().number(), 3);
        assert_eq!(SV48.levels_down().last(), Some(Level::PAGE));
        assert_eq!(Level::PAGE.down(), None);
        assert_eq!(Level::MEGA.bytes(), 2 << 20);
        assert_eq!(Level::GIGA.pages(), 512 * 512);
    }
}
