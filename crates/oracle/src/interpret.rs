//! The meaning of a table as a finite map.

use crate::machine::Machine;
use rv::{Format, Hpa, Pfn};
use std::collections::BTreeMap;

/// The output of an input page: a page and its rights.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Mapping {
    /// The output page's number.
    pub page: u64,
    /// Bits 9..1 of the leaf: RSW, D, A, G, U, X, W, R.
    pub flags: u64,
    /// The level of the leaf.
    pub level: u8,
}

impl Mapping {
    /// Returns whether stores are allowed.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.flags & 4 != 0
    }
}

/// The map from input pages to output pages that the table at `root` stands for. Illegal entries
/// map nothing. Whether an access is allowed is another matter: see the flags.
///
/// # Panics
/// If a pointer leads out of memory.
#[must_use]
pub fn interpret(machine: &Machine, root: Pfn<Hpa>, format: &Format) -> BTreeMap<u64, Mapping> {
    let mut map = BTreeMap::new();
    let levels = u32::from(format.levels);
    let root_entries = 512u64 << format.root_extra_bits;
    add_table(machine, root.raw(), levels - 1, root_entries, 0, &mut map);
    if format.root_extra_bits == 0 {
        // VS-stage formats: the upper half of the indices stands for sign-extended addresses.
        let half = 1u64 << (9 * levels - 1);
        map = map
            .into_iter()
            .map(|(page, m)| (if page & half == 0 { page } else { page | ((1 << 52) - 2 * half) }, m))
            .collect();
    }
    map
}

fn add_table(machine: &Machine, table: u64, i: u32, entries: u64, first: u64, map: &mut BTreeMap<u64, Mapping>) {
    for index in 0..entries {
        let at = (table << 12) + 8 * index;
        let pte = machine.peek(at).unwrap_or_else(|| panic!("a table at {at:#x}, where no memory is"));
        let input = first + (index << (9 * i));
        let (target, pages) = (pte >> 10 & ((1 << 44) - 1), 1u64 << (9 * i));
        let illegal = pte & 1 == 0 || pte & 0b110 == 0b100 || pte >> 54 != 0;
        if illegal {
            continue;
        }
        if pte & 0b1010 == 0 {
            if i > 0 && pte & 0b1101_0000 == 0 {
                add_table(machine, target, i - 1, 512, input, map);
            }
        } else if target & (pages - 1) == 0 {
            for k in 0..pages {
                map.insert(input + k, Mapping { page: target + k, flags: pte & 0x3fe, level: i as u8 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rv::format::{SV39, SV39X4};

    #[test]
    fn leaves_of_two_sizes_and_an_illegal_one() {
        let mut machine = Machine::new();
        for at in [0x4000, 0x5000, 0x6000, 0x7000] {
            machine.poke(at, 0);
        }
        machine.poke(0x4000 + 8 * 1024, 0x8 << 10 | 1);
        machine.poke(0x8000 + 8 * 3, 0x200 << 10 | 0xdf);
        machine.poke(0x8000 + 8 * 4, 0x201 << 10 | 0xdf);
        machine.poke(0x8000 + 8 * 5, 0x9 << 10 | 1);
        machine.poke(0x9000 + 8 * 7, 0x77 << 10 | 0x5b);
        let map = interpret(&machine, Pfn::new(4), &SV39X4);
        let base = 1024 << 18;
        assert_eq!(map.len(), 513);
        assert_eq!(map[&(base + 3 * 512 + 9)], Mapping { page: 0x209, flags: 0xde, level: 1 });
        assert_eq!(map[&(base + 5 * 512 + 7)], Mapping { page: 0x77, flags: 0x5a, level: 0 });
    }

    #[test]
    fn the_upper_half_is_sign_extended() {
        let mut machine = Machine::new();
        machine.poke(0x4000 + 8 * 511, 0x5 << 10 | 1);
        machine.poke(0x5000, 0x6 << 10 | 1);
        machine.poke(0x6000, 0x77 << 10 | 0xcf);
        let map = interpret(&machine, Pfn::new(4), &SV39);
        assert_eq!(map.keys().copied().collect::<Vec<_>>(), [0xffff_ffff_c000_0000 >> 12]);
    }
}
