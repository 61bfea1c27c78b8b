//! Translation blocks: straight code that QEMU translates at once, in one mode.

use crate::args::Level;
use crate::insn::Insn;
use crate::mode::Mode;

/// A block, as a callback is told of it. The privilege mode is part of what QEMU keeps translations by,
/// so it holds for each execution. The virtual address does not: one translation serves all addresses
/// at which the same physical page runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// A number for the physical page that it starts in: equal for blocks of one page, and for no others.
    pub page: u64,
    /// The mode in which it runs.
    pub mode: Mode,
    /// Whether it reaches into the next page.
    pub crosses: bool,
}

impl Block {
    /// All of it in 64 bits, so that nothing need be allocated per block.
    #[must_use]
    pub const fn pack(self) -> u64 {
        self.page << 4 | (self.crosses as u64) << 3 | self.mode as u64
    }

    /// The block that was packed.
    #[must_use]
    pub const fn unpack(packed: u64) -> Self {
        Self { page: packed >> 4, mode: Mode::from_index((packed & 7) as usize), crosses: packed & 8 != 0 }
    }

    /// What is equal for blocks that need no look at each other, and never [`NOWHERE`]: those of one mode,
    /// and where translations count, of one page.
    #[must_use]
    pub const fn place(self, level: Level) -> u64 {
        let page = match level {
            Level::Counts => 0,
            Level::Tlb | Level::Check => self.page,
        };
        page << 3 | (self.mode as u64 + 1)
    }
}

/// No block's place.
pub const NOWHERE: u64 = 0;

/// Instructions of a block that are attempted either all or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// The number of the first one in its block.
    pub first: usize,
    /// How many.
    pub insns: u64,
}

/// Whether an instruction of a block that runs in a mode may be the store that powers the machine off. Below
/// M mode, where devices are behind translations, drivers have a fence before such stores.
#[must_use]
pub fn may_power_off(insns: &[Insn], number: usize, mode: Mode) -> bool {
    let is_behind_fence = || number.checked_sub(1).is_some_and(|before| insns[before].is_fence);
    insns[number].is_device_like && (mode == Mode::M || is_behind_fence())
}

/// Cuts a block into segments: each ends with an instruction that may trap, or the block. As
/// interrupts come between blocks only, adding up segments where they begin counts attempted
/// instructions exactly.
#[must_use]
pub fn segments(insns: &[Insn]) -> Vec<Segment> {
    let mut done = Vec::new();
    let mut now = Segment::default();
    for (number, insn) in insns.iter().enumerate() {
        now.insns += 1;
        if insn.may_trap {
            done.push(now);
            now = Segment { first: number + 1, ..Segment::default() };
        }
    }
    if now.insns > 0 {
        done.push(now);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_pack() {
        for page in [0, 1, 0x7fff_ffff_ffff] {
            for mode in Mode::ALL {
                for crosses in [false, true] {
                    let block = Block { page, mode, crosses };
                    assert_eq!(Block::unpack(block.pack()), block);
                    assert!(block.place(Level::Counts) != NOWHERE && block.place(Level::Tlb) != NOWHERE);
                }
            }
        }
        let place = |page, mode, level| Block { page, mode, crosses: false }.place(level);
        assert_ne!(place(1, Mode::S, Level::Tlb), place(1, Mode::U, Level::Tlb));
        assert_ne!(place(1, Mode::VU, Level::Tlb), place(2, Mode::M, Level::Tlb));
        assert_eq!(place(1, Mode::S, Level::Counts), place(2, Mode::S, Level::Counts));
    }

    #[test]
    fn stores_to_devices() {
        // sw; fence w, o; sw; sd
        let block = [0x00b5_2023, 0x0140_000f, 0x00b5_2023, 0x00b5_3023].map(Insn::decode);
        let found = |mode| [0, 1, 2, 3].map(|number| may_power_off(&block, number, mode));
        assert_eq!(found(Mode::M), [true, false, true, false]);
        assert_eq!(found(Mode::S), [false, false, true, false]);
    }

    #[test]
    fn segments_end_with_what_may_trap() {
        let block = [0x13, 0x0005_3583, 0x13, 0x13, 0x00b5_3423, 0x00b5_352f, 0x13].map(Insn::decode);
        let segment = |first, insns| Segment { first, insns };
        assert_eq!(segments(&block), [segment(0, 2), segment(2, 3), segment(5, 1), segment(6, 1)]);
        assert_eq!(segments(&block[..2]), [segment(0, 2)]);
        assert_eq!(segments(&[]), []);
    }
}
