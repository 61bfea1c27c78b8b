//! The times at which a hart has something to do.

/// The host times at which the hart has something to do; `u64::MAX` is never.
pub(super) struct Due {
    /// The running vCPU's slice ends.
    pub(super) slice_end: u64,
    /// A vCPU that waits needs this hart.
    pub(super) waiters: u64,
    /// The serial port, for output that was left, and guests' devices have their turn.
    pub(super) serial: u64,
    /// A portion of a chore has its turn, if the hart has something else to do.
    pub(super) chores: u64,
    /// [`Due::serial`] is a fraction of a millisecond away.
    pub(super) serial_is_soon: bool,
    /// The guests whose devices have their turn then, by bit.
    pub(super) serial_guests: u64,
    /// The time that Gnomon's timer is set to.
    pub(super) armed: u64,
}

/// Durations in ticks of the timebase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticks {
    pub(super) slice: u64,
    pub(super) watch: u64,
    pub(super) least_run: u64,
    pub(super) behind: u64,
    pub(super) serial: u64,
    pub(super) chores: u64,
}

/// The VM time that a vCPU gets before another one, in milliseconds.
const SLICE_MS: u64 = 10;
/// The longest time that a vCPU runs without any exit before it is looked at, in milliseconds.
const WATCH_MS: u64 = 1000;
/// The shortest time that a vCPU runs between two looks, in milliseconds: less than a slice.
const LEAST_RUN_MS: u64 = 2;
/// The distance behind vCPUs that can make progress at which one gets in line when it waits for a store, in parts of a
/// millisecond.
const BEHIND_PER_MS: u64 = 5;
/// The rate at which a hart goes on with output that is left, in times per millisecond.
const SERIAL_PER_MS: u64 = 10;
/// The interval at which a hart that has something else to do does a portion of a chore, in milliseconds.
const CHORES_MS: u64 = 1;

impl Due {
    /// Nothing is due.
    pub(super) const NOTHING: Self = Self {
        slice_end: u64::MAX,
        waiters: u64::MAX,
        serial: u64::MAX,
        chores: u64::MAX,
        serial_is_soon: false,
        serial_guests: 0,
        armed: u64::MAX,
    };
}

impl Ticks {
    /// Makes the durations on a machine with that many ticks in a millisecond.
    pub(super) const fn new(per_ms: u64) -> Self {
        Self {
            slice: SLICE_MS * per_ms,
            watch: WATCH_MS * per_ms,
            least_run: LEAST_RUN_MS * per_ms,
            behind: per_ms / BEHIND_PER_MS,
            serial: per_ms / SERIAL_PER_MS,
            chores: CHORES_MS * per_ms,
        }
    }
}
