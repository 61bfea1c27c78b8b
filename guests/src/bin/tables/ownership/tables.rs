//! The tables that all harts edit at once, what each entry has been and until when, and which fences each hart has had.
//!
//! Times are of one clock that each question moves on. An entry's value was valid until a time taken after the store of the next one;
//! a fence is of a time taken before it is made. So what was valid until before a fence is not to be used after it.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use guests::fences::{Fence, Reach};
use guests::paging::{Page, Space, page};
use guests::{board, hart, ram};
use rv::Level;
use spin::Mutex;

/// The indices that addresses use, in each table. (Those before map memory to itself, in the uppermost.)
const LIVE: [u64; 4] = [16, 17, 18, 19];
/// Pages that addresses lie in: each index on three levels.
pub const PAGES: u64 = 64;
/// Address spaces.
pub const SPACES: usize = 2;
/// Tables: first those that the spaces begin with. Any entry may point to any of them.
pub const TABLES: usize = SPACES + 6;

/// The level on which a table is mostly used.
pub fn level(table: usize) -> u32 {
    match table {
        0..SPACES => 2,
        SPACES..5 => 1,
        _ => 0,
    }
}

/// Values that are known of an entry.
const KNOWN: usize = 8;
/// The end of a value that is still valid.
const NOW: u64 = u64::MAX;

static CLOCK: AtomicU64 = AtomicU64::new(1);

fn tick() -> u64 {
    CLOCK.fetch_add(1, SeqCst)
}

/// An entry, and its values with the times until which they were valid, the newest first.
struct Slot {
    cell: &'static AtomicU64,
    values: Mutex<[(u64, u64); KNOWN]>,
}

/// One table.
pub struct Table {
    /// Its page.
    pub page: &'static Page,
    slots: [Slot; LIVE.len()],
}

impl Table {
    fn of(page: &'static Page) -> Self {
        let slot = |index: u64| {
            let mut values = [(0, 0); KNOWN];
            values[0].1 = NOW;
            Slot { cell: &page.0[index as usize], values: Mutex::new(values) }
        };
        Self { page, slots: LIVE.map(slot) }
    }

    /// The known values of the entry that a page's address uses at a level.
    pub fn values(&self, page: u64, level: u32) -> [(u64, u64); KNOWN] {
        *self.slots[index(page, level)].values.lock()
    }
}

/// Which of [`LIVE`] a page's address has at a level.
pub fn index(page: u64, level: u32) -> usize {
    (page >> (2 * level) & 3) as usize
}

/// The address of a page.
pub fn address(page: u64) -> u64 {
    (0..3).map(|level| LIVE[index(page, level)] << (12 + 9 * level)).sum()
}

/// A column of [`Fenced`]: fences of all addresses.
const WHOLE: usize = PAGES as usize;

/// The last fences of a hart: of all ASIDs (row 0) or one space's; of one page or all.
struct Fenced {
    times: [[AtomicU64; PAGES as usize + 1]; 1 + SPACES],
    /// The hart asks for nothing that was valid only until before this time.
    needs: AtomicU64,
}

static FENCED: [Fenced; hart::MAX] = [const {
    Fenced {
        times: [const { [const { AtomicU64::new(0) }; PAGES as usize + 1] }; 1 + SPACES],
        needs: AtomicU64::new(0),
    }
}; hart::MAX];

/// Since when entries are to be followed: the times of the fences that a hart has had for a page in a space.
#[derive(Clone, Copy)]
pub struct Since {
    /// Pointers to tables; by whether the leaf is global, which fences of an ASID do not cover.
    pub pointers: [u64; 2],
    /// Leaves.
    pub leaves: [u64; 2],
}

/// Those of this hart.
pub fn since(space: usize, page: u64) -> Since {
    let times = &FENCED[hart::id() as usize].times;
    let of = |row: usize, column: usize| times[row][column].load(SeqCst);
    let pointers_of = |row| of(row, WHOLE);
    let leaves_of = |row| of(row, WHOLE).max(of(row, page as usize));
    Since {
        pointers: [pointers_of(0).max(pointers_of(1 + space)), pointers_of(0)],
        leaves: [leaves_of(0).max(leaves_of(1 + space)), leaves_of(0)],
    }
}

/// Says that this hart has forgotten what it asked before its last fence of everything.
pub fn forget() {
    let own = &FENCED[hart::id() as usize];
    own.needs.store(own.times[0][WHOLE].load(SeqCst), SeqCst);
}

/// Says that this hart asks no more.
pub fn end() {
    FENCED[hart::id() as usize].needs.store(NOW, SeqCst);
}

/// Makes a fence for a page in a space, and notes it.
pub fn make(fence: &Fence, space: usize, page: u64) {
    let time = tick();
    fence.make(address(page), asid(space));
    let row = if fence.is_by_asid { 1 + space } else { 0 };
    let column = if fence.is_by_address { page as usize } else { WHOLE };
    let note = |hart: u64| FENCED[hart as usize].times[row][column].fetch_max(time, SeqCst);
    match fence.reach {
        Reach::Local => _ = note(hart::id()),
        Reach::Everybody => board().harts().iter().for_each(|hart| _ = note(*hart)),
    }
}

/// The ASID of a space.
pub fn asid(space: usize) -> u64 {
    1 + space as u64
}

/// All tables.
pub struct Tables([Table; TABLES]);

impl Tables {
    /// Empty ones under those spaces.
    pub fn under(spaces: &[Space; SPACES]) -> Self {
        let table_of = |space: &Space| {
            let cell = core::ptr::from_ref(space.slot(LIVE[0] << 30, Level::GIGA)).expose_provenance() as u64;
            ram::page_at(cell & !(rv::PAGE_BYTES - 1))
        };
        Self(core::array::from_fn(|index| Table::of(spaces.get(index).map_or_else(page, table_of))))
    }

    /// The table with which a space begins.
    pub fn root(&self, space: usize) -> &Table {
        &self.0[space]
    }

    /// All.
    pub fn all(&self) -> &[Table] {
        &self.0
    }

    /// The table at an address, if one is there.
    pub fn at(&self, at: u64) -> Option<&Table> {
        self.0.iter().find(|table| table.page.address() == at)
    }

    /// Stores a value to an entry, unless what would no longer be known of the entry is still asked for by some hart: then those
    /// harts need a fence. Says whether it stored.
    #[must_use]
    pub fn edit(&self, table: usize, slot: usize, value: u64) -> bool {
        let slot = &self.0[table].slots[slot];
        let mut values = slot.values.lock();
        let needed = board().harts().iter().map(|hart| FENCED[*hart as usize].needs.load(SeqCst)).min();
        if needed.is_none_or(|needed| values[KNOWN - 1].1 >= needed.max(1)) {
            return false;
        }
        values.rotate_right(1);
        values[0] = (value, NOW);
        slot.cell.store(value, Relaxed);
        values[1].1 = tick();
        true
    }
}
