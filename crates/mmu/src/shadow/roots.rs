//! Roots, and what one vCPU remembers of those that it used.
//!
//! A fence concerns every root that the guest may use later, also those that are not loaded. Instead of looking for
//! them at each fence, a vCPU keeps for each root that it has used a *view*: since when the root may be out of
//! date for it. A fence by address goes to a log, and a root catches up when it is loaded again; where that
//! does not suffice (another ASID, a wide fence, a log that has been overwritten), the root is brought up to date as
//! a whole. Shadow pages are shared, so one vCPU's fence may do more for others than it must, and never less.

use super::pages::{Id, Key, Role};
use super::{Host, Paging, Sabotage, Shadow};
use crate::gstage::ResolveError;
use alloc::vec::Vec;

use rv::format::SV39;
use rv::{Addr, Asid, Fence, FenceLog, Format, Gpa, Gva, Hpa, PAGE_BYTES, Pfn, PhysMem};

/// A root in use by a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    pub(super) id: Id,
    /// Names the root among all that the VM ever had.
    pub serial: u64,
    /// What `satp` is to lead to.
    pub table: Pfn<Hpa>,
    /// How hardware is to walk it.
    pub format: &'static Format,
    /// Whether its entries are shadows of a guest's table, so that the lane may walk it.
    pub has_lane: bool,
}

/// A fence of the guest's (`sfence.vma` and its like).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuestFence {
    /// First address and length in bytes; `None` for all addresses.
    pub range: Option<(Addr<Gva>, u64)>,
    /// One address space; `None` for all, global mappings included.
    pub asid: Option<Asid>,
}

/// Pages in a fence by address beyond which it is treated as one of all addresses.
const MOST_PAGES: u64 = 64;

impl GuestFence {
    /// The pages it is about; `None` for all, or for so many that it is treated as one for all.
    pub fn pages(&self) -> Option<impl Iterator<Item = Addr<Gva>> + Clone + use<>> {
        let (start, bytes) = self.range?;
        let first = start.align_down(PAGE_BYTES);
        let pages = (start.raw() - first.raw()).saturating_add(bytes).div_ceil(PAGE_BYTES);
        (pages <= MOST_PAGES).then(|| (0..pages).map(move |n| first.wrapping_add(n * PAGE_BYTES)))
    }
}

/// Since when a root may be out of date for the vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// The log's head when the root was left.
    At(u64),
    /// It is all out of date.
    Never,
}

#[derive(Clone, Copy, Debug)]
struct View {
    serial: u64,
    asid: Asid,
    seen: Seen,
}

/// The roots that a vCPU has used, the present one last.
#[derive(Clone, Default, Debug)]
pub struct Views {
    views: Vec<View>,
}

/// Views that a vCPU keeps; older ones are forgotten, and their roots out of date.
const MOST_VIEWS: usize = 64;

impl Views {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { views: Vec::new() }
    }

    /// Whether a root other than the present one goes by `asid` as well. Then the lane, which knows only the
    /// present one, must not take fences by ASID.
    #[must_use]
    pub fn others_have(&self, asid: Asid) -> bool {
        let (_, others) = self.views.split_last().unzip();
        others.is_some_and(|others| others.iter().any(|view| view.asid == asid))
    }
}

/// A root that has been loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// The root.
    pub root: Root,
    /// Whether this hart must forget what it has of this root: fences have passed over it.
    pub fence: bool,
}

impl Shadow {
    /// Gives a vCPU the root for what its guest wrote to `satp`, up to date for it. Until [`Shadow::leave`], the root
    /// stays.
    ///
    /// # Errors
    /// If there is no frame for it.
    pub fn enter<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        paging: Paging,
        asid: Asid,
        views: &mut Views,
        log: &FenceLog,
        host: &mut Host<'_, M, H>,
    ) -> Result<Loaded, ResolveError> {
        self.prepare(host).map_err(ResolveError::OutOfFrames)?;
        let root = self.root(paging, host)?;
        self.page_mut(root.id).users += 1;
        self.page_mut(root.id).is_recent = true;
        if paging == Paging::Bare {
            return Ok(Loaded { root, fence: false });
        }
        let known = views.views.iter().position(|view| view.serial == root.serial);
        let seen = match known.map(|at| views.views.remove(at)) {
            Some(view) if view.asid == asid => view.seen,
            _ => Seen::Never,
        };
        let fence = match seen {
            _ if self.is_sabotaged(Sabotage::ForgetsToCatchUp) => true,
            Seen::At(head) if head == log.head() => false,
            Seen::At(head) if log.head().wrapping_sub(head) <= FenceLog::LENGTH => {
                for gva in log.since(head) {
                    self.fence_page(root.id, gva, host);
                }
                true
            }
            _ => {
                self.fence_root(root.id, host);
                true
            }
        };
        if views.views.len() == MOST_VIEWS {
            views.views.remove(0);
        }
        views.views.push(View { serial: root.serial, asid, seen: Seen::At(log.head()) });
        self.conclude(host.hw);
        Ok(Loaded { root, fence })
    }

    /// The opposite of [`Shadow::enter`], before the vCPU enters another root or ends.
    pub fn leave(&mut self, root: Root, views: &mut Views, log: &FenceLog) {
        self.page_mut(root.id).users -= 1;
        if let Some(view) = views.views.last_mut()
            && view.serial == root.serial
        {
            view.seen = Seen::At(log.head());
        }
    }

    fn root<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        paging: Paging,
        host: &mut Host<'_, M, H>,
    ) -> Result<Root, ResolveError> {
        let (format, gfn, role) = match paging {
            Paging::Bare => (&SV39, Pfn::new(0), Role::Bare),
            Paging::Tables { format, root } => (format, root, Role::Table),
        };
        let key = Key { gfn, level: format.root_level(), role };
        let guest = match role {
            // A root outside of RAM: no walk gets anywhere, and the page stays empty.
            Role::Table if self.heads.contains(gfn) => self.resolve(gfn.base(), rv::Access::Load, host)?.map(Addr::pfn),
            _ => None,
        };
        let id = match self.find(key, host.mem) {
            Some(id) => id,
            None => self.make(key, guest, host),
        };
        let page = self.page(id);
        let has_lane = !self.protects() && role == Role::Table;
        Ok(Root { id, serial: page.serial, table: page.table(), format, has_lane })
    }

    /// A fence of the guest's, on the vCPU whose root and ASID these are. TLBs of its hart are the caller's.
    pub fn fence<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        fence: &GuestFence,
        (root, asid): (Root, Asid),
        views: &mut Views,
        log: &mut FenceLog,
        host: &mut Host<'_, M, H>,
    ) {
        let covers = |other: Asid| fence.asid.is_none_or(|asid| asid == other);
        let is_bare = self.page(root.id).key.role == Role::Bare;
        // The others' views: the present root's is the last, unless paging is off.
        let others = views.views.len() - usize::from(!is_bare && !views.views.is_empty());
        let others = views.views[..others].iter_mut().filter(|view| covers(view.asid));
        match (fence.pages(), fence.asid) {
            (Some(pages), named) => {
                if covers(asid) {
                    pages.clone().for_each(|gva| self.fence_page(root.id, gva, host));
                }
                // Other roots catch up when they are loaded; the present one has.
                match named {
                    None if self.is_sabotaged(Sabotage::ForgetsLog) => {}
                    None => pages.for_each(|gva| log.push(gva)),
                    Some(_) => others.for_each(|view| view.seen = Seen::Never),
                }
            }
            (None, _) => {
                if covers(asid) {
                    self.fence_root(root.id, host);
                }
                others.for_each(|view| view.seen = Seen::Never);
            }
        }
        self.conclude(host.hw);
    }
}
