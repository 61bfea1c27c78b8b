//! 1 GiB leaves, where they are asked for: memory is given in 2 MiB whose frames follow one another, and then joined.
//! Any change of a part breaks the leaf into 2 MiB leaves first.

use super::edit;
use super::policy::{OWNED, Superpages};
use super::region::Object;
use super::space::{AddressSpace, Publish, around, order};
use crate::frames::{Ahead, Frames, Run, Use};
use crate::stale::Stale;
use crate::table;
use alloc::boxed::Box;
use alloc::vec::Vec;
use rv::{Caps, Entry, Hpa, Leaf, Level, Pfn, PhysMem, Pte, PteFlags, Space};

/// 2 MiB of a GiB.
const MEGAS: u64 = Level::GIGA.pages() / Level::MEGA.pages();

impl<In: Space> AddressSpace<In> {
    /// The first page of the GiB around `page`, if one leaf may map it: by policy, and because one region of anonymous memory covers
    /// it.
    #[must_use]
    pub fn giga_around(&self, page: Pfn<In>) -> Option<Pfn<In>> {
        let first = page.align_down(Level::GIGA.pages());
        let covers = self.region_of(first).is_some_and(|region| {
            region.object == Object::Anonymous && region.end() >= first.raw() + Level::GIGA.pages()
        });
        (covers && self.policy.superpages == Superpages::Giga).then_some(first)
    }

    /// Joins the 2 MiB of the GiB around `page`: one leaf is to map them all, once what is stale is fenced. `None` if that cannot be;
    /// nothing has changed then.
    pub fn join(&mut self, page: Pfn<In>, mem: &mut impl PhysMem) -> Option<(Stale<In>, Box<Publish>)> {
        let first = self.giga_around(page)?;
        let (at, table) = self.table_above(first, Level::GIGA, mem)?;
        let leaves = (0..MEGAS).map(|index| Pte(mem.read_u64(table.at(8 * index))));
        let leaves: Vec<Leaf<Hpa>> = leaves
            .map(|pte| match pte.decode(Level::MEGA, Caps::default()) {
                Entry::Leaf(leaf) if leaf.flags.contains(OWNED) => Some(leaf),
                _ => None,
            })
            .collect::<Option<_>>()?;
        let start = leaves[0].pfn;
        let follow = (0..).zip(&leaves).all(|(index, leaf)| leaf.pfn == start.add(index * Level::MEGA.pages()));
        // A and D may be the hardware's: then they are set, as if the guest had used and changed all.
        let kind = |leaf: &Leaf<Hpa>| leaf.flags.difference(PteFlags::A | PteFlags::D);
        let alike = leaves.iter().all(|leaf| kind(leaf) == kind(&leaves[0]));
        if !follow || !alike || !start.is_aligned(Level::GIGA.pages()) {
            return None;
        }
        self.disturb(&(first.raw()..first.raw() + Level::GIGA.pages()));
        let mut flags = kind(&leaves[0]) | PteFlags::A;
        flags.set(PteFlags::D, flags.contains(PteFlags::W));
        let stale = Self::unlink(at, table, mem);
        self.counters.joined_1g += 1;
        let leaf = Entry::Leaf(Leaf { pfn: start, flags, napot: false }).encode();
        Some((stale, Box::new(Publish { at, leaf, level: Level::GIGA, taken: Vec::new() })))
    }

    /// Breaks the leaf of 1 GiB around `page` into equivalent leaves of 2 MiB. `table` was taken ahead of need; the VM
    /// gets it even beyond its limit. What is stale is fenced when the leaves change.
    ///
    /// # Panics
    /// If there is no such leaf.
    pub fn break_giga(&mut self, page: Pfn<In>, table: Ahead, frames: &Frames, mem: &mut impl PhysMem) -> Stale<In> {
        let split = frames.claim_beyond(table, self.owner, Use::Table);
        self.break_giga_into(page, split, mem)
    }

    /// Like [`AddressSpace::break_giga`], with a table that is the VM's already.
    pub(super) fn break_giga_into(&mut self, page: Pfn<In>, split: Run, mem: &mut impl PhysMem) -> Stale<In> {
        let slot = self.slot(page.base(), mem);
        let found = slot.and_then(|slot| match slot.entry {
            Entry::Leaf(leaf) if slot.level == Level::GIGA => Some((slot.at, leaf)),
            _ => None,
        });
        let Some((at, leaf)) = found else { panic!("{page:?} is in no leaf of 1 GiB") };
        let leaf = self.part_of(&leaf);
        for index in 0..MEGAS {
            let mega = Entry::Leaf(Leaf { pfn: leaf.pfn.add(index * Level::MEGA.pages()), ..leaf }).encode();
            table::write_unlinked(split.first().at(8 * index), mega, mem);
        }
        let mut stale = Stale::none();
        let (_, debt) = edit::exchange(at, Entry::Table(split.into_entry()).encode(), mem);
        stale.owe(debt, around(page.base(), Level::GIGA));
        self.counters.splits_1g += 1;
        self.counters.tables += 1;
        stale
    }
}

/// The runs behind a leaf of `level`, none of more than 2 MiB: to give back more at once takes too long.
pub(super) fn runs(leaf: &Leaf<Hpa>, level: Level) -> impl Iterator<Item = Run> + use<> {
    let (first, each) = (leaf.pfn, level.min(Level::MEGA));
    (0..level.pages() / each.pages()).map(move |n| Run::from_entry(first.add(n * each.pages()), order(each)))
}
