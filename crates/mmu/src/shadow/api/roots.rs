//! Roots that vCPUs have.

use crate::gstage::{ResolveError, Unresolved};
use crate::shadow::pages::Mappings;
use crate::shadow::views::Seen;
use crate::shadow::{Host, Loaded, Lower, Paging, Root, Sabotage, Shadow, Shadowed, Views};
use lane::FenceLog;
use rv::{Asid, Fence, Gpa, PhysMem};

impl<S: Shadowed> Shadow<S> {
    /// Takes from a vCPU the root that it has, if any, and gives it that for what its guest wrote to `satp`, up to date
    /// for it. Until it gets another, or [`Shadow::detach_all`], the root stays.
    ///
    /// `None`: other shadow pages must be taken back first, and the budget does not suffice. The vCPU has what it had; each
    /// attempt does a part.
    ///
    /// # Errors
    /// If there is no frame for it, or 2 MiB are to be made ready first. The vCPU may have no root then.
    pub fn attach<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        present: &mut Option<Root<S>>,
        (paging, asid): (Paging, Asid),
        views: &mut Views<S>,
        log: &FenceLog<S>,
        host: &mut Host<'_, M, H>,
    ) -> Result<Option<Loaded>, Unresolved> {
        let paging = paging.aligned::<S>();
        if S::COMPOSES && present.is_none() && !self.rules().is_sabotaged(Sabotage::ForgetsNewStages) {
            // The vCPU has had no part in fences of the stage below, or another stage.
            self.cache().tables.lower.change();
        }
        if let Some(loaded) = self.attach_known(present, (paging, asid), views, log, host) {
            return Ok(Some(loaded));
        }
        let prepared = self.cache().prepare(host).map(|is_ready| is_ready && self.filler.clear_root(paging, host));
        self.cache().conclude(host);
        if !prepared.map_err(ResolveError::OutOfFrames)? {
            return Ok(None);
        }
        if let Some(old) = present.take() {
            self.filler.detach(&old, views, log);
        }
        let root = self.filler.root(paging, asid, host);
        self.cache().conclude(host);
        let root = root?;
        if let Some(replaced) = views.begin(root) {
            self.filler.let_held_go(&replaced);
        }
        Ok(Some(self.filler.loaded(present.insert(root), Seen::Never, (views, log), host)))
    }

    /// Like [`Shadow::attach`], if the vCPU knows the root. `None`, and nothing has changed, if it does not.
    #[inline(always)]
    pub fn attach_known<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        present: &mut Option<Root<S>>,
        (paging, asid): (Paging, Asid),
        views: &mut Views<S>,
        log: &FenceLog<S>,
        host: &mut Host<'_, M, H>,
    ) -> Option<Loaded> {
        let (at, _) = views
            .find(paging.aligned::<S>(), asid)
            .filter(|(_, root)| self.filler.syncer.cache.tables.index.arena.is_whole::<S>(root.id, root.serial))
            .filter(|(_, root)| self.filler.is_current(root, host))?;
        if let Some(old) = present {
            self.filler.detach(old, views, log);
        }
        let (root, seen) = views.resume(at);
        Some(self.filler.loaded(present.insert(root), seen, (views, log), host))
    }

    /// Like [`Shadow::attach_known`], but only if no fence has passed over the root since the vCPU left it. Returns
    /// whether the vCPU has the root now; if not, nothing has changed.
    ///
    /// It takes no frames, and owes no fence.
    #[inline(always)]
    pub fn attach_up_to_date(
        &mut self,
        present: &mut Option<Root<S>>,
        (paging, asid): (Paging, Asid),
        views: &mut Views<S>,
        log: &FenceLog<S>,
    ) -> bool {
        let known = views
            .find(paging.aligned::<S>(), asid)
            .filter(|(_, root)| self.filler.syncer.cache.tables.index.arena.is_whole::<S>(root.id, root.serial));
        let Some((at, _)) = known else { return false };
        if views.seen(at) != Seen::At(log.head()) && !self.rules().is_sabotaged(Sabotage::ForgetsToCatchUp) {
            return false;
        }
        if let Some(old) = present {
            self.filler.detach(old, views, log);
        }
        let (root, _) = views.resume(at);
        self.filler.use_root(present.insert(root), views);
        true
    }

    /// Takes its root from a vCPU that goes on by its guest's own tables for a while, behind a G-stage. Roots that are held for it stay.
    pub fn leave_root(&mut self, root: &Root<S>, views: &mut Views<S>, log: &FenceLog<S>) {
        self.filler.detach(root, views, log);
    }

    /// Notes that a vCPU, which has no root yet, stops running on its guest's own tables ([`Shadow::leave_root`]). Its
    /// guest's fences meanwhile are unknown and count as a fence of everything, so all its roots are out of date. The
    /// caller fences the TLBs of its hart.
    ///
    /// # Panics
    /// If tables may be quiet: such a guest has written them unseen.
    pub fn came_back(&mut self, log: &mut FenceLog<S>) {
        assert!(self.rules().config.quiet_after == 0, "tables that are written unseen cannot be quiet");
        self.cache().passed.stamp += 1;
        if !self.rules().is_sabotaged(Sabotage::ForgetsPassedSpells) {
            self.cache().passed.all(Mappings::All);
        }
        if !self.rules().is_sabotaged(Sabotage::ForgetsSpells) {
            log.push_everything();
        }
    }

    /// Takes its root from a vCPU that ends, and those that are held for it.
    pub fn detach_all(&mut self, root: Option<&Root<S>>, views: &mut Views<S>, log: &FenceLog<S>) {
        if let Some(root) = root {
            self.filler.detach(root, views, log);
        }
        while let Some(held) = views.let_one_go() {
            self.filler.let_held_go(&held);
        }
    }
}
