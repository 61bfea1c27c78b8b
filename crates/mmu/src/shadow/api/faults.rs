//! What the engine does about faults and for the host's own accesses.

use crate::gstage::AddressSpace;
use crate::gstage::{ResolveError, Unresolved};
use crate::shadow::cache::Missing;
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

    /// The same for Gnomon's own accesses to guest memory.
    ///
    /// # Errors
    /// As for [`crate::AddressSpace::resolve_with`]; or that the budget is spent, and more is done the next time.
    pub fn resolve<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gpa: Addr<Gpa>,
        access: Access,
        host: &mut Host<'_, M, H>,
    ) -> Result<Option<Addr<Hpa>>, Unresolved> {
        let reached = self.cache().reach_within_budget(gpa, access, host);
        self.cache().conclude(host);
        match reached {
            Ok(there) => Ok(Some(there.hpa)),
            Err(Missing::Nothing) if host.space.region_of(gpa.pfn()).is_none() => Ok(None),
            Err(Missing::Nothing) => Err(ResolveError::Denied.into()),
            Err(Missing::Not(why)) => Err(why),
            Err(Missing::Later) => Err(Unresolved::Later),
        }
    }
}
