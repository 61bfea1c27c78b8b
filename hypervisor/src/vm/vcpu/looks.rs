//! What a vCPU's looks have found that are for coalescing ([`crate::memory::coalescing`]).

/// That.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Looks {
    /// The serial of the root that was there.
    pub root: u64,
    /// When something is to be done for it next, in host time.
    pub due: u64,
    /// For how long its tables may have been as they are already when they were made, in ticks of the timebase, and until when that is taken
    /// into account.
    pub before: u64,
    /// See `before`; host time.
    pub until: u64,
    /// Rounds in a row of which nothing has come, as far as that is counted.
    pub in_vain: u32,
    /// Where the guest was, and how many looks in a row have found it there, as far as that is counted.
    pub pc: u64,
    /// See `pc`.
    pub still: u32,
}
