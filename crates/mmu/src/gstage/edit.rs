//! Writes of G-stage entries. No other module of this crate can call these: the shadow's entries have a writer of their own
//! (`shadow::entries::slot`).

use crate::table::{Debt, State};
use rv::{Addr, Hpa, PhysMem, Pte};

/// Writes an entry that is invalid and that nothing else writes: so it owes nothing, and needs no exchange.
#[inline(always)]
pub(super) fn fill(at: Addr<Hpa>, entry: Pte, mem: &mut impl PhysMem) {
    debug_assert!(
        matches!(State::of(Pte(mem.read_u64(at))), State::Empty | State::Poison),
        "SPENT: {at} is not invalid"
    );
    mem.write_u64(at, entry.0);
}

/// Replaces the entry at `at`. Returns the old one, and what this owes.
pub(super) fn exchange(at: Addr<Hpa>, new: Pte, mem: &mut impl PhysMem) -> (Pte, Debt) {
    let old = Pte(mem.exchange_u64(at, new.0));
    (old, Debt::of(old, new))
}

/// Replaces the entry at `at` if it is `old`. `None` if it is not: it has changed.
#[inline(always)]
pub(super) fn compare_exchange(at: Addr<Hpa>, old: Pte, new: Pte, mem: &mut impl PhysMem) -> Option<Debt> {
    mem.compare_exchange_u64(at, old.0, new.0).ok().map(|()| Debt::of(old, new))
}
