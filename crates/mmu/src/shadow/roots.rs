//! Roots: what a vCPU's `satp` leads to.

use super::config::Host;
use super::engine::Shadow;
use super::page::{Key, Role};
use super::root::{Paging, Root};
use super::sabotage::Sabotage;
use super::views::{Seen, Views};
use crate::gstage::{ResolveError, Unresolved};
use rv::format::SV39;
use rv::{Access, Addr, Asid, Fence, FenceLog, Gpa, Pfn, PhysMem};

/// A vCPU has got the root that it asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// Whether this hart must forget what it has of this root: fences have passed over it.
    pub fence: bool,
}

impl Shadow {
    /// Takes from a vCPU the root that it has, if any, and gives it that for what its guest wrote to `satp`, up to date
    /// for it. Until it gets another, or [`Shadow::detach`], the root stays.
    ///
    /// `None`: other shadow pages must be taken back first, and the budget does not suffice. The vCPU has what it had; each
    /// attempt does a part.
    ///
    /// # Errors
    /// If there is no frame for it, or 2 MiB are to be made ready first. The vCPU may have no root then.
    pub fn attach<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        present: &mut Option<Root>,
        (paging, asid): (Paging, Asid),
        views: &mut Views,
        log: &FenceLog,
        host: &mut Host<'_, M, H>,
    ) -> Result<Option<Loaded>, Unresolved> {
        if let Some(loaded) = self.attach_known(present, (paging, asid), views, log, host) {
            return Ok(Some(loaded));
        }
        let prepared = self.prepare(host);
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
        if paging != Paging::Bare {
            let at = views.find(paging).map(|(at, _)| at);
            views.begin(at, root, log.head());
        }
        Ok(Some(self.loaded(present.insert(root), Seen::Never, log, host)))
    }

    /// The same where the vCPU knows the root. `None`, and nothing has changed, if it does not.
    #[inline(always)]
    pub fn attach_known<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        present: &mut Option<Root>,
        (paging, asid): (Paging, Asid),
        views: &mut Views,
        log: &FenceLog,
        host: &mut Host<'_, M, H>,
    ) -> Option<Loaded> {
        let (at, _) = views.find(paging).filter(|(_, root)| self.is_there(root))?;
        if let Some(old) = present {
            self.detach(old, views, log);
        }
        let (root, seen) = views.resume(at, asid, log.head());
        Some(self.loaded(present.insert(root), seen, log, host))
    }

    /// A vCPU has got the root, which may be out of date for it.
    #[inline(always)]
    fn loaded<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root,
        seen: Seen,
        log: &FenceLog,
        host: &mut Host<'_, M, H>,
    ) -> Loaded {
        let page = self.index.page_mut(root.id);
        page.users += 1;
        page.is_recent = true;
        let fence = root.paging != Paging::Bare && self.catch_up(root, seen, log, host);
        self.conclude(host);
        Loaded { fence }
    }

    /// Takes the root from a vCPU that ends.
    pub fn detach(&mut self, root: &Root, views: &mut Views, log: &FenceLog) {
        self.index.page_mut(root.id).users -= 1;
        views.end(log.head());
    }

    /// Whether the root's page has not been recycled since.
    fn is_there(&self, root: &Root) -> bool {
        self.index.get(root.id).is_some_and(|page| page.serial == root.serial)
    }

    /// Brings a root up to date for a vCPU. Says whether fences have passed over it since the vCPU left it.
    fn catch_up<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root,
        seen: Seen,
        log: &FenceLog,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        match seen {
            _ if self.is_sabotaged(Sabotage::ForgetsToCatchUp) => {}
            Seen::At(head) if head == log.head() => return false,
            Seen::At(head) if log.head().wrapping_sub(head) <= FenceLog::LENGTH => {
                log.since(head).for_each(|gva| self.fence_page(*root, gva, host));
            }
            _ => self.fence_root(root.id, host),
        }
        true
    }

    /// A root that the vCPU does not know, or knows no more. Its shadow page has been prepared for.
    fn root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        paging: Paging,
        asid: Asid,
        host: &mut Host<'_, M, H>,
    ) -> Result<Root, Unresolved> {
        let (format, gfn, role) = match paging {
            Paging::Bare => (&SV39, Pfn::new(0), Role::Bare),
            Paging::Tables { format, root } => (format, root, Role::Table),
        };
        let key = Key { gfn, level: format.root_level(), role };
        let id = match self.index.find(key, host.mem) {
            Some(id) => id,
            None => {
                let guest = match role {
                    // A root outside of RAM: no walk gets anywhere, and the page stays empty.
                    Role::Table if self.index.heads.contains(gfn) => {
                        self.resolve(gfn.base(), Access::Load, host)?.map(Addr::pfn)
                    }
                    _ => None,
                };
                self.make(key, guest, host)
            }
        };
        let page = self.index.page(id);
        let has_lane = role == Role::Table && self.has_lane();
        Ok(Root { id, serial: page.serial, table: page.table(), format, paging, asid, has_lane })
    }
}
