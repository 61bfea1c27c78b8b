//! Tagged memory: each word says where it lies and whose it is, and is code that says where it lies.
//!
//! A word is `lui a0, PLACE`, a compressed `ret`, a byte with the owner's secret, and a byte for marks, which stores change. `PLACE`
//! is the word's place in the arena, crossed with the secret: to fetch another's word gives a wrong place.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use guests::paging::Page;
use guests::{board, ram};

/// Bytes of tagged memory: four superpages.
pub const ARENA_BYTES: u64 = 8 << 20;
/// The offset of the tagged memory from the start of RAM.
const ARENA_AT: u64 = 32 << 20;
/// Words in it.
const WORDS: u64 = ARENA_BYTES / 8;
const PAGE: u64 = rv::PAGE_BYTES;

const LUI_A0: u64 = 0x537;
const RET: u64 = 0x8082;
/// The bits that stores change.
const MARKS: u64 = 0xff << 56;

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Names this VM's number, which its secret comes from.
pub fn set_owner(number: u64) {
    NUMBER.store(number, Relaxed);
}

/// Bits 6 and 7 of it are reserved ones where the word is taken for an entry of a table, so that none is valid.
fn secret() -> u64 {
    0xc0 | NUMBER.load(Relaxed) & 0x3f
}

fn key() -> u64 {
    secret().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44
}

/// The first address of tagged memory.
pub fn arena() -> u64 {
    board().ram_start + ARENA_AT
}

/// Returns whether an address lies in it.
pub fn is_tagged(at: u64) -> bool {
    (arena()..arena() + ARENA_BYTES).contains(&at)
}

/// The return value of code at a tagged address.
pub fn fetched(at: u64) -> u64 {
    let place = ((at - arena()) / 8) ^ key();
    // `lui` extends the sign.
    i64::from((place << 12) as u32 as i32) as u64
}

/// The word at a tagged address, without marks.
pub fn word(at: u64) -> u64 {
    u64::from(fetched(at) as u32) | LUI_A0 | RET << 32 | secret() << 48
}

/// Returns whether a word is the one of that address, whatever its marks.
pub fn is_word_of(found: u64, at: u64) -> bool {
    (found ^ word(at)) & !MARKS == 0
}

/// Returns whether a word is of another VM.
pub fn is_anothers(found: u64) -> bool {
    found & 0xfff == LUI_A0 && found >> 32 & 0xffff == RET && found >> 48 & 0xff != secret()
}

/// The pages of tagged memory.
fn pages() -> impl Iterator<Item = (u64, &'static Page)> {
    (arena()..arena() + ARENA_BYTES).step_by(PAGE as usize).map(|at| (at, ram::page_at(at)))
}

fn words() -> impl Iterator<Item = (u64, &'static AtomicU64)> {
    pages().flat_map(|(at, page)| (at..).step_by(8).zip(&page.0))
}

/// Writes all of it.
pub fn write_all() {
    words().for_each(|(at, cell)| cell.store(word(at), Relaxed));
}

/// The first word that has changed apart from marks, or that is marked although `may_be_marked` forbids it: its address
/// and value.
pub fn first_damaged(may_be_marked: impl Fn(u64) -> bool) -> Option<(u64, u64)> {
    words()
        .map(|(at, cell)| (at, cell.load(Relaxed)))
        .find(|(at, found)| !is_word_of(*found, *at) || found & MARKS != 0 && !may_be_marked(*at))
}

/// One bit for each word.
pub struct Bits(&'static [Page]);

impl Bits {
    /// None is set.
    pub fn none() -> Self {
        Self(ram::pages((WORDS / 8 / PAGE) as usize))
    }

    fn cell(&self, at: u64) -> (&AtomicU64, u64) {
        let place = (at - arena()) / 8;
        let cell = (place / 64) as usize;
        (&self.0[cell / 512].0[cell % 512], 1 << (place % 64))
    }

    /// Sets that of the word at a tagged address.
    pub fn set(&self, at: u64) {
        let (cell, bit) = self.cell(at);
        cell.fetch_or(bit, Relaxed);
    }

    /// Returns whether it is set.
    pub fn is_set(&self, at: u64) -> bool {
        let (cell, bit) = self.cell(at);
        cell.load(Relaxed) & bit != 0
    }
}
