//! Edits of guest memory are events, and mappers hear of them.
//!
//! A *mapper* keeps something that was made from a VM's [`crate::AddressSpace`]: the lane's words, the known place of a vCPU's code, a
//! dirty log, tables of a device's or of a guest's guests. A VM has one list of them ([`crate::AddressSpace::add_mapper`]). Two more
//! keep such things and are lent with each edit instead: the engines of shadow tables, since they edit the memory themselves and tell each other
//! ([`crate::shadow::Companion`]), and the TLBs ([`rv::Fence`]).
//!
//! | event | call | when |
//! |---|---|---|
//! | pages are about to be unmapped, or to move, or to lose a right | [`Mapper::let_go`] | before, in portions (BOUNDED) |
//! | they have been | [`Mapper::changed`] | after the edit of the table, before TLBs are fenced and frames are free |
//! | the first store to a page since its W was withheld, or since it became idle, by the guest or by Gnomon | [`Mapper::dirtied`] | before the store |
//! | a region comes or goes | [`Mapper::region`] | before its first page can be mapped; when no more can be, before those that are mapped are given back |
//!
//! After an edit, when [`crate::AddressSpace::settle`] returns (TOLD), nothing that a mapper keeps leads to a frame where the table does not lead, nor
//! allows what the table does not allow. A fill of an invalid entry is no edit: nothing can have been made from it. No mapper hears of
//! stores to pages that have W.

use crate::budget::Budget;
use crate::gstage::Region;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use rv::{FenceScope, Gpa, Pfn, PhysMem, Space};

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
pub trait Mapper<In: Space = Gpa>: Send + Sync {
    /// Lets go of what was made from these pages, before they are edited, as far as `budget` lets. Returns whether nothing is left. It is a
    /// favour to the vCPU that waits: what is left then, [`Mapper::changed`] has to end.
    fn let_go(&mut self, pages: &Range<u64>, loss: Loss, budget: &mut Budget, mem: &mut dyn PhysMem) -> bool {
        let _ = (pages, loss, budget, mem);
        true
    }

    /// Ends all that was made from pages of `scope`: their entries in the table are no more what they were.
    fn changed(&mut self, scope: FenceScope<In>, mem: &mut dyn PhysMem);

    /// Notes the first store to a page since its W was withheld, or since it became idle. Other stores are not noted.
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
pub(crate) struct Mappers<In: Space>(pub Vec<Box<dyn Mapper<In>>>);

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
    pub fn changed(&mut self, scope: FenceScope<In>, mem: &mut dyn PhysMem) {
        self.0.iter_mut().for_each(|mapper| mapper.changed(scope, mem));
    }
}
