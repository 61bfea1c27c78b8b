//! The history of the guest's tables: all values that each word had, and all fences of each vCPU. A translation is one
//! that a real TLB may hold if its pointers were there at some time since the last wide fence, and its leaf at some
//! time since the last fence that covers it (norm:sfence-vma_ordering_semantics).

use rustc_hash::FxHashMap;
use rv::{Addr, Asid, Gpa, Space};
use std::marker::PhantomData;

pub type Time = u64;

#[derive(Default)]
pub struct History {
    now: Time,
    /// For each word that was ever written: what it was from when on.
    words: FxHashMap<Addr<Gpa>, Vec<(Time, u64)>>,
}

impl History {
    /// The guest's word becomes `new`.
    pub fn record(&mut self, at: Addr<Gpa>, old: u64, new: u64) {
        self.now += 1;
        let word = self.words.entry(at).or_insert_with(|| vec![(0, old)]);
        word.push((self.now, new));
    }

    /// A fence happens: what is written from now on is later.
    pub fn fence(&mut self) -> Time {
        self.now += 1;
        self.now
    }

    /// The time of the last of all these.
    pub fn now(&self) -> Time {
        self.now
    }

    /// All that the word was since `since`, with from when on; nothing if it was never written.
    pub fn since(&self, at: Addr<Gpa>, since: Time) -> &[(Time, u64)] {
        let Some(word) = self.words.get(&at) else { return &[] };
        let first = word.partition_point(|(time, _)| *time <= since).saturating_sub(1);
        &word[first..]
    }
}

/// The fences of one vCPU.
pub struct Fences<S> {
    all: Time,
    asids: FxHashMap<Asid, Time>,
    pages: FxHashMap<u64, Time>,
    asid_pages: FxHashMap<(Asid, u64), Time>,
    space: PhantomData<S>,
}

impl<S: Space> Fences<S> {
    pub fn none() -> Self {
        let (asids, pages, asid_pages) = Default::default();
        Self { all: 0, asids, pages, asid_pages, space: PhantomData }
    }

    pub fn add(&mut self, page: Option<Addr<S>>, asid: Option<Asid>, time: Time) {
        let slot = match (page.map(|p| p.pfn().raw()), asid) {
            (None, None) => &mut self.all,
            (None, Some(asid)) => self.asids.entry(asid).or_default(),
            (Some(page), None) => self.pages.entry(page).or_default(),
            (Some(page), Some(asid)) => self.asid_pages.entry((asid, page)).or_default(),
        };
        *slot = (*slot).max(time);
    }

    /// Since when pointers may be remembered.
    pub fn wide(&self, asid: Asid) -> Time {
        self.all.max(self.asids.get(&asid).copied().unwrap_or(0))
    }

    /// Since when global leaves for the page may be remembered.
    pub fn global(&self, gva: Addr<S>) -> Time {
        self.all.max(self.pages.get(&gva.pfn().raw()).copied().unwrap_or(0))
    }

    /// Since when pointers to global leaves may be remembered, at the least.
    pub fn widest(&self) -> Time {
        self.all
    }

    /// Since when leaves for the page may be remembered.
    pub fn page(&self, asid: Asid, gva: Addr<S>) -> Time {
        let page = gva.pfn().raw();
        let by_page = self.pages.get(&page).copied().unwrap_or(0);
        let by_both = self.asid_pages.get(&(asid, page)).copied().unwrap_or(0);
        self.wide(asid).max(by_page).max(by_both)
    }
}
