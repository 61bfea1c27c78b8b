//! The memory that the engine and the lane share (`lane` has the picture), and the tables that turn a guest's entry
//! into a leaf.

use crate::frames::Run;
use crate::mapper::Mapper;
use lane::LaneSync;
use rv::{Addr, FenceScope, Gpa, Hpa, Level, PAGE_BYTES, Pfn, PhysMem, Pte, PteFlags};

/// The place of a header's shadow page number, in bytes before the table that the header is for.
pub const ID_AT: u64 = 8;
/// Bytes of a line of the log.
pub const LINE_BYTES: u64 = LaneSync::LINE_BYTES;
/// The first line of the log, in bytes from the gate.
pub const LOG_AT: u64 = LINE_BYTES;

/// The part of a chunk's word that says by the word's sign that one leaf maps all of the chunk for everything. The
/// tables below subtract it again. The difference of two addresses in an entry is below 2^54, so it does not change the
/// sign.
const WHOLE: u64 = 1 << 63 | 1 << 60;

/// For each value of a guest entry's low 10 bits: the number that, with the word of a chunk, is added to the entry to
/// make the leaf of level 0 that allows the same (`steer`); 0 where the guest's entry faults. The leaf is never global.
pub static LEAVES: [u64; 1 << 10] = leaves(false);

/// Like [`LEAVES`], but the leaf is global where the guest's entry is.
pub static GLOBAL_LEAVES: [u64; 1 << 10] = leaves(true);

/// From which bit on a guest's entry of level 0 has the number of its chunk; if any bit above the frame's number is set, that of none.
const CHUNK_SHIFT: u64 = 10 + 9;

/// Returns whether a guest's entry of level 0 faults whatever the access.
#[inline(always)]
pub fn faults_always(pte: Pte) -> bool {
    LEAVES[(pte.0 & 0x3ff) as usize] == 0
}

const fn leaves(globals: bool) -> [u64; 1 << 10] {
    let mut leaves = [0; 1 << 10];
    let mut low = 0;
    while low < leaves.len() as u64 {
        if let Some(flags) = leaf_flags(low, globals) {
            leaves[low as usize] = flags.wrapping_sub(low).wrapping_sub(WHOLE);
        }
        low += 1;
    }
    leaves
}

/// The flags of the leaf of level 0 for a guest's entry with these, if it does not fault whatever the access.
const fn leaf_flags(low: u64, globals: bool) -> Option<u64> {
    let flags = PteFlags::from_bits_truncate(low);
    let is_valid = flags.contains(PteFlags::V.union(PteFlags::A));
    let is_leaf = flags.contains(PteFlags::R) || flags.contains(PteFlags::X) && !flags.contains(PteFlags::W);
    if !is_valid || !is_leaf {
        return None;
    }
    let kept = PteFlags::V.union(PteFlags::R).union(PteFlags::X).union(PteFlags::U).union(PteFlags::A);
    let kept = if globals { kept.union(PteFlags::G) } else { kept };
    let stores = PteFlags::W.union(PteFlags::D);
    let stores = if flags.contains(stores) { stores.bits() } else { 0 };
    Some(flags.bits() & kept.bits() | stores)
}

/// The word of a chunk that is in one piece, for everything: guest memory at `from` is at `to`.
#[must_use]
pub const fn whole_chunk(from: Pfn<Gpa>, to: Pfn<Hpa>) -> u64 {
    (to.raw() << 10).wrapping_sub(from.raw() << 10).wrapping_add(WHOLE)
}

/// The inputs from which the lane makes leaves.
#[derive(Clone, Copy)]
pub struct Leaves {
    words: Addr<Hpa>,
    chunks: u64,
    leaves: &'static [u64; 1 << 10],
}

impl Leaves {
    /// The leaf that the lane makes of a guest's, where it is told of its 2 MiB and the page allows everything.
    #[inline(always)]
    pub fn of(&self, pte: Pte, mem: &impl PhysMem) -> Option<Pte> {
        const ALL: u64 = PteFlags::V.union(PteFlags::R).union(PteFlags::W).union(PteFlags::X).bits();
        let chunk = pte.0 >> CHUNK_SHIFT;
        if chunk >= self.chunks {
            return None;
        }
        let there = mem.read_u64(self.words.wrapping_add(8 * chunk));
        let leaf = self.leaves[(pte.0 & 0x3ff) as usize];
        if leaf == 0 || there == 0 {
            return None;
        }
        if there >> 63 == 1 {
            return Some(Pte(pte.0.wrapping_add(leaf).wrapping_add(there)));
        }
        // In pieces: a table of the G-stage.
        let page = mem.read_u64(Addr::new(there).wrapping_add(8 * (pte.pfn::<Gpa>().raw() % Level::MEGA.pages())));
        (page & ALL == ALL).then(|| Pte(pte.0.wrapping_add(leaf) & 0x3ff).leading_to(Pte(page).pfn::<Hpa>()))
    }
}

/// The lane's words for chunks: for all from GPA 0 on, so that a number needs no subtraction. As a mapper they end where the
/// G-stage changes: the lane is not to go by what it was.
#[derive(Clone, Copy)]
pub struct Words {
    first: Pfn<Hpa>,
    chunks: u64,
}

impl Words {
    /// The word for the 2 MiB around a page.
    pub fn get(&self, page: Pfn<Gpa>) -> Option<Addr<Hpa>> {
        let chunk = page.raw() / Level::MEGA.pages();
        (chunk < self.chunks).then(|| self.first.at(8 * chunk))
    }

    /// Ends those of the 2 MiB that are partly in `scope`.
    pub fn end(&self, scope: FenceScope<Gpa>, mem: &mut (impl PhysMem + ?Sized)) {
        let chunks = match scope {
            FenceScope::Everything => 0..self.chunks,
            FenceScope::Range { start, bytes } => {
                let last = start.wrapping_add(bytes.max(1) - 1).pfn().raw() / Level::MEGA.pages();
                start.pfn().raw() / Level::MEGA.pages()..self.chunks.min(last + 1)
            }
        };
        chunks.for_each(|chunk| mem.write_u64(self.first.at(8 * chunk), 0));
    }
}

impl Mapper for Words {
    fn changed(&mut self, scope: FenceScope<Gpa>, mem: &mut dyn PhysMem) {
        self.end(scope, mem);
    }
}

/// The lane's memory.
pub struct LaneMemory {
    run: Run,
    pub words: Words,
    /// Either [`LEAVES`] or [`GLOBAL_LEAVES`].
    leaves: &'static [u64; 1 << 10],
}

impl LaneMemory {
    /// In so many frames as RAM needs that ends there ([`LaneMemory::frames`]), which are clear. `globals`: whether leaves may be global.
    pub const fn new(run: Run, end: Pfn<Gpa>, globals: bool) -> Self {
        let words = Words { first: run.first().add(1), chunks: Self::chunks(end) };
        Self { run, words, leaves: if globals { &GLOBAL_LEAVES } else { &LEAVES } }
    }

    /// Frames that it takes for RAM that ends there.
    pub const fn frames(end: Pfn<Gpa>) -> u64 {
        (1 + Self::chunks(end).div_ceil(PAGE_BYTES / 8)).next_power_of_two()
    }

    const fn chunks(end: Pfn<Gpa>) -> u64 {
        end.raw().div_ceil(Level::MEGA.pages())
    }

    /// Ends it: its frames.
    pub fn into_run(self) -> Run {
        self.run
    }

    pub const fn gate(&self) -> Addr<Hpa> {
        self.run.first().base()
    }

    /// Returns the places of the lane's inputs.
    pub fn inputs(&self) -> LaneSync {
        let leaves = self.leaves.as_ptr() as u64;
        LaneSync { gate: self.gate().raw(), leaves, chunks: self.words.first.base().raw(), count: self.words.chunks }
    }

    /// Returns the inputs from which leaves are made, for many of them.
    pub const fn leaves(&self) -> Leaves {
        Leaves { words: self.words.first.base(), chunks: self.words.chunks, leaves: self.leaves }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shadow::pages::{CAPS, permissions};
    use rv::{Entry, Pte};

    #[test]
    fn the_leaves_are_those_that_steering_makes() {
        for low in 0..1 << 10 {
            let pte = Pte(0x1234 << 10 | low);
            let expected = match pte.decode::<Gpa>(Level::PAGE, CAPS) {
                Entry::Leaf(leaf) if leaf.flags.contains(PteFlags::A) => {
                    let mut flags = permissions(leaf.flags) | PteFlags::V | PteFlags::A;
                    flags.set(PteFlags::D, flags.contains(PteFlags::W));
                    Some(flags)
                }
                _ => None,
            };
            let to = whole_chunk(Pfn::new(0x1234), Pfn::new(0x4321));
            for (leaves, lost) in [(&LEAVES, PteFlags::G), (&GLOBAL_LEAVES, PteFlags::empty())] {
                let word = leaves[low as usize];
                let made = (word != 0).then(|| pte.0.wrapping_add(to).wrapping_add(word));
                assert_eq!(made, expected.map(|flags| 0x4321 << 10 | (flags - lost).bits()), "{low:#x}");
            }
        }
    }
}
