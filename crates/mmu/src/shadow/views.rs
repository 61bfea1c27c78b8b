//! The roots that one vCPU has used, and since when each may be out of date.
//!
//! A fence concerns every root that the guest may use later, also those that are not loaded. Instead of looking for
//! them at each fence, a vCPU keeps for each root that it has used a *view*: since when the root may be out of date for
//! it. A fence by address goes to a log, and a root catches up when it is loaded again; where that does not suffice
//! (another ASID, a wide fence, a log that has been overwritten), the root is brought up to date as a whole. A wide
//! fence of all ASIDs moves the log's head by so many lines that no root is up to date. Shadow pages are shared, so one
//! vCPU's fence may do more for others than it must, and never less.
//!
//! Views are stored in a two-way set-associative table indexed by the guest's `satp`: at most one for each ASID but 0.
//! Beside each is the record by which the [lane](../../../../docs/lane.md) loads the root. A root that it may load is
//! *held*: no page of it is recycled meanwhile.

use crate::ids::IdSlot;
use crate::shadow::{Paging, Root, Shadowed};
use alloc::vec::Vec;
use core::ops::Range;
use lane::{FenceLog, LaneRoot};
use rv::csr::atp::Satp;
use rv::{Asid, Gva};

/// Since when a root may be out of date for the vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// The log's head when the root was left.
    At(u64),
    /// All of the root is out of date.
    Never,
}

#[derive(Clone, Copy, Debug)]
struct View<S: Shadowed> {
    root: Root<S>,
    /// The vCPU's ASID for it on the hart where it last ran.
    id: IdSlot,
    is_held: bool,
}

/// Places of the table.
#[derive(Clone, Copy, Debug)]
struct Places([u64; LaneRoot::MOST / 64]);

impl Places {
    const fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    const fn remove(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    /// Takes all out.
    fn take(&mut self) -> impl Iterator<Item = usize> + use<> {
        let words = core::mem::take(&mut self.0);
        (0..).zip(words).flat_map(|(n, word)| {
            let rest = core::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            rest.take_while(|word| *word != 0).map(move |word| 64 * n + word.trailing_zeros() as usize)
        })
    }
}

/// The roots that a vCPU has used.
#[derive(Clone, Debug)]
pub struct Views<S: Shadowed = Gva> {
    /// The number of places.
    places: usize,
    /// By place. None before the first.
    views: Vec<Option<View<S>>>,
    /// By place, too: the record by which the lane loads the root, and the log's head when it was left.
    lane: Vec<LaneRoot>,
    /// The place of the present root. None while paging is off.
    present: Option<usize>,
    /// The ASID while paging is off.
    bare: IdSlot,
    /// The number of held roots, the most of them, and the place from which on to search for one to let go.
    held: usize,
    most_held: usize,
    hand: usize,
    /// Roots with ASID 0.
    without_asid: usize,
    /// Of those that the lane may load: the format's mode, and the generation of their ASIDs.
    of: (u8, u64),
    armed: Places,
}

impl<S: Shadowed> Default for Views<S> {
    fn default() -> Self {
        Self::new(4, 0)
    }
}

impl<S: Shadowed> Views<S> {
    /// None yet, of at most so many, a power of two; and at most so many are held for the lane.
    #[must_use]
    pub const fn new(places: usize, most_held: usize) -> Self {
        assert!(
            places.is_power_of_two() && places >= 4 && places <= LaneRoot::MOST && most_held <= places,
            "no number of places"
        );
        Self {
            places,
            views: Vec::new(),
            lane: Vec::new(),
            present: None,
            bare: IdSlot::new(),
            held: 0,
            most_held,
            hand: 0,
            without_asid: 0,
            of: (0, 0),
            armed: Places([0; LaneRoot::MOST / 64]),
        }
    }

    /// The places that a root may have, by the frame of its table.
    #[inline(always)]
    fn pair_of(&self, asid: Asid, frame: u64) -> Range<usize> {
        let first = LaneRoot::place(asid, frame, self.places);
        first..first + LaneRoot::PAIR
    }

    /// Like [`Views::pair_of`], by the guest's `satp`.
    fn pair(&self, paging: Paging, asid: Asid) -> Range<usize> {
        let Paging::Tables { root, .. } = paging else { return 0..0 };
        self.pair_of(asid, root.raw())
    }

    /// The view of what the guest's `satp` leads to, if there is one, and the root as it was.
    #[inline(always)]
    pub(super) fn find(&self, paging: Paging, asid: Asid) -> Option<(usize, &Root<S>)> {
        self.pair(paging, asid).find_map(|at| {
            let root = &self.get(at)?.root;
            (root.paging == paging && root.asid == asid).then_some((at, root))
        })
    }

    /// The ASID that fences in the lane may name while `root` is the present one: none, if another root may go by it as well, for the
    /// lane knows only the present one.
    #[must_use]
    pub fn named(&self, root: &Root<S>) -> Option<Asid> {
        let its_own = usize::from(self.present().is_some_and(|view| view.root.asid == root.asid));
        (root.asid.0 != 0 || self.without_asid <= its_own).then_some(root.asid)
    }

    /// Marks the roots of an ASID, or all, as out of date, except the present one.
    pub fn outdate_others(&mut self, asid: Option<Asid>, log: &mut FenceLog<S>) {
        match asid {
            // Those without are all that such a guest has.
            None | Some(Asid(0)) => log.push_everything(),
            Some(asid) => {
                let is_its_own = |at: &usize| self.get(*at).is_some_and(|view| view.root.asid == asid);
                if let Some(at) = self.pair_of(asid, 0).find(is_its_own)
                    && Some(at) != self.present
                {
                    self.lane[at].set_head(LaneRoot::NEVER);
                }
            }
        }
    }

    fn get(&self, at: usize) -> Option<&View<S>> {
        self.views.get(at)?.as_ref()
    }

    fn present(&self) -> Option<&View<S>> {
        self.present.and_then(|at| self.get(at))
    }

    fn view(&mut self, at: usize) -> &mut View<S> {
        self.views[at].as_mut().expect("there is a view")
    }

    /// Since when a root that is not the present one may be out of date.
    #[inline(always)]
    pub(super) fn seen(&self, at: usize) -> Seen {
        match self.lane[at].head() {
            LaneRoot::NEVER => Seen::Never,
            token => Seen::At(FenceLog::<S>::head_of(token)),
        }
    }

    /// Returns whether the vCPU knows the root that its `satp` leads to, and no fence has passed over it since the vCPU left it.
    #[inline(always)]
    #[must_use]
    pub fn is_up_to_date(&self, paging: Paging, asid: Asid, log: &FenceLog<S>) -> bool {
        let known = self.find(paging.aligned::<S>(), asid);
        known.is_some_and(|(at, _)| self.seen(at) == Seen::At(log.head()))
    }

    /// A known root becomes the present one again. Returns it, and since when it may be out of date.
    #[inline(always)]
    pub(super) fn resume(&mut self, at: usize) -> (Root<S>, Seen) {
        self.present = Some(at);
        (self.view(at).root, self.seen(at))
    }

    /// A new root is the present one, up to date. Returns the root whose place it takes, if that was held.
    #[must_use = "it is held no more"]
    pub(super) fn begin(&mut self, root: Root<S>) -> Option<Root<S>> {
        if root.paging == Paging::Bare {
            return None;
        }
        if self.views.is_empty() {
            self.views.resize_with(self.places, || None);
            self.lane.extend((0..self.places).map(LaneRoot::none));
        }
        if root.asid.0 == 0 {
            self.without_asid += 1;
            if self.without_asid == 2 {
                // A fence of ASID 0 concerns both from now on.
                self.lane.iter_mut().for_each(LaneRoot::name_none);
            }
        }
        let at = self.place_for(&root)?;
        self.present = Some(at);
        self.lane[at] = LaneRoot::none(at);
        self.armed.remove(at);
        let old = self.views[at].replace(View { root, id: IdSlot::new(), is_held: false })?;
        self.without_asid -= usize::from(old.root.asid.0 == 0);
        self.held -= usize::from(old.is_held);
        old.is_held.then_some(old.root)
    }

    /// Returns the place for a new root, the first that there is of: the place of the root that it replaces, so that
    /// there is one for each ASID; of the same root with another ASID; one without a root; one whose root the lane may
    /// not load; either place, by turns.
    fn place_for(&mut self, root: &Root<S>) -> Option<usize> {
        let (pair, turn) = (self.pair(root.paging, root.asid), self.hand % LaneRoot::PAIR);
        self.hand += 1;
        let is_instead_of =
            |other: &Root<S>| other.asid == root.asid && (root.asid.0 != 0 || other.paging == root.paging);
        pair.min_by_key(|at| match self.get(*at) {
            Some(view) if is_instead_of(&view.root) => 0,
            Some(view) if view.root.paging == root.paging => 1,
            None => 2,
            Some(view) if !view.is_held => 3,
            Some(_) => 4 + usize::from(at % LaneRoot::PAIR != turn),
        })
    }

    /// Ends the present root, which was up to date at the head of the log. Returns whether it is still held.
    #[inline(always)]
    pub(super) fn end(&mut self, log: &FenceLog<S>) -> bool {
        let Some(at) = self.present.take() else { return false };
        self.lane[at].set_head(log.token());
        self.view(at).is_held
    }

    /// Returns whether the present root is held.
    #[inline(always)]
    pub(super) fn holds_present(&self) -> bool {
        self.present().is_some_and(|view| view.is_held)
    }

    /// Holds the present root from now on, if any may be. Returns one that is let go for it.
    pub(super) fn hold_present(&mut self) -> Option<Root<S>> {
        let at = self.present.filter(|_| self.most_held != 0)?;
        let let_go = if self.held == self.most_held { self.let_one_go() } else { None };
        self.view(at).is_held = true;
        self.held += 1;
        let_go
    }

    /// Lets one of the others go, if any is held: whichever comes next.
    pub(super) fn let_one_go(&mut self) -> Option<Root<S>> {
        if self.held == usize::from(self.holds_present()) {
            return None;
        }
        loop {
            self.hand = (self.hand + 1) % self.places;
            let hand = self.hand;
            let its = self.views[hand].as_mut().filter(|view| view.is_held && Some(hand) != self.present);
            if let Some(view) = its {
                view.is_held = false;
                self.held -= 1;
                self.lane[hand].disarm(hand);
                self.armed.remove(hand);
                return Some(view.root);
            }
        }
    }

    /// The vCPU's ASID on this hart for its present root.
    pub fn id(&mut self) -> &mut IdSlot {
        match self.present {
            Some(at) => &mut self.view(at).id,
            None => &mut self.bare,
        }
    }

    /// The vCPU has been on another hart: it has no ASIDs on this one.
    pub fn forget_ids(&mut self) {
        self.bare = IdSlot::new();
        self.views.iter_mut().flatten().for_each(|view| view.id = IdSlot::new());
        self.disarm();
    }

    /// The lane may load no root any more.
    pub fn disarm(&mut self) {
        self.armed.take().for_each(|at| self.lane[at].disarm(at));
    }

    /// Lets the lane load the present root, if it is held, where the guest writes `key`; the hart's register gets
    /// `satp` then. Returns the root's place. The lane cannot leave a root that is not held, either: nothing would show
    /// then that it is in use.
    #[inline(always)]
    pub fn arm(&mut self, key: u64, satp: u64) -> Option<usize> {
        let at = self.present?;
        let View { root, id, .. } = *self.views[at].as_ref().filter(|view| view.is_held)?;
        let of = (root.format.mode, id.generation());
        if of != self.of {
            // The lane goes down all by as many levels; and ASIDs of another generation are others' by now.
            self.disarm();
            self.of = of;
        }
        let named = self.named(&root);
        self.lane[at].arm(key, root.table, named, satp);
        self.armed.insert(at);
        Some(at)
    }

    /// Returns the records by which the lane loads roots. They stay where they are as long as there is a present root.
    pub fn lane_roots(&mut self) -> &mut [LaneRoot] {
        &mut self.lane
    }

    /// Returns whether the lane may load a root where the guest writes that.
    #[must_use]
    pub fn lane_loads(&self, key: u64) -> bool {
        let satp = Satp::decode(key);
        // What stands in a place that no root has is no root of a guest's: it has no mode.
        let pair = self.lane.get(self.pair_of(satp.asid, satp.ppn));
        satp.mode != 0 && pair.is_some_and(|pair| pair.iter().any(|root| root.key() == key))
    }

    /// Returns the value that the guest has written for the root at that place, which the lane has loaded.
    #[must_use]
    pub fn key(&self, place: usize) -> u64 {
        self.lane[place].key()
    }

    /// The lane has loaded the root at that place since: it is the present one. Returns it, and what the guest has written.
    pub fn follow(&mut self, place: usize) -> (Root<S>, u64) {
        self.present = Some(place);
        (self.view(place).root, self.lane[place].key())
    }
}
