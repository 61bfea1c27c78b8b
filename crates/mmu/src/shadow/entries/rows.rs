//! Leaves of one shadow page of level 0, of a table, that enter their lists or leave them one after another: as [`Index`] does
//! it for each, but where the page has what is found out once. A process that begins and ends has hundreds of them.

use crate::shadow::Shadowed;
use crate::shadow::entries::{Act, Slot};
use crate::shadow::lane::faults_always;
use crate::shadow::pages::{Id, Index, List, Ref, note_frame, noted_frame};
use crate::table::Debt;
use lane::{Lane, LaneSync};
use rv::{Addr, Gpa, Hpa, Level, PAGE_BYTES, Pfn, PhysMem, Pte, PteFlags};

/// The places of everything that changes with a leaf of a shadow page.
#[derive(Clone, Copy)]
pub struct Row {
    id: Id,
    table: Addr<Hpa>,
    mirrors: Addr<Hpa>,
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

    /// The row of a shadow page of level 0.
    #[inline(always)]
    pub fn of<S: Shadowed>(index: &Index<S>, id: Id) -> Self {
        let page = index.page(id);
        let (mirrors, links) = (page.body.mirror.first().base(), page.body.links.first().base());
        Row { id, table: page.table().base(), mirrors, links, notes: page.notes() }
    }

    /// Of a new page, which nothing leads to yet: makes an entry the leaf `new`, made from `mirror`.
    #[inline(always)]
    pub fn fill<S: Shadowed>(
        &self,
        all: &mut Index<S>,
        index: usize,
        (mirror, new): (Pte, Pte),
        mem: &mut impl PhysMem,
    ) {
        self.slot(index).fill(Act::Fill, new, mem);
        self.list(all, index, mirror, mem);
        all.page_mut(self.id).marks.enters(index);
    }

    /// Makes an entry the leaf `new`, made from `mirror`. If it is in a list, it stays there if it leads where it led. Returns what that
    /// owes.
    #[inline(always)]
    pub fn relist<S: Shadowed>(
        &self,
        all: &mut Index<S>,
        index: usize,
        (mirror, new): (Pte, Pte),
        mem: &mut impl PhysMem,
    ) -> Debt {
        let (_, debt) = self.slot(index).exchange(Act::Follow, new, mem);
        let (part, bit) = (index / 64, 1 << (index % 64));
        let page = all.page(self.id);
        let (live, parked) = (page.marks.live_in(part), page.marks.parked_in(part));
        let listed = self.listed(index, (live & bit != 0, parked & bit != 0), mem);
        self.lead(all, index, (listed, mirror), mem);
        all.page_mut(self.id).marks.set_part(part, live | bit, parked & !bit, bit);
        debt
    }

    /// Ends a leaf: it is in no list, and one of `poison`, the second if it is a user's. The page says that it is live still. Returns what
    /// that owes.
    #[inline(always)]
    pub fn end<S: Shadowed>(&self, all: &mut Index<S>, index: usize, poison: [Pte; 2], mem: &mut impl PhysMem) -> Debt {
        let mirror = Pte(mem.read_own(self.mirrors.wrapping_add(8 * index as u64)));
        let unfilled = poison[usize::from(mirror.flags().contains(PteFlags::U))];
        let (_, debt) = self.slot(index).exchange(Act::End, unfilled, mem);
        self.unlink(all, index, mirror, mem);
        debt
    }

    #[inline(always)]
    const fn slot(&self, index: usize) -> Slot {
        Slot::new(self.table, index, Level::PAGE)
    }

    /// An entry that is in that list, if in any, is to be in that of the frame it leads to. The page does not say yet that it is live.
    #[inline(always)]
    fn lead<S: Shadowed>(
        &self,
        all: &mut Index<S>,
        index: usize,
        (listed, mirror): (Option<Pfn<Gpa>>, Pte),
        mem: &mut impl PhysMem,
    ) {
        let at = 8 * index as u64;
        if listed == Some(mirror.pfn()) {
            return mem.write_own(self.mirrors.wrapping_add(at), mirror.0);
        }
        if let Some(frame) = listed {
            all.unlink(self.links.wrapping_add(at), List::Frame(frame), mem);
        }
        self.list(all, index, mirror, mem);
    }

    /// Puts an entry, which is in none, into a list. The page does not say yet that it is live.
    #[inline(always)]
    fn list<S: Shadowed>(&self, all: &mut Index<S>, index: usize, mirror: Pte, mem: &mut impl PhysMem) {
        let next = all.put_first(Ref::new((self.id, index)), List::Frame(mirror.pfn()), mem);
        let at = 8 * index as u64;
        mem.write_own(self.links.wrapping_add(at), u64::from(next.0));
        mem.write_own(self.mirrors.wrapping_add(at), mirror.0);
    }

    /// Takes note of what the lane has made of entries, by its log's lines from `line` on, up to `end`: as long as they are entries of this
    /// table. Returns the first line that is not. `is_blind`: a fault that is planted.
    // Each page that a guest maps or takes away comes by here.
    pub fn follow<S: Shadowed>(
        &self,
        all: &mut Index<S>,
        (mut line, end): (Addr<Hpa>, Addr<Hpa>),
        is_blind: bool,
        mem: &mut impl PhysMem,
    ) -> Addr<Hpa> {
        let table = self.table.wrapping_add(Lane::POINTER_FLAGS);
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
                self.write_part(all, part, (live, parked, written));
                let page = all.page(self.id);
                (part, live, parked, written) = (here, page.marks.live_in(here), page.marks.parked_in(here), 0);
            }
            written |= bit;
            let mirror = self.mirrors.wrapping_add(at);
            if faults_always(pte) {
                // What was a leaf stays in its list, if that can be.
                if live & bit != 0 {
                    let known = Pte(mem.read_own(mirror));
                    if self.notes.is_some_and(|notes| note_frame(notes, at / 8, known, mem)) {
                        parked |= bit;
                    } else {
                        self.unlink(all, index, known, mem);
                    }
                    live &= !bit;
                }
                mem.write_own(mirror, pte.0);
                continue;
            }
            let listed = self.listed(index, (live & bit != 0, parked & bit != 0), mem);
            let is_forgotten = |frame: &Pfn<Gpa>| is_blind && parked & bit != 0 && *frame != pte.pfn();
            self.lead(all, index, (listed.filter(|frame| !is_forgotten(frame)), pte), mem);
            (live, parked) = (live | bit, parked & !bit);
        }
        self.write_part(all, part, (live, parked, written));
        line
    }

    /// Sets which of 64 entries are live, parked and written, if any have been written.
    #[inline(always)]
    fn write_part<S: Shadowed>(&self, all: &mut Index<S>, part: usize, (live, parked, written): (u64, u64, u64)) {
        if written != 0 {
            all.page_mut(self.id).marks.set_part(part, live, parked, written);
        }
    }

    /// Takes a leaf that was made from `mirror` out of its list. The page says that it is live still.
    #[inline(always)]
    fn unlink<S: Shadowed>(&self, all: &mut Index<S>, index: usize, mirror: Pte, mem: &mut impl PhysMem) {
        all.unlink(self.links.wrapping_add(8 * index as u64), List::Frame(mirror.pfn()), mem);
    }
}
