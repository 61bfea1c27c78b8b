//! A mapper that keeps translations, and the check of them after an edit, whatever has made it (TOLD). All rigs have one in
//! their list.

use mmu::gstage::Region;
use mmu::{AddressSpace, Change, Mapper};
use rv::{Addr, FenceScope, Hpa, Pfn, PhysMem, PteFlags, Space};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// The events that a keeper does not hear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deaf {
    No,
    ToChanges,
    ToWrites,
    ToRegions,
}

#[derive(Default)]
struct Kept {
    /// By page: the frame, and the rights.
    pages: BTreeMap<u64, (Pfn<Hpa>, PteFlags)>,
    /// Pages that have been written since they were kept.
    dirtied: BTreeSet<u64>,
    regions: BTreeMap<u64, u64>,
}

/// The one side, which a space has.
struct Ears(Arc<Mutex<Kept>>, Deaf);

/// The other, which a test has.
pub struct Keeper(Arc<Mutex<Kept>>);

const RIGHTS: PteFlags = PteFlags::R.union(PteFlags::W).union(PteFlags::X);

impl<In: Space> Mapper<In> for Ears {
    fn changed(&mut self, scope: FenceScope<In>, _: &mut dyn PhysMem) {
        if self.1 == Deaf::ToChanges {
            return;
        }
        let mut kept = self.0.lock().unwrap();
        match scope {
            FenceScope::Everything => kept.pages.clear(),
            FenceScope::Range { start, bytes } => {
                kept.pages.retain(|page, _| !(start.pfn().raw()..=(start.raw() + bytes - 1) >> 12).contains(page));
            }
        }
    }

    fn dirtied(&mut self, page: Pfn<In>) {
        if self.1 != Deaf::ToWrites {
            self.0.lock().unwrap().dirtied.insert(page.raw());
        }
    }

    fn region(&mut self, region: &Region<In>, change: Change) {
        let mut kept = self.0.lock().unwrap();
        match change {
            _ if self.1 == Deaf::ToRegions => {}
            Change::Comes => assert_eq!(kept.regions.insert(region.start.raw(), region.pages), None, "it comes once"),
            Change::Goes => assert_eq!(kept.regions.remove(&region.start.raw()), Some(region.pages), "it was there"),
        }
    }
}

impl Keeper {
    /// One in the list of a space.
    pub fn join<In: Space>(space: &mut AddressSpace<In>, deaf: Deaf) -> Self {
        let kept = Arc::default();
        space.add_mapper(Box::new(Ears(Arc::clone(&kept), deaf)));
        Self(kept)
    }

    /// Makes it keep what the table says of a page now.
    fn keep<In: Space>(&self, page: Pfn<In>, space: &AddressSpace<In>, mem: &impl PhysMem) {
        if let Some(there) = space.translate(page.base(), mem) {
            let mut kept = self.0.lock().unwrap();
            kept.pages.insert(page.raw(), (there.hpa.pfn(), there.flags & RIGHTS));
            kept.dirtied.remove(&page.raw());
        }
    }

    /// TOLD: what is kept leads nowhere where the table does not lead, and allows nothing that the table does not allow; writes and regions
    /// are known.
    fn check<In: Space>(&self, space: &AddressSpace<In>, mem: &impl PhysMem) {
        let kept = self.0.lock().unwrap();
        for (page, (frame, rights)) in &kept.pages {
            let there = space.translate(Addr::<In>::new(page << 12), mem);
            let is_so = there.is_some_and(|there| there.hpa.pfn() == *frame && there.flags.contains(*rights));
            assert!(is_so, "TOLD: {page:#x} is kept at {frame:?} with {rights:?}, and is {there:?}");
            let may_store = there.is_some_and(|there| there.flags.contains(PteFlags::W));
            let is_new = may_store && !rights.contains(PteFlags::W);
            assert!(!is_new || kept.dirtied.contains(page), "TOLD: {page:#x} has been written");
        }
        let regions: BTreeMap<u64, u64> = space.regions().map(|region| (region.start.raw(), region.pages)).collect();
        assert_eq!(kept.regions, regions, "TOLD: the regions");
    }

    /// Checks, and makes it keep some more pages.
    pub fn check_and_keep<In: Space>(
        &self,
        pages: impl IntoIterator<Item = u64>,
        space: &AddressSpace<In>,
        mem: &impl PhysMem,
    ) {
        self.check(space, mem);
        pages.into_iter().for_each(|page| self.keep(Pfn::new(page), space, mem));
    }
}
