//! Comparing by digests, and making them.

use super::config::{Budget, Host};
use super::digest::{Digest, MOST_TABLES, MOST_UPPERS, MOST_WORDS};
use super::engine::Shadow;
use super::page::{Id, NO_DIGEST, Number, PARTS, Role, below, indices};
use super::passed::Mappings;
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use rv::{Addr, Fence, Gpa, Level, PhysMem};

/// A part that is found to be shared so often is worth one.
const FIRST: u8 = 4;

impl<S: Shadowed> Shadow<S> {
    /// Brings a page that has a digest in step, with all that it leads to. Says whether it has.
    #[inline(always)]
    pub(super) fn sync_by_digest<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        let number = self.index.page(id).digest;
        number != NO_DIGEST && self.holds(number) && self.go_through(id, number, mappings, host)
    }

    #[inline(always)]
    fn holds(&self, number: Number) -> bool {
        self.index.digests >> number & 1 == 1 || self.is_sabotaged(Sabotage::KeepsDigests)
    }

    /// Whether a page is a part of a digest that holds.
    fn is_in_one(&self, id: Id) -> bool {
        let number = self.index.page(id).digest;
        let digest = number.checked_sub(1).filter(|_| self.holds(number));
        let digest = digest.and_then(|at| self.digests.all[usize::from(at)].as_ref());
        digest.is_some_and(|digest| digest.uppers.contains(&id))
    }

    #[inline(never)]
    fn go_through<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        number: Number,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        let Some(digest) = self.digests.all[usize::from(number) - 1].take() else { return false };
        let done = digest.top == id && self.sync_all_of(&digest, mappings, host);
        self.digests.all[usize::from(number) - 1] = Some(digest);
        done
    }

    fn sync_all_of<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        digest: &Digest<S>,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        self.counters.digests += 1;
        host.budget.spend(Budget::VISIT + digest.words.len() as u32);
        if digest.words.iter().any(|(at, known)| host.mem.read_u64(*at) != *known) {
            self.index.end_digest_of(digest.top);
            return false;
        }
        let (stamp, fences) = (self.stamp, self.passed.fences());
        for (at, id, gva) in &digest.tables {
            if !self.index.page_mut(*id).use_.is_kept(fences) {
                self.drop_entry(*at, host);
                continue;
            }
            // An entry that was dropped has ended the digest; the rest of it is as it was.
            if self.sync_tree(*id, mappings, *gva, host).is_err() {
                return false;
            }
        }
        for id in &digest.uppers {
            self.index.page_mut(*id).compared.set(mappings, stamp);
        }
        true
    }

    /// A page has been found to be in step, with all that it leads to: now or later it gets a digest, if several lead to it.
    pub(super) fn digest<M: PhysMem, H>(&mut self, id: Id, gva: Addr<S>, host: &mut Host<'_, M, H>) {
        let page = self.index.page(id);
        let Some(first) = page.parents.entry().filter(|_| !self.digests.all.is_empty()) else { return };
        if self.index.next(first, host.mem).is_none() || self.is_in_one(id) {
            return;
        }
        let page = self.index.page_mut(id);
        // Where there is too much of it, it is tried again when this has come round.
        page.seen = page.seen.wrapping_add(1);
        if page.seen == FIRST {
            self.make_digest(id, gva, host);
        }
    }

    #[inline(never)]
    fn make_digest<M: PhysMem, H>(&mut self, top: Id, gva: Addr<S>, host: &mut Host<'_, M, H>) {
        let Some(mut digest) = self.digests.spare.take() else { return };
        digest.top = top;
        digest.words.clear();
        digest.uppers.clear();
        digest.tables.clear();
        let is_whole = self.lay_out(top, gva, &mut digest, host).is_some() && !digest.words.is_empty();
        self.digests.spare = if is_whole { self.take_up(digest) } else { Some(digest) };
    }

    /// A digest takes the place of one that does not hold, or of the next by turns. Returns that.
    fn take_up(&mut self, digest: Digest<S>) -> Option<Digest<S>> {
        let all = self.digests.all.len();
        let at = (0..all).find(|at| self.index.digests >> (at + 1) & 1 == 0).unwrap_or(self.digests.hand % all);
        self.digests.hand += 1;
        let number = at as Number + 1;
        let old = self.digests.all[at].take()?;
        for id in &old.uppers {
            // Or what is there now; it is none of the other's.
            if self.index.get(*id).is_some_and(|page| page.digest == number) {
                self.index.page_mut(*id).digest = NO_DIGEST;
            }
        }
        for id in &digest.uppers {
            self.index.page_mut(*id).digest = number;
        }
        self.index.page_mut(digest.top).seen = 0;
        self.index.digests |= 1 << number;
        self.digests.all[at] = Some(digest);
        Some(old)
    }

    /// `None`: there is too much of it.
    fn lay_out<M: PhysMem, H>(
        &self,
        id: Id,
        gva: Addr<S>,
        digest: &mut Digest<S>,
        host: &mut Host<'_, M, H>,
    ) -> Option<()> {
        let page = self.index.page(id);
        if self.is_in_one(id) || digest.uppers.len() == MOST_UPPERS || page.key.role != Role::Table {
            return None;
        }
        // Its bits say nothing before a fence has been there.
        if page.epoch != self.epoch {
            return None;
        }
        digest.uppers.push(id);
        let guest = page.guest?;
        host.budget.spend(Budget::VISIT);
        for part in 0..PARTS {
            for index in indices(part, page.live_in(part)) {
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
                let Some(child) = self.table_below((id, index), host.mem) else { continue };
                let there = below(page.key.level, gva, index);
                if page.key.level > Level::MEGA {
                    self.lay_out(child, there, digest, host)?;
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
