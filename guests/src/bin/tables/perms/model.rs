//! The right result of an access through one leaf: the privileged specification's "Virtual Address Translation
//! Process", steps 3 to 9, written anew. Nothing of the crate `rv` is used: Gnomon shares that.

use guests::paging::AdBits;

/// Instruction page fault.
const FETCH: u64 = 12;
/// Load page fault.
const LOAD: u64 = 13;
/// Store or AMO page fault.
const STORE: u64 = 15;

const V: u64 = 1 << 0;
const R: u64 = 1 << 1;
const W: u64 = 1 << 2;
const X: u64 = 1 << 3;
const U: u64 = 1 << 4;
/// Accessed.
pub const A: u64 = 1 << 6;
/// Dirty.
pub const D: u64 = 1 << 7;

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Load,
    Store,
    Amo,
    LoadReserved,
    /// A load-reserved and a store-conditional after it.
    Pair,
    Fetch,
}

pub const KINDS: [Kind; 6] = [Kind::Load, Kind::Store, Kind::Amo, Kind::LoadReserved, Kind::Pair, Kind::Fetch];

/// The privilege of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Supervisor,
    User,
}

/// An access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub kind: Kind,
    pub mode: Mode,
    pub sum: bool,
    pub mxr: bool,
}

/// The result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The exception, if there is one.
    pub cause: Option<u64>,
    /// The entry after it.
    pub entry: u64,
}

/// An access through `entry` at the level with that number, where a walk ends or has to end: the entry
/// is not a good pointer.
pub fn access(entry: u64, level: u32, access: Access, ad: AdBits) -> Outcome {
    match access.kind {
        Kind::Load | Kind::LoadReserved => load(entry, level, access, ad),
        // "AMOs never raise load page-fault exceptions. Since any unreadable page is also unwritable [...]".
        Kind::Store | Kind::Amo => store(entry, level, access, ad),
        Kind::Pair => match load(entry, level, access, ad) {
            Outcome { cause: None, entry } => store(entry, level, access, ad),
            fault => fault,
        },
        Kind::Fetch => {
            let is_of_mode = (entry & U != 0) == (access.mode == Mode::User);
            finish(entry, level, FETCH, is_of_mode && entry & X != 0, A, ad)
        }
    }
}

fn load(entry: u64, level: u32, access: Access, ad: AdBits) -> Outcome {
    let is_readable = entry & R != 0 || access.mxr && entry & X != 0;
    finish(entry, level, LOAD, is_readable && may_touch(entry, access), A, ad)
}

fn store(entry: u64, level: u32, access: Access, ad: AdBits) -> Outcome {
    finish(entry, level, STORE, entry & W != 0 && may_touch(entry, access), A | D, ad)
}

/// Returns whether U and SUM let the mode load or store at all.
fn may_touch(entry: u64, access: Access) -> bool {
    match access.mode {
        Mode::User => entry & U != 0,
        Mode::Supervisor => entry & U == 0 || access.sum,
    }
}

/// `needed`: the bits of A and D that the access sets, or must find set.
fn finish(entry: u64, level: u32, cause: u64, is_allowed: bool, needed: u64, ad: AdBits) -> Outcome {
    let fault = Outcome { cause: Some(cause), entry };
    if !is_leaf(entry, level) || !is_allowed {
        return fault;
    }
    match ad {
        AdBits::Software if entry & needed != needed => fault,
        AdBits::Software => Outcome { cause: None, entry },
        AdBits::Hardware => Outcome { cause: None, entry: entry | needed },
    }
}

/// Returns whether the entry is a legal leaf where neither Svnapot nor Svpbmt give bits 63 to 61 a meaning.
fn is_leaf(entry: u64, level: u32) -> bool {
    let frame = entry >> 10 & ((1 << 44) - 1);
    let is_aligned = frame & ((1 << (9 * level)) - 1) == 0;
    let is_write_only = entry & W != 0 && entry & R == 0;
    entry & V != 0 && !is_write_only && entry & (R | X) != 0 && entry >> 54 == 0 && is_aligned
}
