//! Coalescing, in `steered`: if the 512 leaves of a shadow page agree and map one aligned run of host frames, one leaf
//! of 2 MiB stands in the entries that led to the page. The guest keeps the 4 KiB entries that it has written.
//!
//! ```text
//!   root .. ─► level 1: pointer ─► level 0: 512 leaves      is made      level 1: leaf (COALESCED)      level 0: 512 leaves
//!                                                            ◄──────►             └ ─ ─ ─ in the lists: leads there ─ ┘
//!                                                           is split
//! ```
//!
//! Nothing else changes: the page keeps its leaves, its mirrors and its place in all lists, and the entries above stay
//! in the list of its parents. So fences compare the same entries as before, and a change of a frame finds all leaves
//! that map it. The leaf of 2 MiB maps the same frames with the same rights as the 512 leaves. Before any of them changes,
//! the page is *split*, and the entries above are pointers again. The lane finds no mark there, and passes the fence on.
//!
//! The caller's timer searches for such pages ([`Shadow::gather`]); faults and fences do not.

use crate::shadow::entries::{Act, COALESCED, Tables};
use crate::shadow::pages::{Id, List, Page, Role, Stay};
use crate::shadow::{Budget, Host, MARK, Sabotage, Shadowed};
use crate::table::{self};
use rv::format::ENTRIES;
use rv::{Entry, Level, PhysMem, Pte, PteFlags};

/// Entries above a page that is coalesced, at most: all are written at once when it is, and when it is split.
const MOST_PARENTS: usize = 4;

/// The judgement of a shadow page's leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// Not all leaves are there, or they differ in what they allow, or may not be one leaf.
    Various,
    /// One leaf of 2 MiB says the same: this one.
    Run(Pte),
    /// The leaves agree, but their frames do not follow one another.
    Scattered,
}

/// The flags that decide whether leaves may be coalesced, and their values: user pages, none of them global, since a
/// fence of one of the pages ends the whole leaf.
const AMONG: u64 = PteFlags::V.union(PteFlags::R).union(PteFlags::U).union(PteFlags::G).bits();
const WANTED: u64 = PteFlags::V.union(PteFlags::R).union(PteFlags::U).bits();
/// The bit at which an entry's frame number begins, and the mask of the bits below.
const PPN_SHIFT: u32 = 10;
const FLAGS: u64 = (1 << PPN_SHIFT) - 1;

/// Judges the leaves of a page of level 0.
pub fn leaves_of<M: PhysMem, H>(page: &Page, host: &mut Host<'_, M, H>) -> Leaves {
    if !page.marks.is_full() {
        return Leaves::Various;
    }
    let first = page.slot(0).read(host.mem).0;
    if first & AMONG != WANTED {
        return Leaves::Various;
    }
    let (mut any, mut next) = (0, first);
    let mut strays = first >> PPN_SHIFT & (Level::MEGA.pages() - 1);
    for eight in (0..ENTRIES).step_by(8) {
        let mut others = 0;
        for index in eight..eight + 8 {
            let this = page.slot(index).read(host.mem).0;
            others |= this ^ first;
            any |= this;
            strays |= this ^ next;
            next += 1 << PPN_SHIFT;
        }
        if others & FLAGS != 0 {
            host.budget.spend(eight as u32);
            return Leaves::Various;
        }
    }
    host.budget.spend(ENTRIES as u32);
    match strays {
        _ if table::is_poison(Pte(any)) => Leaves::Various,
        0 => Leaves::Run(Pte(first)),
        _ => Leaves::Scattered,
    }
}

impl<S: Shadowed> Tables<S> {
    /// Puts a leaf of 2 MiB into all entries that lead to a page, if there are some, and not too many. Says whether it has.
    pub fn coalesce<M: PhysMem, H>(&mut self, id: Id, first: Pte, host: &mut Host<'_, M, H>) -> bool {
        let mut parents = 0;
        let mut next = self.index.first(List::Parents(id), host.mem);
        while let Some(at) = next {
            parents += 1;
            next = self.index.next(at, host.mem);
            if parents > MOST_PARENTS {
                return false;
            }
        }
        if parents == 0 {
            // Its table may be linked again, with the leaves that it has.
            self.index.page_mut(id).stay = Stay::Changed;
            return false;
        }
        self.counters.coalesced += 1;
        self.index.page_mut(id).is_coalesced = true;
        self.write_parents(id, (Act::Coalesce, Pte(first.0 | COALESCED.bits())), host);
        true
    }

    /// More entries are to lead to a page, or one of its leaves may change: those that lead there are pointers again.
    #[inline(always)]
    pub fn unfold<M: PhysMem, H>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        if self.index.page(id).is_coalesced {
            self.split(id, host);
        }
    }

    /// A leaf of a page is about to change: the same, and its leaves are not as they were.
    #[inline(always)]
    pub fn split<M: PhysMem, H>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        let page = self.index.page_mut(id);
        page.stay = Stay::Changed;
        if page.is_coalesced {
            self.split_page(id, host);
        }
    }

    #[cold]
    #[inline(never)]
    fn split_page<M: PhysMem, H>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        if self.rules.is_sabotaged(Sabotage::KeepsCoalesced) {
            return;
        }
        self.counters.coalesced_split += 1;
        self.index.page_mut(id).is_coalesced = false;
        let pointer = self.pointer_to(id, host.mem);
        self.write_parents(id, (Act::Split, pointer), host);
    }

    /// Returns the pointer to a shadow page.
    pub fn pointer_to(&self, id: Id, mem: &mut impl PhysMem) -> Pte {
        let page = self.index.page(id);
        let mut pte = Entry::Table(page.table()).encode();
        if page.key.role == Role::Table {
            // The lane stays out of pages without a header.
            let has_gate = self.rules.policy.has_gate && page.key.level == Level::PAGE;
            let is_open = !has_gate || self.gate.write_header(page, mem);
            pte.0 |= if is_open { MARK } else { PteFlags::empty() }.bits();
        }
        pte
    }

    /// Writes `entry` into all entries that lead to a page. A fence of 2 MiB that this owes on other harts is left to
    /// the guest, as for any leaf that TLBs have longer than the tables: parts that have not changed are as before, and
    /// a fence by address of a part that has changed ends a superpage that covers it.
    fn write_parents<M: PhysMem, H>(&mut self, id: Id, (act, entry): (Act, Pte), host: &mut Host<'_, M, H>) {
        let mut next = self.index.first(List::Parents(id), host.mem);
        while let Some((above, index)) = next {
            host.budget.spend(Budget::EDIT);
            let (_, debt) = self.index.page(above).slot(index).exchange(act, entry, host.mem);
            self.owe(debt, host);
            next = self.index.next((above, index), host.mem);
            if self.rules.is_sabotaged(Sabotage::SplitsOneParent) && !self.index.page(id).is_coalesced {
                break;
            }
        }
    }
}
