//! The bound of an operation that the rest of a machine waits for.

/// The steps that an operation may take before it leaves the rest for later (BOUNDED): an entry that is read is one step, an entry that
/// is changed some more. The budget is read between two pieces of work, so the last piece may exceed it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Budget(pub(crate) u32);

impl Budget {
    /// The budget of one operation.
    pub const WHOLE: Self = Self(Self::STEPS);
    /// To copy 2 MiB, and to forget where they were, takes all of it.
    pub(crate) const NONE: Self = Self(0);
    /// A step takes some 12 instructions; so this is about 90,000.
    const STEPS: u32 = 7168;

    /// Takes steps from it.
    pub const fn spend(&mut self, steps: u32) {
        self.0 = self.0.saturating_sub(steps);
    }

    /// Returns whether nothing is left.
    #[must_use]
    pub const fn is_spent(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of steps that it has more than `other`.
    pub(crate) const fn less(self, other: Self) -> u32 {
        self.0.saturating_sub(other.0)
    }

    /// Returns how many times `steps` can be taken from it; the last time there may be fewer.
    pub(crate) const fn affords(self, steps: u32) -> u32 {
        self.0.div_ceil(steps)
    }

    /// One half of what is left.
    pub(crate) const fn half(self) -> Self {
        Self(self.0 / 2)
    }
}
