//! Leaves of one shadow page of level 0, of a table, that enter their lists or leave them one after another: as [`super::index::Index`] does
//! it for each, but where the page has what is found out once. A process that begins and ends has hundreds of them.

use super::index::{Index, List};
use super::lane_memory::faults_always;
use super::page::{Id, PARTS, Ref};
use rv::{Addr, Hpa, Lane, LaneSync, PAGE_BYTES, PhysMem, Pte};

/// Where a shadow page has what changes with a leaf.
#[derive(Clone, Copy)]
pub(super) struct Row {
    id: Id,
    pub table: Addr<Hpa>,
    pub mirrors: Addr<Hpa>,
    links: Addr<Hpa>,
}

impl Row {
    /// Before there is one.
    pub const NONE: Self = Self { id: 0, table: Addr::new(0), mirrors: Addr::new(0), links: Addr::new(0) };
}

impl Index {
    /// That of a shadow page of level 0.
    #[inline(always)]
    pub fn row(&self, id: Id) -> Row {
        let page = self.page(id);
        let (mirrors, links) = (page.body.mirror.first().base(), page.body.links.first().base());
        Row { id, table: page.table().base(), mirrors, links }
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
        let listed = self.page(row.id).listed_at(index, mem);
        if listed != Some(mirror.pfn()) {
            if let Some(frame) = listed {
                self.unlink(row.links.wrapping_add(8 * index as u64), List::Frame(frame), mem);
            }
            self.list_in(row, index, mirror, mem);
        }
        let page = self.page_mut(row.id);
        page.set_parked(index, false);
        page.set_live(index, true);
        page.set_mirror(index, mirror, mem);
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
    /// table that are in no list, and are leaves now. Returns the first line that is not.
    // Each new page of a guest's comes by here.
    pub fn come_new(&mut self, row: &Row, mut line: Addr<Hpa>, end: Addr<Hpa>, mem: &mut impl PhysMem) -> Addr<Hpa> {
        let table = row.table.wrapping_add(Lane::POINTER_FLAGS);
        // Of the 64 entries that the last one is among: which are in lists, and which of these have just come.
        let (mut part, mut listed, mut new) = (PARTS, 0, 0);
        while line != end {
            let at = mem.read_own(line).wrapping_sub(table.raw());
            let pte = Pte(mem.read_own(line.wrapping_add(8)));
            if at >= PAGE_BYTES || !at.is_multiple_of(8) || faults_always(pte) {
                break;
            }
            let (here, bit) = ((at / 512) as usize, 1 << (at / 8 % 64));
            if here != part {
                self.enter_in(row, part, new);
                (part, listed, new) = (here, self.page(row.id).listed_in(here), 0);
            }
            if listed & bit != 0 {
                break;
            }
            self.list_in(row, (at / 8) as usize, pte, mem);
            (listed, new) = (listed | bit, new | bit);
            line = line.wrapping_add(LaneSync::LINE_BYTES);
        }
        self.enter_in(row, part, new);
        line
    }

    /// Those 64 entries are live now, of which there are some but before the first.
    #[inline(always)]
    fn enter_in(&mut self, row: &Row, part: usize, new: u64) {
        if new != 0 {
            self.page_mut(row.id).enter_these(part, new);
        }
    }

    /// Takes a leaf that was made from `mirror` out of its list. The page says that it is live still.
    #[inline(always)]
    pub fn unlink_in(&mut self, row: &Row, index: usize, mirror: Pte, mem: &mut impl PhysMem) {
        self.unlink(row.links.wrapping_add(8 * index as u64), List::Frame(mirror.pfn()), mem);
    }
}
