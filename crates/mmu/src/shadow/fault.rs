//! Faults: the guest's walk decides what it is, then the shadow learns it.
//!
//! Nearly all faults find all their tables shadowed and their memory there. They go down the shadow's pointers, as the hart
//! just did, read the guest's entry at their end, and fill: pointers may be remembered, by TLBs and so here, until a wide
//! fence. Where that leads to anything but a leaf that lets the access through, the guest's own tables are walked from
//! their root, and only what they say now is a fault of the guest's.

use super::config::Host;
use super::engine::Shadow;
use super::entries::Both;
use super::page::{At, CAPS, Id, Key, NO_PTE, PARTS, Place, Ref, Role, Stay, below, indices};
use super::passed::{Compared, Mappings};
use super::root::{Paging, Root};
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use crate::gstage::{AddressSpace, ResolveError, Resolved, Translation, Unresolved};
use crate::table::Debt;
use crate::walk::{self, ReadPte, Reason, UpdatePte};
use rv::format::ENTRIES;
use rv::{Access, Addr, Entry, Fence, Gpa, Hpa, Level, Mode, Pfn, PhysMem, Pte, PteFlags, Request, Trap};

/// What the hart that took a fault may remember that is more than its tables say now, and must forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forget {
    /// Nothing.
    Nothing,
    /// The page, for which there was an entry that allowed less.
    Page,
    /// All of the root: where a pointer is now there was one to poison, which a fence by address need not end.
    Root,
}

/// What a fault comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The access is possible now, or was all along: let the guest try again.
    Filled {
        /// What this hart must forget.
        forget: Forget,
        /// All entries on the way were so before: either a hart remembered less, or the fault was about something else.
        known: bool,
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
    /// It is not ready yet, or there is no frame for it.
    Not(Unresolved),
    /// The budget is spent before it could be made ready: more is done the next time.
    Later,
}

/// The guest's tables. As far as they are shadowed, their shadows know where they are, and the walk goes down both
/// at once; beyond, through the G-stage, which fills as they are read.
struct GuestTables<'a, 'h, S: Shadowed, M, H> {
    shadow: &'a mut Shadow<S>,
    host: &'a mut Host<'h, M, H>,
    /// The shadow of the table that is read next, if there is one.
    next: Option<Id>,
    /// The last one so far.
    deepest: Id,
}

impl<S: Shadowed, M: PhysMem, H: Fence<Gpa>> ReadPte<Gpa> for GuestTables<'_, '_, S, M, H> {
    type Error = Missing;
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, Missing> {
        let Some((id, frame)) = self.next.take().and_then(|id| Some((id, self.shadow.index.page(id).guest?))) else {
            let there = self.shadow.reach(at, Access::Load, self.host)?;
            return Ok(Pte(self.host.mem.read_u64(there.hpa)));
        };
        let pte = Pte(self.host.mem.read_u64(frame.at(at.page_offset())));
        self.deepest = id;
        let page = self.shadow.index.page(id);
        let index = (at.page_offset() / 8) as usize;
        if pte.is_pointer()
            && let Some(level) = page.key.level.down()
            && page.mirror(index, self.host.mem) == Some(pte)
        {
            self.next = self.shadow.index.find(Key { gfn: pte.pfn(), level, role: Role::Table }, self.host.mem);
        }
        Ok(pte)
    }
}

impl<S: Shadowed, M: PhysMem, H: Fence<Gpa>> UpdatePte<Gpa> for GuestTables<'_, '_, S, M, H> {
    fn update(&mut self, at: Addr<Gpa>, old: Pte, new: Pte) -> Result<bool, Missing> {
        let there = self.shadow.reach_within_budget(at, Access::Store, self.host)?;
        Ok(self.host.mem.compare_exchange_u64(there.hpa, old.0, new.0).is_ok())
    }
}

/// What a fault found, on the way to the entry that it is about.
pub(super) struct Found {
    /// The address after the guest's tables.
    pub gpa: Addr<Gpa>,
    /// The leaf's permissions, level and the entry itself; for the identity, the page's.
    pub allowed: PteFlags,
    level: Level,
    pte: Pte,
}

/// What the G-stage must allow for an access.
const fn needed(access: Access) -> PteFlags {
    match access {
        Access::Load => PteFlags::R,
        Access::Store => PteFlags::W,
        Access::Fetch | Access::LoadExec => PteFlags::X,
    }
}

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

    /// The entry of level 0 that decides about `gva`, if the way there is remembered: that of an address that can be.
    #[inline(always)]
    pub(super) fn known(&self, root: &Root<S>, gva: Addr<S>) -> Option<At> {
        Some((self.walks.find(root.serial, gva)?, root.format.index_in_frame(gva, Level::PAGE)))
    }

    /// Goes down the shadow's pointers as far as they lead from one shadow of a guest's table to another, and says where
    /// it arrives: the entry that decides about `gva`, or the last above it.
    #[inline(always)]
    pub(super) fn descend(&mut self, root: &Root<S>, gva: Addr<S>, mem: &impl PhysMem) -> At {
        self.known(root, gva).unwrap_or_else(|| self.descend_from_root(root, gva, mem))
    }

    #[cold]
    #[inline(never)]
    fn descend_from_root(&mut self, root: &Root<S>, gva: Addr<S>, mem: &impl PhysMem) -> At {
        let (mut id, format) = (self.part(root, gva), root.format);
        loop {
            let page = self.index.page(id);
            let (key, index) = (page.key, format.index_in_frame(gva, page.key.level));
            let Some(level) = key.level.down() else {
                // A fault there is the guest's, whatever the tables say: those who find a walk ask no more.
                if format.fits(gva) && !page.is_coalesced {
                    self.walks.remember(root.serial, gva, id);
                }
                return (id, index);
            };
            let pointer = page.mirror(index, mem).filter(|mirror| key.role == Role::Table && mirror.is_pointer());
            let Some(pointer) = pointer else { return (id, index) };
            let child = self.index.find(Key { gfn: pointer.pfn(), level, role: Role::Table }, mem);
            id = child.expect("a live pointer's shadow page exists");
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
        let at = match self.known(root, gva) {
            Some(at) => at,
            // None is remembered there.
            None if !root.format.fits(gva) => return None,
            None => {
                let at = self.descend_from_root(root, gva, mem);
                // One leaf stands for all of them: it has to be split first.
                if self.index.page(at.0).is_coalesced {
                    return None;
                }
                at
            }
        };
        let page = self.index.page_mut(at.0);
        page.is_recent = true;
        let key = page.key;
        let Both { ours, guests } = Self::look_at(page, at.1, space, mem);
        let Key { level, role: Role::Table, .. } = key else { return None };
        let pte = guests?;
        let leaf = match walk::judge::<Gpa, Missing>(pte.decode(level, CAPS), request) {
            Ok(leaf) => leaf,
            Err(_) if self.is_sabotaged(Sabotage::BlamesEarly) => {
                return Some(Answer::Inject(S::page_fault(gva, request.access)));
            }
            Err(_) => return None,
        };
        if !walk::unset(&leaf, request.access).is_empty() {
            return None;
        }
        let gpa = leaf.pfn.at(gva.raw() & (level.bytes() - 1));
        let there = space.translate(gpa, mem).filter(|there| there.flags.contains(needed(request.access)));
        let Some(there) = there else {
            return space.region_of(gpa.pfn()).is_none().then_some(Answer::Device { gpa });
        };
        // A quiet table is found out below.
        if self.steers() && (!self.allows_all(leaf.flags, there) || self.index.heads.has_protected_around(gpa.pfn())) {
            return None;
        }
        if request.access == Access::Store && self.is_protected(gpa.pfn(), mem) {
            return Some(Answer::TableWrite { gpa, hpa: there.hpa });
        }
        // Harts may walk by a pointer until they are fenced.
        if ours.is_pointer() || !self.leaf_fits(gpa.pfn(), level, there.level) {
            return None;
        }
        let found = Found { gpa, allowed: self.rights(leaf.flags), level, pte };
        let (answer, debt) = self.set((at, key), ours, &found, there, mem);
        self.leave(debt);
        Some(answer)
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
        let answer = self.walk_and_fill(root, gva, request, host);
        self.conclude(host);
        answer
    }

    fn walk_and_fill<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        request: &Request,
        host: &mut Host<'_, M, H>,
    ) -> Result<Answer, Unresolved> {
        let access = request.access;
        let gone = self.gone;
        let (found, deepest) = match self.find_leaf(root, gva, request, host) {
            Ok(found) => found,
            Err(Reason::Memory(Missing::Not(why))) => return Err(why),
            Err(Reason::Memory(Missing::Later)) => return Ok(self.retry()),
            Err(reason) => {
                // A table outside of RAM is a failed access, of the kind that the guest's own was.
                let is_access = matches!(reason, Reason::Memory(_));
                self.counters.guest_faults += 1;
                self.link_ahead(root, gva, host);
                let trap = if is_access { S::access_fault(gva, access) } else { S::page_fault(gva, access) };
                return Ok(Answer::Inject(trap));
            }
        };
        let there = match self.reach_within_budget(found.gpa, self.wanted(root, &found, access, host), host) {
            Ok(there) => there,
            Err(Missing::Nothing) if host.space.region_of(found.gpa.pfn()).is_none() => {
                return Ok(Answer::Device { gpa: found.gpa });
            }
            Err(Missing::Nothing) => return Ok(Answer::Inject(S::access_fault(gva, access))),
            Err(Missing::Not(why)) => return Err(why),
            Err(Missing::Later) => return Ok(self.retry()),
        };
        if access == Access::Store && self.is_protected(found.gpa.pfn(), host.mem) {
            return Ok(Answer::TableWrite { gpa: found.gpa, hpa: there.hpa });
        }
        self.wake(found.gpa.pfn(), host.mem);
        if !self.prepare(host).map_err(ResolveError::OutOfFrames)? {
            return Ok(self.retry());
        }
        // What led the walk there still does, unless pages have gone since.
        let from = if gone == self.gone { deepest } else { self.part(root, gva) };
        Ok(self.fill(root, from, gva, &found, there, host))
    }

    /// The walk of the guest's tables, which sets A and D as promised; and the last shadow page on its way.
    fn find_leaf<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        request: &Request,
        host: &mut Host<'_, M, H>,
    ) -> Result<(Found, Id), Reason<Missing>> {
        let part = self.part(root, gva);
        let Paging::Tables { format, root: table } = root.paging else {
            let gpa = Addr::new(gva.raw());
            let mut allowed = PteFlags::R | PteFlags::W | PteFlags::X;
            allowed.set(PteFlags::U, request.mode == Mode::User);
            return Ok((Found { gpa, allowed, level: Level::PAGE, pte: NO_PTE }, part));
        };
        let ad = self.config.ad;
        let mut tables = GuestTables { shadow: self, host, next: Some(part), deepest: part };
        let walk =
            walk::translate(format, table, gva, request, (CAPS, ad), &mut tables).map_err(|fault| fault.reason)?;
        let deepest = tables.deepest;
        let unset = walk::unset(&walk.leaf, request.access);
        let flags = walk.leaf.flags | unset;
        let pte = Pte(walk.pte.0 | unset.bits());
        Ok((Found { gpa: walk.out, allowed: self.rights(flags), level: walk.level, pte }, deepest))
    }

    /// [`Shadow::reach`], where a frame may be copied: any number of leaves may lead to it.
    fn reach_within_budget<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gpa: Addr<Gpa>,
        access: Access,
        host: &mut Host<'_, M, H>,
    ) -> Result<Translation, Missing> {
        let may_copy =
            access == Access::Store && host.space.region_of(gpa.pfn()).is_some_and(|region| region.prot.allows(access));
        let known = if may_copy { host.space.translate(gpa, host.mem) } else { None };
        if may_copy && known.is_none_or(|known| !known.flags.contains(PteFlags::W)) {
            // The leaves go last: the guest may be fetching by one, and would have it filled again between two portions.
            let moved = host.space.moved_by_store(gpa, host.ready, host.mem);
            let mut moved = moved.map_err(|content| Missing::Not(Unresolved::Wants(content)))?;
            // To copy 2 MiB takes as much as what half of a budget is for, and more: nothing is filled after it.
            let half = host.budget.half();
            if !moved.all(|page| self.forget_all_ahead(Pfn::new(page), host)) || host.budget < half {
                return Err(Missing::Later);
            }
            let there = self.reach(gpa, access, host)?;
            return if host.budget.is_spent() { Err(Missing::Later) } else { Ok(there) };
        }
        self.reach(gpa, access, host)
    }

    /// Makes guest memory ready for an access and says where it is, with what the G-stage allows.
    fn reach<M: PhysMem, H: Fence<Gpa>>(
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
        let reached = self.reach_within_budget(gpa, access, host);
        self.conclude(host);
        match reached {
            Ok(there) => Ok(Some(there.hpa)),
            Err(Missing::Nothing) if host.space.region_of(gpa.pfn()).is_none() => Ok(None),
            Err(Missing::Nothing) => Err(ResolveError::Denied.into()),
            Err(Missing::Not(why)) => Err(why),
            Err(Missing::Later) => Err(Unresolved::Later),
        }
    }

    /// Goes down from a shadow page, linking what is missing, and sets the leaf.
    fn fill<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        from: Id,
        gva: Addr<S>,
        found: &Found,
        there: Translation,
        host: &mut Host<'_, M, H>,
    ) -> Answer {
        let (mut id, mut is_new) = (from, false);
        loop {
            self.unfold(id, host);
            let page = self.index.page_mut(id);
            page.is_recent = true;
            let key = page.key;
            let index = root.format.index_in_frame(gva, key.level);
            let Both { ours, guests: Some(pte) } = self.look((id, index), host.space, host.mem) else {
                return self.retry();
            };
            let is_leaf = match pte.decode::<Gpa>(key.level, CAPS) {
                _ if key.role != Role::Table => true,
                Entry::Table(_) if key.level > found.level => false,
                Entry::Leaf(_) if key.level == found.level && pte == found.pte => true,
                // Not what the walk saw.
                _ => return self.retry(),
            };
            if is_leaf && self.leaf_fits(found.gpa.pfn(), key.level, there.level) {
                let (answer, debt) = self.set(((id, index), key), ours, found, there, host.mem);
                self.owe(debt, host);
                return match answer {
                    // Whatever the leaf was, and it may have been made with its table: nothing led to it.
                    Answer::Filled { forget, .. } if is_new && !self.is_sabotaged(Sabotage::MistakesLinks) => {
                        Answer::Filled { forget: if self.steers() { Forget::Root } else { forget }, known: false }
                    }
                    answer => answer,
                };
            }
            id = match self.pointer((id, index), (ours, pte), host) {
                Some(child) => child,
                None => {
                    is_new = true;
                    match self.link((id, index), pte, gva, host) {
                        Some(child) => child,
                        None => return self.retry(),
                    }
                }
            };
        }
    }

    fn retry(&mut self) -> Answer {
        self.counters.retries += 1;
        Answer::Retry
    }

    /// The shadow page that the entry leads to, if it leads where the guest's does.
    pub(super) fn pointer<M: PhysMem, H>(
        &self,
        (id, index): At,
        (ours, pte): (Pte, Pte),
        host: &Host<'_, M, H>,
    ) -> Option<Id> {
        let page = self.index.page(id);
        let key = page.key.child(index, pte)?;
        let leads_there = page.mirror(index, host.mem) == Some(pte) && page.is_pointer(ours);
        if leads_there { self.index.find(key, host.mem) } else { None }
    }

    /// Links the shadow page that the entry should lead to. `None` if there is none, or not yet.
    pub(super) fn link<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        (id, index): At,
        pte: Pte,
        gva: Addr<S>,
        host: &mut Host<'_, M, H>,
    ) -> Option<Id> {
        let key = self.index.page(id).key.child(index, pte)?;
        self.drop_entry((id, index), host);
        let child = self.child(key, (id, gva), host)?;
        self.set_pointer((id, index), pte, child, host);
        Some(child)
    }

    /// A page is about to be linked below `above`, for an address. Says what is to be compared of it before.
    fn place<M: PhysMem, H>(&mut self, id: Id, (above, gva): (Id, Addr<S>), host: &mut Host<'_, M, H>) -> Mappings {
        if !self.steers() {
            return Mappings::All;
        }
        let above = self.index.page(above);
        let is_various = above.key.level == Level::MEGA && above.place == Place::Various;
        let page = self.index.page_mut(id);
        let before = page.place;
        let shift = page.key.level.shift() + ENTRIES.ilog2();
        let is_same = matches!(before, Place::At(known) if known >> shift == gva.raw() >> shift);
        let mappings = if is_same { Mappings::All } else { Mappings::Anew };
        if page.parents == Ref::NONE {
            page.place = Place::Nowhere;
        }
        page.place.add(gva.raw(), page.key.level);
        if self.is_sabotaged(Sabotage::ForgetsPlaces) {
            return mappings;
        }
        let page = self.index.page_mut(id);
        if is_various {
            page.place = Place::Various;
        }
        if page.key.level != Level::MEGA || page.key.role != Role::Table || page.place == before {
            return mappings;
        }
        // What it leads to translates there, too.
        for part in 0..PARTS {
            for index in indices(part, self.index.page(id).leading_in(part)) {
                host.budget.spend(1);
                let Some(child) = self.table_below((id, index), host.mem) else { continue };
                let there = below(Level::MEGA, gva, index);
                self.index.page_mut(child).place.add(there.raw(), Level::PAGE);
            }
        }
        mappings
    }

    /// The shadow page for `key`, up to date, or a new one. `None` if its guest table is not in RAM, or it is not up to date yet.
    fn child<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        key: Key,
        (above, gva): (Id, Addr<S>),
        host: &mut Host<'_, M, H>,
    ) -> Option<Id> {
        if let Some(id) = self.index.find(key, host.mem) {
            self.counters.shared += 1;
            if self.steers() && key.role == Role::Table && self.index.page(id).guest.is_none() {
                self.index.page_mut(id).guest = Some(host.space.translate(key.gfn.base(), host.mem)?.hpa.pfn());
            }
            self.unfold(id, host);
            let fences = self.passed.fences();
            self.index.page_mut(id).use_.comes(fences);
            let mappings = self.place(id, (above, gva), host);
            if mappings == Mappings::Anew {
                // Until all of it is, which may take some attempts.
                self.index.page_mut(id).compared = Compared::NEVER;
            }
            let may_be_linked = self.is_sabotaged(Sabotage::LinksStale) || self.sync_below(id, mappings, gva, host);
            return may_be_linked.then_some(id);
        }
        let guest = match key.role {
            Role::Table => Some(host.space.translate(key.gfn.base(), host.mem)?.hpa.pfn()),
            Role::Direct(_) | Role::Bare => None,
        };
        let body = self.spare.pop().expect("an operation prepares for the pages that it makes");
        let id = self.make(key, body, guest, host);
        // Whatever its place is, what it is made from is there now.
        let _ = self.place(id, (above, gva), host);
        if self.steers() && key.role != Role::Bare {
            self.fill_whole(id, host);
        }
        Some(id)
    }

    /// Sets the leaf that the fault is about. Says what that owes, too.
    #[inline(always)]
    fn set(
        &mut self,
        (at, key): (At, Key),
        ours: Pte,
        found: &Found,
        there: Translation,
        mem: &mut impl PhysMem,
    ) -> (Answer, Debt) {
        let Key { level, role, .. } = key;
        let (allowed, mirror) = match role {
            Role::Direct(allowed) => (allowed, NO_PTE),
            Role::Bare => (found.allowed, NO_PTE),
            Role::Table => (found.allowed, found.pte),
        };
        let new = self.leaf(found.gpa.pfn(), level, allowed, there, mem);
        let debt = new.and_then(|new| self.set_leaf(at, (ours, new), mirror, mem));
        let Some(debt) = debt else { return (self.retry(), Debt::none()) };
        let known = new == Some(ours);
        if !known {
            self.index.page_mut(at.0).stay = Stay::Changed;
        }
        if level == Level::PAGE {
            self.counters.filled_4k += 1
        } else {
            self.counters.filled_2m += 1
        }
        let forget = if ours.flags().contains(PteFlags::V) { Forget::Page } else { Forget::Nothing };
        (Answer::Filled { forget, known }, debt)
    }
}
