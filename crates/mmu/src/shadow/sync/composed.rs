//! Comparisons of an engine that has a stage below its tables ([`crate::shadow::lower`]): with what the entries of both compose.

use crate::shadow::pages::{Id, Mappings, PARTS, Page, Role, indices};
use crate::shadow::sync::Syncer;
use crate::shadow::{Budget, Host, Lower, Shadowed};
use rv::{Fence, Gpa, Level, PhysMem};

impl<S: Shadowed> Syncer<S> {
    /// Like [`Syncer::sync_tree`]: shadow pages of pieces are compared, too.
    pub fn sync_composed<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        id: Id,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    ) -> Result<(), usize> {
        let page = self.page(id);
        let is_composed = matches!(page.key.role, Role::Table | Role::Piece(_));
        if !is_composed || page.compared.of(mappings) == self.cache.passed.stamp {
            return Ok(());
        }
        if host.budget.is_spent() {
            return Err(0);
        }
        self.cache.tables.counters.synced_pages += 1;
        host.budget.spend(Budget::VISIT);
        let changes = self.cache.tables.lower.changes();
        let is_as_before = self.page(id).origin.own.below == changes;
        for part in 0..PARTS {
            let page = self.page(id);
            let (live, leads) = (page.marks.live_in(part), page.key.level > Level::PAGE);
            let behind = if is_as_before && live != 0 { behind_own(self.page(id), part, host) } else { live };
            for index in indices(part, if leads { live } else { behind }) {
                if host.budget.is_spent() {
                    return Err(index);
                }
                host.budget.spend(2);
                if behind >> (index % 64) & 1 == 1 {
                    host.budget.spend(Budget::COMPOSE);
                    self.derive((id, index), host);
                }
                let page = self.page(id);
                let Some(mirror) = page.mirror(index, host.mem) else { continue };
                if page.key.level == Level::PAGE || !page.is_pointer(page.slot(index).read(host.mem)) {
                    continue;
                }
                let child = self.cache.tables.index.child_of((id, index), mirror, host.mem);
                if self.sync_composed(child, mappings, host).is_err() {
                    return Err(index);
                }
            }
        }
        self.page_mut(id).origin.own.below = changes;
        let stamp = self.cache.passed.stamp;
        self.page_mut(id).compared.set(mappings, stamp);
        Ok(())
    }
}

/// Of 64 live entries of a page whose stage below is what it was, those that may be out of step with the guest's: a bit for each.
fn behind_own<M: PhysMem, H>(page: &Page, part: usize, host: &mut Host<'_, M, H>) -> u64 {
    let live = page.marks.live_in(part);
    if page.key.role != Role::Table {
        // What is in pieces has no other origin.
        return 0;
    }
    let (Some(guest), Some(own)) = (page.origin.guest, &page.body.own) else { return live };
    let known = live & page.origin.own.known_in(part);
    host.budget.spend(8 + known.count_ones());
    live & !known | host.mem.differing((guest, own.first()), part, known)
}
