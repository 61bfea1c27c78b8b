//! Within a bound: shadow pages are prepared for, recycled, and given back; and what the host takes from
//! the guest leaves no trace in them.

use super::pages::{Body, Id, Role};
use super::{DEEPEST, Host, Sabotage, Shadow, free, lent};
use crate::frames::{AllocError, Frames, Use};
use crate::gstage::How;
use crate::stale::Stale;
use rv::{Fence, FenceScope, Gpa, Pfn, PhysMem};

/// Shadow pages taken back at once: others wait for the lock meanwhile.
const MOST_AT_ONCE: u32 = 64;

impl Shadow {
    /// Makes sure of shadow pages for one whole walk, and of one more for its root; those of other walks go for it
    /// if need be.
    ///
    /// # Errors
    /// If the host has no frames and no page can be taken back. Nothing is lost.
    pub(super) fn prepare<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) -> Result<(), AllocError> {
        while self.spare.len() <= DEEPEST as usize {
            let more = if self.bodies < self.config.pages { self.take_body(lent(&host.frames)) } else { Ok(None) };
            match more {
                Ok(Some(body)) => self.spare.push(body),
                Ok(None) => self.recycle(host),
                Err(error) if self.pages_in_use() == 0 => return Err(error),
                Err(error) => {
                    let before = self.spare.len();
                    self.recycle(host);
                    if self.spare.len() == before {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    fn pages_in_use(&self) -> usize {
        self.arena.len() - self.free.len()
    }

    fn take_body(&mut self, frames: &Frames) -> Result<Option<Body>, AllocError> {
        let take = || frames.alloc(self.owner, Use::Table, 0);
        let table = take()?;
        let mirror = take();
        let links = take();
        match (mirror, links) {
            (Ok(mirror), Ok(links)) => {
                self.bodies += 1;
                Ok(Some(Body { table, mirror, links }))
            }
            (Err(error), other) | (other, Err(error)) => {
                frames.free(table);
                other.into_iter().for_each(|run| frames.free(run));
                Err(error)
            }
        }
    }

    /// Takes back an eighth of all pages, 64 at most, those that no fault has used for longest first, and makes all harts
    /// forget them. The roots of vCPUs stay.
    fn recycle<M: PhysMem, H: Fence<Gpa>>(&mut self, host: &mut Host<'_, M, H>) {
        let wanted = (self.config.pages / 8).clamp(DEEPEST + 1, MOST_AT_ONCE);
        let mut taken = 0;
        // The clock: one round to clear what is recent, one to take.
        for _ in 0..2 * self.arena.len() {
            if taken == wanted {
                break;
            }
            let id = self.hand;
            self.hand = if id as usize + 1 >= self.arena.len() { 0 } else { id + 1 };
            let Some(page) = self.arena[id as usize].as_mut().filter(|page| page.users == 0) else { continue };
            if !core::mem::take(&mut page.is_recent) {
                self.zap(id, host.mem);
                taken += 1;
            }
        }
        self.counters.recycled += u64::from(taken);
        if self.is_sabotaged(Sabotage::ReusesEarly) {
            self.flushed();
        } else {
            self.flush(host.hw);
        }
    }

    /// Makes all harts forget all translations of the VM.
    pub(super) fn flush(&mut self, hw: &mut impl Fence<Gpa>) {
        self.counters.flushes += 1;
        hw.fence(FenceScope::Everything);
        self.flushed();
    }

    /// At the end of an operation: no hart walks by a pointer that is gone.
    pub(super) fn conclude(&mut self, hw: &mut impl Fence<Gpa>) {
        if self.pointers_are_dirty && !self.is_sabotaged(Sabotage::KeepsPointers) {
            self.flush(hw);
        }
    }

    /// All harts have forgotten all translations of the VM.
    fn flushed(&mut self) {
        self.tlbs_are_dirty = false;
        self.pointers_are_dirty = false;
        self.spare.append(&mut self.retired);
    }

    /// Ends a shadow page: nothing leads to it, and it leads nowhere. TLBs may still walk it.
    pub(super) fn zap(&mut self, id: Id, mem: &mut impl PhysMem) {
        debug_assert!(self.page(id).users == 0);
        self.empty(id, mem);
        while let Some((parent, index)) = self.a_parent(id) {
            self.drop_entry(parent, index, mem);
            if self.is_sabotaged(Sabotage::ForgetsSharer) {
                break;
            }
        }
        if self.page(id).key.role == Role::Table {
            self.end_table(id, mem);
        } else {
            self.delist(id, mem);
        }
        let page = self.arena[id as usize].take().expect("the number of a shadow page");
        self.free.push(id);
        self.retired.push(page.body);
        self.tlbs_are_dirty = true;
    }

    /// Drops all entries of a page.
    fn empty(&mut self, id: Id, mem: &mut impl PhysMem) {
        self.gone += 1;
        let mut at = 0;
        while let Some(index) = self.page(id).next_live(at) {
            self.drop_entry(id, index, mem);
            at = index + 1;
        }
    }

    /// Drops all leaves that lead to the guest frame.
    fn drop_leaves(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) {
        while let Some((id, index)) = self.first_leaf(gfn, mem) {
            self.drop_entry(id, index, mem);
            if self.is_sabotaged(Sabotage::ForgetsLeaf) {
                break;
            }
        }
        while let Some((id, index)) = self.first_mega(gfn) {
            self.drop_entry(id, index, mem);
        }
    }

    /// Forgets where the frame is, because the G-stage is about to lead elsewhere, or nowhere. All harts must
    /// forget all of the VM's translations before the frame has another use: see [`settle`].
    pub fn forget(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) {
        if !self.heads.contains(gfn) {
            return;
        }
        self.drop_leaves(gfn, mem);
        let mut next = self.tables_of(gfn, mem).next();
        while let Some(id) = next {
            // What its entries were made from is another frame's contents.
            self.empty(id, mem);
            self.page_mut(id).guest = None;
            next = self.page(id).next;
        }
    }

    /// What a host-side edit of the G-stage leaves to be done, where its answer says that a page was copied:
    /// forget the old frame, fence, publish the new one.
    pub(super) fn settle<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        gfn: Pfn<Gpa>,
        (how, stale): (How, Stale<Gpa>),
        publish: Option<crate::gstage::Publish>,
        host: &mut Host<'_, M, H>,
    ) {
        if how == How::Copied {
            let pages = match stale.scope() {
                Some(FenceScope::Range { bytes, .. }) => bytes / rv::PAGE_BYTES,
                _ => 1,
            };
            (0..pages).for_each(|n| self.forget(gfn.align_down(pages).add(n), host.mem));
            stale.fence(host.hw).release(lent(&host.frames));
            self.flushed();
        } else {
            stale.fence(host.hw).release(lent(&host.frames));
        }
        if let Some(publish) = publish {
            publish.publish(host.mem);
        }
    }

    /// Pages of guest RAM become untouched again ([`crate::AddressSpace::unmap`]), and nothing of them stays in
    /// the shadow or in a TLB.
    ///
    /// # Errors
    /// As for `unmap`. Nothing has changed for the guest then.
    pub fn unmap<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        start: Pfn<Gpa>,
        pages: u64,
        host: &mut Host<'_, M, H>,
    ) -> Result<(), AllocError> {
        let stale = host.space.unmap(start, pages, lent(&host.frames), host.mem)?;
        (0..pages).for_each(|n| self.forget(start.add(n), host.mem));
        if !stale.is_none() {
            let retired = stale.fence(host.hw);
            self.flushed();
            retired.release(lent(&host.frames));
        }
        Ok(())
    }

    /// Ends the engine. No hart may have a root of it any more, and all must have forgotten its translations.
    pub fn destroy(mut self, frames: &Frames) {
        self.heads.release(frames);
        let pages = self.arena.into_iter().flatten().map(|page| page.body);
        pages.chain(self.spare).chain(self.retired).for_each(|body| free(body, frames));
    }
}
