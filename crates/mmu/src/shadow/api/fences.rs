//! The guest's fences: what a vCPU may use is brought up to date, by what its tables say now.

use crate::gstage::AddressSpace;
use crate::shadow::entries::STIRS;
use crate::shadow::pages::Mappings;
use crate::shadow::{Host, Root, Sabotage, Shadow, Shadowed, Views};
use lane::FenceLog;
use rv::{Addr, Asid, Fence, Gpa, Gva, PAGE_BYTES, PhysMem, Space};

/// A fence of the guest's (`sfence.vma` and its like).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuestFence<S: Space = Gva> {
    /// First address and length in bytes; `None` for all addresses.
    pub range: Option<(Addr<S>, u64)>,
    /// One address space; `None` for all, global mappings included.
    pub asid: Option<Asid>,
}

/// Pages in a fence by address beyond which it is treated as one of all addresses.
const MOST_PAGES: u64 = 64;

impl<S: Space> GuestFence<S> {
    /// The pages it is about; `None` for all, or for so many that it is treated as one for all.
    pub fn pages(&self) -> Option<impl Iterator<Item = Addr<S>> + Clone + use<S>> {
        let (start, bytes) = self.range?;
        let first = start.align_down(PAGE_BYTES);
        let pages = (start.raw() - first.raw()).saturating_add(bytes).div_ceil(PAGE_BYTES);
        (pages <= MOST_PAGES).then(|| (0..pages).map(move |n| first.wrapping_add(n * PAGE_BYTES)))
    }
}

impl<S: Shadowed> Shadow<S> {
    /// A fence of the guest's, on the vCPU whose root this is. TLBs of its hart are the caller's.
    pub fn fence<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        fence: &GuestFence<S>,
        root: Root<S>,
        views: &mut Views<S>,
        log: &mut FenceLog<S>,
        host: &mut Host<'_, M, H>,
    ) {
        let is_own = fence.asid.is_none_or(|asid| asid == root.asid);
        match fence.pages() {
            Some(pages) => {
                // Other roots catch up when they are loaded; the present one does now.
                let is_logged = fence.asid.is_none() && !self.rules().is_sabotaged(Sabotage::ForgetsLog);
                for gva in pages {
                    self.filler.syncer.pass_page(gva);
                    if is_own {
                        self.filler.syncer.fence_page(root, gva, host);
                    }
                    if is_logged {
                        log.push(gva);
                    }
                }
                if fence.asid.is_some() {
                    views.outdate_others(fence.asid, log);
                }
            }
            None => {
                let is_private = fence.asid.is_some() || self.rules().is_sabotaged(Sabotage::ForgetsGlobals);
                let mappings = if is_private { Mappings::Private } else { Mappings::All };
                let forgets = self.rules().is_sabotaged(Sabotage::ForgetsPassed);
                let syncer = &mut self.filler.syncer;
                syncer.cache.passed.stamp += 1;
                if !forgets {
                    syncer.cache.passed.all(mappings);
                }
                syncer.cache.tables.unrest.stirs = STIRS;
                syncer.quieten(host);
                if is_own {
                    syncer.fence_root(&root, mappings, host);
                    syncer.cache.tables.tell_lane(root.id, host.mem);
                }
                views.outdate_others(fence.asid, log);
            }
        }
        self.cache().conclude(host);
    }

    /// A fence by address on one root, where the shadow's last table for the address is one that a walk ended at lately, as nearly all
    /// are, and where it has to do with one entry at most. Says whether it was such a one, and is done.
    ///
    /// It takes no frames, and owes no fence but the guest's own.
    #[inline(always)]
    pub fn fence_in_known_table(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        space: &AddressSpace,
        mem: &mut impl PhysMem,
    ) -> bool {
        self.filler.syncer.fence_in_known_table(root, gva, space, mem)
    }
}
