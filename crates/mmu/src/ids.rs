//! VMIDs and ASIDs, handed out in generations.
//!
//! An id may name a second owner (a VM, a shadow root) only after every TLB that may hold translations
//! of the first has been fenced. So ids are never returned; when they run out, a new *generation*
//! begins: all translations of all ids are fenced at once, and every owner draws a new id before it
//! is used again.
//!
//! Ids mean something to one hart's TLB only, so the natural use is one [`Ids`] per hart and one
//! [`IdSlot`] per owner and hart: then [`Acquired::RolledOver`] concerns that hart alone, and harts
//! cannot take ids from each other, however few bits there are. Owners that have a table in common, as
//! the vCPUs of a VM have, are a [`Group`] there. One allocator for all harts is correct too, if at a
//! roll-over every hart leaves its guest, fences, and acquires again before it enters one.

/// The allocator. Pure: the caller fences.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ids {
    first: u16,
    /// The last id that the hardware's field holds: 2^bits - 1.
    last: u16,
    /// Ids handed out in this generation.
    used: u32,
    generation: u64,
}

/// An owner's record of the id that it has from an allocator. Starts without an id. Slots of one allocator are ordered
/// by the time when their ids were handed out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct IdSlot(
    /// Below, the id in 16 bits; above, its generation. 0, which no allocator reaches: never acquired.
    u64,
);

impl IdSlot {
    /// No id yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// The id, as last acquired. Good for entering the guest only after [`Ids::acquire`].
    #[must_use]
    pub const fn id(&self) -> u16 {
        self.0 as u16
    }

    /// The generation that the id belongs to.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.0 >> 16
    }
}

/// The result of an acquisition: the fences that it requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a roll-over owes a fence"]
pub enum Acquired {
    /// The slot's id is still its own.
    Same,
    /// An id that no owner has used since the last roll-over. No fence is owed for translations that the roll-over
    /// fences. (For VMIDs that is the G-stage only: `hfence.gvma` need not remove VS-stage translations, so those of
    /// the VMID are fenced by `hfence.vvma x0, x0` once `hgatp` holds it.)
    New,
    /// An id of a new generation: every hart that this allocator serves must fence all ids
    /// (`hfence.gvma x0, x0` for VMIDs; `sfence.vma x0, x0`, or `hfence.vvma x0, x0` under the VMID
    /// concerned, for ASIDs) before it next enters a guest; and for VMIDs VS-stage translations as for
    /// `New`.
    RolledOver,
}

impl Ids {
    /// The allocator of the ids from `first` up to what `bits` bits hold; if there are none, of the greatest id alone,
    /// so that each change of owner rolls over. That id may be below `first`: a caller that keeps the lower ids for
    /// another use fences when it changes between the uses. The TLBs must hold no translations of these ids.
    ///
    /// # Panics
    /// If there are more than 16 bits: the hardware has no such field.
    #[must_use]
    pub const fn new(first: u16, bits: u32) -> Self {
        assert!(bits <= 16, "ids have at most 16 bits");
        let last = ((1u32 << bits) - 1) as u16;
        Self { first: if first < last { first } else { last }, last, used: 0, generation: 1 }
    }

    /// Makes sure that the slot's id is its own. To be called before every guest entry.
    pub fn acquire(&mut self, slot: &mut IdSlot) -> Acquired {
        if slot.generation() == self.generation {
            return Acquired::Same;
        }
        let rolled_over = self.used > u32::from(self.last - self.first);
        if rolled_over {
            self.generation += 1;
            self.used = 0;
        }
        self.used += 1;
        *slot = self.latest();
        if rolled_over { Acquired::RolledOver } else { Acquired::New }
    }

    /// Returns the id that was handed out last, as its owner's slot. Before the first, one that no owner has.
    const fn latest(&self) -> IdSlot {
        IdSlot((self.generation << 16 | self.first as u64) + self.used as u64 - 1)
    }

    /// The present generation; slots of others must acquire again.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }
}

/// The ids that members of a group have on one hart: each has its own, and one table is behind them all. So a member that comes back
/// finds what it left in the TLB, and nothing of the others'. Each remembers its own id; here is known which of them are good.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Group {
    /// Of the member that came last.
    last: IdSlot,
    /// The id of the last fence of the table that was for one id only. The others up to `given_up` must not be used any
    /// more.
    kept: IdSlot,
    given_up: IdSlot,
}

impl Group {
    /// A group of which no member has come yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: IdSlot::new(), kept: IdSlot::new(), given_up: IdSlot::new() }
    }

    /// A member comes: it is the last one now. `known` is what it remembers; it `stays` if it has been on no other hart since that was
    /// set here. Its id is then to be used, and what that owes is as for [`Ids::acquire`].
    pub fn come(&mut self, known: &mut IdSlot, stays: bool, ids: &mut Ids) -> Acquired {
        // Elsewhere it did fences that its translations here have not seen.
        let is_good = stays && (*known == self.kept || *known > self.given_up);
        if !is_good {
            *known = IdSlot::new();
        }
        let acquired = ids.acquire(known);
        self.last = *known;
        acquired
    }

    /// The table is about to be fenced for one id only, which is returned: that of the member that came last. The others' are given up.
    #[must_use = "the id is to be fenced"]
    pub const fn give_up_others(&mut self, ids: &Ids) -> u16 {
        (self.kept, self.given_up) = (self.last, ids.latest());
        self.last.id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_bits_serve_three_owners_from_one_on_and_roll_over_for_the_fourth() {
        let mut ids = Ids::new(1, 2);
        let mut slots = [IdSlot::new(); 4];
        for (i, slot) in slots.iter_mut().take(3).enumerate() {
            assert_eq!((ids.acquire(slot), slot.id()), (Acquired::New, i as u16 + 1));
        }
        assert_eq!(ids.acquire(&mut slots[1]), Acquired::Same);
        assert_eq!((ids.acquire(&mut slots[3]), slots[3].id()), (Acquired::RolledOver, 1));
        // The others draw again, without another roll-over.
        assert_eq!((ids.acquire(&mut slots[0]), slots[0].id()), (Acquired::New, 2));
        assert_eq!(ids.acquire(&mut slots[3]), Acquired::Same);
    }

    #[test]
    fn with_a_single_id_each_change_of_owner_rolls_over() {
        for (first, bits, id) in [(0, 0, 0), (1, 0, 0), (1, 1, 1)] {
            let mut ids = Ids::new(first, bits);
            let (mut a, mut b) = (IdSlot::new(), IdSlot::new());
            assert_eq!(ids.acquire(&mut a), Acquired::New);
            assert_eq!(ids.acquire(&mut a), Acquired::Same);
            assert_eq!(ids.acquire(&mut b), Acquired::RolledOver);
            assert_eq!(ids.acquire(&mut a), Acquired::RolledOver);
            assert_eq!((a.id(), b.id()), (id, id));
        }
    }

    #[test]
    fn members_keep_their_ids_while_they_stay_and_nothing_is_fenced() {
        let (mut ids, mut group) = (Ids::new(1, 3), Group::new());
        let (mut a, mut b) = (IdSlot::new(), IdSlot::new());
        let mut come = |member: &mut IdSlot, stays| {
            let acquired = group.come(member, stays, &mut ids);
            (acquired, member.id())
        };
        assert_eq!(come(&mut a, false), (Acquired::New, 1));
        assert_eq!(come(&mut b, false), (Acquired::New, 2));
        assert_eq!(come(&mut a, true), (Acquired::Same, 1));
        assert_eq!(come(&mut a, true), (Acquired::Same, 1));
        // From elsewhere.
        assert_eq!(come(&mut b, false), (Acquired::New, 3));
    }

    #[test]
    fn a_fence_for_one_member_leaves_its_id_and_no_other() {
        let (mut ids, mut group) = (Ids::new(1, 3), Group::new());
        let mut members = [IdSlot::new(); 3];
        for member in &mut members {
            assert_eq!(group.come(member, false, &mut ids), Acquired::New);
        }
        assert_eq!((group.give_up_others(&ids), members[2].id()), (3, 3));
        let come = |group: &mut Group, ids: &mut Ids, member: &mut IdSlot| (group.come(member, true, ids), member.id());
        assert_eq!(come(&mut group, &mut ids, &mut members[0]), (Acquired::New, 4));
        // It was not the last one any more, and is good still: nothing was fenced since.
        assert_eq!(come(&mut group, &mut ids, &mut members[2]), (Acquired::Same, 3));
        assert_eq!(come(&mut group, &mut ids, &mut members[1]), (Acquired::New, 5));
        // Now it was not fenced for, and is given up.
        assert_eq!(group.give_up_others(&ids), 5);
        assert_eq!(group.give_up_others(&ids), 5);
        assert_eq!(come(&mut group, &mut ids, &mut members[1]), (Acquired::Same, 5));
        assert_eq!(come(&mut group, &mut ids, &mut members[2]), (Acquired::New, 6));
    }

    #[test]
    fn a_single_id_goes_from_member_to_member() {
        for bits in [0, 1] {
            let (mut ids, mut group) = (Ids::new(1, bits), Group::new());
            let (mut a, mut b) = (IdSlot::new(), IdSlot::new());
            assert_eq!(group.come(&mut a, false, &mut ids), Acquired::New);
            assert_eq!(group.come(&mut b, false, &mut ids), Acquired::RolledOver);
            assert_eq!(group.give_up_others(&ids), bits as u16);
            assert_eq!(group.come(&mut b, true, &mut ids), Acquired::Same);
            assert_eq!(group.come(&mut a, true, &mut ids), Acquired::RolledOver);
            assert_eq!(group.come(&mut b, true, &mut ids), Acquired::RolledOver);
        }
    }

    #[test]
    fn sixteen_bits_are_all_used() {
        let mut ids = Ids::new(1, 16);
        let mut slot = IdSlot::new();
        for id in 1..=u16::MAX {
            slot = IdSlot::new();
            assert_eq!((ids.acquire(&mut slot), slot.id()), (Acquired::New, id));
        }
        assert_eq!(slot.id(), u16::MAX);
        let mut next = IdSlot::new();
        assert_eq!((ids.acquire(&mut next), next.id()), (Acquired::RolledOver, 1));
    }
}
