//! What the lane needs to bring an entry of a steered shadow in step with the guest's by itself (`docs/lane.md`), and how the engine
//! learns of it.
//!
//! ```text
//!  a shadow page: four frames in a row           the lane's memory, of a VM
//!  ┌─────────────────────────────────┐           ┌──────────────────────────────────────┐
//!  │ parked · at rest? · table · id  │ header    │ gate: where the next line of the log │
//!  ├─────────────────────────────────┤           │       goes, or 0: closed; the epoch  │
//!  │ entries                         │ table     │ log: (entry, guest's entry) each     │
//!  ├─────────────────────────────────┤           ├──────────────────────────────────────┤
//!  │ what they were made from        │ mirror    │ a word for each 2 MiB of GPA: what   │
//!  ├─────────────────────────────────┤           │ makes an HPA of it                   │
//!  │ lists                           │ links     └──────────────────────────────────────┘
//!  └─────────────────────────────────┘
//! ```
//!
//! Which of the four the header is, and with it the table behind it, changes from page to page: so that tables do not share sets of caches.
//!
//! The gate is a lock: whoever takes it leaves 0 there. The lane never waits for it, but goes the full path; the engine
//! does wait ([`Shadow::alone`]), for the lane holds it some fifty instructions. While the engine works it is closed. So nobody changes an
//! entry of level 0 between two steps of the engine's, and the log has all that the lane has done when the engine begins.

use super::candidates::STIRS;
use super::engine::Shadow;
use super::lane_memory::{ID_AT, LINE_BYTES, LOG_AT, LaneMemory, whole_chunk};
use super::page::{At, COALESCED, Id, MARK, Place, Role, Stay};
use super::passed::Mappings;
use super::sabotage::Sabotage;
use super::shadowed::Shadowed;
use crate::frames::{Frames, Use};
use crate::gstage::{AddressSpace, Translation};
use crate::sync::spin_loop;
use rv::{Addr, FenceScope, Gpa, Hpa, Lane, LaneSync, Level, PAGE_BYTES, Pfn, PhysMem, Pte, PteFlags};

impl<S: Shadowed> Shadow<S> {
    /// Takes memory for the lane, if it can take part in this upkeep at all, for RAM that ends at `end`. Without, it is off.
    pub fn begin_lane(&mut self, end: Pfn<Gpa>, frames: &Frames, mem: &mut impl PhysMem) {
        if !self.steers() || !S::HAS_LANE || self.lane.is_some() {
            return;
        }
        let order = LaneMemory::frames(end).ilog2() as u8;
        let Ok(run) = frames.alloc(self.owner, Use::Table, order) else { return };
        mem.zero_frames(run.first(), run.pages());
        self.lane = Some(LaneMemory::new(run, end, self.kept.contains(PteFlags::G)));
        self.all_have_headers = self.bodies == 0;
        self.tell_lane_epoch(mem);
        self.open(mem);
    }

    /// Where the lane finds what it needs, if it may bring entries in step.
    #[must_use]
    pub fn lane_inputs(&self) -> Option<LaneSync> {
        self.lane.as_ref().map(LaneMemory::inputs)
    }

    /// Does something with the engine, and keeps the lane of all harts out meanwhile. First it learns what the lane has done. Every
    /// operation is done so, with the VM's lock held.
    #[inline(always)]
    pub fn alone<M: PhysMem, R>(&mut self, mem: &mut M, act: impl FnOnce(&mut Self, &mut M) -> R) -> R {
        self.close(mem);
        let result = act(self, mem);
        self.open(mem);
        result
    }

    /// The first half of [`Shadow::alone`], for whom a closure costs too much.
    #[inline(always)]
    pub fn close(&mut self, mem: &mut impl PhysMem) {
        let Some(lane) = &self.lane else { return };
        let gate = lane.gate();
        debug_assert!(!self.is_closed);
        let mut next = mem.exchange_u64(gate, 0);
        while next == 0 {
            spin_loop();
            next = mem.exchange_u64(gate, 0);
        }
        self.is_closed = true;
        if next != gate.raw() + LOG_AT {
            self.learn(gate, next, mem);
        }
    }

    /// The second half.
    #[inline(always)]
    pub fn open(&mut self, mem: &mut impl PhysMem) {
        let Some(lane) = &self.lane else { return };
        self.is_closed = false;
        mem.write_u64(lane.gate(), lane.gate().raw() + LOG_AT);
    }

    /// Whether an entry of level 0 may be changed now.
    pub(super) const fn is_alone(&self) -> bool {
        self.lane.is_none() || self.is_closed
    }

    /// Learns what the log says, up to its line at `end`.
    #[inline(never)]
    fn learn(&mut self, gate: Addr<Hpa>, end: u64, mem: &mut impl PhysMem) {
        // Another hart, or another ASID, may have the leaves still that it took away.
        self.stores_may_pass = true;
        if self.is_sabotaged(Sabotage::ForgetsLaneLog) {
            return;
        }
        let stamp = self.begin_to_pass();
        let is_blind = self.is_sabotaged(Sabotage::ListsBlindly);
        let (mut line, end) = (gate.wrapping_add(LOG_AT), Addr::new(end));
        while line != end {
            let what = mem.read_own(line);
            if what == LaneSync::WIDE {
                self.learn_wide(stamp);
            } else if what & 1 == 1 {
                // There is no table of level 0 for that address.
                self.pass_one(Addr::new(what), stamp);
            } else {
                let table = Addr::new(what.wrapping_sub(Lane::POINTER_FLAGS)).align_down(PAGE_BYTES);
                let id = self.learn_table(table, stamp, mem);
                line = self.index.follow(&self.index.row(id), (line, end), is_blind, mem);
                continue;
            }
            line = line.wrapping_add(LINE_BYTES);
        }
    }

    /// The lane has done a fence of all addresses and all ASIDs, where there was nothing to do.
    fn learn_wide(&mut self, stamp: u64) {
        if !self.is_sabotaged(Sabotage::ForgetsWideLines) {
            self.passed.all(Mappings::All, stamp);
        }
        self.stirs = STIRS;
    }

    /// The lane has made entries of that table, in its turn of `stamp`. Says whose it is.
    fn learn_table(&mut self, table: Addr<Hpa>, stamp: u64, mem: &impl PhysMem) -> Id {
        let id = self.id_of(table, mem);
        let page = self.index.page_mut(id);
        page.is_recent = true;
        page.stay = Stay::Changed;
        debug_assert!(page.key.level == Level::PAGE && page.key.role == Role::Table);
        match page.place {
            Place::At(gva) => self.pass_one(Addr::new(gva), stamp),
            Place::Nowhere | Place::Various => self.passed.any_page(stamp),
        }
        id
    }

    /// The header of a page of level 0 that is about to be linked. Says whether it has one: the lane stays out of others.
    pub(super) fn write_header(&self, id: Id, mem: &mut impl PhysMem) -> bool {
        let page = self.index.page(id);
        let (Some(_), Some(header), Some(guest)) = (&self.lane, &page.body.header, page.guest) else { return false };
        let end = header.first().add(1).base().raw();
        mem.write_u64(Addr::new(end.wrapping_add_signed(LaneSync::GUEST_AT)), guest.base().raw());
        true
    }

    /// A new page's number, where whoever comes by its table finds it.
    pub(super) fn write_id(&self, id: Id, mem: &mut impl PhysMem) {
        let page = self.index.page(id);
        if page.body.header.is_some() {
            mem.write_own(Addr::new(page.table().base().raw() - ID_AT), id.into());
        }
    }

    /// Tells the lane whether a wide fence has nothing to do while that page is the present root.
    pub(super) fn tell_lane(&self, id: Id, mem: &mut impl PhysMem) {
        let page = self.index.page(id);
        if self.lane.is_none() || page.body.header.is_none() || page.key.role != Role::Table {
            return;
        }
        let rests = self.rests(page);
        let at = Addr::new(page.table().base().raw().wrapping_add_signed(LaneSync::REST_AT));
        if rests {
            mem.write_u64(at, self.lane_epoch());
        } else if !self.is_sabotaged(Sabotage::RestsForEver) {
            mem.write_u64(at, LaneSync::RESTLESS);
        }
    }

    /// Whether it would take that page for one at rest.
    #[cfg(feature = "sabotage")]
    pub(super) fn is_said_to_rest(&self, id: Id, mem: &impl PhysMem) -> bool {
        let page = self.index.page(id);
        let at = Addr::new(page.table().base().raw().wrapping_add_signed(LaneSync::REST_AT));
        self.lane.is_some() && page.body.header.is_some() && mem.read_u64(at) == self.lane_epoch()
    }

    /// All pages that lead to tables are taken for restless from now on.
    pub(super) fn tell_lane_epoch(&self, mem: &mut impl PhysMem) {
        if let Some(lane) = &self.lane {
            mem.write_u64(lane.gate().wrapping_add(LaneSync::EPOCH_AT), self.lane_epoch());
        }
    }

    /// What a page that rests says in this epoch.
    const fn lane_epoch(&self) -> u64 {
        self.epoch + LaneSync::RESTLESS + 1
    }

    /// The shadow page of that table, which has a header.
    fn id_of(&self, table: Addr<Hpa>, mem: &impl PhysMem) -> Id {
        let id = mem.read_own(Addr::new(table.raw() - ID_AT)) as Id;
        debug_assert!(self.index.page(id).table().base() == table);
        id
    }

    /// [`super::index::Index::table_below`], at once where that can be.
    #[inline(always)]
    pub(super) fn table_below(&self, at: At, mem: &impl PhysMem) -> Option<Id> {
        if !self.all_have_headers {
            return self.index.table_below(at, mem);
        }
        let entry = Pte(mem.read_u64(self.index.page(at.0).entry_at(at.1)));
        if entry.is_pointer() && entry.flags().contains(MARK) {
            return Some(self.id_of(entry.pfn::<Hpa>().base(), mem));
        }
        if entry.flags().contains(PteFlags::V | COALESCED) { self.index.table_below(at, mem) } else { None }
    }

    /// The flag of a pointer to a shadow of a guest's table that the lane may follow.
    pub(super) fn mark(&self, child: Id, mem: &mut impl PhysMem) -> PteFlags {
        let level = self.index.page(child).key.level;
        let is_open = !self.steers() || level > Level::PAGE || self.write_header(child, mem);
        if is_open { MARK } else { PteFlags::empty() }
    }

    /// Tells the lane, which went the full path or will come there, where what is around `gfn` is, if it may go there.
    #[inline(always)]
    pub(super) fn teach(&mut self, gfn: Pfn<Gpa>, space: &AddressSpace, mem: &mut impl PhysMem) {
        const ALL: PteFlags = PteFlags::R.union(PteFlags::W).union(PteFlags::X);
        let Some(at) = self.lane.as_ref().and_then(|lane| lane.word(gfn)) else { return };
        if mem.read_u64(at) != 0 {
            return;
        }
        if self.index.heads.has_protected_around(gfn) && !self.is_worth_a_lane(gfn, mem) {
            return;
        }
        let word = match space.translate(gfn.base(), mem) {
            Some(Translation { level: Level::PAGE, .. }) => {
                space.table_at(gfn, mem).map_or(0, |(_, table)| table.base().raw())
            }
            Some(there) if there.flags.contains(ALL) => whole_chunk(gfn, there.hpa.pfn()),
            _ => 0,
        };
        mem.write_u64(at, word);
    }

    /// The G-stage has changed there: the lane is not to go by what it was.
    pub(super) fn unteach(&self, scope: FenceScope<Gpa>, mem: &mut impl PhysMem) {
        let Some(lane) = self.lane.as_ref().filter(|_| !self.is_sabotaged(Sabotage::KeepsChunks)) else { return };
        match scope {
            FenceScope::Everything => mem.zero_frames(lane.words(), lane.run.pages() - 1),
            FenceScope::Range { start, bytes } => {
                let last = start.wrapping_add(bytes.max(1) - 1).pfn().raw() / Level::MEGA.pages();
                for chunk in start.pfn().raw() / Level::MEGA.pages()..=last {
                    if let Some(at) = lane.word(Pfn::new(chunk * Level::MEGA.pages())) {
                        mem.write_u64(at, 0);
                    }
                }
            }
        }
    }
}
