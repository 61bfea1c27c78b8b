//! Linking shadow pages.

use crate::shadow::fill::Filler;
use crate::shadow::pages::{At, Compared, Id, Key, Mappings, PARTS, Place, Ref, Role, below, indices};
use crate::shadow::{Host, Sabotage, Shadowed};
use rv::format::ENTRIES;
use rv::{Addr, Fence, Gpa, Level, PhysMem, Pte};

impl<S: Shadowed> Filler<S> {
    /// Links the shadow page that the entry should lead to. `None` if there is none, or not yet.
    pub fn link<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        (id, index): At,
        pte: Pte,
        gva: Addr<S>,
        host: &mut Host<'_, M, H>,
    ) -> Option<Id> {
        let key = self.syncer.cache.tables.index.key_below((id, index), pte)?;
        self.tables().drop_entry((id, index), host);
        let child = self.child(key, (id, gva), host)?;
        self.tables().set_pointer((id, index), pte, child, host);
        Some(child)
    }

    /// A page is about to be linked below `above`, for an address. Says what is to be compared of it before.
    fn place<M: PhysMem, H>(&mut self, id: Id, (above, gva): (Id, Addr<S>), host: &mut Host<'_, M, H>) -> Mappings {
        if !self.rules().policy.tracks_places {
            return Mappings::All;
        }
        let above = self.page(above);
        let is_various = above.key.level == Level::MEGA && above.place == Place::Various;
        let page = self.page_mut(id);
        let before = page.place;
        let shift = page.key.level.shift() + ENTRIES.ilog2();
        let is_same = matches!(before, Place::At(known) if known >> shift == gva.raw() >> shift);
        let mappings = if is_same { Mappings::All } else { Mappings::Anew };
        if page.parents == Ref::NONE {
            page.place = Place::Nowhere;
        }
        page.place.add(gva.raw(), page.key.level);
        if self.rules().is_sabotaged(Sabotage::ForgetsPlaces) {
            return mappings;
        }
        let page = self.page_mut(id);
        if is_various {
            page.place = Place::Various;
        }
        if page.key.level != Level::MEGA || page.key.role != Role::Table || page.place == before {
            return mappings;
        }
        // What it leads to translates there, too.
        for part in 0..PARTS {
            for index in indices(part, self.page(id).marks.leading_in(part)) {
                host.budget.spend(1);
                let Some(child) = self.tables().table_below((id, index), host.mem) else { continue };
                let there = below(Level::MEGA, gva, index);
                self.page_mut(child).place.add(there.raw(), Level::PAGE);
            }
        }
        mappings
    }

    /// The shadow page for `key`, up to date, or a new one. `None` if its guest table is not in RAM, or it is not up to date yet.
    pub fn child<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        key: Key,
        (above, gva): (Id, Addr<S>),
        host: &mut Host<'_, M, H>,
    ) -> Option<Id> {
        if let Some(id) = self.tables().index.find(key, host.mem) {
            self.tables().counters.shared += 1;
            if self.rules().policy.fills_whole && key.role == Role::Table && self.page(id).origin.guest.is_none() {
                self.page_mut(id).origin.guest = Some(host.space.translate(key.gfn.base(), host.mem)?.hpa.pfn());
            }
            self.tables().unfold(id, host);
            let fences = self.syncer.cache.passed.fences();
            self.page_mut(id).use_.comes(fences);
            let mappings = self.place(id, (above, gva), host);
            if mappings == Mappings::Anew {
                // Until all of it is, which may take some attempts.
                self.page_mut(id).compared = Compared::NEVER;
            }
            let may_be_linked =
                self.rules().is_sabotaged(Sabotage::LinksStale) || self.syncer.sync_below(id, mappings, gva, host);
            return may_be_linked.then_some(id);
        }
        let guest = match key.role {
            Role::Table => Some(host.space.translate(key.gfn.base(), host.mem)?.hpa.pfn()),
            Role::Direct(_) | Role::Bare | Role::Piece(_) => None,
        };
        let body = self.syncer.cache.pool.spare.pop().expect("an operation prepares for the pages that it makes");
        let id = self.cache().make(key, body, guest, host);
        // Whatever its place is, what it is made from is there now.
        let _ = self.place(id, (above, gva), host);
        if self.rules().policy.fills_whole && key.role != Role::Bare {
            self.syncer.fill_whole(id, host);
        }
        Some(id)
    }

    /// The shadow page that the entry leads to, if it leads where the guest's does.
    pub fn pointer<M: PhysMem, H>(
        &self,
        (id, index): At,
        (ours, pte): (Pte, Pte),
        host: &Host<'_, M, H>,
    ) -> Option<Id> {
        let page = self.syncer.cache.tables.index.page(id);
        let key = self.syncer.cache.tables.index.key_below((id, index), pte)?;
        let leads_there = page.mirror(index, host.mem) == Some(pte) && page.is_pointer(ours);
        if leads_there { self.syncer.cache.tables.index.find(key, host.mem) } else { None }
    }
}
