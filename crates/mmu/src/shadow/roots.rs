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

/// A root that has been loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// The root.
    pub root: Root,
    /// Whether this hart must forget what it has of this root: fences have passed over it.
    pub fence: bool,
}

impl Shadow {
    /// Takes from a vCPU the root that it has, if any, and gives it that for what its guest wrote to `satp`, up to date
    /// for it. Until it gets another, or [`Shadow::detach`], the root stays.
    ///
    /// # Errors
    /// If there is no frame for it, or 2 MiB are to be made ready first. The vCPU has no root then.
    pub fn attach<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        old: &mut Option<Root>,
        (paging, asid): (Paging, Asid),
        views: &mut Views,
        log: &FenceLog,
        host: &mut Host<'_, M, H>,
    ) -> Result<Loaded, Unresolved> {
        if let Some(old) = old.take() {
            self.detach(old, views, log);
        }
        let (root, seen) = match views.find(paging) {
            Some((at, root)) if self.is_there(root) => views.resume(at, asid, log.head()),
            other => {
                let at = other.map(|(at, _)| at);
                let root = self.root(paging, asid, host);
                self.conclude(host);
                let root = root?;
                if paging != Paging::Bare {
                    views.begin(at, root, log.head());
                }
                (root, Seen::Never)
            }
        };
        let page = self.index.page_mut(root.id);
        page.users += 1;
        page.is_recent = true;
        let fence = paging != Paging::Bare && self.catch_up(root, seen, log, host);
        self.conclude(host);
        Ok(Loaded { root, fence })
    }

    /// Takes the root from a vCPU that ends.
    pub fn detach(&mut self, root: Root, views: &mut Views, log: &FenceLog) {
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
        root: Root,
        seen: Seen,
        log: &FenceLog,
        host: &mut Host<'_, M, H>,
    ) -> bool {
        match seen {
            _ if self.is_sabotaged(Sabotage::ForgetsToCatchUp) => {}
            Seen::At(head) if head == log.head() => return false,
            Seen::At(head) if log.head().wrapping_sub(head) <= FenceLog::LENGTH => {
                log.since(head).for_each(|gva| self.fence_page(root, gva, host));
            }
            _ => self.fence_root(root.id, host),
        }
        true
    }

    /// A root that the vCPU does not know, or knows no more.
    fn root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        paging: Paging,
        asid: Asid,
        host: &mut Host<'_, M, H>,
    ) -> Result<Root, Unresolved> {
        self.prepare(host).map_err(ResolveError::OutOfFrames)?;
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
