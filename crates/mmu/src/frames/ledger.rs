//! Who owns which frame, what for, and how much each owner may have. Any hart may write here at any time: the words of a
//! frame are those of whoever holds its [`Run`], and sums are atomic.

use super::owner::{AllocError, MOST_OWNERS, Owner, Usage, Use};
use super::run::Run;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use rv::{Hpa, Pfn};

/// Owner and use of one frame, in 4 bytes: the use in the two lowest bits; above them 0: free, 1: the host, n + 2: VM n.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tag(u32);

impl Tag {
    const FREE: Tag = Tag(0);

    const fn new(owner: Owner, for_: Use) -> Tag {
        Tag((account(owner) as u32 + 1) << 2 | for_ as u32)
    }

    const fn owner(self) -> Option<(Owner, Use)> {
        let owner = match self.0 >> 2 {
            0 => return None,
            1 => Owner::Host,
            n => Owner::Vm((n - 2) as u16),
        };
        let for_ = match self.0 & 3 {
            0 => Use::Guest,
            1 => Use::Table,
            2 => Use::Image,
            _ => Use::Other,
        };
        Some((owner, for_))
    }
}

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

/// A stretch of RAM and its frames' tags.
#[derive(Debug)]
struct Bank {
    first: Pfn<Hpa>,
    tags: Vec<AtomicU32>,
}

impl Bank {
    fn end(&self) -> u64 {
        self.first.raw() + self.tags.len() as u64
    }
}

#[derive(Debug)]
pub(super) struct Ledger {
    /// By address. A machine has one to a few.
    banks: Vec<Bank>,
    accounts: [Account; MOST_OWNERS as usize + 1],
}

impl Default for Ledger {
    fn default() -> Self {
        let unused =
            |_| Account { usage: Default::default(), total: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX) };
        Self { banks: Vec::new(), accounts: core::array::from_fn(unused) }
    }
}

impl Ledger {
    /// Adds free frames. Neighbouring banks become one, so that a run never spans banks.
    ///
    /// # Panics
    /// If some are known already.
    pub fn add(&mut self, first: Pfn<Hpa>, pages: u64) {
        let end = first.raw() + pages;
        let at = self.banks.partition_point(|bank| bank.first < first);
        let clear_below = at == 0 || self.banks[at - 1].end() <= first.raw();
        let clear_above = self.banks.get(at).is_none_or(|bank| end <= bank.first.raw());
        assert!(clear_below && clear_above, "{first:?} +{pages} pages: RAM added twice");
        let mut tags = Vec::new();
        tags.resize_with(pages as usize, || AtomicU32::new(Tag::FREE.0));
        if self.banks.get(at).is_some_and(|above| above.first.raw() == end) {
            tags.append(&mut self.banks.remove(at).tags);
        }
        if at > 0 && self.banks[at - 1].end() == first.raw() {
            self.banks[at - 1].tags.append(&mut tags);
        } else {
            self.banks.insert(at, Bank { first, tags });
        }
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
        // Not added first and taken back: meanwhile somebody else would be refused for it.
        let within = |total: u64| total.checked_add(pages).filter(|total| *total <= limit);
        if account.total.fetch_update(Relaxed, Relaxed, within).is_err() {
            return Err(AllocError::OverLimit { owner, limit });
        }
        account.usage[for_ as usize].fetch_add(pages, Relaxed);
        Ok(())
    }

    /// The same, whatever the limit.
    pub fn charge_beyond(&self, owner: Owner, for_: Use, pages: u64) {
        let account = self.account(owner);
        account.total.fetch_add(pages, Relaxed);
        account.usage[for_ as usize].fetch_add(pages, Relaxed);
    }

    /// The opposite.
    pub fn discharge(&self, owner: Owner, for_: Use, pages: u64) {
        let account = self.account(owner);
        account.usage[for_ as usize].fetch_sub(pages, Relaxed);
        account.total.fetch_sub(pages, Relaxed);
    }

    /// Writes down whose the run is.
    pub fn assign(&self, run: &Run, owner: Owner, for_: Use) {
        let tag = Tag::new(owner, for_);
        self.tags_of(run).iter().for_each(|word| word.store(tag.0, Relaxed));
    }

    /// The run is nobody's any more.
    ///
    /// # Panics
    /// If it is not all of one owner and one use.
    pub fn release(&self, run: &Run) {
        let tags = self.tags_of(run);
        let tag = Tag(tags[0].load(Relaxed));
        assert!(tags.iter().all(|word| word.load(Relaxed) == tag.0), "{run:?} is not of one owner and use");
        let Some((owner, for_)) = tag.owner() else { panic!("{run:?} freed twice") };
        tags.iter().for_each(|word| word.store(Tag::FREE.0, Relaxed));
        self.discharge(owner, for_, run.pages());
    }

    pub fn usage(&self, owner: Owner) -> Usage {
        let of = |for_: Use| self.account(owner).usage[for_ as usize].load(Relaxed);
        Usage { guest: of(Use::Guest), table: of(Use::Table), image: of(Use::Image), other: of(Use::Other) }
    }

    pub fn free_count(&self) -> u64 {
        let taken: u64 = self.accounts.iter().map(|account| account.total.load(Relaxed)).sum();
        self.total_count().saturating_sub(taken)
    }

    pub fn total_count(&self) -> u64 {
        self.banks.iter().map(|bank| bank.tags.len() as u64).sum()
    }

    pub fn owner_of(&self, frame: Pfn<Hpa>) -> Option<(Owner, Use)> {
        let bank = self.bank_of(frame)?;
        Tag(bank.tags[(frame.raw() - bank.first.raw()) as usize].load(Relaxed)).owner()
    }

    fn bank_of(&self, frame: Pfn<Hpa>) -> Option<&Bank> {
        let at = self.banks.partition_point(|bank| bank.first <= frame).checked_sub(1)?;
        Some(&self.banks[at]).filter(|bank| frame.raw() < bank.end())
    }

    fn tags_of(&self, run: &Run) -> &[AtomicU32] {
        let bank = self.bank_of(run.first()).unwrap_or_else(|| panic!("{run:?} is not RAM of ours"));
        let start = (run.first().raw() - bank.first.raw()) as usize;
        &bank.tags[start..start + run.pages() as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_and_use_has_its_own_tag() {
        for owner in [Owner::Host, Owner::Vm(0), Owner::Vm(1), Owner::Vm(u16::MAX)] {
            for for_ in [Use::Guest, Use::Table, Use::Image, Use::Other] {
                assert_eq!(Tag::new(owner, for_).owner(), Some((owner, for_)));
            }
        }
        assert_eq!(Tag::FREE.owner(), None);
    }

    #[test]
    fn banks_that_touch_become_one() {
        let mut ledger = Ledger::default();
        for (first, pages) in [(4, 4), (0, 4), (16, 2), (8, 8)] {
            ledger.add(Pfn::new(first), pages);
        }
        assert_eq!((ledger.banks.len(), ledger.total_count()), (1, 18));
    }
}
