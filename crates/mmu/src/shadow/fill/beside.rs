//! Faults of vCPUs that share the VM's lock: each only makes an invalid entry of level 0 a leaf, in tables that are known.
//!
//! Such a fault reads what the engine knows, which no other vCPU changes meanwhile; it makes the entry valid by compare-and-exchange;
//! and it writes a line to its vCPU's log ([`Fills`]). The next vCPU that has the lock to itself learns the lines, before it does anything else
//! ([`Shadow::close`]): then the entry gets its mirror and its list. Until then it is a leaf that the index does not know.
//!
//! The lane, which needs no lock, may change the same entry. In `lazy` it leaves an invalid entry that was never there before, so the
//! exchange fails. In `steered` it is kept out by the gate while the guest's entry is read again and ours is exchanged.
//! A store of the guest to its tables meanwhile does not matter: a fence that the lane passes on has the lock to itself.

use super::fault::{Answer, Forget};
use super::filler::Filler;
use crate::frames::Frames;
use crate::gstage::{AddressSpace, Filled, Ready, Unresolved};
use crate::shadow::cache::needed;
use crate::shadow::pages::{At, CAPS, Index, NO_PTE, Role, Stay};
use crate::shadow::{Root, Sabotage, Shadowed};
use crate::table::State;
use crate::walk;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use rv::{Access, Addr, Hpa, Level, PhysMem, Pte, PteFlags, Request};

/// The result of a fault that shares the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    /// The fault is answered.
    Answered(Answer),
    /// The memory is not mapped yet, and there was nothing to map it with.
    WantsMemory,
    /// This fault takes the lock exclusively, the next ones do not: the vCPU's log has no room, or the lock is held for long.
    NotNow,
    /// The fault takes the lock exclusively. Nothing has changed, except that memory may have been mapped.
    Elsewhere,
}

/// The entry of level 0 that decides about an address.
struct Target {
    at: At,
    /// The guest's entry behind it, or behind the superpage that it is a part of; and its level.
    guests: Addr<Hpa>,
    level: Level,
    /// For a part of a superpage: the guest's entry that the parts were made from.
    mirror: Option<Pte>,
}

impl<S: Shadowed> Filler<S> {
    /// Finds the entry of level 0 that decides about `gva`, if all tables on the way are linked.
    fn target(&self, root: &Root<S>, gva: Addr<S>, mem: &impl PhysMem) -> Option<Target> {
        let tables = &self.syncer.cache.tables;
        if !root.format.fits(gva) {
            return None;
        }
        let (id, index) = match tables.walks.known(root, gva) {
            Some(at) => at,
            None => tables.walks.way(&tables.index, tables.part(root, gva), (root, gva), mem).0,
        };
        let page = tables.index.page(id);
        let (key, guests) = (page.key, page.origin.guest?.at(8 * index as u64));
        if key.role != Role::Table || page.is_coalesced {
            return None;
        }
        if key.level == Level::PAGE {
            return Some(Target { at: (id, index), guests, level: key.level, mirror: None });
        }
        // A superpage of the guest's, in parts.
        let mirror = page.mirror(index, mem).filter(|mirror| !mirror.is_pointer())?;
        let mut part = tables.index.find(key.child(index, mirror)?, mem)?;
        loop {
            let page = tables.index.page(part);
            let index = root.format.index_in_frame(gva, page.key.level);
            if page.key.level == Level::PAGE {
                return Some(Target { at: (part, index), guests, level: key.level, mirror: Some(mirror) });
            }
            page.mirror(index, mem).filter(|_| page.is_pointer(page.slot(index).read(mem)))?;
            part = tables.index.find(page.key.child(index, NO_PTE)?, mem)?;
        }
    }

    /// Answers a fault of a vCPU's with a share of the lock.
    pub fn fault_beside<M: PhysMem>(
        &self,
        (root, vcpu): (&Root<S>, usize),
        gva: Addr<S>,
        request: &Request,
        space: &AddressSpace,
        from: Option<(&Frames, &mut Ready)>,
        mem: &mut M,
    ) -> Result<Beside, Unresolved> {
        const ELSEWHERE: Result<Beside, Unresolved> = Ok(Beside::Elsewhere);
        let Some(log) = self.fills.logs.get(vcpu) else { return ELSEWHERE };
        if log.count.load(Relaxed) == log.lines.len() {
            return Ok(Beside::NotNow);
        }
        let tables = &self.syncer.cache.tables;
        let Some(Target { at, guests, mirror, level }) = self.target(root, gva, mem) else { return ELSEWHERE };
        let page = tables.index.page(at.0);
        let slot = page.slot(at.1);
        let ours = slot.read(mem);
        // The guest's entry is read after ours (`entries/read`).
        fence(SeqCst);
        let pte = Pte(mem.read_u64(guests));
        if mirror.is_some_and(|mirror| mirror != pte) {
            return ELSEWHERE;
        }
        let Ok(leaf) = walk::judge::<rv::Gpa, ()>(pte.decode(level, CAPS), request) else { return ELSEWHERE };
        if !walk::unset(&leaf, request.access).is_empty() {
            return ELSEWHERE;
        }
        let gpa = leaf.pfn.at(gva.raw() & (level.bytes() - 1));
        let rules = &tables.rules;
        let (allowed, mirror) = match page.key.role {
            Role::Direct(allowed) => (allowed, NO_PTE),
            Role::Table | Role::Bare | Role::Piece(_) => (rules.rights(leaf.flags), pte),
        };
        // As in [`Filler::walk_and_fill`]: with less, a store would be a page fault of the guest's.
        let region = || space.region_of(gpa.pfn());
        let stores = rules.policy.own_faults
            && allowed.contains(PteFlags::W)
            && region().is_some_and(|region| region.prot.allows(Access::Store));
        let wanted = if stores { Access::Store } else { request.access };
        let mapped = || space.translate(gpa, mem).filter(|there| there.flags.contains(needed(wanted)));
        let there = match mapped() {
            Some(there) => there,
            None if region().is_none() => return ELSEWHERE,
            None => {
                let Some((frames, ready)) = from else { return Ok(Beside::WantsMemory) };
                if space.fill(gpa, wanted, ready, frames, mem)? == Filled::Elsewhere {
                    return ELSEWHERE;
                }
                let Some(there) = space.translate(gpa, mem) else { return ELSEWHERE };
                there
            }
        };
        if rules.policy.own_faults
            && (!rules.allows_all(leaf.flags, there) || tables.index.heads.has_protected_around(gpa.pfn()))
            || request.access == Access::Store && tables.is_protected(gpa.pfn(), mem)
            || !tables.leaf_fits(gpa.pfn(), Level::PAGE, there.level)
        {
            return ELSEWHERE;
        }
        let Some(new) = tables.leaf(gpa.pfn(), Level::PAGE, allowed, there, mem) else { return ELSEWHERE };
        if ours == new {
            return Ok(Beside::Answered(Answer::Filled { forget: Forget::Page, known: true }));
        }
        let is_known = page.mirror(at.1, mem) == Some(mirror);
        let has_mirror = !rules.has_all_mirrors(page) || page.made_from(at.1, mem) == mirror;
        if !matches!(State::of(ours), State::Empty | State::Poison)
            || page.marks.is_listed(at.1) && !is_known
            || !has_mirror
        {
            return ELSEWHERE;
        }
        let next = tables.gate.enter(mem);
        let is_same = Pte(mem.read_u64(guests)) == pte || rules.is_sabotaged(Sabotage::FillsUnseen);
        let is_filled = is_same && tables.fill_beside(slot, (ours, new), mem);
        tables.gate.leave(next, mem);
        if !is_filled {
            return Ok(Beside::Answered(Answer::Retry));
        }
        self.fills.note();
        if is_known {
            log.known.fetch_add(1, Relaxed);
        } else if !rules.is_sabotaged(Sabotage::FillsUnlogged) {
            log.write(at, mirror, new);
        }
        // Poison is valid: a hart may remember it.
        let forget = if ours.flags().contains(PteFlags::V) { Forget::Page } else { Forget::Nothing };
        Ok(Beside::Answered(Answer::Filled { forget, known: false }))
    }

    /// Learns what vCPUs have filled. None shares the lock.
    #[cold]
    #[inline(never)]
    pub fn learn_fills(&mut self, mem: &mut impl PhysMem) {
        let Self { syncer, fills, .. } = self;
        let tables = &mut syncer.cache.tables;
        fills.is_pending.store(false, Relaxed);
        for log in &fills.logs {
            tables.counters.filled_4k += log.known.swap(0, Relaxed);
            let count = log.count.swap(0, Relaxed);
            tables.counters.filled_4k += count as u64;
            for line in &log.lines[..count] {
                let at = (line.page.load(Relaxed), line.index.load(Relaxed) as usize);
                let mirror = Pte(line.mirror.load(Relaxed));
                let page = tables.index.page_mut(at.0);
                (page.is_recent, page.stay) = (true, Stay::Changed);
                // A later fill of it has a line of its own; an invalid entry needs none.
                if page.slot(at.1).read(mem).0 != line.leaf.load(Relaxed) || page.mirror(at.1, mem) == Some(mirror) {
                    continue;
                }
                if page.marks.is_listed(at.1) {
                    tables.index.unlist(at, false, mem);
                }
                let list = Index::<S>::list_of_leaf(tables.index.page(at.0).key, at.1, mirror);
                tables.index.insert(at, mirror, list, mem);
            }
        }
    }
}
