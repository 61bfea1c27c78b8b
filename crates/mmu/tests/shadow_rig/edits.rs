//! The guest's writes to its tables.

use super::subject::Subject;
use super::{INDICES, PAGES, RAM, Rig};
use rv::{Addr, Caps, Entry, Format, Gpa, Pfn, Pte};

impl<S: Subject> Rig<S> {
    /// Something that maps memory, for a table of that level.
    pub(super) fn good_value(&self, level: u64) -> u64 {
        let flags = S::LEAF | self.any(&[0x4, 0x4, 0xc, 0x0, 0x8]) | self.any(&[0, 0, 0x10]);
        let ram = RAM.raw() + self.pick(PAGES);
        let below: Vec<u64> = S::TABLES
            .into_iter()
            .skip(level.max(1) as usize - 1)
            .step_by(usize::from(self.format.levels) - 1)
            .collect();
        match (level, self.pick(6)) {
            (0, _) => ram << 10 | flags,
            (1, 0) => (ram & !511) << 10 | flags,
            _ => (RAM.raw() + self.any(&below)) << 10 | 1,
        }
    }

    /// Something to write into a table.
    pub(super) fn value(&self) -> u64 {
        let ram = RAM.raw() + self.pick(PAGES);
        let mut flags = S::LEAF | self.pick(8) << 2 | self.pick(2) << 5;
        match self.pick(5) {
            0 => flags &= !0x40,
            1 => flags &= !0x80,
            _ => {}
        }
        let table = if self.pick(4) == 0 { self.any(&S::ROOTS) } else { self.any(&S::TABLES) };
        match self.pick(18) {
            0 | 1 => 0,
            2 => ram << 10 | flags & !1,
            3..=7 => (RAM.raw() + table) << 10 | 1,
            8 => (RAM.raw() + table) << 10 | flags,
            9 | 10 => (ram & !511) << 10 | flags,
            11 => RAM.raw() << 10 | flags,
            12 => self.any(&[0x10, 0x7_ffff, 0x8_0600]) << 10 | self.any(&[1, 0xcf]),
            13 => self.pick(1 << 60) << 4 | self.pick(16),
            _ => ram << 10 | flags,
        }
    }

    /// A word of a table, what is to be written there, and an address that it may be about.
    pub(super) fn edit(&self) -> (Addr<Gpa>, u64, Addr<S>) {
        let table = if self.pick(3) == 0 { self.any(&S::ROOTS) + self.any_frame() } else { self.any(&S::TABLES) };
        let (mut at, gva, mut level) = (RAM.add(table).at(8 * self.any(&INDICES)), self.address(), 0);
        // Of any root, loaded or not.
        if self.pick(3) != 0
            && let Some(found) = self.word_about(self.format, RAM.add(self.any(&S::ROOTS[..3])), gva)
        {
            (at, level) = found;
        }
        let value = match (self.pick(4), self.guest_word(at)) {
            (0, Some(now)) => now & !self.any(&[0x40, 0x80, 0xc0, 0x4, 0x1]),
            (1, Some(now)) => now ^ self.any(&[0x40, 0x80, 0x4, 0x8, 0x10, 1 << 10]),
            (2, _) => self.value(),
            _ => self.good_value(level),
        };
        (at, value, gva)
    }

    /// Which frame of a root.
    pub(super) fn any_frame(&self) -> u64 {
        if S::ROOT_FRAMES == 1 { 0 } else { self.pick(S::ROOT_FRAMES as u64) }
    }

    /// The word that decides about `gva`, or one above it, unless it is the window's.
    pub(super) fn word_about(&self, format: &'static Format, root: Pfn<Gpa>, gva: Addr<S>) -> Option<(Addr<Gpa>, u64)> {
        let (mut table, mut level) = (root, format.root_level());
        loop {
            let at = table.at(8 * format.index(gva, level) as u64);
            let gfn = table.raw().wrapping_sub(RAM.raw());
            if !(Self::is_root(gfn) && at != Self::window_entry(root) || S::TABLES.contains(&gfn)) {
                return None;
            }
            match (Pte(self.guest_word(at)?).decode::<Gpa>(level, Caps::default()), level.down()) {
                (Entry::Table(next), Some(below)) if self.pick(6) != 0 => (table, level) = (next, below),
                _ => return Some((at, level.number().into())),
            }
        }
    }
}
