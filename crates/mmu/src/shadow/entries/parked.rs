//! Parking: leaves that the guest has taken away, and will often map again where they led, stay in the list of that frame, whose number is
//! noted in the page's header.

use crate::shadow::entries::Act;
use crate::shadow::lane::faults_always;
use crate::shadow::pages::{Page, note_frame};
use crate::table::Debt;
use rv::{Hpa, Pfn, PhysMem, Pte, PteFlags};

impl Page {
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
        let (mirror, live) = (self.body.mirror.first(), self.marks.live_in(part));
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
                let old = self.slot(number as usize).swap(Act::Park, Pte::INVALID, mem).0;
                // What is not live allowed nothing.
                flags |= if is_live { old } else { 0 };
                mem.write_own(mirror.at(at), pte.0);
                done |= now;
            }
        }
        self.parked_these(part, done, flags)
    }

    fn parked_these(&mut self, part: usize, done: u64, flags: u64) -> (u64, Debt) {
        let (live, parked) = (self.marks.live_in(part), self.marks.parked_in(part));
        self.marks.set_part(part, live & !done, parked | live & done, done);
        (done, Debt::of(Pte(flags & PteFlags::all().bits()), Pte::INVALID))
    }
}
