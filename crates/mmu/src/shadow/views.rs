//! What one vCPU remembers of the roots that it used.
//!
//! A fence concerns every root that the guest may use later, also those that are not loaded. Instead of looking for
//! them at each fence, a vCPU keeps for each root that it has used a *view*: since when the root may be out of
//! date for it. A fence by address goes to a log, and a root catches up when it is loaded again; where that
//! does not suffice (another ASID, a wide fence, a log that has been overwritten), the root is brought up to date as
//! a whole. Shadow pages are shared, so one vCPU's fence may do more for others than it must, and never less.

use super::root::{Paging, Root};
use super::shadowed::Shadowed;
use alloc::vec::Vec;
use rv::{Asid, Gva};

/// Since when a root may be out of date for the vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// The log's head when the root was left.
    At(u64),
    /// It is all out of date.
    Never,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct View<S: Shadowed> {
    pub root: Root<S>,
    pub seen: Seen,
    /// When it was last used.
    stamp: u64,
}

/// The roots that a vCPU has used.
#[derive(Clone, Debug)]
pub struct Views<S: Shadowed = Gva> {
    views: Vec<View<S>>,
    /// Which is the present root's. None while paging is off.
    present: Option<usize>,
    stamp: u64,
}

/// Views that a vCPU keeps; older ones are forgotten, and their roots out of date.
const MOST_VIEWS: usize = 64;

impl<S: Shadowed> Default for Views<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Shadowed> Views<S> {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { views: Vec::new(), present: None, stamp: 0 }
    }

    /// Whether a root other than the present one goes by `asid` as well. Then the lane, which knows only the
    /// present one, must not take fences by ASID.
    #[must_use]
    pub fn others_have(&self, asid: Asid) -> bool {
        self.views.iter().enumerate().any(|(at, view)| view.root.asid == asid && Some(at) != self.present)
    }

    /// The roots of an ASID, or all, but for the present one, are out of date.
    pub fn outdate_others(&mut self, asid: Option<Asid>) {
        for (at, view) in self.views.iter_mut().enumerate() {
            if Some(at) != self.present && asid.is_none_or(|asid| asid == view.root.asid) {
                view.seen = Seen::Never;
            }
        }
    }

    /// The view of the root that the guest's `satp` leads to, if there is one, and the root as it was.
    pub(super) fn find(&self, paging: Paging) -> Option<(usize, &Root<S>)> {
        let at = self.views.iter().position(|view| view.root.paging == paging)?;
        Some((at, &self.views[at].root))
    }

    /// A known root becomes the present one again, under this ASID. Returns it, and since when it may be out of date; from
    /// now on it is not, at `head` of the log.
    pub(super) fn resume(&mut self, at: usize, asid: Asid, head: u64) -> (Root<S>, Seen) {
        self.stamp += 1;
        self.present = Some(at);
        let view = &mut self.views[at];
        view.stamp = self.stamp;
        let seen = core::mem::replace(&mut view.seen, Seen::At(head));
        let is_same = core::mem::replace(&mut view.root.asid, asid) == asid;
        (view.root, if is_same { seen } else { Seen::Never })
    }

    /// A new root is the present one, up to date at `head` of the log. `at` is the place of a view that it replaces.
    pub(super) fn begin(&mut self, at: Option<usize>, root: Root<S>, head: u64) {
        self.stamp += 1;
        let view = View { root, seen: Seen::At(head), stamp: self.stamp };
        let at = at.or_else(|| {
            let is_full = self.views.len() == MOST_VIEWS;
            (0..self.views.len()).min_by_key(|at| self.views[*at].stamp).filter(|_| is_full)
        });
        match at {
            Some(at) => {
                self.views[at] = view;
                self.present = Some(at);
            }
            None => {
                self.views.push(view);
                self.present = Some(self.views.len() - 1);
            }
        }
    }

    /// There is no present root any more; it was up to date at `head` of the log.
    pub(super) fn end(&mut self, head: u64) {
        if let Some(at) = self.present.take() {
            self.views[at].seen = Seen::At(head);
        }
    }
}
