//! The events of an address space: its mappers are asked before an edit, and told after it.

use super::space::{AddressSpace, Publish};
use crate::budget::Budget;
use crate::mapper::{Change, Loss, Mapper};
use crate::stale::{Retired, Stale, Told};
use alloc::boxed::Box;
use core::ops::Range;
use rv::{Fence, PhysMem, Space};

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
            (*publish).fence_and_publish(hw, mem);
        }
        retired
    }
}
