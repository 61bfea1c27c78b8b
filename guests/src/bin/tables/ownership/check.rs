//! The judgement of an access: its result must be one that the tables allowed since the fences. The walk goes over all
//! values that each entry had.

use crate::tables::{self, Since, Table, Tables};
use crate::tag::{self, Bits};
use guests::board;
use guests::expect::{FETCH_ACCESS, FETCH_PAGE, ILLEGAL, LOAD_ACCESS, LOAD_PAGE, STORE_ACCESS, STORE_PAGE};
use guests::trap::Trap;

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `ld`
    Load,
    /// `lr.d`
    Reserve,
    /// `amoadd.d`, to the marks.
    Add,
    /// `sb`, to the marks.
    Store,
    /// A call.
    Fetch,
}

impl Kind {
    /// The causes of its page fault and its access fault.
    fn causes(self) -> [u64; 2] {
        match self {
            Self::Load | Self::Reserve => [LOAD_PAGE, LOAD_ACCESS],
            Self::Add | Self::Store => [STORE_PAGE, STORE_ACCESS],
            Self::Fetch => [FETCH_PAGE, FETCH_ACCESS],
        }
    }
}

/// An access, and what it came to.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub kind: Kind,
    pub space: usize,
    pub page: u64,
    /// Within the page, of a word.
    pub offset: u64,
    /// True if supervisor mode may use the user's pages (SUM).
    pub may_use_users: bool,
    /// The value that was read (none by a store), or the trap.
    pub found: Result<u64, Trap>,
}

impl Access {
    /// The address that it uses.
    pub fn address(&self) -> u64 {
        // Marks are the last byte of a word.
        tables::address(self.page) + self.offset + if self.kind == Kind::Store { 7 } else { 0 }
    }
}

/// A possible result of an access.
#[derive(Clone, Copy)]
enum Outcome {
    PageFault,
    /// A page fault or an access fault: QEMU has its own way.
    EitherFault,
    /// The access reaches this address.
    At(u64),
}

/// The target of an entry.
enum Step<'a> {
    Table(&'a Table),
    End(Outcome),
}

/// An entry's fields, by the specification and not by what Gnomon uses itself.
const V: u64 = 1;
const R: u64 = 1 << 1;
const W: u64 = 1 << 2;
const X: u64 = 1 << 3;
const U: u64 = 1 << 4;
const G: u64 = 1 << 5;
const A: u64 = 1 << 6;
const D: u64 = 1 << 7;
const RESERVED: u64 = !0 << 54;

/// A search for what explains an access.
pub struct Search<'a> {
    tables: &'a Tables,
    access: Access,
    since: Since,
    /// The words that a store may have reached.
    reached: &'a Bits,
    is_explained: bool,
}

impl<'a> Search<'a> {
    /// Returns whether something explains the access, which was made after the fences that `since` tells.
    pub fn explains(tables: &'a Tables, access: Access, since: Since, reached: &'a Bits) -> bool {
        if access.found.is_err_and(|trap| trap.tval != access.address() && trap.cause != ILLEGAL) {
            return false;
        }
        let mut search = Search { tables, access, since, reached, is_explained: false };
        // Global leaves of another space may be used in this one.
        for space in 0..tables::SPACES {
            search.walk(tables.root(space), 2, u64::MAX, space == access.space);
        }
        search.is_explained
    }

    /// Goes on at a table, whose pointers were valid until `pointers`.
    fn walk(&mut self, table: &Table, level: u32, pointers: u64, is_own: bool) {
        for (entry, until) in table.values(self.access.page, level) {
            if until < self.since.pointers[1] {
                continue;
            }
            // Fences by address cover leaves, and what is no entry on the last level.
            let is_leaf = entry & (R | X) != 0 || level == 0;
            let (above, leaf) = if is_leaf { (pointers, until) } else { (pointers.min(until), u64::MAX) };
            match self.step(entry, level) {
                Step::Table(next) => self.walk(next, level - 1, above, is_own),
                Step::End(outcome) => {
                    let is_global = entry & G != 0;
                    let row = usize::from(is_global);
                    if (is_own || is_global) && above >= self.since.pointers[row] && leaf >= self.since.leaves[row] {
                        self.conclude(outcome);
                    }
                }
            }
        }
    }

    /// Follows an entry.
    fn step(&self, entry: u64, level: u32) -> Step<'a> {
        let at = entry >> 10 << 12 & !(RESERVED << 2);
        let within = (1 << (12 + 9 * level)) - 1;
        if entry & V == 0 || entry & (R | W) == W || entry & RESERVED != 0 {
            Step::End(Outcome::PageFault)
        } else if entry & (R | X) != 0 {
            let is_aligned = at & within == 0;
            let at = at | (tables::address(self.access.page) + self.access.offset) & within;
            Step::End(if is_aligned && self.is_allowed(entry) { Outcome::At(at) } else { Outcome::PageFault })
        } else if level == 0 || entry & (A | D | U) != 0 {
            Step::End(Outcome::PageFault)
        } else if let Some(next) = self.tables.at(at) {
            Step::Table(next)
        } else if is_memory(at) {
            // A page of zeros, or tagged ones, which are no valid entries.
            Step::End(Outcome::PageFault)
        } else {
            // A table where no memory is: of QEMU that is a page fault.
            Step::End(Outcome::EitherFault)
        }
    }

    fn is_allowed(&self, leaf: u64) -> bool {
        let needed = match self.access.kind {
            Kind::Load | Kind::Reserve => R | A,
            Kind::Add | Kind::Store => W | A | D,
            Kind::Fetch => X | A,
        };
        let is_user = leaf & U != 0;
        let user_is_allowed = self.access.may_use_users && self.access.kind != Kind::Fetch;
        leaf & needed == needed && (!is_user || user_is_allowed)
    }

    /// This may have come of it.
    fn conclude(&mut self, outcome: Outcome) {
        let Access { kind, found, .. } = self.access;
        let [page_fault, access_fault] = kind.causes();
        let traps = |causes: &[u64]| found.is_err_and(|trap| causes.contains(&trap.cause));
        self.is_explained |= match outcome {
            Outcome::PageFault => traps(&[page_fault]),
            Outcome::EitherFault => traps(&[page_fault, access_fault]),
            Outcome::At(at) if tag::is_tagged(at) => {
                if found.is_ok() && matches!(kind, Kind::Add | Kind::Store) {
                    self.reached.set(at);
                }
                found.is_ok_and(|value| match kind {
                    Kind::Load | Kind::Reserve | Kind::Add => tag::is_word_of(value, at),
                    Kind::Store => true,
                    Kind::Fetch => value == tag::fetched(at),
                })
            }
            Outcome::At(at) if at >= board().ram_end() => traps(&[access_fault]),
            // The image, tables.
            Outcome::At(at) if at >= board().ram_start + IMAGE_AT => found.is_ok(),
            // Devices, and what is a bare machine's firmware.
            Outcome::At(_) => found.is_ok() || traps(&[access_fault, ILLEGAL]),
        } && !found.is_ok_and(tag::is_anothers);
    }
}

/// Returns whether memory is there that is no firmware's.
fn is_memory(at: u64) -> bool {
    (board().ram_start + IMAGE_AT..board().ram_end()).contains(&at)
}

/// The image, after the start of RAM.
pub const IMAGE_AT: u64 = 2 << 20;
