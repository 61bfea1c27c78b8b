//! Promotion: where 4 KiB leaves of the VM's own map all of 2 MiB, one leaf does, in portions and while the guest runs.
//!
//! ```text
//!   begin_promotion ──► withhold W of some pages ──► fence ──► copy them ──┐
//!                            ▲                                            │
//!                            └────────────── more ◄───────────────────────┤
//!                                                                         │ all
//!   one leaf ◄── copy what has been written since ◄── fence ◄── table goes ┘
//! ```
//!
//! What the guest writes to meanwhile has W again ([`AddressSpace::dirty`]), so it shows. Frames that follow one another as the
//! pages do stay, and nothing is copied. A page of which the swap device has a copy, and one that is idle or out, keeps its leaf; so do pages that stand where
//! a guest's addresses want them ([`super::relocate`]).

use super::edit;
use super::mega::MOST_TAKEN;
use super::policy::{OWNED, Policy, Superpages};
use super::space::{AddressSpace, Publish, Taken, around};
use crate::frames::{Ahead, Frames, Run, Use};
use crate::stale::Stale;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use rv::{Gpa, Hpa, Level, Pfn, PhysMem, Pte, PteFlags, Space};

/// 4 KiB leaves on their way to become one.
#[must_use = "dropping it leaks its frames"]
#[derive(PartialEq, Eq, Debug)]
pub struct Promotion<In: Space = Gpa> {
    first: Pfn<In>,
    /// The frames that they are copied to; none if they stay.
    to: Option<Ahead>,
    copied: u64,
}

/// Pages that are copied in one portion: some 40,000 instructions.
const PORTION: u64 = 32;

/// The result of a portion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promoted {
    /// There is more to be done.
    More,
    /// One leaf maps all.
    Whole,
    /// No promotion, or not now: nothing has changed for the guest.
    Not,
}

impl<In: Space> Promotion<In> {
    /// Returns the first page.
    #[must_use]
    pub const fn first(&self) -> Pfn<In> {
        self.first
    }

    /// The pages whose leaves the next portion changes. Whatever remembers these leaves is to forget them first.
    #[must_use]
    pub fn next(&self) -> Range<u64> {
        let first = self.first.raw();
        match (&self.to, self.copied) {
            // They lead where they did.
            (None, _) => first..first,
            (Some(_), copied) if copied < Level::MEGA.pages() => first + copied..first + copied + PORTION,
            _ => first..first + Level::MEGA.pages(),
        }
    }

    /// Returns whether it has taken frames.
    #[must_use]
    pub const fn has_frames(&self) -> bool {
        self.to.is_some()
    }

    /// Gives back what it has taken.
    pub fn discard(self, frames: &Frames) {
        if let Some(run) = self.to {
            frames.put_back(run);
        }
    }
}

impl<In: Space> AddressSpace<In> {
    /// Returns whether there may be 4 KiB leaves that could become one: if not, no search is needed.
    #[must_use]
    pub fn may_have_small(&self) -> bool {
        let c = self.counters();
        !matches!(self.policy.superpages, Superpages::Never)
            && c.anonymous_4k + c.copies + c.splits + c.swapped_in + c.clean != 0
    }

    /// The leaves around `page`, if all are there, the VM's own, and equal; and whether their frames follow one another so that they
    /// can stay.
    fn small_leaves(&self, page: Pfn<In>, mem: &impl PhysMem) -> Option<bool> {
        let (first, _) = self.mega_around(page)?;
        if self.is_logged() || self.has_copies(first) || self.apart.contains(&first.raw()) {
            return None;
        }
        let (_, table) = self.table_at(first, mem)?;
        let mut start = None;
        let mut follow = true;
        for index in 0..Level::MEGA.pages() {
            let pte = Pte(mem.read_u64(table.at(8 * index)));
            if !pte.flags().contains(PteFlags::V | OWNED) {
                return None;
            }
            let start: Pfn<Hpa> = *start.get_or_insert(pte.pfn());
            follow &= start.is_aligned(Level::MEGA.pages()) && pte.pfn::<Hpa>().raw() == start.raw() + index;
        }
        Some(follow)
    }

    /// Begins to make one leaf of those around `page`, if they can be one, with frames that `take` gives if they have to be copied.
    pub fn begin_promotion(
        &mut self,
        page: Pfn<In>,
        take: impl FnOnce() -> Option<Ahead>,
        mem: &impl PhysMem,
    ) -> Option<Promotion<In>> {
        let first = page.align_down(Level::MEGA.pages());
        let to = match self.small_leaves(first, mem)? {
            true => None,
            // What hardware writes without asking would be lost.
            false if !self.policy.sees_writes() => return None,
            false => Some(take()?),
        };
        self.moving = Some(first);
        Some(Promotion { first, to, copied: 0 })
    }

    /// Something other than a store has happened to pages: what has been copied of them may be out of date.
    pub(super) fn disturb(&mut self, pages: &Range<u64>) {
        let is_in = |first: &Pfn<In>| pages.start < first.raw() + Level::MEGA.pages() && first.raw() < pages.end;
        self.moving = self.moving.filter(|first| !is_in(first));
    }

    /// Withholds W of the next pages, which are then to be fenced. `None`: it cannot go on.
    pub(crate) fn withhold(&mut self, promotion: &Promotion<In>, mem: &mut impl PhysMem) -> Option<Stale<In>> {
        let table = self.still_moving(promotion, mem)?.1;
        let mut stale = Stale::none();
        for page in promotion.next() {
            let at = table.at(8 * (page - promotion.first.raw()));
            let pte = Pte(mem.read_u64(at));
            if !pte.flags().contains(PteFlags::V | OWNED) {
                self.moving = None;
                break;
            }
            if pte.flags().contains(PteFlags::W) {
                let withheld = Pte(pte.0 & !(PteFlags::W | PteFlags::D).bits());
                let (_, debt) = edit::exchange(at, withheld, mem);
                stale.owe(debt, around(Pfn::<In>::new(page).base(), Level::PAGE));
            }
        }
        Some(stale)
    }

    fn still_moving(&self, promotion: &Promotion<In>, mem: &impl PhysMem) -> Option<(rv::Addr<Hpa>, Pfn<Hpa>)> {
        if self.moving != Some(promotion.first) || self.has_copies(promotion.first) {
            return None;
        }
        self.table_at(promotion.first, mem)
    }

    /// Copies the pages of the portion, which the guest can no longer write to without a fault.
    pub(crate) fn copy_withheld(&self, promotion: &mut Promotion<In>, mem: &mut impl PhysMem) {
        let (Some((_, table)), Some(to)) = (self.table_at(promotion.first, mem), &promotion.to) else { return };
        for page in promotion.next() {
            let index = page - promotion.first.raw();
            let pte = Pte(mem.read_u64(table.at(8 * index)));
            if pte.flags().contains(PteFlags::V | OWNED) {
                mem.copy_frames(pte.pfn(), to.first().add(index), 1);
            }
        }
        promotion.copied += PORTION;
    }

    /// Returns whether all is copied, or nothing has to be.
    pub(crate) fn is_copied(promotion: &Promotion<In>) -> bool {
        promotion.to.is_none() || promotion.copied >= Level::MEGA.pages()
    }

    /// Takes the table away. `None`: it cannot be, and nothing has changed.
    pub(crate) fn conclude_promotion(
        &mut self,
        promotion: &mut Promotion<In>,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Option<(Stale<In>, Box<Publish>)> {
        let (at, table) = self.still_moving(promotion, mem)?;
        self.moving = None;
        let follow = self.small_leaves(promotion.first, mem)?;
        if promotion.to.is_none() && !follow {
            return None;
        }
        let prot = self.region_of(promotion.first)?.prot;
        let leaves: Vec<Pte> = (0..Level::MEGA.pages()).map(|index| Pte(mem.read_u64(table.at(8 * index)))).collect();
        let is_written = |pte: &&Pte| pte.flags().contains(PteFlags::W);
        if promotion.to.is_some() && leaves.iter().filter(is_written).count() > MOST_TAKEN {
            return None;
        }
        let mut stale = Self::unlink(at, table, mem);
        let mut taken = Vec::new();
        let first = match promotion.to.take() {
            None => leaves[0].pfn(),
            Some(to) => {
                // It has twice as much until those are free.
                let run = frames.claim_beyond(to, self.owner, Use::Guest).into_entry();
                for (index, pte) in (0..).zip(&leaves) {
                    if pte.flags().contains(PteFlags::W) {
                        taken.push(Taken { from: pte.pfn(), to: run.add(index) });
                    }
                    stale.retire(Run::from_entry(pte.pfn(), 0));
                }
                run
            }
        };
        self.counters.promoted += 1;
        let leaf = Policy::leaf(first, prot, OWNED);
        Some((stale, Box::new(Publish { at, leaf, level: Level::MEGA, taken })))
    }
}
