//! Which entries of a shadow page are live or parked, and what is known of their mirrors: bitmaps.

use crate::shadow::pages::Mappings;
use rv::format::ENTRIES;
use rv::{Hpa, Pfn, PhysMem, PteFlags};

/// Entries are looked at 64 at a time.
pub const PARTS: usize = ENTRIES / 64;

/// A bit for each eight entries of 64 of which `bits` has any.
const fn eights_of(mut bits: u64) -> u64 {
    bits |= bits >> 4;
    bits |= bits >> 2;
    bits |= bits >> 1;
    // The lowest bit of each byte, brought together.
    (bits & 0x0101_0101_0101_0101).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The bitmaps of a shadow page.
pub struct Marks {
    live: [u64; ENTRIES / 64],
    /// Entries that are in the list that the header notes although they are not live ([`super::page::Page::park_faulting`]).
    parked: [u64; ENTRIES / 64],
    /// A bit for each eight mirrors that has been written since `settled` was found.
    written: u64,
    /// A bit for each eight mirrors that are all global leaves. Those that neither has a bit for are all 0.
    settled: u64,
    /// A bit for each eight entries of which one has been a pointer to the shadow of a table: no other is.
    leading: u64,
}

impl Marks {
    /// The bitmaps of an empty page.
    pub const fn new() -> Self {
        Self { live: [0; PARTS], parked: [0; PARTS], written: 0, settled: 0, leading: 0 }
    }

    /// Notes that the mirror of an entry is written.
    #[inline(always)]
    pub fn write(&mut self, index: usize) {
        self.written |= 1 << (index / 8);
    }

    /// The entry is live from now on, and its mirror is about to be written.
    #[inline(always)]
    pub fn enters(&mut self, index: usize) {
        debug_assert!(!self.is_listed(index));
        self.set_live(index, true);
        self.written |= 1 << (index / 8);
    }

    /// Of 64 entries, from number 64 * `part` on, those are live, those are parked, and the mirrors of those have been written: a bit for
    /// each.
    #[inline(always)]
    pub fn set_part(&mut self, part: usize, live: u64, parked: u64, written: u64) {
        (self.live[part], self.parked[part]) = (live, parked);
        self.written |= eights_of(written) << (8 * part);
    }

    /// Of 64 entries, from number 64 * `part` on, those are not live any more: a bit for each.
    pub const fn clear_live(&mut self, part: usize, those: u64) {
        self.live[part] &= !those;
    }

    /// A bit for each eight mirrors: those of others are 0.
    pub const fn written_groups(&self) -> u64 {
        self.written | self.settled
    }

    /// A bit for each eight mirrors that a fence is about: not those that are global leaves, all eight, for one of an address space.
    pub const fn concerned(&self, mappings: Mappings) -> u64 {
        match mappings {
            Mappings::Private => !self.settled | self.written,
            Mappings::All | Mappings::Anew => u64::MAX,
        }
    }

    /// Finds out which of 64 mirrors, from number 64 * `part` on, are global leaves, and not reserved.
    pub fn settle(&mut self, part: usize, mirror: Pfn<Hpa>, mem: &impl PhysMem) {
        // Svnapot, Svpbmt, and what has no meaning: the guest has none of them.
        const RESERVED: u32 = 54;
        const GLOBAL: u64 = PteFlags::V.union(PteFlags::R).union(PteFlags::G).union(PteFlags::A).bits();
        for group in 8 * part..8 * part + 8 {
            if self.written >> group & 1 == 0 {
                continue;
            }
            let mirrors = (8 * group..8 * group + 8).map(|index| mem.read_own(mirror.at(8 * index as u64)));
            let (all, any) = mirrors.fold((GLOBAL, 0), |(all, any), mirror| (all & mirror, any | mirror));
            if all == GLOBAL && any >> RESERVED == 0 {
                self.settled |= 1 << group;
                self.written &= !(1 << group);
            } else {
                self.settled &= !(1 << group);
            }
        }
    }

    /// The entry becomes a pointer to the shadow of a table.
    pub fn leads_at(&mut self, index: usize) {
        self.leading |= 1 << (index / 8);
    }

    /// A bit for each live entry of the 64 from number 64 * `part` on that may be a pointer to the shadow of a table. Most tables
    /// of large pages have hundreds of leaves and no pointer.
    pub fn leading_in(&self, part: usize) -> u64 {
        let groups = self.leading >> (8 * part) & 0xff;
        // Each bit in a byte of its own, then at its lower end, then in all of it.
        let apart = groups.wrapping_mul(0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let low = (apart + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101;
        self.live[part] & (low * 0xff)
    }

    /// Returns whether all entries are live.
    pub fn is_full(&self) -> bool {
        self.live.iter().all(|part| *part == u64::MAX)
    }

    /// The first live entry at or after `index`.
    pub fn next_live(&self, index: usize) -> Option<usize> {
        let mut word = index / 64;
        let mut bits = self.live.get(word)? & u64::MAX << (index % 64);
        loop {
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
            bits = *self.live.get(word)?;
        }
    }

    /// A bit for each 64 entries of which some are live.
    pub fn live_parts(&self) -> u8 {
        self.live.iter().rev().fold(0, |parts, live| parts << 1 | u8::from(*live != 0))
    }

    /// The first 64 entries of which some are live, from number 64 * `part` on, and a bit for each that is.
    pub const fn live_part(&self, mut part: usize) -> Option<(usize, u64)> {
        while part < PARTS {
            if self.live[part] != 0 {
                return Some((part, self.live[part]));
            }
            part += 1;
        }
        None
    }

    /// A bit for each live entry of the 64 from number 64 * `part` on.
    pub fn live_in(&self, part: usize) -> u64 {
        self.live[part]
    }

    pub fn is_live(&self, index: usize) -> bool {
        self.live[index / 64] >> (index % 64) & 1 == 1
    }

    pub fn set_live(&mut self, index: usize, live: bool) {
        let bit = 1 << (index % 64);
        if live { self.live[index / 64] |= bit } else { self.live[index / 64] &= !bit }
    }

    pub fn is_parked(&self, index: usize) -> bool {
        self.parked[index / 64] >> (index % 64) & 1 == 1
    }

    /// A bit for each parked entry of the 64 from number 64 * `part` on.
    pub fn parked_in(&self, part: usize) -> u64 {
        self.parked[part]
    }

    /// Returns whether it is in a list: live or parked.
    pub fn is_listed(&self, index: usize) -> bool {
        self.listed_in(index / 64) >> (index % 64) & 1 == 1
    }

    /// A bit for each entry that is in a list of the 64 from number 64 * `part` on.
    #[inline(always)]
    pub fn listed_in(&self, part: usize) -> u64 {
        self.live[part] | self.parked[part]
    }

    pub fn set_parked(&mut self, index: usize, parked: bool) {
        let bit = 1 << (index % 64);
        if parked { self.parked[index / 64] |= bit } else { self.parked[index / 64] &= !bit }
    }

    /// The first 64 entries of which some are parked, by their part, and a bit for each that is.
    pub fn parked_part(&self) -> Option<(usize, u64)> {
        let part = self.parked.iter().position(|part| *part != 0)?;
        Some((part, self.parked[part]))
    }
}

#[cfg(test)]
mod tests {
    use super::eights_of;

    #[test]
    fn eights_are_those_of_which_a_bit_is_set() {
        for bits in (0..64).map(|n| 1 << n).chain([0, u64::MAX, 0x8000_0000_0100_00ff, 0x7f00_fe00_1001_0000]) {
            let expected = (0..8).filter(|n| bits >> (8 * n) & 0xff != 0).map(|n| 1 << n).sum();
            assert_eq!(eights_of(bits), expected, "{bits:#x}");
        }
    }
}
