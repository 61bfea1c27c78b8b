//! Guest memory that is made ready for an access.

use crate::gstage::{ResolveError, Resolved, Translation, Unresolved};
use crate::mapper::Loss;
use crate::shadow::cache::Cache;
use crate::shadow::{Host, Sabotage, Shadowed};
use rv::{Access, Addr, Fence, Gpa, Pfn, PhysMem, PteFlags};

/// The reason why guest memory cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// There is none, or not for this.
    Nothing,
    /// The memory is not ready yet, or there is no frame for it.
    Not(Unresolved),
    /// The budget is spent before it could be made ready: more is done the next time.
    Later,
}

/// Returns the rights that an access needs of the G-stage.
pub const fn needed(access: Access) -> PteFlags {
    match access {
        Access::Load => PteFlags::R,
        Access::Store => PteFlags::W,
        Access::Fetch | Access::LoadExec => PteFlags::X,
    }
}

impl<S: Shadowed> Cache<S> {
    /// [`Cache::reach`], where a frame may be copied: any number of leaves may lead to it.
    pub fn reach_within_budget<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gpa: Addr<Gpa>,
        access: Access,
        host: &mut Host<'_, M, H>,
    ) -> Result<Translation, Missing> {
        // Most stores need no more than this.
        let known = if access == Access::Store { host.space.translate(gpa, host.mem) } else { None };
        if let Some(known) = known.filter(|known| known.flags.contains(PteFlags::W)) {
            return Ok(known);
        }
        if access == Access::Store && host.space.region_of(gpa.pfn()).is_some_and(|region| region.prot.allows(access)) {
            // The leaves go last: the guest may be fetching by one, and would have it filled again between two portions.
            let moved = host.space.moved_by_store(gpa, host.ready, host.mem);
            let moved = moved.map_err(|content| Missing::Not(Unresolved::Wants(content)))?;
            // To copy 2 MiB takes as much as what half of a budget is for, and more: nothing is filled after it.
            let half = host.budget.half();
            let all_let_go = moved.clone().all(|page| self.forget_all_ahead(Pfn::new(page), host))
                && (self.tables.rules.is_sabotaged(Sabotage::ForgetsCompanion)
                    || host.companion_lets_go(moved.clone(), Some(Loss::Access)))
                && host.space.let_go(&moved, Loss::Access, &mut host.budget, host.mem);
            if !all_let_go || host.budget < half {
                return Err(Missing::Later);
            }
            let there = self.reach(gpa, access, host)?;
            return if host.budget.is_spent() { Err(Missing::Later) } else { Ok(there) };
        }
        self.reach(gpa, access, host)
    }

    /// Makes guest memory ready for an access and says where it is, with what the G-stage allows.
    pub fn reach<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gpa: Addr<Gpa>,
        access: Access,
        host: &mut Host<'_, M, H>,
    ) -> Result<Translation, Missing> {
        let known = host.space.translate(gpa, host.mem);
        if let Some(known) = known.filter(|known| known.flags.contains(needed(access))) {
            return Ok(known);
        }
        let resolved = host.space.resolve_with(gpa, access, host.ready, host.frames, host.mem);
        match resolved {
            Ok(Resolved::Mapped { how, stale, publish, .. }) => {
                self.settle(gpa.pfn(), (how, stale), publish, host);
                Ok(host.space.translate(gpa, host.mem).expect("mapped a moment ago"))
            }
            Ok(Resolved::Hole) | Err(Unresolved::For(ResolveError::Denied)) => Err(Missing::Nothing),
            Err(why) => Err(Missing::Not(why)),
        }
    }
}
