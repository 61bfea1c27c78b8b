//! The frames that hold page tables, and what software last wrote there.
//!
//! An emulator has set A and D before its plugin hears of the access. So the meter keeps a copy of each table as
//! software left it: where memory has a bit more, hardware has set it. The copies also show check mode when a table was
//! edited.

use crate::args::Level;
use crate::walk::{Reference, Stage, Words};
use rustc_hash::FxHashMap;
use rv::PteFlags;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const WORDS: u64 = 512;

#[derive(Debug)]
struct Copy {
    words: Box<[u64; WORDS as usize]>,
    /// The level of its entries, if they lead to physical addresses.
    level: Option<u8>,
}

/// All tables that have been met. A frame that was one is taken for one ever after: what is then
/// stored to it costs time, and nothing else.
#[derive(Debug)]
pub struct Tables {
    level: Level,
    ram: OnceLock<Ram>,
    copies: Mutex<FxHashMap<u64, Copy>>,
    generation: AtomicU64,
    epoch: AtomicU64,
}

/// Which frames of RAM are tables.
#[derive(Debug)]
struct Ram {
    /// The first frame.
    first: u64,
    /// One bit for each: it is one.
    known: Vec<AtomicU64>,
}

impl Tables {
    /// None; there is no RAM yet.
    #[must_use]
    pub fn new(level: Level) -> Self {
        Self {
            level,
            ram: OnceLock::new(),
            copies: Mutex::default(),
            generation: AtomicU64::new(1),
            epoch: AtomicU64::new(1),
        }
    }

    /// There are so many bytes of RAM at an address.
    pub fn set_ram(&self, base: u64, bytes: u64) {
        let frames = bytes >> rv::PAGE_SHIFT;
        let known = || (0..frames.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        self.ram.get_or_init(|| Ram { first: base >> rv::PAGE_SHIFT, known: known() });
    }

    /// Returns whether RAM is known.
    #[must_use]
    pub fn has_ram(&self) -> bool {
        self.ram.get().is_some()
    }

    /// A number that grows whenever what harts know of pages no longer holds: a frame turned out to be a
    /// table, so that stores to it matter; in check mode, also when a table was edited.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// A number that grows whenever a table is edited, so that it may translate otherwise, or met for the first time:
    /// until then, what was found out about tables and pages still holds.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn bit(&self, frame: u64) -> Option<(&AtomicU64, u64)> {
        let ram = self.ram.get()?;
        let number = frame.checked_sub(ram.first)?;
        ram.known.get((number / 64) as usize).map(|word| (word, 1 << (number % 64)))
    }

    /// Returns whether the frame holds a table.
    #[must_use]
    pub fn is_table(&self, frame: u64) -> bool {
        self.bit(frame).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn copies(&self) -> MutexGuard<'_, FxHashMap<u64, Copy>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A root is in use: its table, and those below it whose addresses are physical.
    pub fn learn_root(&self, frames: std::ops::Range<u64>, level: u8, words: &impl Words) {
        let mut copies = self.copies();
        for frame in frames {
            self.learn(&mut copies, frame, Some(level), words);
        }
    }

    /// A walk has read these entries.
    pub fn learn_walk(&self, refs: &[Reference], has_g: bool, words: &impl Words) {
        for entry in refs {
            let frame = entry.at >> rv::PAGE_SHIFT;
            if !self.is_table(frame) {
                let is_physical = entry.stage == Stage::G || !has_g;
                self.learn(&mut self.copies(), frame, is_physical.then_some(entry.level), words);
            }
        }
    }

    fn learn(&self, copies: &mut FxHashMap<u64, Copy>, frame: u64, level: Option<u8>, words: &impl Words) {
        let Some((known, bit)) = self.bit(frame) else { return };
        if known.load(Ordering::Relaxed) & bit != 0 {
            return;
        }
        let mut copy = Box::new([0; WORDS as usize]);
        for (number, word) in copy.iter_mut().enumerate() {
            let Some(value) = words.word((frame << rv::PAGE_SHIFT) + 8 * number as u64) else { return };
            *word = value;
        }
        known.fetch_or(bit, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
        self.epoch.fetch_add(1, Ordering::Release);
        let below: Vec<u64> = copy.iter().filter_map(|word| pointer(*word)).collect();
        copies.insert(frame, Copy { words: copy, level });
        if let Some(level) = level.and_then(|level| level.checked_sub(1)) {
            for child in below {
                self.learn(copies, child, Some(level), words);
            }
        }
    }

    /// Software has stored bytes at a physical address in a table.
    pub fn stored(&self, at: u64, bytes: u64, words: &impl Words) {
        let mut copies = self.copies();
        let mut is_edit = false;
        for at in (at & !7..at + bytes).step_by(8) {
            let Some(copy) = copies.get_mut(&(at >> rv::PAGE_SHIFT)) else { continue };
            let Some(word) = words.word(at) else { continue };
            let before = std::mem::replace(&mut copy.words[(at / 8 % WORDS) as usize], word);
            is_edit |= may_differ(before, word);
            let below = copy.level.and_then(|level| level.checked_sub(1));
            if let (Some(level), Some(child)) = (below, pointer(word)) {
                self.learn(&mut copies, child, Some(level), words);
            }
        }
        if !is_edit {
            return;
        }
        self.generation.fetch_add(1, Ordering::Release);
        if self.level == Level::Check {
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// The number of updates of A and D that hardware has made in these entries since software last stored there. They
    /// are counted once.
    pub fn take_updates(&self, refs: &[Reference]) -> u64 {
        let ad = (PteFlags::A | PteFlags::D).bits();
        let leaves = refs.iter().filter(|entry| entry.is_leaf());
        let mut copies = None;
        let mut updates = 0;
        for entry in leaves {
            let copies = copies.get_or_insert_with(|| self.copies());
            let Some(copy) = copies.get_mut(&(entry.at >> rv::PAGE_SHIFT)) else { continue };
            let word = &mut copy.words[(entry.at / 8 % WORDS) as usize];
            let changed = *word ^ entry.pte;
            updates += u64::from(changed != 0 && changed & !ad == 0 && entry.pte & changed == changed);
            *word = entry.pte;
        }
        updates
    }
}

/// Returns whether a table may translate otherwise since an entry of it was stored. For a leaf that looks as before,
/// hardware may have set A or D in between.
fn may_differ(before: u64, now: u64) -> bool {
    let is_valid = |word: u64| word & PteFlags::V.bits() != 0;
    let is_leaf = is_valid(now) && pointer(now).is_none();
    (is_valid(before) || is_valid(now)) && (before != now || is_leaf)
}

/// The frame that a valid pointer leads to.
fn pointer(word: u64) -> Option<u64> {
    (word & 0xf == PteFlags::V.bits()).then_some(word >> 10 & rv::csr::atp::PPN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// Zeroed RAM of 16 frames at 0x8000_0000.
    #[derive(Default)]
    struct Ram(RefCell<BTreeMap<u64, u64>>);

    impl Words for Ram {
        fn word(&self, at: u64) -> Option<u64> {
            (0x8000_0000..0x8001_0000).contains(&at).then(|| self.0.borrow().get(&at).copied().unwrap_or(0))
        }
    }

    fn tables() -> Tables {
        let tables = Tables::new(Level::Tlb);
        tables.set_ram(0x8000_0000, 0x1_0000);
        tables
    }

    const LEAF: u64 = 0x8_0009 << 10 | 0x17;

    #[test]
    fn updates_by_hardware_are_told_from_stores() {
        let (ram, tables) = (Ram::default(), tables());
        let set = |at: u64, value: u64| ram.0.borrow_mut().insert(at, value);
        set(0x8000_0000, 0x8_0001 << 10 | 1);
        tables.learn_root(0x8_0000..0x8_0001, 1, &ram);
        assert!(tables.is_table(0x8_0000) && tables.is_table(0x8_0001) && !tables.is_table(0x8_0002));
        let at = 0x8000_1010;
        let read = || Reference { stage: Stage::First, level: 0, input: 2, at, pte: ram.word(at).expect("RAM") };
        set(at, LEAF);
        tables.stored(at, 8, &ram);
        assert_eq!(tables.take_updates(&[read()]), 0);
        set(at, LEAF | 0x40);
        assert_eq!((tables.take_updates(&[read()]), tables.take_updates(&[read()])), (1, 0));
        set(at, LEAF | 0xc0);
        assert_eq!(tables.take_updates(&[read()]), 1);
        // Cleared by software, and set again by it.
        set(at, LEAF);
        tables.stored(at, 8, &ram);
        set(at, LEAF | 0xc0);
        tables.stored(at + 4, 4, &ram);
        assert_eq!(tables.take_updates(&[read()]), 0);
    }

    #[test]
    fn shortcuts_end_when_they_have_to() {
        for level in [Level::Tlb, Level::Check] {
            let (ram, tables) = (Ram::default(), Tables::new(level));
            assert!(!tables.has_ram() && !tables.is_table(0x8_0000));
            tables.set_ram(0x8000_0000, 0x1_0000);
            let before = tables.epoch();
            tables.learn_root(0x8_0000..0x8_0001, 0, &ram);
            assert!(tables.epoch() > before);
            let store = |at: u64, value: u64| {
                let before = tables.epoch();
                ram.0.borrow_mut().insert(at, value);
                tables.stored(at, 8, &ram);
                tables.epoch() > before
            };
            for (value, is_edit) in [(0, false), (6, false), (LEAF, true), (LEAF, true), (LEAF & !1, true), (8, false)]
            {
                assert_eq!(store(0x8000_0000, value), is_edit && level == Level::Check, "{value:#x}");
            }
            // At the last level there are no pointers to follow.
            assert_eq!(store(0x8000_0008, 0x8_0003 << 10 | 1), level == Level::Check);
            assert!(!store(0x8000_0008, 0x8_0003 << 10 | 1));
        }
    }

    #[test]
    fn tables_are_met_by_their_pointers() {
        let (ram, tables) = (Ram::default(), tables());
        tables.learn_root(0x8_0000..0x8_0001, 2, &ram);
        let before = tables.generation();
        ram.0.borrow_mut().insert(0x8000_0008, 0x8_0003 << 10 | 1);
        // At its last level, what looks like a pointer is none.
        ram.0.borrow_mut().insert(0x8000_4008, 0x8_0005 << 10 | 1);
        ram.0.borrow_mut().insert(0x8000_3000, 0x8_0004 << 10 | 1);
        tables.stored(0x8000_0008, 8, &ram);
        assert!(tables.is_table(0x8_0003) && tables.is_table(0x8_0004) && !tables.is_table(0x8_0005));
        assert!(tables.generation() > before);
        assert!(!tables.is_table(0x7_ffff) && !tables.is_table(0x8_0010));
    }
}
