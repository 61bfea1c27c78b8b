//! Parked entries: leaves that the guest has taken away, and will often map again where they led. They stay in the list of that frame, whose
//! number is noted in the page's header.

use super::super::lane_memory::faults_always;
use super::super::notes::{note_frame, noted_frame};
use super::Page;
use crate::frames::Run;
use crate::table::Debt;
use rv::{Gpa, Hpa, Pfn, PhysMem, Pte, PteFlags};

impl Page {
    /// Where is noted in which lists parked entries are.
    #[inline(always)]
    pub fn notes(&self) -> Option<Pfn<Hpa>> {
        self.body.header.as_ref().map(Run::first)
    }

    /// The frame in whose list a parked entry is.
    #[inline(always)]
    pub fn parked_at(&self, index: usize, mem: &impl PhysMem) -> Pfn<Gpa> {
        noted_frame(self.notes().expect("parked entries are noted there"), index as u64, mem)
    }

    /// Of 64 entries of the shadow of a table, empties those for which the entry in the frame `guest` faults whatever the access, and
    /// parks them: as many as `most`, and none that cannot be parked. Returns which those are, and what it owes.
    // For 64 a call is little, and what calls it needs the registers.
    #[inline(never)]
    pub fn park_faulting(
        &mut self,
        guest: Pfn<Hpa>,
        part: usize,
        behind: u64,
        most: u32,
        mem: &mut impl PhysMem,
    ) -> (u64, Debt) {
        let (table, mirror, live) = (self.table(), self.body.mirror.first(), self.live[part]);
        let notes = self.notes();
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
        let (live, parked) = (self.live[part], self.parked[part]);
        self.set_part(part, live & !done, parked | live & done, done);
        (done, Debt::of(Pte(flags & PteFlags::all().bits()), Pte::INVALID))
    }

    /// The first 64 entries of which some are parked, by their part, and a bit for each that is.
    pub fn parked_part(&self) -> Option<(usize, u64)> {
        let part = self.parked.iter().position(|part| *part != 0)?;
        Some((part, self.parked[part]))
    }
}
