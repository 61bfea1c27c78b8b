//! VMIDs and ASIDs, handed out in generations.
//!
//! An id may name a second owner (a VM, a shadow root) only after every TLB that may hold translations
//! of the first has been fenced. So ids are never returned; when they run out, a new *generation*
//! begins: all translations of all ids are fenced at once, and every owner draws a new id before it
//! is used again.
//!
//! Ids mean something to one hart's TLB only, so the natural use is one [`Ids`] per hart and one
//! [`IdSlot`] per owner and hart: then [`Acquired::RolledOver`] concerns that hart alone, and harts
//! cannot take ids from each other, however few bits there are. One allocator for all harts is
//! correct too, if at a roll-over every hart leaves its guest, fences, and acquires again before
//! it enters one.

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

/// What an owner remembers of an allocator. Starts without an id.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IdSlot {
    id: u16,
    /// 0, which no allocator reaches: never acquired.
    generation: u64,
}

impl IdSlot {
    /// No id yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { id: 0, generation: 0 }
    }

    /// The id, as last acquired. Good for entering the guest only after [`Ids::acquire`].
    #[must_use]
    pub const fn id(&self) -> u16 {
        self.id
    }

    /// The generation that the id belongs to.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }
}

/// What an acquisition means for the TLBs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a roll-over owes a fence"]
pub enum Acquired {
    /// The slot's id is still its own.
    Same,
    /// An id that nobody has used since the last roll-over. No fence is owed for what the roll-over
    /// fences. (For VMIDs that is the G-stage only: `hfence.gvma` need not remove VS-stage
    /// translations, so those of the VMID are fenced by `hfence.vvma x0, x0` once `hgatp` holds it.)
    New,
    /// An id of a new generation: every hart that this allocator serves must fence all ids
    /// (`hfence.gvma x0, x0` for VMIDs; `sfence.vma x0, x0`, or `hfence.vvma x0, x0` under the VMID
    /// concerned, for ASIDs) before it next enters a guest; and for VMIDs VS-stage translations as for
    /// `New`.
    RolledOver,
}

impl Ids {
    /// The allocator of the ids from `first` up to what `bits` bits hold; where that is none, of the
    /// greatest id alone, so that each change of owner rolls over. That id may be below `first`: who
    /// keeps the lower ids for another use fences when it changes between the uses. The TLBs must hold
    /// no translations of these ids.
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
        if slot.generation == self.generation {
            return Acquired::Same;
        }
        let rolled_over = self.used > u32::from(self.last - self.first);
        if rolled_over {
            self.generation += 1;
            self.used = 0;
        }
        *slot = IdSlot { id: self.first + self.used as u16, generation: self.generation };
        self.used += 1;
        if rolled_over { Acquired::RolledOver } else { Acquired::New }
    }

    /// The present generation; slots of others must acquire again.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
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
