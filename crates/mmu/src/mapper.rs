//! Edits of guest memory are events, and mappers hear of them.
//!
//! A *mapper* keeps something that was made from a VM's [`AddressSpace`]: the lane's words, the known place of a vCPU's code, a
//! dirty log, tables of a device's or of a guest's guests. A VM has one list of them ([`AddressSpace::add_mapper`]). Two more
//! keep such things and are lent with each edit instead: the shadow engine, since it edits the memory itself, and
//! the TLBs ([`rv::Fence`]).
//!
//! | event | call | when |
//! |---|---|---|
//! | pages are about to be unmapped, or to move, or to lose a right | [`Mapper::let_go`] | before, in portions (BOUNDED) |
//! | they have been | [`Mapper::changed`] | after the edit of the table, before TLBs are fenced and frames are free |
//! | a page is written whose writes were withheld | [`Mapper::dirtied`] | before the guest's store |
//! | a region comes or goes | [`Mapper::region`] | before its first page can be mapped; after its last has been unmapped |
//!
//! After an edit, when [`AddressSpace::settle`] returns (TOLD), nothing that a mapper keeps leads to a frame where the table does not lead, nor
//! allows what the table does not allow. A fill of an invalid entry is no edit: nothing can have been made from it.

use crate::budget::Budget;
use crate::gstage::{AddressSpace, Publish, Region};
use crate::stale::{Retired, Stale, Told};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use rv::{Fence, FenceScope, Gpa, Pfn, PhysMem, Space};

/// The loss that pages are about to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Their entries go, or lose a right. Their contents stay as they are.
    Access,
    /// Their contents go, too.
    Contents,
}

/// A region comes or goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The region has been added.
    Comes,
    /// The region has been removed.
    Goes,
}

/// A keeper of things that were made from guest memory. It is called with the memory's lock held exclusively.
pub trait Mapper<In: Space = Gpa>: Send {
    /// Lets go of what was made from these pages, before they are edited, as far as `budget` lets. Returns whether nothing is left. It is a
    /// favour to the vCPU that waits: what is left then, [`Mapper::changed`] has to end.
    fn let_go(&mut self, pages: &Range<u64>, loss: Loss, budget: &mut Budget, mem: &mut dyn PhysMem) -> bool {
        let _ = (pages, loss, budget, mem);
        true
    }

    /// Ends all that was made from pages of `scope`: their entries in the table are no more what they were.
    fn changed(&mut self, scope: FenceScope<In>, mem: &mut dyn PhysMem);

    /// Notes that a page is written which was not to be written unseen.
    fn dirtied(&mut self, page: Pfn<In>) {
        let _ = page;
    }

    /// Notes that a region comes or goes.
    fn region(&mut self, region: &Region<In>, change: Change) {
        let _ = (region, change);
    }

    /// Reports what it counts.
    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let _ = report;
    }
}

/// The list.
#[derive(Default)]
pub(crate) struct Mappers<In: Space>(Vec<Box<dyn Mapper<In>>>);

impl<In: Space> Mappers<In> {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn dirtied(&mut self, page: Pfn<In>) {
        self.0.iter_mut().for_each(|mapper| mapper.dirtied(page));
    }

    pub fn region(&mut self, region: &Region<In>, change: Change) {
        self.0.iter_mut().for_each(|mapper| mapper.region(region, change));
    }

    #[cold]
    #[inline(never)]
    fn changed(&mut self, scope: FenceScope<In>, mem: &mut dyn PhysMem) {
        self.0.iter_mut().for_each(|mapper| mapper.changed(scope, mem));
    }
}

impl<In: Space> AddressSpace<In> {
    /// Adds a mapper to the list. It is told of the regions that there are.
    pub fn add_mapper(&mut self, mut mapper: Box<dyn Mapper<In>>) {
        self.regions().for_each(|region| mapper.region(region, Change::Comes));
        self.mappers.0.push(mapper);
    }

    /// The mappers of the list, in the order in which they were added.
    pub fn mappers(&self) -> impl Iterator<Item = &dyn Mapper<In>> {
        self.mappers.0.iter().map(|mapper| &**mapper)
    }

    /// Asks all mappers of the list to let go of pages ([`Mapper::let_go`]). Returns whether nothing is left.
    pub fn let_go(&mut self, pages: &Range<u64>, loss: Loss, budget: &mut Budget, mem: &mut impl PhysMem) -> bool {
        self.mappers.0.iter_mut().all(|mapper| mapper.let_go(pages, loss, budget, mem))
    }

    /// Tells all mappers of the list what an edit has made stale. It is to be fenced then.
    #[inline(always)]
    pub fn tell(&mut self, stale: Stale<In>, mem: &mut impl PhysMem) -> Told<In> {
        if let Some(scope) = stale.scope() {
            self.mappers.changed(scope, mem);
        }
        stale.told()
    }

    /// Spends what an edit has made stale: tells all mappers of the list, fences, then makes the copy visible, if one was made: no hart sees
    /// the copy while another still reads what it was made from. Returns the frames that are now free to go.
    // Each fault ends here, and most have nothing to fence.
    #[inline(always)]
    pub fn settle(
        &mut self,
        stale: Stale<In>,
        publish: Option<Box<Publish>>,
        hw: &mut impl Fence<In>,
        mem: &mut impl PhysMem,
    ) -> Retired {
        let retired = self.tell(stale, mem).fence(hw);
        if let Some(publish) = publish {
            publish.fence_and_publish(hw, mem);
        }
        retired
    }
}
