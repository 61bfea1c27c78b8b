//! The check of all that a hart may use, by the values that entries had since its fences; and the answer of the oracle.

use super::{IMAGE, Overlay, Rig, Time, VM, rights};
use mmu::Use;
use mmu::shadow::Paging;
use mmu::walk::AdPolicy;
use oracle::{Context, Table};
use rv::format::{SV39, SV39X4};
use rv::{Addr, Caps, Entry, Gpa, Hpa, L2Gpa, L2Gva, Leaf, Level, Mode, Pfn, Pte, PteFlags, Request};
use std::collections::BTreeMap;

impl Rig {
    /// The values that a word had since a time.
    fn since(&self, at: Addr<Gpa>, since: Time) -> Vec<u64> {
        match self.history.get(&at.raw()) {
            None => self.word(at.raw()).into_iter().collect(),
            Some(known) => {
                let first = known.iter().rposition(|(time, _)| *time <= since).unwrap_or(0);
                known[first..].iter().map(|(_, value)| *value).collect()
            }
        }
    }

    /// Finds the places to which L1's G-stage may lead a page of L2's, by what hart `n` may remember, and the rights there.
    fn stage(&self, n: usize, page: u64, found: &mut dyn FnMut(u64, PteFlags) -> bool) -> bool {
        let Paging::Tables { root, .. } = self.below(n) else {
            return found(page, PteFlags::R | PteFlags::W | PteFlags::X);
        };
        page < 1 << 29 && self.stage_from(n, root, Level::GIGA, page, found)
    }

    fn stage_from(
        &self,
        n: usize,
        table: Pfn<Gpa>,
        level: Level,
        page: u64,
        found: &mut dyn FnMut(u64, PteFlags) -> bool,
    ) -> bool {
        let at = table.at(8 * SV39X4.index(Addr::<L2Gpa>::new(page << 12), level) as u64);
        let decode = |value: &u64| Pte(*value).decode::<Gpa>(level, Caps::default());
        let leads = self.since(at, self.vcpus[n].below(None)).iter().any(|value| match (decode(value), level.down()) {
            (Entry::Table(next), Some(below)) => self.stage_from(n, next, below, page, found),
            _ => false,
        });
        let since = self.vcpus[n].below(Some((page, level.pages())));
        leads
            || self.since(at, since).iter().any(|value| match decode(value) {
                Entry::Leaf(Leaf { pfn, flags, .. }) if flags.contains(PteFlags::U | PteFlags::A) => {
                    found(pfn.raw() + (page & (level.pages() - 1)), rights(flags))
                }
                _ => false,
            })
    }

    /// Returns whether a leaf that leads to `frame` with these flags may be there for a page of L2's virtual memory.
    fn may_lead(&self, n: usize, page: u64, flags: PteFlags, frame: Pfn<Hpa>) -> bool {
        let leads_there = &mut |gpa: u64, most: PteFlags| {
            let there = self.space.translate(Pfn::<Gpa>::new(gpa).base(), &self.bus.0.borrow().machine);
            most.contains(rights(flags)) && there.is_some_and(|there| there.hpa.pfn() == frame)
        };
        match self.vcpus[n].paging {
            Paging::Bare => self.stage(n, page, leads_there),
            Paging::Tables { root, .. } => self.stage(n, root.raw(), &mut |table, most| {
                most.contains(PteFlags::R)
                    && self.own(n, (Pfn::new(table), Level::GIGA), page, &mut |l2, own| {
                        own.contains(rights(flags))
                            && own.contains(PteFlags::A)
                            && !own.symmetric_difference(flags).contains(PteFlags::U)
                            && self.stage(n, l2, &mut *leads_there)
                    })
            }),
        }
    }

    fn own(
        &self,
        n: usize,
        (table, level): (Pfn<Gpa>, Level),
        page: u64,
        found: &mut dyn FnMut(u64, PteFlags) -> bool,
    ) -> bool {
        let at = table.at(8 * SV39.index(Addr::<L2Gva>::new(page << 12), level) as u64);
        let decode = |value: &u64| Pte(*value).decode::<L2Gpa>(level, Caps::default());
        let leads = self.since(at, self.vcpus[n].own(None)).iter().any(|value| match (decode(value), level.down()) {
            (Entry::Table(next), Some(below)) => self.stage(n, next.raw(), &mut |gpa, most| {
                most.contains(PteFlags::R) && self.own(n, (Pfn::new(gpa), below), page, found)
            }),
            _ => false,
        });
        leads
            || self.since(at, self.vcpus[n].own(Some(page))).iter().any(|value| match decode(value) {
                Entry::Leaf(Leaf { pfn, flags, .. }) => {
                    let kept = flags & (PteFlags::U | PteFlags::A);
                    found(pfn.raw() + (page & (level.pages() - 1)), rights(flags) | kept)
                }
                _ => false,
            })
    }

    /// Checks all that hart `n` may use.
    pub(super) fn audit(&self, n: usize) {
        let Some(root) = self.vcpus[n].root else { return };
        let mut seen = Vec::new();
        self.bus.0.borrow().collect(root.table, Level::GIGA, 0, &mut seen);
        let id = (self.vcpus[n].stay, root.serial);
        let pointers = self.bus.0.borrow().harts[n].pointers.clone();
        for (_, page, level, table) in pointers.into_iter().filter(|(whose, ..)| *whose == id) {
            assert_eq!(self.frames.owner_of(table), Some((VM, Use::Table)), "OWNERSHIP: a table at {table:?}");
            self.bus.0.borrow().collect(table, level.down().expect("a pointer"), page, &mut seen);
        }
        let tlb = self.bus.0.borrow().harts[n].tlb.clone();
        seen.extend(tlb.into_iter().filter(|cached| cached.id == id).map(|c| (c.page, c.level, c.leaf)));
        for (page, level, leaf) in seen {
            let offset = self.pick(level.pages());
            let frame = leaf.pfn.add(offset);
            let is_image = frame >= IMAGE && frame < IMAGE.add(512);
            let is_own = self.frames.owner_of(frame) == Some((VM, Use::Guest));
            assert!(is_own || is_image && !leaf.flags.contains(PteFlags::W), "OWNERSHIP: {frame:?} {:?}", leaf.flags);
            assert!(
                self.may_lead(n, page + offset, leaf.flags, frame),
                "TLB-LIKE: hart {n}, page {:#x} to {frame:?}, {:?}, {level:?}",
                page + offset,
                leaf.flags
            );
        }
    }

    /// The oracle's answer, by what the tables say now.
    pub(super) fn ask(&self, n: usize, gva: Addr<L2Gva>, request: &Request) -> oracle::Outcome {
        let ad = |policy| if policy == AdPolicy::Svadu { oracle::Ad::Hardware } else { oracle::Ad::Fault };
        let table = |paging, policy| match paging {
            Paging::Bare => None,
            Paging::Tables { root, .. } => {
                Some(Table { levels: 3, root: root.base().raw(), ad: ad(policy), svnapot: false, svpbmt: false })
            }
        };
        let context = Context {
            vs: table(self.vcpus[n].paging, self.vs_ad),
            g: table(self.below(n), self.g_ad),
            access: request.access,
            user: request.mode == Mode::User,
            sum: request.sum,
            vs_mxr: request.mxr,
            hs_mxr: request.hs_mxr,
        };
        oracle::translate(&mut Overlay(self, BTreeMap::new()), &context, gva.raw())
    }
}
