//! Faults: the guest's walk decides what it is, then the shadow learns it.

use super::pages::{CAPS, Id, Key, NO_PTE, Role, permissions};
use super::{Host, Sabotage, Shadow, lent};
use crate::gstage::{ResolveError, Resolved, Translation};
use crate::two_stage::{access_fault, page_fault};
use crate::walk::{self, ReadPte, Reason, UpdatePte};
use core::sync::atomic::{Ordering, fence};
use rv::{
    Access, Addr, Entry, Fence, Format, Gpa, Gva, Hpa, Leaf, Level, Mode, Pfn, PhysMem, Pte, PteFlags, Request, Trap,
};

/// What the guest's `satp` says, but for the ASID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paging {
    /// Off: guest virtual is guest physical.
    Bare,
    /// Tables.
    Tables {
        /// Their format.
        format: &'static Format,
        /// The root.
        root: Pfn<Gpa>,
    },
}

/// What a fault comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The access is possible now, or was all along: let the guest try again.
    Filled {
        /// This hart may remember less: it must forget the page.
        fence: bool,
    },
    /// The guest's tables refuse it, or lead nowhere.
    Inject(Trap),
    /// The guest's tables lead out of its RAM.
    Device {
        /// Where to.
        gpa: Addr<Gpa>,
    },
    /// A store to a guest table that is write-protected: see [`Shadow::table_write`].
    TableWrite {
        /// Where it goes.
        gpa: Addr<Gpa>,
        /// Where that is.
        hpa: Addr<Hpa>,
    },
    /// Something changed meanwhile: let the guest try again.
    Retry,
}

/// Why guest memory cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Missing {
    /// There is none, or not for this.
    Nothing,
    /// There is no frame for it.
    NoFrame(ResolveError),
}

/// The guest's tables. As far as they are shadowed, their shadows know where they are, and the walk goes down both
/// at once; beyond, through the G-stage, which fills as they are read.
struct GuestTables<'a, 'h, M, H> {
    shadow: &'a mut Shadow,
    host: &'a mut Host<'h, M, H>,
    /// The shadow of the table that is read next, if there is one.
    next: Option<Id>,
    /// The last one so far.
    deepest: Id,
}

impl<M: PhysMem, H: Fence<Gpa>> ReadPte<Gpa> for GuestTables<'_, '_, M, H> {
    type Error = Missing;
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, Missing> {
        let Some((id, frame)) = self.next.take().and_then(|id| Some((id, self.shadow.page(id).guest?))) else {
            let there = self.shadow.reach(at, Access::Load, self.host)?;
            return Ok(Pte(self.host.mem.read_u64(there.hpa)));
        };
        let pte = Pte(self.host.mem.read_u64(frame.at(at.page_offset())));
        self.deepest = id;
        let page = self.shadow.page_mut(id);
        page.is_recent = true;
        let level = page.key.level.down();
        let index = (at.page_offset() / 8) as usize;
        if pte.is_pointer()
            && let Some(level) = level
            && self.shadow.mirror(id, index, self.host.mem) == Some(pte)
        {
            self.next = self.shadow.find(Key { gfn: pte.pfn(), level, role: Role::Table }, self.host.mem);
        }
        Ok(pte)
    }
}

impl<M: PhysMem, H: Fence<Gpa>> UpdatePte<Gpa> for GuestTables<'_, '_, M, H> {
    fn update(&mut self, at: Addr<Gpa>, old: Pte, new: Pte) -> Result<bool, Missing> {
        let there = self.shadow.reach(at, Access::Store, self.host)?;
        Ok(self.host.mem.compare_exchange_u64(there.hpa, old.0, new.0).is_ok())
    }
}

/// What a fault found, on the way to the entry that it is about.
struct Found {
    /// The address after the guest's tables.
    gpa: Addr<Gpa>,
    /// The leaf's permissions, level and the entry itself; for the identity, the page's.
    allowed: PteFlags,
    level: Level,
    pte: Pte,
    /// The shadow page from which on the shadow must be looked at, and the engine's count of pages gone by then.
    from: (Id, u64),
}

impl Shadow {
    /// Answers a page fault at `gva` that a guest with `paging` took on the shadow of root page `root`.
    ///
    /// # Errors
    /// If there is no frame for guest memory or for shadow pages. The guest can try again later.
    pub fn fault<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: super::Root,
        paging: Paging,
        gva: Addr<Gva>,
        request: &Request,
        host: &mut Host<'_, M, H>,
    ) -> Result<Outcome, ResolveError> {
        let access = request.access;
        let found = match self.find_leaf(root, paging, gva, request, host) {
            Ok(found) => found,
            Err(Reason::Memory(Missing::NoFrame(error))) => return Err(error),
            Err(reason) => {
                // A table outside of RAM is a failed access, of the kind that the guest's own was.
                let is_access = matches!(reason, Reason::Memory(_));
                let trap = if is_access { access_fault(access) } else { page_fault(access) };
                self.counters.guest_faults += 1;
                return Ok(Outcome::Inject(Trap::new(trap, gva.raw())));
            }
        };
        let there = match self.reach(found.gpa, access, host) {
            Ok(there) => there,
            Err(Missing::Nothing) if host.space.region_of(found.gpa.pfn()).is_none() => {
                return Ok(Outcome::Device { gpa: found.gpa });
            }
            Err(Missing::Nothing) => return Ok(Outcome::Inject(Trap::new(access_fault(access), gva.raw()))),
            Err(Missing::NoFrame(error)) => return Err(error),
        };
        if access == Access::Store && self.is_protected(found.gpa.pfn(), host.mem) {
            return Ok(Outcome::TableWrite { gpa: found.gpa, hpa: there.hpa });
        }
        self.prepare(host).map_err(ResolveError::OutOfFrames)?;
        let outcome = self.fill(root, gva, &found, there, host);
        self.conclude(host.hw);
        Ok(outcome)
    }

    /// The walk of the guest's tables, which sets A and D as promised.
    fn find_leaf<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: super::Root,
        paging: Paging,
        gva: Addr<Gva>,
        request: &Request,
        host: &mut Host<'_, M, H>,
    ) -> Result<Found, Reason<Missing>> {
        let Paging::Tables { format, root: table } = paging else {
            let gpa = Addr::new(gva.raw());
            let mut allowed = PteFlags::R | PteFlags::W | PteFlags::X;
            allowed.set(PteFlags::U, request.mode == Mode::User);
            return Ok(Found { gpa, allowed, level: Level::PAGE, pte: NO_PTE, from: (root.id, self.gone) });
        };
        let (ad, gone) = (self.config.ad, self.gone);
        let mut tables = GuestTables { shadow: self, host, next: Some(root.id), deepest: root.id };
        let walk =
            walk::translate(format, table, gva, request, (CAPS, ad), &mut tables).map_err(|fault| fault.reason)?;
        let from = (tables.deepest, gone);
        let unset = walk.unset(request.access);
        let flags = walk.leaf.flags | unset;
        let pte = Pte(walk.pte.0 | unset.bits());
        Ok(Found { gpa: walk.out, allowed: self.rights(flags), level: walk.level, pte, from })
    }

    /// Makes guest memory ready for an access and says where it is, with what the G-stage allows.
    fn reach<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gpa: Addr<Gpa>,
        access: Access,
        host: &mut Host<'_, M, H>,
    ) -> Result<Translation, Missing> {
        if let Some(known) = host.space.translate(gpa, host.mem)
            && known.flags.contains(match access {
                Access::Load => PteFlags::R,
                Access::Store => PteFlags::W,
                Access::Fetch | Access::LoadExec => PteFlags::X,
            })
        {
            return Ok(known);
        }
        match host.space.resolve(gpa, access, lent(&host.frames), host.mem) {
            Ok(Resolved::Mapped { how, stale, publish, .. }) => {
                self.settle(gpa.pfn(), (how, stale), publish, host);
                Ok(host.space.translate(gpa, host.mem).expect("mapped a moment ago"))
            }
            Ok(Resolved::Hole) | Err(ResolveError::Denied) => Err(Missing::Nothing),
            Err(error @ ResolveError::OutOfFrames(_)) => Err(Missing::NoFrame(error)),
        }
    }

    /// The same for Gnomon's own accesses to guest memory.
    ///
    /// # Errors
    /// As for [`crate::AddressSpace::resolve`].
    pub fn resolve<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gpa: Addr<Gpa>,
        access: Access,
        host: &mut Host<'_, M, H>,
    ) -> Result<Option<Addr<Hpa>>, ResolveError> {
        match self.reach(gpa, access, host) {
            Ok(there) => Ok(Some(there.hpa)),
            Err(Missing::Nothing) if host.space.region_of(gpa.pfn()).is_none() => Ok(None),
            Err(Missing::Nothing) => Err(ResolveError::Denied),
            Err(Missing::NoFrame(error)) => Err(error),
        }
    }

    /// Goes down from the root, linking what is missing, and sets the leaf.
    fn fill<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: super::Root,
        gva: Addr<Gva>,
        found: &Found,
        there: Translation,
        host: &mut Host<'_, M, H>,
    ) -> Outcome {
        // What led the walk there still does, unless pages have gone since.
        let mut id = if found.from.1 == self.gone { found.from.0 } else { root.id };
        loop {
            self.page_mut(id).is_recent = true;
            let key = self.page(id).key;
            let index = (gva.raw() >> key.level.shift()) as usize & 511;
            let old = Pte(host.mem.read_u64(self.entry_at(id, index)));
            // The guest's entry is read after ours: see the module's doc.
            fence(Ordering::SeqCst);
            let pte = match key.role {
                Role::Table => match self.guest_entry(id, index, host) {
                    Some(pte) => pte,
                    None => return self.retry(),
                },
                Role::Direct(_) | Role::Bare => NO_PTE,
            };
            let is_leaf = match pte.decode::<Gpa>(key.level, CAPS) {
                _ if key.role != Role::Table => true,
                Entry::Table(_) if key.level > found.level => false,
                Entry::Leaf(_) if key.level == found.level && pte == found.pte => true,
                // Not what the walk saw.
                _ => return self.retry(),
            };
            if is_leaf && self.leaf_fits(found.gpa.pfn(), key.level, there.level) {
                return self.set((id, index), (old, pte), found, there, host);
            }
            id = match self.pointer((id, index), old, pte, host) {
                Some(child) => child,
                None => return self.retry(),
            };
        }
    }

    fn retry(&mut self) -> Outcome {
        self.counters.retries += 1;
        Outcome::Retry
    }

    /// Whether a leaf of `level` may map `gfn`, which the G-stage maps with a leaf of level `there`.
    fn leaf_fits(&mut self, gfn: Pfn<Gpa>, level: Level, there: Level) -> bool {
        let is_ram = self.heads.contains(gfn);
        is_ram && level <= there && level <= Level::MEGA && (level == Level::PAGE || self.may_be_mega(gfn))
    }

    /// The guest's entry behind an entry of the shadow of a table. `None` if the frame cannot be found at
    /// once.
    pub(super) fn guest_entry<M: PhysMem, H>(&mut self, id: Id, index: usize, host: &Host<'_, M, H>) -> Option<Pte> {
        let page = self.page(id);
        let frame = match page.guest {
            Some(frame) => frame,
            None => {
                let frame = host.space.translate(page.key.gfn.base(), host.mem)?.hpa.pfn();
                self.page_mut(id).guest = Some(frame);
                frame
            }
        };
        Some(Pte(host.mem.read_u64(frame.at(8 * index as u64))))
    }

    /// The shadow page that the entry leads to, linked anew if it does not lead there yet.
    fn pointer<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        (id, index): (Id, usize),
        old: Pte,
        pte: Pte,
        host: &mut Host<'_, M, H>,
    ) -> Option<Id> {
        let key = Self::child_key(self.page(id).key, index, pte)?;
        if self.mirror(id, index, host.mem) == Some(pte) && self.is_pointer(id, old) {
            return self.find(key, host.mem);
        }
        self.drop_entry(id, index, host.mem);
        let child = self.child(key, host)?;
        self.set_pointer(id, index, pte, child, host.mem);
        Some(child)
    }

    /// The shadow page for `key`, up to date, or a new one. `None` if its guest table is not in RAM.
    pub(super) fn child<M: PhysMem, H: Fence<Gpa>>(&mut self, key: Key, host: &mut Host<'_, M, H>) -> Option<Id> {
        if let Some(id) = self.find(key, host.mem) {
            self.counters.shared += 1;
            if !self.is_sabotaged(Sabotage::LinksStale) {
                self.sync_below(id, host);
            }
            return Some(id);
        }
        let guest = match key.role {
            Role::Table => Some(host.space.translate(key.gfn.base(), host.mem)?.hpa.pfn()),
            Role::Direct(_) | Role::Bare => None,
        };
        Some(self.make(key, guest, host))
    }

    /// Sets the leaf that the fault is about.
    fn set<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        (id, index): (Id, usize),
        (old, pte): (Pte, Pte),
        found: &Found,
        there: Translation,
        host: &mut Host<'_, M, H>,
    ) -> Outcome {
        let level = self.page(id).key.level;
        let allowed = match self.page(id).key.role {
            Role::Direct(allowed) => allowed,
            Role::Table | Role::Bare => found.allowed,
        };
        let new = self.leaf(found.gpa.pfn(), level, allowed, there, host.mem);
        let mirror = if self.page(id).key.role == Role::Table { pte } else { NO_PTE };
        if new == Pte::INVALID || !self.set_leaf((id, index), (old, new), mirror, host.mem) {
            return self.retry();
        }
        if level == Level::PAGE {
            self.counters.filled_4k += 1
        } else {
            self.counters.filled_2m += 1
        }
        Outcome::Filled { fence: old.flags().contains(PteFlags::V) }
    }

    /// What a guest's leaf with A allows.
    fn rights(&self, flags: PteFlags) -> PteFlags {
        permissions(if self.is_sabotaged(Sabotage::IgnoresDirty) { flags | PteFlags::D } else { flags })
    }

    /// The entry of `level` for what is around `gfn`, which the G-stage translates as `there` says, at that level or
    /// a higher one.
    fn leaf(&self, gfn: Pfn<Gpa>, level: Level, allowed: PteFlags, there: Translation, mem: &impl PhysMem) -> Pte {
        let host = PteFlags::R | PteFlags::W | PteFlags::X;
        let mut flags = allowed.intersection(there.flags & host | PteFlags::U);
        if self.is_sabotaged(Sabotage::IgnoresHost) {
            flags = allowed;
        }
        if self.is_sabotaged(Sabotage::ForgetsUser) {
            flags.remove(PteFlags::U);
        }
        let sees_writes = !self.is_sabotaged(Sabotage::AllowsTableWrites);
        if level == Level::PAGE && sees_writes && self.is_protected(gfn, mem) {
            flags.remove(PteFlags::W);
        }
        // A leaf that allows nothing would be a pointer; W without R is reserved.
        if !flags.contains(PteFlags::R) {
            flags.remove(PteFlags::W);
        }
        if !flags.intersects(PteFlags::R | PteFlags::X) {
            return Pte::INVALID;
        }
        flags.insert(PteFlags::A);
        flags.set(PteFlags::D, flags.contains(PteFlags::W));
        let pfn = there.hpa.pfn().align_down(level.pages());
        Entry::Leaf(Leaf { pfn, flags, napot: false }).encode()
    }

    /// Brings one entry of the shadow of a table in step with the guest's, as far as that takes neither shadow pages nor
    /// guest memory that is not there yet; otherwise the entry goes, and a fault will fill it.
    pub(super) fn derive<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, index: usize, host: &mut Host<'_, M, H>) {
        let level = self.page(id).key.level;
        let old = Pte(host.mem.read_u64(self.entry_at(id, index)));
        fence(Ordering::SeqCst);
        let known = self.mirror(id, index, host.mem);
        let now = self.guest_entry(id, index, host);
        if now.is_some() && now == known {
            return;
        }
        if known.is_some() {
            self.counters.synced_entries += 1;
        }
        if let Some(pte) = now
            && let Entry::Leaf(leaf) = pte.decode::<Gpa>(level, CAPS)
            && leaf.flags.contains(PteFlags::A)
            && let Some(there) = host.space.translate(leaf.pfn.base(), host.mem)
            && self.leaf_fits(leaf.pfn, level, there.level)
        {
            let new = self.leaf(leaf.pfn, level, self.rights(leaf.flags), there, host.mem);
            if new != Pte::INVALID && self.set_leaf((id, index), (old, new), pte, host.mem) {
                return;
            }
        }
        self.drop_entry(id, index, host.mem);
    }
}
