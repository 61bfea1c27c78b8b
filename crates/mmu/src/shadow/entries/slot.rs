//! The places of entries in shadow tables, and the only functions that write them: no module but [`super`] can call these. Each write says
//! which [`Act`] it is, and returns what it owes (SPENT). In tests it asks the table of transitions whether that act may make it.

use crate::table::Debt;
#[cfg(any(test, feature = "sabotage"))]
use crate::table::State;
use rv::{Addr, Hpa, Level, PhysMem, Pte, PteFlags};

/// The software bit of a leaf of 2 MiB that stands for a shadow page of level 0, and in place of the pointer to it (`coalesce`).
pub const COALESCED: PteFlags = PteFlags::RSW1;

/// A cause of a change of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// A fault or a comparison makes a leaf of the guest's entry.
    Set,
    /// The guest's table is to be write-protected: a leaf loses W.
    Withdraw,
    /// The entry goes, with the mirror.
    Drop,
    /// A fence by address passes over an entry that the next fault finds again.
    Invalidate,
    /// A shadow page is linked.
    Link,
    /// An entry that leads nowhere is made of the guest's.
    Refuse,
    /// One leaf of 2 MiB comes to stand for a page's leaves.
    Coalesce,
    /// Pointers come back in its place.
    Split,
    /// A new page, which nothing leads to yet, gets a leaf.
    Fill,
    /// A comparison makes the leaf that the lane would make.
    Follow,
    /// A comparison empties an entry for which the guest's faults. It is parked if it was a leaf.
    Park,
    /// A leaf's shadow page ends.
    End,
    /// The page of a leaf is about to be copied.
    Withhold,
    /// The copy is there.
    Arrive,
}

/// The kind of an entry: its [`State`], with leaves that stand for a page apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg(any(test, feature = "sabotage"))]
enum Kind {
    Empty,
    Poison,
    Leaf,
    Coalesced,
    Pointer,
}

#[cfg(any(test, feature = "sabotage"))]
impl Kind {
    fn of(entry: Pte, level: Level) -> Self {
        match State::of(entry) {
            State::Empty => Kind::Empty,
            State::Poison => Kind::Poison,
            State::Leaf if level > Level::PAGE && entry.flags().contains(COALESCED) => Kind::Coalesced,
            State::Leaf => Kind::Leaf,
            State::Pointer => Kind::Pointer,
        }
    }
}

#[cfg(any(test, feature = "sabotage"))]
impl Act {
    /// The table of transitions: whether the act may make of an entry of that level, which is `old`, one that is `new`.
    fn may_make(self, level: Level, old: Kind, new: Kind) -> bool {
        use Kind::{Coalesced, Empty, Leaf, Pointer, Poison};
        let (is_leaf_level, is_above) = (level == Level::PAGE, level > Level::PAGE);
        // There is none at level 0, whatever else is allowed.
        let is_known = |kind| is_above || !matches!(kind, Coalesced | Pointer);
        let (from, to): (&[Kind], &[Kind]) = match self {
            Act::Set if level <= Level::MEGA => (&[Empty, Poison, Leaf, Coalesced, Pointer], &[Leaf]),
            Act::Withdraw if is_leaf_level => (&[Leaf], &[Leaf]),
            Act::Drop | Act::Refuse => (&[Empty, Poison, Leaf, Coalesced, Pointer], &[Empty, Poison]),
            Act::Invalidate if is_leaf_level => (&[Empty, Poison, Leaf], &[Empty]),
            Act::Link if is_above => (&[Empty, Poison], &[Pointer]),
            Act::Coalesce if level == Level::MEGA => (&[Pointer], &[Coalesced]),
            Act::Split if level == Level::MEGA => (&[Coalesced], &[Pointer]),
            Act::Fill if is_leaf_level => (&[Empty], &[Leaf]),
            Act::Follow if is_leaf_level => (&[Empty, Poison, Leaf], &[Leaf]),
            Act::Park if is_leaf_level => (&[Empty, Poison, Leaf], &[Empty]),
            Act::End if is_leaf_level => (&[Leaf], &[Empty, Poison]),
            Act::Withhold if is_leaf_level => (&[Leaf], &[Empty, Poison]),
            Act::Arrive if is_leaf_level => (&[Empty, Poison], &[Leaf]),
            _ => (&[], &[]),
        };
        is_known(old) && is_known(new) && from.contains(&old) && to.contains(&new)
    }
}

/// The place of an entry in a shadow table.
#[derive(Clone, Copy)]
pub struct Slot {
    at: Addr<Hpa>,
    level: Level,
}

impl Slot {
    /// The place of entry `index` in a table of that level.
    #[inline(always)]
    pub const fn new(table: Addr<Hpa>, index: usize, level: Level) -> Self {
        Self { at: table.wrapping_add(8 * index as u64), level }
    }

    /// Reads the entry.
    #[inline(always)]
    pub fn read(self, mem: &impl PhysMem) -> Pte {
        Pte(mem.read_u64(self.at))
    }

    /// Asks the table of transitions.
    #[inline(always)]
    fn ask(self, act: Act, old: Pte, new: Pte) {
        #[cfg(feature = "sabotage")]
        assert!(
            act.may_make(self.level, Kind::of(old, self.level), Kind::of(new, self.level)),
            "{act:?} makes {new:x?} of {old:x?} at level {}",
            self.level.number()
        );
        #[cfg(not(feature = "sabotage"))]
        let _ = (self.level, act, old, new);
    }

    /// Replaces the entry. Returns the old one; the caller finds out what that owes.
    #[inline(always)]
    pub(super) fn swap(self, act: Act, new: Pte, mem: &mut impl PhysMem) -> Pte {
        let old = Pte(mem.exchange_u64(self.at, new.0));
        self.ask(act, old, new);
        old
    }

    /// Replaces the entry. Returns the old one, and what this owes.
    pub(super) fn exchange(self, act: Act, new: Pte, mem: &mut impl PhysMem) -> (Pte, Debt) {
        let old = self.swap(act, new, mem);
        (old, Debt::of(old, new))
    }

    /// Replaces the entry if it is `old`. `None` if it is not: the lane was there.
    #[inline(always)]
    pub(super) fn compare_exchange(self, act: Act, old: Pte, new: Pte, mem: &mut impl PhysMem) -> Option<Debt> {
        self.ask(act, old, new);
        mem.compare_exchange_u64(self.at, old.0, new.0).ok().map(|()| Debt::of(old, new))
    }

    /// Writes an entry that is invalid and that nothing else writes now: so it owes nothing, and needs no exchange.
    #[inline(always)]
    pub(super) fn fill(self, act: Act, new: Pte, mem: &mut impl PhysMem) {
        #[cfg(any(debug_assertions, feature = "sabotage"))]
        self.ask(act, self.read(mem), new);
        #[cfg(not(any(debug_assertions, feature = "sabotage")))]
        let _ = act;
        mem.write_u64(self.at, new.0);
    }
}

#[cfg(test)]
mod tests {
    use super::Kind::{Coalesced, Empty, Leaf, Pointer, Poison};
    use super::*;
    use alloc::vec::Vec;

    const KINDS: [Kind; 5] = [Empty, Poison, Leaf, Coalesced, Pointer];

    fn made_by(act: Act, level: Level) -> Vec<(Kind, Kind)> {
        let pairs = KINDS.into_iter().flat_map(|old| KINDS.map(|new| (old, new)));
        pairs.filter(|(old, new)| act.may_make(level, *old, *new)).collect()
    }

    #[test]
    fn pointers_are_made_by_links_and_splits_above_level_0() {
        for act in
            [Act::Set, Act::Drop, Act::Link, Act::Refuse, Act::Coalesce, Act::Split, Act::Fill, Act::Follow, Act::Park]
        {
            for level in [Level::PAGE, Level::MEGA, Level::GIGA] {
                let makes = made_by(act, level).into_iter().any(|(_, new)| new == Pointer);
                let may = level > Level::PAGE && act == Act::Link || level == Level::MEGA && act == Act::Split;
                assert_eq!(makes, may, "{act:?} at level {}", level.number());
            }
        }
    }

    #[test]
    fn a_leaf_that_stands_for_a_page_comes_of_a_pointer_and_becomes_one() {
        assert_eq!(made_by(Act::Coalesce, Level::MEGA), [(Pointer, Coalesced)]);
        assert_eq!(made_by(Act::Split, Level::MEGA), [(Coalesced, Pointer)]);
        assert_eq!(made_by(Act::Coalesce, Level::PAGE), []);
        assert_eq!(made_by(Act::Coalesce, Level::GIGA), []);
    }

    #[test]
    fn what_needs_no_exchange_was_invalid() {
        for act in [Act::Fill, Act::Arrive] {
            assert!(made_by(act, Level::PAGE).iter().all(|(old, new)| matches!(old, Empty | Poison) && *new == Leaf));
        }
    }
}
