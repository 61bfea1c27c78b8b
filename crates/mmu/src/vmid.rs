//! VMIDs, handed out in generations.
//!
//! A VMID may name a second VM only after every TLB that may hold translations of the first has been
//! fenced. So VMIDs are never returned; when they run out, a new *generation* begins: all
//! translations of all VMIDs are fenced at once, and every VM draws a new VMID before it runs again.
//!
//! VMIDs mean something to one hart's TLB only, so the natural use is one [`Vmids`] per hart and one
//! [`VmidSlot`] per VM and hart: then [`Acquired::RolledOver`] concerns that hart alone, and harts
//! cannot take VMIDs from each other, however few bits there are. One allocator for all harts is
//! correct too, if at a roll-over every hart leaves its guest, fences, and acquires again before
//! it enters one.

use rv::Vmid;

/// The allocator. Pure: the caller fences.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vmids {
    /// 2^bits.
    count: u32,
    next: u32,
    generation: u64,
}

/// What a VM remembers of an allocator. Starts without a VMID.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VmidSlot {
    vmid: u16,
    /// 0, which no allocator reaches: never acquired.
    generation: u64,
}

impl VmidSlot {
    /// No VMID yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { vmid: 0, generation: 0 }
    }

    /// The VMID, as last acquired. Good for entering the guest only after [`Vmids::acquire`].
    #[must_use]
    pub const fn vmid(&self) -> Vmid {
        Vmid(self.vmid)
    }

    /// The generation that the VMID belongs to.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }
}

/// What an acquisition means for the TLBs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a roll-over owes a fence"]
pub enum Acquired {
    /// The slot's VMID is still its own.
    Same,
    /// A VMID that nobody has used since the last roll-over. No G-stage fence is owed; VS-stage
    /// translations are not all removed by G-stage fences (`hfence.gvma` covers what depends on the
    /// G-stage), so those of the VMID are fenced (`hfence.vvma x0, x0`) once `hgatp` holds it.
    New,
    /// A VMID of a new generation: every hart that this allocator serves must fence all VMIDs
    /// (`hfence.gvma x0, x0`) before it next enters a guest; and VS-stage translations as for `New`.
    RolledOver,
}

impl Vmids {
    /// The allocator for `bits` VMID bits, 0 to 14. The TLBs must hold no guest translations.
    ///
    /// # Panics
    /// If there are more than 14: the hardware has no such field.
    #[must_use]
    pub const fn new(bits: u32) -> Self {
        assert!(bits <= 14, "VMIDs have at most 14 bits");
        Self { count: 1 << bits, next: 0, generation: 1 }
    }

    /// Makes sure that the slot's VMID is its own. To be called before every guest entry.
    pub fn acquire(&mut self, slot: &mut VmidSlot) -> Acquired {
        if slot.generation == self.generation {
            return Acquired::Same;
        }
        let rolled_over = self.next == self.count;
        if rolled_over {
            self.generation += 1;
            self.next = 0;
        }
        *slot = VmidSlot { vmid: self.next as u16, generation: self.generation };
        self.next += 1;
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
    fn two_bits_serve_four_vms_and_roll_over_for_the_fifth() {
        let mut vmids = Vmids::new(2);
        let mut slots = [VmidSlot::new(); 5];
        for (i, slot) in slots.iter_mut().take(4).enumerate() {
            assert_eq!((vmids.acquire(slot), slot.vmid()), (Acquired::New, Vmid(i as u16)));
        }
        assert_eq!(vmids.acquire(&mut slots[1]), Acquired::Same);
        assert_eq!((vmids.acquire(&mut slots[4]), slots[4].vmid()), (Acquired::RolledOver, Vmid(0)));
        // The others draw again, without another roll-over.
        assert_eq!((vmids.acquire(&mut slots[0]), slots[0].vmid()), (Acquired::New, Vmid(1)));
        assert_eq!(vmids.acquire(&mut slots[4]), Acquired::Same);
    }

    #[test]
    fn without_bits_each_change_of_vm_rolls_over() {
        let mut vmids = Vmids::new(0);
        let (mut a, mut b) = (VmidSlot::new(), VmidSlot::new());
        assert_eq!(vmids.acquire(&mut a), Acquired::New);
        assert_eq!(vmids.acquire(&mut a), Acquired::Same);
        assert_eq!(vmids.acquire(&mut b), Acquired::RolledOver);
        assert_eq!(vmids.acquire(&mut a), Acquired::RolledOver);
        assert_eq!((a.vmid(), b.vmid()), (Vmid(0), Vmid(0)));
    }
}
