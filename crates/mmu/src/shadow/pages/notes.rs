//! In which lists a shadow page's parked entries are: for each entry the frame that it led to, four bytes in the page's header.

use rv::{Addr, Gpa, Hpa, Pfn, PhysMem, Pte};

/// Where a parked entry's frame is noted: a word of the header's, and at which bit of it the four bytes begin.
#[inline(always)]
const fn note_at(header: Pfn<Hpa>, index: u64) -> (Addr<Hpa>, u64) {
    (header.at(index / 2 * 8), index % 2 * 32)
}

/// The frame that is noted there.
#[inline(always)]
pub fn noted_frame(header: Pfn<Hpa>, index: u64, mem: &impl PhysMem) -> Pfn<Gpa> {
    let (at, shift) = note_at(header, index);
    Pfn::new(mem.read_own(at) >> shift & 0xffff_ffff)
}

/// Notes there the frame that an entry led to which was made from `known`: it stays in the list of that one. Says whether there is room for
/// its number.
#[inline(always)]
pub fn note_frame(header: Pfn<Hpa>, index: u64, known: Pte, mem: &mut impl PhysMem) -> bool {
    let frame = known.pfn::<Gpa>().raw();
    if frame >> 32 != 0 {
        return false;
    }
    let (at, shift) = note_at(header, index);
    let others = mem.read_own(at) & !(0xffff_ffff << shift);
    mem.write_own(at, others | frame << shift);
    true
}
