//! Faults: the guest's walk decides what it is, then the shadow learns it.
//!
//! Nearly all faults find all their tables shadowed and their memory there. They go down the shadow's pointers, as the hart
//! just did, read the guest's entry at their end, and fill: pointers may be remembered, by TLBs and so here, until a wide
//! fence. Where that leads to anything but a leaf that lets the access through, the guest's own tables are walked from
//! their root, and only what they say now is a fault of the guest's.

use crate::gstage::{AddressSpace, ResolveError, Translation, Unresolved};
use crate::shadow::cache::{Cache, Missing, needed};
use crate::shadow::entries::{Both, look_at};
use crate::shadow::fill::Filler;
use crate::shadow::pages::{At, CAPS, Id, Key, NO_PTE, Role, Stay};
use crate::shadow::{Host, Paging, Root, Sabotage, Shadowed};
use crate::table::Debt;
use crate::walk::{self, ReadPte, Reason, UpdatePte};
use rv::{Access, Addr, Entry, Fence, Gpa, Hpa, Level, Mode, PhysMem, Pte, PteFlags, Request, Trap};

/// The stale translations that the hart that took a fault may have and must forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forget {
    /// Nothing.
    Nothing,
    /// The page, for which there was an entry that allowed less.
    Page,
    /// All of the root: where a pointer is now there was one to poison, which a fence by address need not end.
    Root,
}

/// The answer to a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The access is possible now, or was all along: let the guest try again.
    Filled {
        /// The translations that this hart must forget.
        forget: Forget,
        /// All entries on the way were so before: either a hart remembered less, or the fault was about something else.
        known: bool,
    },
    /// The guest's tables refuse it, or lead nowhere.
    Inject(Trap),
    /// The guest's tables lead out of its RAM.
    Device {
        /// The address there.
        gpa: Addr<Gpa>,
    },
    /// A store to a guest table that is write-protected: see [`Shadow::table_write`].
    TableWrite {
        /// The address of the store.
        gpa: Addr<Gpa>,
        /// The place of that address.
        hpa: Addr<Hpa>,
    },
    /// Something changed meanwhile: let the guest try again.
    Retry,
}

/// The guest's tables. As far as they are shadowed, their shadows know where they are, and the walk goes down both
/// at once; beyond, through the G-stage, which fills as they are read.
struct GuestTables<'a, 'h, S: Shadowed, M, H> {
    cache: &'a mut Cache<S>,
    host: &'a mut Host<'h, M, H>,
    /// The shadow of the table that is read next, if there is one.
    next: Option<Id>,
    /// The last one so far.
    deepest: Id,
}

impl<S: Shadowed, M: PhysMem, H: Fence<Gpa>> ReadPte<Gpa> for GuestTables<'_, '_, S, M, H> {
    type Error = Missing;
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, Missing> {
        let Some((id, frame)) =
            self.next.take().and_then(|id| Some((id, self.cache.tables.index.page(id).origin.guest?)))
        else {
            let there = self.cache.reach(at, Access::Load, self.host)?;
            return Ok(Pte(self.host.mem.read_u64(there.hpa)));
        };
        let pte = Pte(self.host.mem.read_u64(frame.at(at.page_offset())));
        self.deepest = id;
        let page = self.cache.tables.index.page(id);
        let index = (at.page_offset() / 8) as usize;
        if pte.is_pointer()
            && let Some(level) = page.key.level.down()
            && page.mirror(index, self.host.mem) == Some(pte)
        {
            self.next = self.cache.tables.index.find(Key { gfn: pte.pfn(), level, role: Role::Table }, self.host.mem);
        }
        Ok(pte)
    }
}

impl<S: Shadowed, M: PhysMem, H: Fence<Gpa>> UpdatePte<Gpa> for GuestTables<'_, '_, S, M, H> {
    fn update(&mut self, at: Addr<Gpa>, old: Pte, new: Pte) -> Result<bool, Missing> {
        let there = self.cache.reach_within_budget(at, Access::Store, self.host)?;
        Ok(self.host.mem.compare_exchange_u64(there.hpa, old.0, new.0).is_ok())
    }
}

/// The leaf that a fault found, on the way to the entry that it is about.
pub struct Found {
    /// The address after the guest's tables.
    pub gpa: Addr<Gpa>,
    /// The leaf's permissions, level and the entry itself; for the identity, the page's.
    pub allowed: PteFlags,
    pub level: Level,
    pub pte: Pte,
}

impl Found {
    /// The leaf as an entry of a shadow page of pieces says it. `None` if that says something else by now.
    fn piece(&self, pte: Pte, level: Level) -> Option<Found> {
        let Entry::Leaf(leaf) = pte.decode::<Gpa>(level, CAPS) else { return None };
        let leads_there = leaf.pfn == self.gpa.pfn().align_down(level.pages());
        leads_there.then_some(Found { gpa: self.gpa, allowed: self.allowed, level: self.level, pte })
    }
}

impl<S: Shadowed> Filler<S> {
    /// Like [`super::super::Shadow::fault_in_known_tables`].
    #[inline(always)]
    pub fn fault_in_known_tables(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        request: &Request,
        space: &AddressSpace,
        mem: &mut impl PhysMem,
    ) -> Option<Answer> {
        let at = match self.tables().walks.known(root, gva) {
            Some(at) => at,
            // None is remembered there.
            None if !root.format.fits(gva) => return None,
            None => {
                let at = self.tables().descend_from_root(root, gva, mem);
                // One leaf stands for all of them: it has to be split first.
                if self.page(at.0).is_coalesced {
                    return None;
                }
                at
            }
        };
        let tables = self.tables();
        let page = tables.index.page_mut(at.0);
        page.is_recent = true;
        let key = page.key;
        let Both { ours, guests, own } = look_at((page, &mut tables.lower), at.1, space, mem);
        let Key { level, role: Role::Table, .. } = key else { return None };
        if S::COMPOSES && level > Level::PAGE {
            return None;
        }
        let pte = guests?;
        let leaf = match walk::judge::<Gpa, Missing>(pte.decode(level, CAPS), request) {
            Ok(leaf) => leaf,
            Err(_) if self.rules().is_sabotaged(Sabotage::BlamesEarly) => {
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
        if self.rules().policy.own_faults
            && (!self.rules().allows_all(leaf.flags, there)
                || self.tables().index.heads.has_protected_around(gpa.pfn()))
        {
            return None;
        }
        if request.access == Access::Store && self.tables().is_protected(gpa.pfn(), mem) {
            return Some(Answer::TableWrite { gpa, hpa: there.hpa });
        }
        // Harts may walk by a pointer until they are fenced.
        if ours.is_pointer() || !self.tables().leaf_fits(gpa.pfn(), level, there.level) {
            return None;
        }
        let found = Found { gpa, allowed: self.rules().rights(leaf.flags), level, pte };
        let (answer, debt) = self.set((at, key), ours, &found, there, mem);
        if let (true, Answer::Filled { .. }, Some(own)) = (S::COMPOSES, &answer, own) {
            self.page_mut(at.0).note_own(at.1, own, mem);
        }
        self.cache().leave(debt);
        Some(answer)
    }

    pub fn walk_and_fill<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        request: &Request,
        host: &mut Host<'_, M, H>,
    ) -> Result<Answer, Unresolved> {
        let access = request.access;
        let gone = self.syncer.cache.gone;
        if S::COMPOSES {
            return match self.find_composed(root, gva, request, host) {
                Ok((found, reach)) => {
                    let deepest = self.tables().part(root, gva);
                    self.bring_and_fill((root, gva, access), (found, reach), (deepest, gone), host)
                }
                Err(answer) => answer,
            };
        }
        let (found, deepest) = match self.find_leaf(root, gva, request, host) {
            Ok(found) => found,
            Err(Reason::Memory(Missing::Not(why))) => return Err(why),
            Err(Reason::Memory(Missing::Later)) => return Ok(self.retry()),
            Err(reason) => {
                // A table outside of RAM is a failed access, of the kind that the guest's own was.
                let is_access = matches!(reason, Reason::Memory(_));
                self.tables().counters.guest_faults += 1;
                self.link_ahead(root, gva, host);
                let trap = if is_access { S::access_fault(gva, access) } else { S::page_fault(gva, access) };
                return Ok(Answer::Inject(trap));
            }
        };
        self.bring_and_fill((root, gva, access), (found, Level::GIGA), (deepest, gone), host)
    }

    /// Makes the memory ready that a walk has found, and fills the entry. `reach`: the highest level of a leaf that may lead there.
    #[inline(always)]
    fn bring_and_fill<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        (root, gva, access): (&Root<S>, Addr<S>, Access),
        (found, reach): (Found, Level),
        (deepest, gone): (Id, u64),
        host: &mut Host<'_, M, H>,
    ) -> Result<Answer, Unresolved> {
        let wanted = self.wanted(root, &found, access, host);
        let there = match self.cache().reach_within_budget(found.gpa, wanted, host) {
            Ok(there) => there,
            Err(Missing::Nothing) if host.space.region_of(found.gpa.pfn()).is_none() => {
                return Ok(Answer::Device { gpa: found.gpa });
            }
            Err(Missing::Nothing) => return Ok(Answer::Inject(S::access_fault(gva, access))),
            Err(Missing::Not(why)) => return Err(why),
            Err(Missing::Later) => return Ok(self.retry()),
        };
        if access == Access::Store && self.tables().is_protected(found.gpa.pfn(), host.mem) {
            return Ok(Answer::TableWrite { gpa: found.gpa, hpa: there.hpa });
        }
        self.cache().wake(found.gpa.pfn(), host.mem);
        if !self.cache().prepare(host).map_err(ResolveError::OutOfFrames)? {
            return Ok(self.retry());
        }
        let there = if S::COMPOSES { Translation { level: there.level.min(reach), ..there } } else { there };
        // What led the walk there still does, unless pages have gone since.
        let from = if gone == self.syncer.cache.gone { deepest } else { self.tables().part(root, gva) };
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
        let part = self.tables().part(root, gva);
        let Paging::Tables { format, root: table } = root.paging else {
            let gpa = Addr::new(gva.raw());
            let mut allowed = PteFlags::R | PteFlags::W | PteFlags::X;
            allowed.set(PteFlags::U, request.mode == Mode::User);
            return Ok((Found { gpa, allowed, level: Level::PAGE, pte: NO_PTE }, part));
        };
        let ad = self.rules().config.ad;
        let mut tables = GuestTables { cache: &mut self.syncer.cache, host, next: Some(part), deepest: part };
        let walk =
            walk::translate(format, table, gva, request, (CAPS, ad), &mut tables).map_err(|fault| fault.reason)?;
        let deepest = tables.deepest;
        let unset = walk::unset(&walk.leaf, request.access);
        let flags = walk.leaf.flags | unset;
        let pte = Pte(walk.pte.0 | unset.bits());
        Ok((Found { gpa: walk.out, allowed: self.rules().rights(flags), level: walk.level, pte }, deepest))
    }

    pub fn retry(&mut self) -> Answer {
        self.tables().counters.retries += 1;
        Answer::Retry
    }

    /// Sets the leaf that the fault is about. Says what that owes, too.
    #[inline(always)]
    pub fn set(
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
            Role::Table | Role::Piece(_) => (found.allowed, found.pte),
        };
        let new = self.tables().leaf(found.gpa.pfn(), level, allowed, there, mem);
        let debt = new.and_then(|new| self.tables().set_leaf(at, (ours, new), mirror, mem));
        let Some(debt) = debt else { return (self.retry(), Debt::none()) };
        let known = new == Some(ours);
        if !known {
            self.page_mut(at.0).stay = Stay::Changed;
        }
        if level == Level::PAGE {
            self.tables().counters.filled_4k += 1
        } else {
            self.tables().counters.filled_2m += 1
        }
        let forget = if ours.flags().contains(PteFlags::V) { Forget::Page } else { Forget::Nothing };
        (Answer::Filled { forget, known }, debt)
    }

    /// Goes down from a shadow page, linking what is missing, and sets the leaf.
    pub fn fill<M: PhysMem, H: Fence<Gpa>>(
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
            self.tables().unfold(id, host);
            let page = self.page_mut(id);
            page.is_recent = true;
            let key = page.key;
            let index = root.format.index_in_frame(gva, key.level);
            let Both { ours, guests: Some(pte), .. } = self.tables().look((id, index), host.space, host.mem) else {
                return self.retry();
            };
            let is_leaf = match pte.decode::<Gpa>(key.level, CAPS) {
                _ if key.role != Role::Table => true,
                Entry::Table(_) if key.level > found.level => false,
                Entry::Leaf(_) if key.level == found.level && pte == found.pte => true,
                // Not what the walk saw.
                _ => return self.retry(),
            };
            if is_leaf && self.tables().leaf_fits(found.gpa.pfn(), key.level, there.level) {
                let piece;
                let found = if S::COMPOSES && matches!(key.role, Role::Piece(_)) {
                    let Some(leaf) = found.piece(pte, key.level) else { return self.retry() };
                    piece = leaf;
                    &piece
                } else {
                    found
                };
                let (answer, debt) = self.set(((id, index), key), ours, found, there, host.mem);
                self.tables().owe(debt, host);
                return match answer {
                    // Whatever the leaf was, and it may have been made with its table: nothing led to it.
                    Answer::Filled { forget, .. } if is_new && !self.rules().is_sabotaged(Sabotage::MistakesLinks) => {
                        Answer::Filled {
                            forget: if self.rules().policy.own_faults { Forget::Root } else { forget },
                            known: false,
                        }
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

    /// Returns the access that memory is to be made ready for. A leaf that allows stores takes a frame that does, even
    /// for a load: otherwise a store would be a page fault of the guest's.
    fn wanted<M: PhysMem, H>(&self, root: &Root<S>, found: &Found, access: Access, host: &Host<'_, M, H>) -> Access {
        let stores =
            self.rules().policy.own_faults && root.paging != Paging::Bare && found.allowed.contains(PteFlags::W);
        let may = |access| host.space.region_of(found.gpa.pfn()).is_some_and(|region| region.prot.allows(access));
        if stores && may(access) && may(Access::Store) { Access::Store } else { access }
    }

    /// Links the tables of an access that the guest's own tables refuse. When the guest has resolved the fault, the
    /// access comes again. Then the table says by itself whose the fault is, which saves one exit for each table of a
    /// forked process. (A hart that remembers the pointer to poison still takes that exit.)
    #[inline(never)]
    fn link_ahead<M: PhysMem, H: Fence<Gpa>>(&mut self, root: &Root<S>, gva: Addr<S>, host: &mut Host<'_, M, H>) {
        if !self.rules().policy.own_faults || !matches!(self.cache().prepare(host), Ok(true)) {
            return;
        }
        let mut id = self.tables().part(root, gva);
        while self.page(id).key.level > Level::PAGE && self.page(id).key.role == Role::Table {
            let level = self.page(id).key.level;
            let index = root.format.index_in_frame(gva, level);
            let Both { ours, guests: Some(pte), .. } = self.tables().look((id, index), host.space, host.mem) else {
                return;
            };
            if !matches!(pte.decode::<Gpa>(level, CAPS), Entry::Table(_)) {
                return;
            }
            let child = self.pointer((id, index), (ours, pte), host);
            let Some(child) = child.or_else(|| self.link((id, index), pte, gva, host)) else { return };
            id = child;
        }
    }
}
