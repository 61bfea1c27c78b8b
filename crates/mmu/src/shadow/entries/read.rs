//! Reading entries, beside the guest's that are behind them.
//!
//! **Races.** The caller holds the VM's lock; hardware walkers and the lane (`docs/lane.md`) do not. In `lazy` the lane
//! only ever replaces a level-0 entry by an invalid one that was never there before ([`crate::table`]). So a leaf is filled
//! by: read the shadow entry, *then* the guest's, then exchange the shadow entry if it is the same as before. If
//! a fence passed between, the exchange fails. In `steered` the gate keeps the lane out meanwhile (`lane`).

use crate::gstage::AddressSpace;
use crate::shadow::entries::{COALESCED, Tables};
use crate::shadow::pages::{At, Id, Mappings, NO_PTE, PARTS, Page, Role};
use crate::shadow::{Budget, Host, Lower, MARK, Sabotage, Shadowed};
use core::sync::atomic::{Ordering, fence};
use lane::LaneSync;
use rv::{Addr, Gpa, Hpa, Pfn, PhysMem, Pte, PteFlags};

/// An entry of the shadow, and the guest's entry behind it, read in that order.
#[derive(Clone, Copy)]
pub struct Both {
    /// The shadow's entry.
    pub ours: Pte,
    /// The guest's behind it; [`NO_PTE`] if there is none; `None` if its frame cannot be found at once.
    pub guests: Option<Pte>,
    /// The guest's own behind it, where [`Both::guests`] is composed.
    pub own: Option<Pte>,
}

/// Reads an entry of that page and the guest's behind it, in the order that a fill needs.
#[inline(always)]
pub fn look_at<L: Lower>(
    (page, lower): (&mut Page, &mut L),
    index: usize,
    space: &AddressSpace,
    mem: &impl PhysMem,
) -> Both {
    let ours = page.slot(index).read(mem);
    // The guest's entry is read after ours: see above.
    fence(Ordering::SeqCst);
    if let (Some(stage), Role::Piece(flags)) = (lower.stage(), page.key.role) {
        return Both { ours, guests: stage.compose_piece((page.key, index), flags, (space, mem)), own: None };
    }
    let frame = match (page.origin.guest, page.key.role) {
        (_, Role::Direct(_) | Role::Bare) => return Both { ours, guests: Some(NO_PTE), own: None },
        (Some(frame), Role::Table | Role::Piece(_)) => frame,
        (None, Role::Table | Role::Piece(_)) => match space.translate(page.key.gfn.base(), mem) {
            Some(there) => {
                page.origin.guest = Some(there.hpa.pfn());
                there.hpa.pfn()
            }
            None => return Both { ours, guests: None, own: None },
        },
    };
    let entry = Pte(mem.read_u64(frame.at(8 * index as u64)));
    let guests = match lower.stage() {
        Some(stage) => stage.compose((page.origin.context, page.key.level), entry, (space, mem)),
        None => Some(entry),
    };
    Both { ours, guests, own: Some(entry) }
}

impl<S: Shadowed> Tables<S> {
    /// Reads an entry and the guest's behind it, in the order that a fill needs.
    #[inline(always)]
    pub fn look(&mut self, (id, index): At, space: &AddressSpace, mem: &impl PhysMem) -> Both {
        look_at((self.index.page_mut(id), &mut self.lower), index, space, mem)
    }

    /// The parts of 64 entries of the shadow of a table in which some may be out of step with the guest's: a bit for each.
    #[inline]
    pub fn parts_behind<M: PhysMem, H>(&self, id: Id, mappings: Mappings, host: &mut Host<'_, M, H>) -> u8 {
        let page = self.index.page(id);
        match page.origin.guest {
            Some(frame) if self.rules.has_all_mirrors(page) => {
                host.budget.spend(PARTS as u32 * Budget::COMPARE);
                let mut among = page.marks.concerned(mappings);
                if mappings == Mappings::Private && self.rules.is_sabotaged(Sabotage::SettlesForEver) {
                    among = !page.marks.written_groups();
                }
                differing_parts((frame, page.body.mirror.first()), page.marks.written_groups(), among, host.mem)
            }
            None if self.rules.has_all_mirrors(page) => u8::MAX,
            _ => {
                host.budget.spend(1);
                page.marks.live_parts()
            }
        }
    }

    /// Of 64 entries of the shadow of a table, the live ones that are out of step with the guest's: a bit for each. All live ones
    /// if the guest's cannot be read at once.
    #[inline]
    pub fn behind<M: PhysMem, H>(&self, id: Id, part: usize, host: &mut Host<'_, M, H>) -> u64 {
        let page = self.index.page(id);
        let mirror = page.body.mirror.first();
        if self.rules.has_all_mirrors(page) {
            host.budget.spend(Budget::COMPARE);
            let at = 512 * part as u64;
            return page.origin.guest.map_or(u64::MAX, |frame| host.mem.differing_of_64(frame.at(at), mirror.at(at)));
        }
        let live = page.marks.live_in(part);
        host.budget.spend(8 + live.count_ones());
        page.origin.guest.map_or(live, |frame| host.mem.differing((frame, mirror), part, live))
    }

    /// [`super::index::Index::table_below`], at once where that can be.
    #[inline(always)]
    pub fn table_below(&self, at: At, mem: &impl PhysMem) -> Option<Id> {
        if !self.gate.all_have_headers {
            return self.index.table_below(at, mem);
        }
        let entry = self.index.page(at.0).slot(at.1).read(mem);
        if entry.is_pointer() && entry.flags().contains(MARK) {
            return Some(self.index.id_of(entry.pfn::<Hpa>().base(), mem));
        }
        if entry.flags().contains(PteFlags::V | COALESCED) { self.index.table_below(at, mem) } else { None }
    }

    /// Returns whether stores to the frame must be seen.
    #[inline]
    pub fn is_protected(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.rules.policy.protects && self.index.tables_of(gfn, mem).any(|id| !self.index.page(id).is_unsync)
    }

    /// Returns whether the frame is that of a quiet table.
    #[inline(always)]
    pub fn is_quiet(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.rules.policy.quiets && self.index.heads.has_protected_around(gfn) && self.is_quiet_table(gfn, mem)
    }

    /// Tells the lane whether a wide fence has nothing to do while that page is the present root.
    pub fn tell_lane(&self, id: Id, mem: &mut impl PhysMem) {
        let page = self.index.page(id);
        if self.gate.memory.is_none() || page.body.header.is_none() || page.key.role != Role::Table {
            return;
        }
        let rests = self.rests(page);
        let at = Addr::new(page.table().base().raw().wrapping_add_signed(LaneSync::REST_AT));
        if rests {
            mem.write_u64(at, self.unrest.lane_epoch());
        } else if !self.rules.is_sabotaged(Sabotage::RestsForEver) {
            mem.write_u64(at, LaneSync::RESTLESS);
        }
    }

    /// Returns whether a wide fence has nothing to do there.
    #[inline(always)]
    pub fn rests(&self, page: &Page) -> bool {
        self.rules.policy.quiets && !self.unrest.is_restless(page)
    }

    #[cold]
    #[inline(never)]
    fn is_quiet_table(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.index.is_synced_table(gfn, mem)
    }
}

/// Compares two frames, those eights of words that `among` has a bit for, 64 words at a time: a bit for each 64 in which some
/// differ. Of the other frame, those eights are all 0 that `written` has no bit for.
#[inline(always)]
fn differing_parts((one, other): (Pfn<Hpa>, Pfn<Hpa>), written: u64, among: u64, mem: &impl PhysMem) -> u8 {
    let mut found = 0;
    for part in 0..PARTS as u64 {
        let at = 512 * part;
        let differ = match (among >> (8 * part)) as u8 {
            0 => continue,
            u8::MAX if (written >> (8 * part)) as u8 == 0 => mem.any_of_64(one.at(at)),
            u8::MAX => mem.any_differs_of_64(one.at(at), other.at(at)),
            eights => (0..8).filter(|n| eights >> n & 1 == 1).any(|n| {
                let at = at + 64 * n;
                mem.any_differs_of_eight(one.at(at), other.at(at))
            }),
        };
        found |= u8::from(differ) << part;
    }
    found
}
