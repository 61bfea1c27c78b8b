//! Faults of guests, and the host's own accesses.

use crate::frames::Frames;
use crate::gstage::{AddressSpace, Ready, Unresolved};
use crate::shadow::fill::{Beside, Fills};
use crate::shadow::{Answer, Host, Root, Shadow, Shadowed};
use rv::{Access, Addr, Fence, Gpa, Hpa, PhysMem, Request};

impl<S: Shadowed> Shadow<S> {
    /// Answers a page fault at `gva` that a guest took on `root`.
    ///
    /// # Errors
    /// If there is no frame for guest memory or for shadow pages: the guest can try again later. Or if 2 MiB are to be made
    /// ready first.
    pub fn fault<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        request: &Request,
        host: &mut Host<'_, M, H>,
    ) -> Result<Answer, Unresolved> {
        match self.fault_in_known_tables(root, gva, request, host.space, host.mem) {
            Some(answer) => Ok(answer),
            None => self.fault_from_root(root, gva, request, host),
        }
    }

    /// The first half of [`Shadow::fault`]: answers most faults, those whose tables are all shadowed and whose memory is there.
    /// `None`: it is none of them, or the guest may be to blame, as [`Shadow::fault_from_root`] finds out.
    ///
    /// It takes no frames, and owes no fence.
    #[inline(always)]
    pub fn fault_in_known_tables(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        request: &Request,
        space: &AddressSpace,
        mem: &mut impl PhysMem,
    ) -> Option<Answer> {
        self.filler.fault_in_known_tables(root, gva, request, space, mem)
    }

    /// The second half of [`Shadow::fault`]: any other fault.
    ///
    /// # Errors
    /// As for [`Shadow::fault`].
    pub fn fault_from_root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        request: &Request,
        host: &mut Host<'_, M, H>,
    ) -> Result<Answer, Unresolved> {
        let answer = self.filler.walk_and_fill(root, gva, request, host);
        self.cache().conclude(host);
        answer
    }

    /// Makes guest memory ready for an access of Gnomon's own, and returns where it is; `None` if it is a device's.
    ///
    /// # Errors
    /// As for [`crate::AddressSpace::resolve_with`]; or that the budget is spent, and more is done the next time.
    pub fn resolve<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gpa: Addr<Gpa>,
        access: Access,
        host: &mut Host<'_, M, H>,
    ) -> Result<Option<Addr<Hpa>>, Unresolved> {
        self.filler.resolve(gpa, access, host)
    }

    /// Makes the engine ask for frames, where the host has none, as long as it has fewer shadow pages than this; with more it takes
    /// its own back. At most as many as its configuration allows, so that it can have them. Each vCPU needs
    /// [`Config::ONE_INSTRUCTION`] of them to get on.
    pub fn keep_least(&mut self, pages: u32) {
        let cache = &mut self.filler.syncer.cache;
        cache.pool.least = pages.min(cache.tables.rules.config.pages);
    }

    /// Lets so many vCPUs answer faults with a share of the lock ([`Shadow::fault_beside`]).
    pub fn begin_sharing(&mut self, vcpus: usize) {
        self.filler.fills = Fills::for_vcpus(vcpus);
        self.filler.others_write = true;
    }

    /// Answers a page fault at `gva` that a vCPU took on `root`, with a share of the VM's lock, if it only fills an entry of known tables. Memory that is
    /// not mapped yet is mapped with what `from` has, if it is a first touch ([`AddressSpace::fill`]).
    ///
    /// # Errors
    /// [`Unresolved::Wants`]: 2 MiB are to be made ready first.
    pub fn fault_beside<M: PhysMem>(
        &self,
        root: (&Root<S>, usize),
        gva: Addr<S>,
        request: &Request,
        space: &AddressSpace,
        from: Option<(&Frames, &mut Ready)>,
        mem: &mut M,
    ) -> Result<Beside, Unresolved> {
        self.filler.fault_beside(root, gva, request, space, from, mem)
    }
}
