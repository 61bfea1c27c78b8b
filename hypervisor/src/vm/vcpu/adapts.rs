//! The knowledge of an adaptive vCPU about its roots (`memory::adaptive`).

use mmu::adapt::Chooser;

/// The counts of an adaptive vCPU, and its choices.
#[derive(Clone, Debug)]
pub struct Adapts {
    /// The costs that were found for its roots.
    pub chooser: Chooser,
    /// Host time of the last look, or of when it was seen that there were many fences.
    pub since: u64,
    /// The cost of traps up to `since`.
    pub spent: u64,
    /// Looks in a row that changed nothing.
    pub calm: u32,
    /// The count of the lane's fences at which there were many since `since`.
    pub busy_at: u64,
    /// There were already since the last look, and what has followed is being measured by itself.
    pub is_measured: bool,
    /// The state of random choices.
    pub dice: u64,
}

impl Adapts {
    /// Makes the state of vCPU `id`, before its first life.
    #[must_use]
    pub fn new(id: u32) -> Self {
        let dice = 0x9e37_79b9_7f4a_7c15 ^ u64::from(id) << 32;
        Self { chooser: Chooser::new(), since: 0, spent: 0, calm: 0, busy_at: 0, is_measured: false, dice }
    }

    /// Forgets the vCPU's roots, which are no more.
    pub fn forget(&mut self) {
        (self.chooser, self.calm) = (Chooser::new(), 0);
    }
}
