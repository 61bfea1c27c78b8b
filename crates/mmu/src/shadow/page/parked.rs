//! Parked entries: leaves that the guest has taken away, and will often map again where they led. They stay in the list of that frame, whose
//! number is noted in the page's header.

use super::super::lane_memory::faults_always;
use super::{Page, eights_of};
use crate::frames::Run;
use crate::table::Debt;
use rv::{Addr, Gpa, Hpa, Lane, LaneSync, PAGE_BYTES, Pfn, PhysMem, Pte, PteFlags};

impl Page {
    /// Notes in which list an entry stays that is not live any more: that of the frame that it led to, by `known`, what it was made from.
    /// Says whether it can be noted: there is a header, and room in it for so large a frame number.
    #[inline(always)]
    pub fn park(&self, index: usize, known: Pte, mem: &mut impl PhysMem) -> bool {
        self.body.header.as_ref().is_some_and(|header| note_frame(header.first(), index as u64, known, mem))
    }

    /// The frame in whose list a parked entry is.
    #[inline(always)]
    pub fn parked_at(&self, index: usize, mem: &impl PhysMem) -> Pfn<Gpa> {
        let header = self.body.header.as_ref().expect("parked entries are noted there");
        let (at, shift) = note_at(header.first(), index as u64);
        Pfn::new(mem.read_own(at) >> shift & 0xffff_ffff)
    }

    /// The frame in whose list an entry is, live or parked, of a leaf of the shadow of a table.
    #[inline(always)]
    pub fn listed_at(&self, index: usize, mem: &impl PhysMem) -> Option<Pfn<Gpa>> {
        if self.is_live(index) {
            return Some(self.made_from(index, mem).pfn());
        }
        self.is_parked(index).then(|| self.parked_at(index, mem))
    }

    /// Takes note of what the lane has made of entries, by its log's lines from `line` on, up to `end`: as long as they are entries of this
    /// table that were leaves, live or parked, and are leaves again that lead where they led. Returns the first line that is not.
    // What the guest takes away and maps again comes by here, page by page.
    pub fn come_back(&mut self, mut line: Addr<Hpa>, end: Addr<Hpa>, mem: &mut impl PhysMem) -> Addr<Hpa> {
        let Some(header) = &self.body.header else { return line };
        let (notes, mirrors) = (header.first(), self.body.mirror.first().base());
        let table = self.table().base().wrapping_add(Lane::POINTER_FLAGS);
        while line != end {
            let at = mem.read_own(line).wrapping_sub(table.raw());
            if at >= PAGE_BYTES || !at.is_multiple_of(8) {
                break;
            }
            let (part, bit) = ((at / 512) as usize, 1 << (at / 8 % 64));
            let pte = Pte(mem.read_own(line.wrapping_add(8)));
            let frame = if self.parked[part] & bit != 0 {
                let (note, shift) = note_at(notes, at / 8);
                mem.read_own(note) >> shift & 0xffff_ffff
            } else if self.live[part] & bit != 0 {
                Pte(mem.read_own(mirrors.wrapping_add(at))).pfn::<Gpa>().raw()
            } else {
                break;
            };
            if frame != pte.pfn::<Gpa>().raw() || faults_always(pte) {
                break;
            }
            self.parked[part] &= !bit;
            self.live[part] |= bit;
            self.written |= 1 << (at / 64);
            mem.write_own(mirrors.wrapping_add(at), pte.0);
            line = line.wrapping_add(LaneSync::LINE_BYTES);
        }
        line
    }

    /// Of 64 entries of the shadow of a table, empties those for which the entry in the frame `guest` faults whatever the access, and
    /// parks them: as many as `most`, and none that cannot be parked. Returns which those are, and what it owes.
    pub fn park_faulting(
        &mut self,
        guest: Pfn<Hpa>,
        part: usize,
        behind: u64,
        most: u32,
        mem: &mut impl PhysMem,
    ) -> (u64, Debt) {
        let (table, mirror, live) = (self.table(), self.body.mirror.first(), self.live[part]);
        let notes = self.body.header.as_ref().map(Run::first);
        // What of the flags of leaves is owed for all of them.
        let (mut done, mut flags, mut count) = (0u64, 0, 0);
        // Mostly there are many, one beside the other.
        for first in (0..64).step_by(8) {
            let (mut left, mut bit, mut index) = (behind >> first & 0xff, 1 << first, 64 * part as u64 + first);
            while left != 0 {
                let (is_behind, now, at) = (left & 1 != 0, bit, 8 * index);
                let number = index;
                (left, bit, index) = (left >> 1, bit << 1, index + 1);
                if !is_behind {
                    continue;
                }
                let pte = Pte(mem.read_u64(guest.at(at)));
                if pte.0 != 0 && !faults_always(pte) {
                    continue;
                }
                if count == most {
                    return self.parked_these(part, done, flags);
                }
                let is_live = live & now != 0;
                if is_live {
                    let known = Pte(mem.read_own(mirror.at(at)));
                    if !notes.is_some_and(|notes| note_frame(notes, number, known, mem)) {
                        continue;
                    }
                }
                count += 1;
                let old = mem.exchange_u64(table.at(at), Pte::INVALID.0);
                // What is not live allowed nothing.
                flags |= if is_live { old } else { 0 };
                mem.write_own(mirror.at(at), pte.0);
                done |= now;
            }
        }
        self.parked_these(part, done, flags)
    }

    fn parked_these(&mut self, part: usize, done: u64, flags: u64) -> (u64, Debt) {
        self.parked[part] |= self.live[part] & done;
        self.live[part] &= !done;
        self.written |= eights_of(done) << (8 * part);
        (done, Debt::of(Pte(flags & PteFlags::all().bits()), Pte::INVALID))
    }

    /// The first 64 entries of which some are parked, by their part, and a bit for each that is.
    pub fn parked_part(&self) -> Option<(usize, u64)> {
        let part = self.parked.iter().position(|part| *part != 0)?;
        Some((part, self.parked[part]))
    }
}

/// Where a parked entry's frame is noted: a word of the header's, and at which bit of it the four bytes begin.
#[inline(always)]
const fn note_at(header: Pfn<Hpa>, index: u64) -> (Addr<Hpa>, u64) {
    (header.at(index / 2 * 8), index % 2 * 32)
}

/// Notes there the frame that an entry led to which was made from `known`. Says whether there is room for its number.
#[inline(always)]
fn note_frame(header: Pfn<Hpa>, index: u64, known: Pte, mem: &mut impl PhysMem) -> bool {
    let frame = known.pfn::<Gpa>().raw();
    if frame >> 32 != 0 {
        return false;
    }
    let (at, shift) = note_at(header, index);
    let others = mem.read_own(at) & !(0xffff_ffff << shift);
    mem.write_own(at, others | frame << shift);
    true
}
