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
    /// The limit of [`Use::Guest`] alone.
    guest_limit: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Ledger {
    /// Frames in all.
    total: u64,
    accounts: [Account; MOST_OWNERS as usize + 1],
}

impl Default for Ledger {
    fn default() -> Self {
        let unused = |_| Account {
            usage: Default::default(),
            total: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            guest_limit: AtomicU64::new(u64::MAX),
        };
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

    pub fn set_guest_limit(&self, owner: Owner, frames: u64) {
        self.account(owner).guest_limit.store(frames, Relaxed);
    }

    /// Returns whether an owner may take so many frames for each use.
    pub fn has_room(&self, owner: Owner, frames: u64) -> bool {
        let account = self.account(owner);
        let fits =
            |used: &AtomicU64, limit: &AtomicU64| used.load(Relaxed).saturating_add(frames) <= limit.load(Relaxed);
        fits(&account.total, &account.limit) && fits(&account.usage[Use::Guest as usize], &account.guest_limit)
    }

    /// Charges frames that are about to be taken.
    pub fn charge(&self, owner: Owner, for_: Use, pages: u64) -> Result<(), AllocError> {
        let account = self.account(owner);
        // Not added first and reverted: meanwhile another allocation would be refused for it.
        let add = |sum: &AtomicU64, limit: u64| {
            let within = |sum: u64| sum.checked_add(pages).filter(|sum| *sum <= limit);
            let added = sum.fetch_update(Relaxed, Relaxed, within);
            added.map(|_| ()).map_err(|_| AllocError::OverLimit { owner, limit })
        };
        let (usage, limit) = (&account.usage[for_ as usize], account.limit.load(Relaxed));
        if for_ == Use::Guest {
            add(usage, account.guest_limit.load(Relaxed))?;
            return add(&account.total, limit).inspect_err(|_| _ = usage.fetch_sub(pages, Relaxed));
        }
        add(&account.total, limit)?;
        usage.fetch_add(pages, Relaxed);
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
