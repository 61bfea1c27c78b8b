//! The state of a sweep, the limits of one part of it, and the operations that it needs of a VM's memory.

use abi::bundle::{GUEST_RAM_BASE, MAX_VMS};
use mmu::shadow::Budget;
use rv::{Addr, Gpa, Pfn};

/// The goal of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    /// There is enough.
    Nothing,
    /// The memory of those VMs, by slot, that want more than they may have.
    Limits(u64),
    /// The host has too little.
    Free,
}

/// The position of the hand.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The slot of the VM whose memory it is in; behind all of them come the images.
    pub slot: usize,
    /// The page that it comes to next.
    pub page: Pfn<Gpa>,
    /// The original that it comes to next, by number.
    pub original: u64,
    /// The originals from that one on that are being taken from VMs.
    pub taking: Option<Taking>,
    /// The number of rounds since a page went.
    pub rounds: u32,
    /// The goal of those rounds.
    pub goal: Goal,
    /// Set if in the last portion the device was given up. Rounds in which pages went are counted then, too.
    pub is_given_up: bool,
}

/// Originals that are being taken from all VMs, one VM after another. They have lapsed: a VM's access to one meanwhile
/// is seen.
#[derive(Debug)]
pub(crate) struct Taking {
    /// Which they are, a bit for each.
    pub which: u64,
    /// The originals that some VM keeps.
    pub stay: u64,
    /// The slot of the VM whose turn it is.
    pub slot: usize,
}

/// The first page of a VM's RAM.
pub(crate) const FIRST: Pfn<Gpa> = Addr::new(GUEST_RAM_BASE).pfn();

impl Default for Clock {
    fn default() -> Self {
        Self { slot: 0, page: FIRST, original: 0, taking: None, rounds: 0, goal: Goal::Nothing, is_given_up: false }
    }
}

impl Clock {
    /// Returns whether the hand is at the images.
    pub const fn is_at_images(&self) -> bool {
        self.slot == MAX_VMS
    }

    /// Moves the hand to the next slot.
    pub fn pass(&mut self) {
        // Originals that have lapsed are used until they are taken anew.
        (self.page, self.original, self.taking) = (FIRST, 0, None);
        self.slot += 1;
        if self.slot > MAX_VMS {
            self.slot = 0;
            self.rounds += 1;
        }
    }
}

/// The limits of one part of a sweep, in steps of some 10 instructions.
#[derive(Debug)]
pub struct Portion {
    pub(crate) steps: u32,
    /// The budget for shadow tables, of all VMs together (BOUNDED).
    pub(crate) leaves: Budget,
    /// Pages that went, or are on their way.
    pub(crate) gone: u64,
    /// Set if mapped pages go as well, because nothing else has.
    pub(crate) is_forced: bool,
    /// Nothing goes.
    pub(crate) only_rests: bool,
    /// Frames of guest memory that the VM keeps, which the hand is in.
    pub(crate) keeps: u64,
}

impl Portion {
    /// Some 40,000 instructions.
    const STEPS: u32 = 4000;
    /// The cost of looking at an entry.
    pub(crate) const LOOK: u32 = 6;
    /// The cost of making a page idle, with its part of the fence.
    pub(crate) const REST: u32 = 20;
    /// The cost of letting a page go: mostly to see whether it holds zeroes.
    pub(crate) const GO: u32 = 180;
    /// The cost of splitting 2 MiB.
    pub(crate) const SPLIT: u32 = 1000;
    /// The cost of taking memory from another VM: its locks, and its harts.
    pub(crate) const VISIT: u32 = 100;

    pub(crate) const fn new(is_forced: bool) -> Self {
        Self { steps: Self::STEPS, leaves: Budget::WHOLE, gone: 0, is_forced, only_rests: false, keeps: 0 }
    }

    pub(crate) const fn spend(&mut self, steps: u32) {
        self.steps = self.steps.saturating_sub(steps);
    }

    pub(crate) const fn is_spent(&self) -> bool {
        self.steps == 0 || self.leaves.is_spent()
    }

    /// Returns whether a task is to be tried once more at the beginning of a portion, because it was too much for the
    /// rest of [`Portion::leaves`]. A task that is too much for a whole portion is passed over: guests may be as fast
    /// as the sweep.
    pub(crate) fn is_to_come_again(&self, before: Budget) -> bool {
        self.leaves.is_spent() && before != Budget::WHOLE
    }
}
