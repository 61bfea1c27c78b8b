//! Loads and stores. Most are known to change nothing in a TLB, and are only counted.

use super::{Hart, Machine, Scoreboard, space_of};
use crate::args::Level;
use crate::block::NOWHERE;
use crate::counts::Accesses;
use crate::insn::Memory;
use crate::mode::Mode;
use crate::model::Use;
use crate::shared::{Mark, Shared};

/// The test device of QEMU's `virt` board, by which software powers it off or resets it.
const POWER_OFF: u64 = 0x10_0000;

/// An access, once it was made, as a callback is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryAccess {
    /// Its virtual address.
    pub at: u64,
    /// log2 of its bytes.
    pub shift: u32,
    /// The mode whose translation the access used, from [`Mode::from_mmu_index`].
    pub mmu_index: u32,
    /// The instruction that made it.
    pub site: AccessSite,
}

/// The common properties of all accesses of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessSite(u8);

/// More than there are sites, and a power of two.
const SITES: usize = 64;
/// More than there are indices of softmmu tables, and a power of two.
const MMU_INDICES: usize = 8;

impl AccessSite {
    /// An instruction of a kind, in a mode.
    #[must_use]
    pub const fn new(memory: Memory, code: Mode) -> Self {
        Self(memory as u8 | (code as u8) << 3)
    }

    /// The kind as a number less than 64.
    #[must_use]
    pub const fn pack(self) -> u64 {
        self.0 as u64
    }

    /// The site of this number.
    #[must_use]
    pub const fn unpack(packed: u64) -> Self {
        Self(packed as u8 & (SITES - 1) as u8)
    }

    /// The kind of the instruction.
    #[must_use]
    pub fn memory(self) -> Memory {
        Memory::from_index(usize::from(self.0 & 7))
    }

    const fn is_store(self) -> bool {
        self.0 & 7 >= Memory::Store as u8
    }
}

// What stores comes last.
const _: () = assert!((Memory::Load as u8) < Memory::Store as u8 && (Memory::None as u8) < Memory::Store as u8);

impl MemoryAccess {
    /// The page, and whose translation it is: equal for accesses that do the same to a TLB. Never 0.
    const fn key(&self) -> u64 {
        let is_m = (self.mmu_index & 3 == 3) as u64;
        let is_virtual = self.mmu_index as u64 & 4;
        (self.at >> rv::PAGE_SHIFT << 3 | is_virtual | is_m) + 1
    }

    /// The mode whose translation it used.
    const fn mode(&self) -> Mode {
        Mode::from_mmu_index(self.mmu_index)
    }

    /// Its last byte.
    const fn end(&self) -> u64 {
        self.at.wrapping_add((1 << self.shift) - 1)
    }

    const fn is_aligned(&self) -> bool {
        self.at & ((1 << self.shift) - 1) == 0
    }
}

/// The need to examine an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// All of its effects are known.
    Before,
    /// The access has to be examined.
    Never,
}

/// Accesses that were made, by site and index of the softmmu table.
#[derive(Clone, Debug)]
pub(super) struct Made(Box<[[u64; MMU_INDICES]; SITES]>);

impl Default for Made {
    fn default() -> Self {
        Self(Box::new([[0; MMU_INDICES]; SITES]))
    }
}

impl Made {
    #[inline]
    fn count(&mut self, access: MemoryAccess) {
        self.0[usize::from(access.site.0) % SITES][access.mmu_index as usize % MMU_INDICES] += 1;
    }

    /// By the modes of code and translation, and the kind.
    pub(super) fn accesses(&self) -> Accesses {
        let mut accesses = Accesses::default();
        for (code, memory) in Mode::ALL.iter().flat_map(|code| Memory::ALL.map(|memory| (*code, memory))) {
            let made = &self.0[usize::from(AccessSite::new(memory, code).0)];
            for (index, count) in made.iter().enumerate() {
                // QEMU zeroes a block byte by byte, and it is one look into the TLB.
                let looks = if memory == Memory::Block { count / BLOCK_BYTES } else { *count };
                let used = Mode::from_mmu_index(index as u32);
                accesses[code.index()][used.index()][memory as usize] += looks;
            }
        }
        accesses
    }
}

/// The bytes that `cbo.zero` zeroes.
const BLOCK_BYTES: u64 = 64;

/// A page that was accessed lately.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    page: u64,
    mode: Option<Mode>,
}

/// The two pages that were accessed last: going back and forth between them changes nothing in a TLB
/// but which of the two is the more recent. That is told to TLBs before anything else is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filter {
    /// For each page, what loads and what stores are known by; 0 is none. A store may pass if D is known to
    /// be set, and the page is no table.
    keys: [[u64; 2]; 2],
    pages: [Recent; 2],
    /// Which is the more recent.
    last: usize,
    /// True if the two pages have changed places since the TLBs' last look-up.
    has_swapped: bool,
    /// Of [`Shared::epoch`]: what was known before does not hold.
    epoch: u64,
}

impl Filter {
    #[inline]
    fn knows(&mut self, key: u64, is_store: bool) -> Seen {
        let kind = usize::from(is_store);
        if self.keys[self.last & 1][kind] == key {
            return Seen::Before;
        }
        let other = (self.last & 1) ^ 1;
        if self.keys[other][kind] == key {
            self.last = other;
            self.has_swapped = true;
            return Seen::Before;
        }
        Seen::Never
    }

    fn remember(&mut self, key: u64, passes_stores: bool, page: Recent, keeps_two: bool) {
        if self.keys[self.last][0] != key && keeps_two {
            self.last ^= 1;
        }
        self.keys[self.last] = [key, if passes_stores { key } else { 0 }];
        self.pages[self.last] = page;
    }
}

impl Hart {
    /// A load or store was made. Counts it, and says whether all is known that it can have done; else
    /// [`Hart::access_anew`] has to be told, too.
    #[inline]
    pub fn access(&mut self, access: MemoryAccess, shared: &Shared) -> Seen {
        self.made.count(access);
        // What is aligned does not reach into the next page.
        if self.filter.epoch != shared.epoch() || !access.is_aligned() {
            return Seen::Never;
        }
        self.filter.knows(access.key(), access.site.is_store())
    }

    /// The access that [`Hart::access`] has never seen.
    pub fn access_anew(
        &mut self,
        access: MemoryAccess,
        board: &mut Scoreboard,
        shared: &Shared,
        machine: &impl Machine,
    ) {
        let (at, mode, is_store) = (access.at, access.mode(), access.site.is_store());
        self.catch_up(board, shared);
        self.settle();
        let how = if is_store { Use::Store } else { Use::Load };
        self.translate(at, mode, how, shared, machine);
        let crosses = (at ^ access.end()) >> rv::PAGE_SHIFT != 0;
        if crosses {
            self.counts.crossings[mode.index()] += 1;
            self.translate(access.end(), mode, how, shared, machine);
        }
        let stored = if is_store { machine.physical() } else { None };
        if stored == Some(POWER_OFF) {
            self.mark(Mark::PowerOff, board, shared);
        }
        let Some(tables) = shared.tables() else { return };
        let mut is_table = false;
        if let Some(physical) = stored.filter(|physical| tables.is_table(physical >> rv::PAGE_SHIFT)) {
            is_table = true;
            tables.stored(physical, 1 << access.shift, machine);
        }
        let epoch = shared.epoch();
        if self.filter.epoch != epoch {
            self.filter = Filter { epoch, ..Filter::default() };
            if shared.level == Level::Check {
                // The code may be behind one of the tables that have changed.
                board.place = NOWHERE;
            }
        }
        if crosses {
            self.forget_recent();
            return;
        }
        let page = Recent { page: at >> rv::PAGE_SHIFT, mode: Some(mode) };
        self.filter.remember(access.key(), is_store && !is_table, page, self.keeps_two);
    }

    /// Forgets the last accesses: the TLBs' last look-up was another one, or their pages may have left the TLBs.
    pub(super) fn forget_recent(&mut self) {
        self.filter = Filter { epoch: self.filter.epoch, ..Filter::default() };
    }

    /// Tells TLBs which of the two pages of the filter is the more recent.
    pub(super) fn settle(&mut self) {
        if !std::mem::take(&mut self.filter.has_swapped) {
            return;
        }
        let last = self.filter.last;
        for recent in [self.filter.pages[last ^ 1], self.filter.pages[last]] {
            if let Some(space) = recent.mode.and_then(|mode| space_of(&self.spaces, mode)) {
                self.models.iter_mut().for_each(|model| model.touch(recent.page, space.ids));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_pack() {
        for (code, memory) in Mode::ALL.iter().flat_map(|code| Memory::ALL.map(|memory| (*code, memory))) {
            let site = AccessSite::new(memory, code);
            assert_eq!(AccessSite::unpack(site.pack()), site);
            assert_eq!((site.memory(), site.is_store()), (memory, memory.is_store()));
            let mut made = Made::default();
            for _ in 0..BLOCK_BYTES {
                made.count(MemoryAccess { at: 0, shift: 0, mmu_index: 5, site });
            }
            let expected = if memory == Memory::Block { 1 } else { BLOCK_BYTES };
            assert_eq!(made.accesses()[code.index()][Mode::VS.index()][memory as usize], expected);
        }
    }

    #[test]
    fn keys_tell_pages_and_translations_apart() {
        let key = |at, mmu_index| MemoryAccess { at, shift: 3, mmu_index, site: AccessSite(0) }.key();
        // U, S and S with SUM have one translation; M none; V=1 another.
        assert!(key(0x1000, 0) == key(0x1ff8, 1) && key(0x1000, 1) == key(0x1000, 2));
        assert!(key(0x1000, 4) == key(0x1000, 6));
        let all = [key(0x1000, 0), key(0x1000, 3), key(0x1000, 4), key(0x2000, 0), key(0, 0)];
        assert!(all.iter().enumerate().all(|(place, key)| *key != 0 && !all[..place].contains(key)));
    }
}
