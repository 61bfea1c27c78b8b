//! Roots: what a vCPU's `satp` leads to.

use super::config::Host;
use super::engine::Shadow;
use super::page::{Id, Key, Role};
use super::passed::Mappings;
use super::root::{Paging, Root};
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use super::views::{Seen, Views};
use crate::gstage::{ResolveError, Unresolved};
use alloc::vec::Vec;
use core::marker::PhantomData;
use rv::format::{ENTRIES, SV57X4};
use rv::{Access, Addr, Asid, Fence, FenceLog, Format, Gpa, Pfn, PhysMem, PteFlags};

/// Frames of the largest root.
const MOST_FRAMES: usize = SV57X4.root_pages() as usize;

/// A vCPU has got the root that it asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// Whether this hart must forget what it has of this root: fences have passed over it.
    pub fence: bool,
}

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
        if let Some(loaded) = self.attach_known(present, (paging, asid), views, log, host) {
            return Ok(Some(loaded));
        }
        let prepared = self.prepare(host).map(|is_ready| is_ready && self.clear_root(paging, host));
        self.conclude(host);
        if !prepared.map_err(ResolveError::OutOfFrames)? {
            return Ok(None);
        }
        if let Some(old) = present.take() {
            self.detach(&old, views, log);
        }
        let root = self.root(paging, asid, host);
        self.conclude(host);
        let root = root?;
        if let Some(replaced) = views.begin(root) {
            self.let_held_go(&replaced);
        }
        Ok(Some(self.loaded(present.insert(root), Seen::Never, (views, log), host)))
    }

    /// The same where the vCPU knows the root. `None`, and nothing has changed, if it does not.
    #[inline(always)]
    pub fn attach_known<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        present: &mut Option<Root<S>>,
        (paging, asid): (Paging, Asid),
        views: &mut Views<S>,
        log: &FenceLog<S>,
        host: &mut Host<'_, M, H>,
    ) -> Option<Loaded> {
        let (at, _) = views.find(paging.aligned::<S>(), asid).filter(|(_, root)| self.is_there(root))?;
        if let Some(old) = present {
            self.detach(old, views, log);
        }
        let (root, seen) = views.resume(at);
        Some(self.loaded(present.insert(root), seen, (views, log), host))
    }

    /// The same where the vCPU knows the root, and no fence has passed over it since the vCPU left it. Says whether it is so; if not,
    /// nothing has changed.
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
        let known = views.find(paging.aligned::<S>(), asid).filter(|(_, root)| self.is_there(root));
        let Some((at, _)) = known else { return false };
        if views.seen(at) != Seen::At(log.head()) && !self.is_sabotaged(Sabotage::ForgetsToCatchUp) {
            return false;
        }
        if let Some(old) = present {
            self.detach(old, views, log);
        }
        let (root, _) = views.resume(at);
        self.use_root(present.insert(root), views);
        true
    }

    /// A vCPU has got the root, which may be out of date for it.
    #[inline(always)]
    fn loaded<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        seen: Seen,
        (views, log): (&mut Views<S>, &FenceLog<S>),
        host: &mut Host<'_, M, H>,
    ) -> Loaded {
        self.use_root(root, views);
        let fence = root.paging != Paging::Bare && self.catch_up(root, seen, log, host);
        self.conclude(host);
        Loaded { fence }
    }

    /// A vCPU has got the root.
    #[inline(always)]
    fn use_root(&mut self, root: &Root<S>, views: &mut Views<S>) {
        let is_held = views.holds_present();
        for part in self.parts(root.id) {
            let page = self.index.page_mut(part);
            page.users += u32::from(!is_held);
            page.is_recent = true;
        }
        if !is_held
            && root.has_lane
            && let Some(other) = views.hold_present()
        {
            self.let_held_go(&other);
        }
    }

    /// Takes its root from a vCPU.
    fn detach(&mut self, root: &Root<S>, views: &mut Views<S>, log: &FenceLog<S>) {
        if !views.end(log) {
            self.let_go(root);
        }
    }

    /// Takes its root from a vCPU that goes on by its guest's own tables for a while, behind a G-stage. Roots that are held for it stay.
    pub fn leave_root(&mut self, root: &Root<S>, views: &mut Views<S>, log: &FenceLog<S>) {
        self.detach(root, views, log);
    }

    /// A vCPU comes back from there, and has no root yet. What its guest has fenced meanwhile nobody knows: that counts as a fence of
    /// everything, so all its roots are out of date. TLBs of its hart are the caller's.
    ///
    /// # Panics
    /// If tables may be quiet: such a guest has written them unseen.
    pub fn came_back(&mut self, log: &mut FenceLog<S>) {
        assert!(self.config.quiet_after == 0, "tables that are written unseen cannot be quiet");
        self.stamp += 1;
        if !self.is_sabotaged(Sabotage::ForgetsPassedSpells) {
            self.passed.all(Mappings::All, self.stamp);
        }
        if !self.is_sabotaged(Sabotage::ForgetsSpells) {
            log.push_everything();
        }
    }

    /// Takes its root from a vCPU that ends, and those that are held for it.
    pub fn detach_all(&mut self, root: Option<&Root<S>>, views: &mut Views<S>, log: &FenceLog<S>) {
        if let Some(root) = root {
            self.detach(root, views, log);
        }
        while let Some(held) = views.let_one_go() {
            self.let_held_go(&held);
        }
    }

    /// Pages of roots that vCPUs have, or that are held for them: one for each. For tests.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn pages_in_use(&self) -> u64 {
        (0..self.index.end()).filter_map(|id| self.index.get(id)).map(|page| u64::from(page.users)).sum()
    }

    /// A root is held for a vCPU no more.
    fn let_held_go(&mut self, root: &Root<S>) {
        if !self.is_sabotaged(Sabotage::HoldsForEver) {
            self.let_go(root);
        }
    }

    /// A vCPU has that root no more.
    fn let_go(&mut self, root: &Root<S>) {
        self.parts(root.id).for_each(|part| self.index.page_mut(part).users -= 1);
    }

    /// Whether none of the root's pages has been recycled since.
    #[inline(always)]
    fn is_there(&self, root: &Root<S>) -> bool {
        self.is_whole(root.id, root.serial)
    }

    /// Whether the page, of that serial, is the first of a root, and all others of it are there as well.
    #[inline(always)]
    fn is_whole(&self, first: Id, serial: u64) -> bool {
        let mut next = Some(first);
        (serial..).take(S::ROOT_FRAMES).all(|serial| {
            let page = next.and_then(|id| self.index.get(id)).filter(|page| page.serial == serial);
            next = page.and_then(|page| page.sibling);
            page.is_some()
        })
    }

    /// The shadow pages of a root that is whole, by the number of the first.
    #[inline(always)]
    pub(super) fn parts(&self, first: Id) -> impl Iterator<Item = Id> + use<S> {
        let mut parts = [first; MOST_FRAMES];
        for n in 1..S::ROOT_FRAMES {
            parts[n] = self.index.page(parts[n - 1]).sibling.expect("a root has a page for each frame");
        }
        parts.into_iter().take(S::ROOT_FRAMES)
    }

    /// The shadow page of the root's frame that decides about `gva`.
    #[inline(always)]
    pub(super) fn part(&self, root: &Root<S>, gva: Addr<S>) -> Id {
        if S::ROOT_FRAMES == 1 || self.is_sabotaged(Sabotage::AliasesRoots) {
            return root.id;
        }
        self.parts(root.id).nth(root.format.root_frame(gva)).expect("a root has a page for each frame")
    }

    /// Brings a root up to date for a vCPU. Says whether fences have passed over it since the vCPU left it.
    fn catch_up<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        seen: Seen,
        log: &FenceLog<S>,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        match seen {
            _ if self.is_sabotaged(Sabotage::ForgetsToCatchUp) => {}
            Seen::At(head) if head == log.head() => return false,
            Seen::At(head) if log.head().wrapping_sub(head) <= FenceLog::<S>::LENGTH => {
                log.since(head).for_each(|gva| self.fence_page(*root, gva, host));
            }
            _ => {
                self.fence_root(root, Mappings::All, host);
                self.tell_lane(root.id, host.mem);
            }
        }
        true
    }

    /// The format that hardware walks a root by, and the keys of its shadow pages.
    fn keys(paging: Paging) -> (&'static Format, impl Iterator<Item = Key>) {
        let (format, first, role) = match paging {
            Paging::Bare => (S::IDENTITY, Pfn::new(0), Role::Bare),
            Paging::Tables { format, root } => (format, root, Role::Table),
        };
        let level = format.root_level();
        let step = if role == Role::Bare { ENTRIES as u64 * level.pages() } else { 1 };
        (format, (0..S::ROOT_FRAMES as u64).map(move |n| Key { gfn: first.add(n * step), level, role }))
    }

    /// The first shadow page of a root, if it is whole.
    fn find_root(&self, paging: Paging, mem: &impl PhysMem) -> Option<Id> {
        let first = Self::keys(paging).1.next().and_then(|key| self.index.find(key, mem))?;
        self.is_whole(first, self.index.page(first).serial).then_some(first)
    }

    /// Takes back what is left of a root that is not whole any more, and whatever else its frames have been taken for. Says
    /// whether that is done; if not, the budget is spent, and more is done the next time.
    fn clear_root<M: PhysMem, H: Fence<Gpa>>(&mut self, paging: Paging, host: &mut Host<'_, M, H>) -> bool {
        self.find_root(paging, host.mem).is_some()
            || Self::keys(paging).1.all(|key| self.index.find(key, host.mem).is_none_or(|id| self.zap(id, host)))
    }

    /// A root that the vCPU does not know, or knows no more. Its shadow pages have been prepared for.
    fn root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        paging: Paging,
        asid: Asid,
        host: &mut Host<'_, M, H>,
    ) -> Result<Root<S>, Unresolved> {
        let (format, keys) = Self::keys(paging);
        let id = match self.find_root(paging, host.mem) {
            Some(id) => id,
            None => self.make_root(keys, host)?,
        };
        let page = self.index.page(id);
        let is_table = page.key.role == Role::Table;
        // The lane looks into the header of a steered root.
        let has_header = !self.steers() || page.body.header.is_some();
        let has_lane = is_table && S::HAS_LANE && self.has_lane() && has_header;
        let (steers, globals) = (is_table && self.steers(), is_table && self.kept.contains(PteFlags::G));
        let (serial, table) = (page.serial, page.table());
        Ok(Root { id, serial, table, format, paging, asid, has_lane, steers, globals, space: PhantomData })
    }

    /// A new root, by the keys of its shadow pages. Returns the first.
    fn make_root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        keys: impl Iterator<Item = Key>,
        host: &mut Host<'_, M, H>,
    ) -> Result<Id, Unresolved> {
        let mut frames = Vec::with_capacity(S::ROOT_FRAMES);
        for key in keys {
            // A root outside of RAM: no walk gets anywhere, and the page stays empty.
            let guest = if self.index.is_by_frame(key) {
                self.resolve(key.gfn.base(), Access::Load, host)?.map(Addr::pfn)
            } else {
                None
            };
            frames.push((key, guest));
        }
        let bodies = self.take_root(host.frames).map_err(ResolveError::OutOfFrames)?;
        let mut made = Vec::with_capacity(S::ROOT_FRAMES);
        for ((key, guest), body) in frames.into_iter().zip(bodies) {
            let id = self.make(key, body, guest, host);
            if self.steers() {
                self.fill_whole(id, host);
            }
            made.push(id);
        }
        for pair in made.windows(2) {
            self.index.page_mut(pair[0]).sibling = Some(pair[1]);
        }
        Ok(made[0])
    }
}
