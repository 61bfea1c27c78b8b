//! Roots: what a vCPU's `satp` leads to.

use crate::gstage::{ResolveError, Unresolved};
use crate::shadow::cache::Missing;
use crate::shadow::fill::Filler;
use crate::shadow::pages::{Id, Key, Mappings, Role};
use crate::shadow::views::Seen;
use crate::shadow::{Host, Paging, Root, Sabotage, Shadowed, Views};
use alloc::vec::Vec;
use core::marker::PhantomData;
use lane::FenceLog;
use rv::format::ENTRIES;
use rv::{Access, Addr, Asid, Fence, Format, Gpa, Hpa, Pfn, PhysMem, PteFlags};

/// A vCPU has got the root that it asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// Set if fences have passed over the root, so that this hart must forget its translations.
    pub fence: bool,
}

impl<S: Shadowed> Filler<S> {
    /// A vCPU has got the root, which may be out of date for it.
    #[inline(always)]
    pub fn loaded<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        seen: Seen,
        (views, log): (&mut Views<S>, &FenceLog<S>),
        host: &mut Host<'_, M, H>,
    ) -> Loaded {
        self.use_root(root, views);
        let fence = (S::COMPOSES || root.paging != Paging::Bare) && self.catch_up(root, seen, log, host);
        self.cache().conclude(host);
        Loaded { fence }
    }

    /// A vCPU has got the root.
    #[inline(always)]
    pub fn use_root(&mut self, root: &Root<S>, views: &mut Views<S>) {
        let is_held = views.holds_present();
        for part in self.tables().index.arena.parts::<S>(root.id) {
            let page = self.page_mut(part);
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
    pub fn detach(&mut self, root: &Root<S>, views: &mut Views<S>, log: &FenceLog<S>) {
        if !views.end(log) {
            self.let_go(root);
        }
    }

    /// A root is held for a vCPU no more.
    pub fn let_held_go(&mut self, root: &Root<S>) {
        if !self.rules().is_sabotaged(Sabotage::HoldsForEver) {
            self.let_go(root);
        }
    }

    /// A vCPU has that root no more.
    fn let_go(&mut self, root: &Root<S>) {
        self.tables().index.arena.parts::<S>(root.id).for_each(|part| self.page_mut(part).users -= 1);
    }

    /// A root that the vCPU does not know, or knows no more. Its shadow pages have been prepared for.
    pub fn root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        paging: Paging,
        asid: Asid,
        host: &mut Host<'_, M, H>,
    ) -> Result<Root<S>, Unresolved> {
        let (format, keys) = self.keys(paging, host);
        let id = match self.find_root(paging, host) {
            Some(id) => id,
            None => self.make_root(keys, host)?,
        };
        self.note_root(paging, self.page(id).key.gfn);
        let page = self.page(id);
        let is_table = page.key.role == Role::Table;
        // The lane looks into the header of a steered root.
        let has_header = || self.syncer.cache.tables.gate.memory.is_some() && page.body.header.is_some();
        let policy = &self.rules().policy;
        let has_lane = is_table && S::HAS_LANE && policy.has_lane && (!policy.has_gate || has_header());
        let (steers, globals) =
            (is_table && self.rules().policy.own_faults, is_table && self.rules().kept.contains(PteFlags::G));
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
            let guest = if self.tables().index.is_by_frame(key) {
                self.resolve(key.gfn.base(), Access::Load, host)?.map(Addr::pfn)
            } else {
                None
            };
            frames.push((key, guest));
        }
        let bodies = self.syncer.cache.pool.take_root::<S>(host.frames).map_err(ResolveError::OutOfFrames)?;
        let mut made = Vec::with_capacity(S::ROOT_FRAMES);
        for ((key, guest), body) in frames.into_iter().zip(bodies) {
            let id = self.cache().make(key, body, guest, host);
            if self.rules().policy.fills_whole {
                self.syncer.fill_whole(id, host);
            }
            made.push(id);
        }
        for pair in made.windows(2) {
            self.page_mut(pair[0]).sibling = Some(pair[1]);
        }
        Ok(made[0])
    }

    /// The first shadow page of a root, if it is whole.
    pub fn find_root<M: PhysMem, H>(&self, paging: Paging, host: &Host<'_, M, H>) -> Option<Id> {
        let key = self.keys(paging, host).1.next();
        let first = key.and_then(|key| self.syncer.cache.tables.index.find(key, host.mem))?;
        self.syncer.cache.tables.index.arena.is_whole::<S>(first, self.page(first).serial).then_some(first)
    }

    /// Takes back what is left of a root that is not whole any more, and whatever else its frames have been taken for. Says
    /// whether that is done; if not, the budget is spent, and more is done the next time.
    pub fn clear_root<M: PhysMem, H: Fence<Gpa>>(&mut self, paging: Paging, host: &mut Host<'_, M, H>) -> bool {
        self.find_root(paging, host).is_some()
            || self
                .keys(paging, host)
                .1
                .all(|key| self.tables().index.find(key, host.mem).is_none_or(|id| self.cache().zap(id, host)))
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
            _ if self.rules().is_sabotaged(Sabotage::ForgetsToCatchUp) => {}
            Seen::At(head) if head == log.head() => return false,
            Seen::At(head) if log.head().wrapping_sub(head) <= FenceLog::<S>::LENGTH => {
                log.since(head).for_each(|gva| self.syncer.fence_page(*root, gva, host));
            }
            _ => {
                self.syncer.fence_root(root, Mappings::All, host);
                self.tables().tell_lane(root.id, host.mem);
            }
        }
        true
    }

    /// The format that hardware walks a root by, and the keys of its shadow pages.
    fn keys<M: PhysMem, H>(
        &self,
        paging: Paging,
        host: &Host<'_, M, H>,
    ) -> (&'static Format, impl Iterator<Item = Key> + use<S, M, H>) {
        let (format, first, role) = match paging {
            _ if S::COMPOSES => self.composed_key(paging, host),
            Paging::Bare => (S::IDENTITY, Pfn::new(0), Role::Bare),
            Paging::Tables { format, root } => (format, root, Role::Table),
        };
        let level = format.root_level();
        let step = if role == Role::Bare { ENTRIES as u64 * level.pages() } else { 1 };
        (format, (0..S::ROOT_FRAMES as u64).map(move |n| Key { gfn: first.add(n * step), level, role }))
    }

    /// Like [`super::super::Shadow::resolve`].
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
