//! The findings of a vCPU's looks for coalescing (`memory::coalescing`).

/// The state that coalescing keeps from one look to the next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Looks {
    /// The serial of the root that was there.
    pub root: u64,
    /// The host time of the root's next action.
    pub due: u64,
    /// The age that its tables may have had already when they were made, in ticks of the timebase. It is taken into
    /// account until `until`.
    pub before: u64,
    /// See `before`; host time.
    pub until: u64,
    /// Rounds in a row of which nothing has come, as far as that is counted.
    pub in_vain: u32,
    /// The guest's `pc` at the last look. `still` is the number of looks in a row that have found it there, as far as
    /// that is counted.
    pub pc: u64,
    /// See `pc`.
    pub still: u32,
}
