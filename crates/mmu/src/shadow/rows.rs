//! Leaves of one shadow page of level 0, of a table, that enter their lists or leave them one after another: as [`super::index::Index`] does
//! it for each, but where the page has what is found out once. A process that begins and ends has hundreds of them.

use super::index::{Index, List};
use super::lane_memory::faults_always;
use super::notes::{note_frame, noted_frame};
use super::page::{Id, Ref};
use rv::{Addr, Gpa, Hpa, Lane, LaneSync, PAGE_BYTES, Pfn, PhysMem, Pte};

/// Where a shadow page has what changes with a leaf.
#[derive(Clone, Copy)]
pub(super) struct Row {
    id: Id,
    pub table: Addr<Hpa>,
    pub mirrors: Addr<Hpa>,
    links: Addr<Hpa>,
    notes: Option<Pfn<Hpa>>,
}

impl Row {
    /// The frame in whose list an entry is, if it is in one: one that is live, or parked.
    #[inline(always)]
    fn listed(&self, index: usize, (is_live, is_parked): (bool, bool), mem: &impl PhysMem) -> Option<Pfn<Gpa>> {
        let at = 8 * index as u64;
        match self.notes {
            Some(notes) if is_parked => Some(noted_frame(notes, index as u64, mem)),
            _ if is_live => Some(Pte(mem.read_own(self.mirrors.wrapping_add(at))).pfn()),
            _ => None,
        }
    }
}

impl Index {
    /// That of a shadow page of level 0.
    #[inline(always)]
    pub fn row(&self, id: Id) -> Row {
        let page = self.page(id);
        let (mirrors, links) = (page.body.mirror.first().base(), page.body.links.first().base());
        Row { id, table: page.table().base(), mirrors, links, notes: page.notes() }
    }

    /// [`Index::insert`] of a leaf made from `mirror`.
    #[inline(always)]
    pub fn insert_in(&mut self, row: &Row, index: usize, mirror: Pte, mem: &mut impl PhysMem) {
        self.list_in(row, index, mirror, mem);
        self.page_mut(row.id).enters(index);
    }

    /// The same, of an entry that may be in a list: it stays there if it leads where it led.
    #[inline(always)]
    pub fn relist_in(&mut self, row: &Row, index: usize, mirror: Pte, mem: &mut impl PhysMem) {
        let (part, bit) = (index / 64, 1 << (index % 64));
        let page = self.page(row.id);
        let (live, parked) = (page.live_in(part), page.parked_in(part));
        let listed = row.listed(index, (live & bit != 0, parked & bit != 0), mem);
        self.lead_in(row, index, (listed, mirror), mem);
        self.page_mut(row.id).set_part(part, live | bit, parked & !bit, bit);
    }

    /// The same of one that is in that list, if in any, but the page does not say yet that it is live.
    #[inline(always)]
    fn lead_in(&mut self, row: &Row, index: usize, (listed, mirror): (Option<Pfn<Gpa>>, Pte), mem: &mut impl PhysMem) {
        let at = 8 * index as u64;
        if listed == Some(mirror.pfn()) {
            return mem.write_own(row.mirrors.wrapping_add(at), mirror.0);
        }
        if let Some(frame) = listed {
            self.unlink(row.links.wrapping_add(at), List::Frame(frame), mem);
        }
        self.list_in(row, index, mirror, mem);
    }

    /// [`Index::insert_in`], but the page does not say yet that it is live.
    #[inline(always)]
    fn list_in(&mut self, row: &Row, index: usize, mirror: Pte, mem: &mut impl PhysMem) {
        let next = self.put_first(Ref::new((row.id, index)), List::Frame(mirror.pfn()), mem);
        let at = 8 * index as u64;
        mem.write_own(row.links.wrapping_add(at), u64::from(next.0));
        mem.write_own(row.mirrors.wrapping_add(at), mirror.0);
    }

    /// Takes note of what the lane has made of entries, by its log's lines from `line` on, up to `end`: as long as they are entries of this
    /// table. Returns the first line that is not. `is_blind`: a fault that is planted.
    // Each page that a guest maps or takes away comes by here.
    pub fn follow(
        &mut self,
        row: &Row,
        (mut line, end): (Addr<Hpa>, Addr<Hpa>),
        is_blind: bool,
        mem: &mut impl PhysMem,
    ) -> Addr<Hpa> {
        let table = row.table.wrapping_add(Lane::POINTER_FLAGS);
        // Of the 64 entries that the last one is among: which are live, which are parked, and which have been written.
        let (mut part, mut live, mut parked, mut written) = (0, 0, 0, 0);
        while line != end {
            let at = mem.read_own(line).wrapping_sub(table.raw());
            if at >= PAGE_BYTES || !at.is_multiple_of(8) {
                break;
            }
            let pte = Pte(mem.read_own(line.wrapping_add(8)));
            line = line.wrapping_add(LaneSync::LINE_BYTES);
            let (here, index, bit) = ((at / 512) as usize, (at / 8) as usize, 1 << (at / 8 % 64));
            if here != part || written == 0 {
                self.write_part(row, part, (live, parked, written));
                let page = self.page(row.id);
                (part, live, parked, written) = (here, page.live_in(here), page.parked_in(here), 0);
            }
            written |= bit;
            let mirror = row.mirrors.wrapping_add(at);
            if faults_always(pte) {
                // What was a leaf stays in its list, if that can be.
                if live & bit != 0 {
                    let known = Pte(mem.read_own(mirror));
                    if row.notes.is_some_and(|notes| note_frame(notes, at / 8, known, mem)) {
                        parked |= bit;
                    } else {
                        self.unlink_in(row, index, known, mem);
                    }
                    live &= !bit;
                }
                mem.write_own(mirror, pte.0);
                continue;
            }
            let listed = row.listed(index, (live & bit != 0, parked & bit != 0), mem);
            let is_forgotten = |frame: &Pfn<Gpa>| is_blind && parked & bit != 0 && *frame != pte.pfn();
            self.lead_in(row, index, (listed.filter(|frame| !is_forgotten(frame)), pte), mem);
            (live, parked) = (live | bit, parked & !bit);
        }
        self.write_part(row, part, (live, parked, written));
        line
    }

    /// That is so of 64 entries: which are live, parked, and have been written, if any have.
    #[inline(always)]
    fn write_part(&mut self, row: &Row, part: usize, (live, parked, written): (u64, u64, u64)) {
        if written != 0 {
            self.page_mut(row.id).set_part(part, live, parked, written);
        }
    }

    /// Takes a leaf that was made from `mirror` out of its list. The page says that it is live still.
    #[inline(always)]
    pub fn unlink_in(&mut self, row: &Row, index: usize, mirror: Pte, mem: &mut impl PhysMem) {
        self.unlink(row.links.wrapping_add(8 * index as u64), List::Frame(mirror.pfn()), mem);
    }
}
