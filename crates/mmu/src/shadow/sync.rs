//! Fences and root switches: what a vCPU may use is brought up to date.

use super::pages::{CAPS, Id, Role};
use super::{Host, Sabotage, Shadow};
use rv::{Addr, Entry, Fence, Gpa, Gva, Level, PhysMem, Pte};

impl Shadow {
    /// A fence by address on one root: what its tables say of `gva` may be out of date. It goes, or, where the mode
    /// protects, is brought in step if its table is unsync.
    pub(super) fn fence_page<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: Id,
        gva: Addr<Gva>,
        host: &mut Host<'_, M, H>,
    ) {
        if self.is_sabotaged(Sabotage::ForgetsFence) {
            return;
        }
        let mut id = root;
        loop {
            let key = self.page(id).key;
            let index = (gva.raw() >> key.level.shift()) as usize & 511;
            if key.role != Role::Table {
                // The identity does not change, and a superpage's pointer has been looked at above.
                return;
            }
            let Some(mirror) = self.mirror(id, index, host.mem) else { return };
            let entry = Pte(host.mem.read_u64(self.entry_at(id, index)));
            if let Entry::Table(_) = mirror.decode::<Gpa>(key.level, CAPS) {
                let child = Self::child_key(key, index, mirror).and_then(|key| self.find(key, host.mem));
                id = child.expect("a live pointer's shadow page exists");
                continue;
            }
            if self.protects() {
                if self.may_lag(id) {
                    self.derive(id, index, host);
                }
            } else {
                self.counters.invalidated += 1;
                if key.level == Level::PAGE && !self.is_pointer(id, entry) {
                    // Still in its list: the next fault finds it there.
                    host.mem.write_u64(self.entry_at(id, index), 0);
                } else {
                    self.drop_entry(id, index, host.mem);
                }
            }
            return;
        }
    }

    /// A fence of everything that `root` leads to, or a root that a vCPU has not used for long enough.
    pub(super) fn fence_root<M: PhysMem, H: Fence<Gpa>>(&mut self, root: Id, host: &mut Host<'_, M, H>) {
        if self.is_sabotaged(Sabotage::ForgetsWideFence) {
            return;
        }
        if !self.protects() {
            self.sync_below(root, host);
        } else if !self.unsync.is_empty() {
            let tables = self.unsync.clone();
            self.protect_all(host);
            for gfn in tables {
                let mut next = self.tables_of(gfn, host.mem).next();
                while let Some(id) = next {
                    self.sync_entries(id, host);
                    next = self.page(id).next;
                }
            }
        }
    }

    /// Brings the page, and all that can be reached from it, in step with the guest's tables.
    pub(super) fn sync_below<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        if self.protects() && self.unsync.is_empty() {
            return;
        }
        self.stamp += 1;
        self.sync_tree(id, host);
    }

    fn sync_tree<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        let key = self.page(id).key;
        if key.role != Role::Table || self.page(id).stamp == self.stamp {
            return;
        }
        self.page_mut(id).stamp = self.stamp;
        if self.may_lag(id) {
            self.sync_entries(id, host);
        }
        if key.level == Level::PAGE {
            return;
        }
        let mut at = 0;
        while let Some(index) = self.page(id).next_live(at) {
            at = index + 1;
            let entry = Pte(host.mem.read_u64(self.entry_at(id, index)));
            if self.is_pointer(id, entry)
                && let Some(mirror) = self.mirror(id, index, host.mem)
                && let Some(key) = Self::child_key(key, index, mirror)
                && let Some(child) = self.find(key, host.mem)
            {
                self.sync_tree(child, host);
            }
        }
    }

    /// Compares all live entries of the shadow of a table with the guest's.
    fn sync_entries<M: PhysMem, H: Fence<Gpa>>(&mut self, id: Id, host: &mut Host<'_, M, H>) {
        self.counters.synced_pages += 1;
        let mut at = 0;
        while let Some(index) = self.page(id).next_live(at) {
            self.derive(id, index, host);
            at = index + 1;
        }
    }
}
