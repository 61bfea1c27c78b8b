//! Entries of the tables that hardware walks, under both engines: the states of an entry, the writers that may move it
//! from one to another, and the one way to write it, which returns the debt of the write (SPENT).
//!
//! | from | to | engine, under its lock | lane | hardware |
//! |---|---|---|---|---|
//! | any | empty, poison, leaf | yes | | |
//! | any | pointer | above level 0 | | |
//! | any | poison | yes | at level 0 | |
//! | any | leaf, empty | yes | at level 0, where it holds the gate (`shadow::lane`) | |
//! | leaf | the same with A or D | yes | | behind a G-stage with [`crate::Ad::Hardware`]; else never: all leaves have A, and D where they allow stores |
//!
//! Poison comes in two kinds. Where page faults come to Gnomon it has V clear. Where the guest gets them itself
//! (`steered`) it is valid and leads to a frame that no hart lets a guest reach ([`poison_pointer`], [`poison_leaf`]):
//! so an access by it ends in an *access* fault or a *guest-page* fault, which comes to Gnomon.

use bitflags::bitflags;
use rv::{Addr, Hpa, Level, PhysMem, Pte, PteFlags};

/// The state of an entry for hardware, and for the lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Invalid and 0: maps nothing, and keeps nothing.
    Empty,
    /// Invalid, because a fence has passed over it. Its value, a token, was never there before
    /// ([`lane::context::token`]): so no value that was read from the entry earlier equals it. Or valid, and leading to
    /// a frame that no hart lets a guest reach.
    Poison,
    /// Maps memory.
    Leaf,
    /// Leads to the next table.
    Pointer,
}

/// The writer of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// The engine, whose caller holds the VM's lock.
    Engine,
    /// The lane, where it takes no lock (`docs/lane.md`).
    Lane,
    /// The lane where it holds the gate.
    LaneAlone,
    /// A hardware walker that sets A and D.
    Hardware,
}

impl State {
    /// Returns the state of `entry`.
    #[must_use]
    pub const fn of(entry: Pte) -> Self {
        if !entry.flags().contains(PteFlags::V) {
            return if entry.0 == 0 { State::Empty } else { State::Poison };
        }
        if is_poison(entry) {
            return State::Poison;
        }
        if entry.is_pointer() { State::Pointer } else { State::Leaf }
    }

    /// Returns whether `writer` may bring an entry of a table of `level` into this state.
    #[must_use]
    pub fn may_be_made_by(self, writer: Writer, level: Level) -> bool {
        match writer {
            Writer::Engine => self != State::Pointer || level > Level::PAGE,
            Writer::Lane => self == State::Poison && level == Level::PAGE,
            Writer::LaneAlone => matches!(self, State::Leaf | State::Empty) && level == Level::PAGE,
            Writer::Hardware => false,
        }
    }
}

bitflags! {
    /// The uses of an entry's old value that TLBs may still make although the tables no longer allow them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Owed: u8 {
        /// Translate by a leaf.
        const LEAVES = 1;
        /// Let a store through.
        const STORES = 2;
        /// Walk by a pointer. A fence by address need not end that (norm:sfence-vma_ordering_semantics).
        const POINTERS = 4;
    }
}

/// The fences that edits of tables owe the TLBs. A debt is spent by a fence ([`Debt::paid`]), or given up for a stated
/// reason ([`Debt::waive`]); tests check that none is lost.
#[must_use = "an edit is not in force until what it owes is fenced, or waived for a reason"]
#[derive(PartialEq, Eq, Debug)]
pub struct Debt(Owed);

impl Debt {
    /// Nothing is owed.
    pub const fn none() -> Self {
        Debt(Owed::empty())
    }

    /// Returns the debt of an entry that was `old` and is `new`. `old` may have been in TLBs, `new` may be at once.
    #[inline]
    pub fn of(old: Pte, new: Pte) -> Self {
        let (was, is) = (old.flags(), new.flags());
        Debt(match State::of(old) {
            State::Empty | State::Poison => Owed::empty(),
            _ if old == new => Owed::empty(),
            State::Pointer => Owed::all(),
            State::Leaf if State::of(new) == State::Leaf && old.pfn::<Hpa>() == new.pfn() && is.contains(was) => {
                Owed::empty()
            }
            State::Leaf if was.contains(PteFlags::W) => Owed::LEAVES | Owed::STORES,
            State::Leaf => Owed::LEAVES,
        })
    }

    /// Adds to it.
    pub fn add(&mut self, other: Debt) {
        self.0 |= other.paid();
    }

    /// Returns whether some of `what` is owed.
    #[must_use]
    pub const fn owes(&self, what: Owed) -> bool {
        self.0.intersects(what)
    }

    /// Marks the debt as paid by a fence, and returns it.
    pub fn paid(mut self) -> Owed {
        core::mem::replace(&mut self.0, Owed::empty())
    }

    /// Waives the debt, which is the guest's own affair: real hardware's TLBs may hold as much, until the guest's own
    /// fence. Returns it.
    pub fn waive(self) -> Owed {
        self.paid()
    }

    /// Takes all of it, leaving nothing.
    pub fn take(&mut self) -> Debt {
        core::mem::replace(self, Debt::none())
    }
}

#[cfg(feature = "sabotage")]
impl Drop for Debt {
    fn drop(&mut self) {
        assert!(self.0.is_empty() || std::thread::panicking(), "SPENT: {:?} is owed", self.0);
    }
}

/// The frame that valid poison leads to: the first in the upper half of what an entry can name. No machine has memory there, and
/// nothing lets a guest go there: no PMP entry of Gnomon's (privileged specification, 3.7.1) or, where PMP is another's, no leaf of
/// the G-stage that steered guests have then.
const DENIED: u64 = 1 << 43;
const DENIED_BITS: u64 = DENIED << 10;

/// Returns whether the entry is valid poison.
#[must_use]
pub const fn is_poison(entry: Pte) -> bool {
    const KIND: u64 = PteFlags::V.bits() | DENIED_BITS;
    entry.0 & KIND == KIND
}

/// The poison of levels above 0. A walk that comes by is an access fault (or guest-page fault) of the kind that the access was, whatever
/// its mode.
#[must_use]
pub const fn poison_pointer() -> Pte {
    Pte(DENIED_BITS | PteFlags::V.bits())
}

/// The poison of level 0: it allows all that an entry with this U can, so that what comes of an access by it is an access
/// fault, unless U forbids the access.
#[must_use]
pub const fn poison_leaf(user: bool) -> Pte {
    const ALL: PteFlags =
        PteFlags::V.union(PteFlags::R).union(PteFlags::W).union(PteFlags::X).union(PteFlags::A).union(PteFlags::D);
    Pte(DENIED_BITS | ALL.bits() | if user { PteFlags::U.bits() } else { 0 })
}

/// Writes an entry of a table that no hart walks yet, before the table is linked: so it owes nothing.
pub fn write_unlinked(at: Addr<Hpa>, entry: Pte, mem: &mut impl PhysMem) {
    mem.write_u64(at, entry.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: Pte = Pte(0x80 << 10 | 0xdf);
    const POINTER: Pte = Pte(0x80 << 10 | 1);

    #[test]
    fn what_an_edit_owes() {
        let read_only = Pte(LEAF.0 & !0x84);
        let elsewhere = Pte(0x81 << 10 | 0xdf);
        for (old, new, owed) in [
            (Pte::INVALID, LEAF, Owed::empty()),
            (Pte(8), POINTER, Owed::empty()),
            (LEAF, LEAF, Owed::empty()),
            (read_only, LEAF, Owed::empty()),
            (LEAF, read_only, Owed::LEAVES | Owed::STORES),
            (LEAF, elsewhere, Owed::LEAVES | Owed::STORES),
            (LEAF, POINTER, Owed::LEAVES | Owed::STORES),
            (read_only, elsewhere, Owed::LEAVES),
            (read_only, Pte(8), Owed::LEAVES),
            (POINTER, Pte::INVALID, Owed::all()),
            (POINTER, LEAF, Owed::all()),
        ] {
            assert_eq!(Debt::of(old, new).paid(), owed, "{old:x?} to {new:x?}");
        }
    }

    #[test]
    fn the_lane_writes_at_level_0_and_hardware_nothing() {
        for state in [State::Empty, State::Poison, State::Leaf, State::Pointer] {
            for level in [Level::PAGE, Level::MEGA] {
                let lane = state == State::Poison && level == Level::PAGE;
                assert_eq!(state.may_be_made_by(Writer::Lane, level), lane);
                let alone = matches!(state, State::Leaf | State::Empty) && level == Level::PAGE;
                assert_eq!(state.may_be_made_by(Writer::LaneAlone, level), alone);
                assert!(!state.may_be_made_by(Writer::Hardware, level));
            }
        }
        assert!(!State::Pointer.may_be_made_by(Writer::Engine, Level::PAGE));
    }
}
