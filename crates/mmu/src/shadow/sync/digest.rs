//! Digests: the comparisons that a wide fence makes in a part of the shadow that many roots share, as a kernel's half
//! is, laid out in a row. To go down there table by table takes some 300 instructions for each, and a kernel has four
//! or five for one whose entries may differ.
//!
//! ```text
//!  roots of processes                  a digest
//!   ┌──┐ ┌──┐ ┌──┐                     words:  where the guest's entry is, and what it was     (of all live entries of A, B)
//!   └┬─┘ └┬─┘ └┬─┘                     uppers: A, B
//!    └────┼────┘                       tables: C, D, and the entries that lead there
//!       ┌─▼─┐ A, the top
//!       └─┬─┘
//!       ┌─▼─┐ B
//!       └┬─┬┘
//!     ┌──▼┐┌▼──┐ C, D: level 0
//! ```
//!
//! A digest says the same as the tables as long as no upper page of it gets an entry or loses one; otherwise
//! [`crate::shadow::pages::index::Index`] ends it.

use crate::shadow::entries::Tables;
use crate::shadow::pages::{At, Id, NO_DIGEST, Number, PARTS, Role, below, indices};
use crate::shadow::{Budget, Host, Sabotage, Shadowed};
use alloc::vec::Vec;
use rv::{Addr, Hpa, Level, PhysMem};

/// A part that is found to be shared so often is worth one.
const FIRST: u8 = 4;

const MOST: usize = 6;
pub const MOST_WORDS: usize = 128;
pub const MOST_UPPERS: usize = 16;
pub const MOST_TABLES: usize = 32;

/// One of them.
pub struct Digest<S: Shadowed> {
    pub top: Id,
    pub words: Vec<(Addr<Hpa>, u64)>,
    pub uppers: Vec<Id>,
    pub tables: Vec<(At, Id, Addr<S>)>,
}

/// All of an engine: their memory is taken when it begins.
pub struct Digests<S: Shadowed> {
    pub all: Vec<Option<Digest<S>>>,
    /// The next one is laid out there.
    pub spare: Option<Digest<S>>,
    pub hand: usize,
}

fn room<T>(most: usize) -> Option<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(most).ok()?;
    Some(room)
}

impl<S: Shadowed> Digests<S> {
    /// Six, or none if they are not used. `None` if there is no room on the heap.
    pub fn new(are_used: bool) -> Option<Self> {
        let one = || {
            let (words, uppers, tables) = (room(MOST_WORDS)?, room(MOST_UPPERS)?, room(MOST_TABLES)?);
            Some(Digest { top: 0, words, uppers, tables })
        };
        if !are_used {
            return Some(Self { all: Vec::new(), spare: None, hand: 0 });
        }
        let all = (0..MOST).map(|_| Some(Some(one()?))).collect::<Option<_>>()?;
        Some(Self { all, spare: Some(one()?), hand: 0 })
    }

    #[inline(always)]
    pub fn holds(number: Number, tables: &Tables<S>) -> bool {
        tables.index.digests >> number & 1 == 1 || tables.rules.is_sabotaged(Sabotage::KeepsDigests)
    }

    /// Returns whether a page is a part of a digest that holds.
    fn is_in_one(&self, id: Id, tables: &Tables<S>) -> bool {
        let number = tables.index.page(id).digest.number;
        let digest = number.checked_sub(1).filter(|_| Self::holds(number, tables));
        let digest = digest.and_then(|at| self.all[usize::from(at)].as_ref());
        digest.is_some_and(|digest| digest.uppers.contains(&id))
    }

    /// A page has been found to be in step, with all that it leads to: now or later it gets a digest, if several lead to it.
    pub fn digest<M: PhysMem, H>(&mut self, id: Id, gva: Addr<S>, tables: &mut Tables<S>, host: &mut Host<'_, M, H>) {
        let page = tables.index.page(id);
        let Some(first) = page.parents.entry().filter(|_| !self.all.is_empty()) else { return };
        if tables.index.next(first, host.mem).is_none() || self.is_in_one(id, tables) {
            return;
        }
        let page = tables.index.page_mut(id);
        // Where there is too much of it, it is tried again when this has come round.
        page.digest.seen = page.digest.seen.wrapping_add(1);
        if page.digest.seen == FIRST {
            self.make_digest(id, gva, tables, host);
        }
    }

    #[inline(never)]
    fn make_digest<M: PhysMem, H>(&mut self, top: Id, gva: Addr<S>, tables: &mut Tables<S>, host: &mut Host<'_, M, H>) {
        let Some(mut digest) = self.spare.take() else { return };
        digest.top = top;
        digest.words.clear();
        digest.uppers.clear();
        digest.tables.clear();
        let is_whole = self.lay_out(top, gva, &mut digest, tables, host).is_some() && !digest.words.is_empty();
        self.spare = if is_whole { self.take_up(digest, tables) } else { Some(digest) };
    }

    /// A digest takes the place of one that does not hold, or of the next by turns. Returns that.
    fn take_up(&mut self, digest: Digest<S>, tables: &mut Tables<S>) -> Option<Digest<S>> {
        let all = self.all.len();
        let at = (0..all).find(|at| tables.index.digests >> (at + 1) & 1 == 0).unwrap_or(self.hand % all);
        self.hand += 1;
        let number = at as Number + 1;
        let old = self.all[at].take()?;
        for id in &old.uppers {
            // Or what is there now; it is none of the other's.
            if tables.index.arena.get(*id).is_some_and(|page| page.digest.number == number) {
                tables.index.page_mut(*id).digest.number = NO_DIGEST;
            }
        }
        for id in &digest.uppers {
            tables.index.page_mut(*id).digest.number = number;
        }
        tables.index.page_mut(digest.top).digest.seen = 0;
        tables.index.digests |= 1 << number;
        self.all[at] = Some(digest);
        Some(old)
    }

    /// `None`: there is too much of it.
    fn lay_out<M: PhysMem, H>(
        &self,
        id: Id,
        gva: Addr<S>,
        digest: &mut Digest<S>,
        tables: &Tables<S>,
        host: &mut Host<'_, M, H>,
    ) -> Option<()> {
        let page = tables.index.page(id);
        if self.is_in_one(id, tables) || digest.uppers.len() == MOST_UPPERS || page.key.role != Role::Table {
            return None;
        }
        // Its bits say nothing before a fence has been there.
        if page.stirred.epoch != tables.unrest.epoch {
            return None;
        }
        digest.uppers.push(id);
        let guest = page.origin.guest?;
        host.budget.spend(Budget::VISIT);
        for part in 0..PARTS {
            for index in indices(part, page.marks.live_in(part)) {
                if digest.words.len() == MOST_WORDS || host.budget.is_spent() {
                    return None;
                }
                host.budget.spend(2);
                if page.may_lag() {
                    digest.words.push((guest.at(8 * index as u64), page.made_from(index, host.mem).0));
                }
                if page.stirred_in(part) >> (index % 64) & 1 == 0 {
                    continue;
                }
                let Some(child) = tables.table_below((id, index), host.mem) else { continue };
                let there = below(page.key.level, gva, index);
                if page.key.level > Level::MEGA {
                    self.lay_out(child, there, digest, tables, host)?;
                } else if digest.tables.len() == MOST_TABLES {
                    return None;
                } else {
                    digest.tables.push(((id, index), child, there));
                }
            }
        }
        Some(())
    }
}
