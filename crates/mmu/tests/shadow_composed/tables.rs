//! The guests' tables, and their edits.

use super::{G_MEGAS, G_PAGES, G_ROOTS, INDICES, L2, L2_PAGES, MEGAS, RAM, ROOTS, Rig, TABLES};
use rv::{Addr, Gpa};

impl Rig {
    pub(super) fn build(&mut self) {
        let ptr = |page: u64| (RAM.raw() + page) << 10 | 1;
        let g_leaf = |page: u64| (RAM.raw() + page) << 10 | 0xdf;
        for root in G_ROOTS {
            for (index, table) in [(0, 24), (1, 25), (5, 25)] {
                self.poke(RAM.add(root).at(8 * index), ptr(table));
            }
        }
        for (table, first) in [(24, 27), (25, 28)] {
            self.poke(RAM.add(table).at(0), ptr(first));
            self.poke(RAM.add(table).at(8), ptr(29));
            self.poke(RAM.add(table).at(40), g_leaf(1024));
        }
        for table in G_PAGES {
            for index in 0..L2_PAGES {
                self.poke(RAM.add(table).at(8 * index), g_leaf(L2 + index));
            }
        }
        for page in ROOTS.into_iter().chain(MEGAS).chain(TABLES) {
            for index in INDICES {
                let value = self.good(page);
                self.poke(RAM.add(L2 + page).at(8 * index), value);
            }
        }
        self.look();
    }

    /// A good entry for one of L2's tables.
    pub(super) fn good(&self, page: u64) -> u64 {
        let flags = 0xc3 | self.any(&[0x4, 0xc, 0, 8]) | self.any(&[0, 0, 0x10]);
        let any = [self.pick(L2_PAGES), 0x200 * self.any(&INDICES) + self.pick(16), 0x4_0000 + self.pick(16)];
        match page {
            page if ROOTS.contains(&page) => self.any(&MEGAS) << 10 | 1,
            page if MEGAS.contains(&page) && self.pick(4) != 0 => self.any(&TABLES) << 10 | 1,
            // A superpage of L2's.
            page if MEGAS.contains(&page) => (0x200 * self.any(&INDICES) + 0x4_0000 * self.pick(2)) << 10 | flags,
            _ => self.any(&any) << 10 | flags,
        }
    }

    /// A word of a table of either, and something to write there.
    pub(super) fn edit(&self) -> (Addr<Gpa>, u64) {
        let (at, good) = if self.pick(2) == 0 {
            let page = self.any(&[1, 2, 3, 4, 5, 6, 7]);
            (RAM.add(L2 + page).at(8 * self.any(&INDICES)), self.good(page))
        } else {
            let ptr = |page: u64| (RAM.raw() + page) << 10 | 1;
            let leaf = |page: u64| (RAM.raw() + page) << 10 | self.any(&[0xdf, 0xdf, 0xdf, 0xd7, 0xd3, 0x5f, 0x9f]);
            match self.pick(10) {
                // A root of L2's goes where another table is.
                8 | 9 => {
                    let (page, there) = (self.any(&ROOTS), self.any(&[1, 2, 3, 4]));
                    (RAM.add(G_PAGES[0]).at(8 * page), leaf(L2 + there))
                }
                0 => (RAM.add(self.any(&G_ROOTS)).at(8 * self.any(&INDICES)), ptr(self.any(&G_MEGAS))),
                1 | 2 => {
                    let value = if self.pick(3) == 0 { leaf(512 * self.pick(3)) } else { ptr(self.any(&G_PAGES)) };
                    (RAM.add(self.any(&G_MEGAS)).at(8 * self.any(&INDICES)), value)
                }
                _ => {
                    let page = self.any(&[L2 + self.pick(L2_PAGES), 512 + self.pick(8), 1024 + self.pick(8), 0x1_0000]);
                    (RAM.add(self.any(&G_PAGES)).at(8 * self.pick(L2_PAGES)), leaf(page))
                }
            }
        };
        let now = self.word(at.raw()).unwrap_or(0);
        let value = match self.pick(12) {
            0 => 0,
            1 => now & !self.any(&[0x40, 0x80, 0xc0, 0x4, 0x1]),
            2 => now ^ self.any(&[0x40, 0x80, 0x4, 0x8, 0x10, 1 << 10]),
            3 => self.pick(1 << 60) << 4 | self.pick(16),
            _ => good,
        };
        (at, value)
    }
}
