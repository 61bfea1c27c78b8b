//! The accounts: the number of frames of each owner by use, and its limit. All harts may change them at any time: sums
//! are atomic.

use super::owner::{AllocError, MOST_OWNERS, Owner, Usage, Use};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The index of an owner's account.
const fn account(owner: Owner) -> usize {
    match owner {
        Owner::Host => 0,
        Owner::Vm(n) => n as usize + 1,
    }
}

#[derive(Debug)]
struct Account {
    /// By [`Use`].
    usage: [AtomicU64; 4],
    total: AtomicU64,
    limit: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Ledger {
    /// Frames in all.
    total: u64,
    accounts: [Account; MOST_OWNERS as usize + 1],
}

impl Default for Ledger {
    fn default() -> Self {
        let unused =
            |_| Account { usage: Default::default(), total: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX) };
        Self { total: 0, accounts: core::array::from_fn(unused) }
    }
}

impl Ledger {
    /// Adds free frames.
    pub fn add(&mut self, pages: u64) {
        self.total += pages;
    }

    fn account(&self, owner: Owner) -> &Account {
        &self.accounts[account(owner)]
    }

    pub fn set_limit(&self, owner: Owner, frames: u64) {
        self.account(owner).limit.store(frames, Relaxed);
    }

    pub fn limit(&self, owner: Owner) -> u64 {
        self.account(owner).limit.load(Relaxed)
    }

    /// Charges frames that are about to be taken.
    pub fn charge(&self, owner: Owner, for_: Use, pages: u64) -> Result<(), AllocError> {
        let account = self.account(owner);
        let limit = account.limit.load(Relaxed);
        // Not added first and reverted: meanwhile another allocation would be refused for it.
        let within = |total: u64| total.checked_add(pages).filter(|total| *total <= limit);
        if account.total.fetch_update(Relaxed, Relaxed, within).is_err() {
            return Err(AllocError::OverLimit { owner, limit });
        }
        account.usage[for_ as usize].fetch_add(pages, Relaxed);
        Ok(())
    }

    /// Like [`Ledger::charge`], without regard to the limit.
    pub fn charge_beyond(&self, owner: Owner, for_: Use, pages: u64) {
        let account = self.account(owner);
        account.total.fetch_add(pages, Relaxed);
        account.usage[for_ as usize].fetch_add(pages, Relaxed);
    }

    /// Reverts a charge.
    pub fn discharge(&self, owner: Owner, for_: Use, pages: u64) {
        let account = self.account(owner);
        account.usage[for_ as usize].fetch_sub(pages, Relaxed);
        account.total.fetch_sub(pages, Relaxed);
    }

    pub fn usage(&self, owner: Owner) -> Usage {
        let of = |for_: Use| self.account(owner).usage[for_ as usize].load(Relaxed);
        Usage { guest: of(Use::Guest), table: of(Use::Table), image: of(Use::Image), other: of(Use::Other) }
    }

    pub fn free_count(&self) -> u64 {
        let taken: u64 = self.accounts.iter().map(|account| account.total.load(Relaxed)).sum();
        self.total.saturating_sub(taken)
    }

    pub fn total_count(&self) -> u64 {
        self.total
    }
}
