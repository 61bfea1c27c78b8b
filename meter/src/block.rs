//! Translation blocks: straight code that QEMU translates at once, in one mode.

use crate::insn::Insn;
use crate::mode::Mode;

/// log2 of the base page size.
const PAGE_SHIFT: u32 = rv::PAGE_SHIFT;

/// Where a block starts, as a callback is told. The privilege mode is part of what QEMU keeps
/// translations by, so it holds for each execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The virtual address of its first instruction.
    pub at: u64,
    /// The mode in which it runs.
    pub mode: Mode,
    /// Whether it reaches into the next page.
    pub crosses: bool,
}

/// Bits of a packed block's address: enough for Sv57 and for 56-bit physical addresses.
const AT_BITS: u32 = 60;

impl Block {
    /// All of it in 64 bits, so that nothing need be allocated per block.
    #[must_use]
    pub const fn pack(self) -> u64 {
        (self.at & ((1 << AT_BITS) - 1)) | (self.mode as u64) << AT_BITS | (self.crosses as u64) << 63
    }

    /// The block that was packed.
    #[must_use]
    pub const fn unpack(packed: u64) -> Self {
        let unused = u64::BITS - AT_BITS;
        Self {
            at: ((packed << unused) as i64 >> unused) as u64,
            mode: Mode::from_index((packed >> AT_BITS & 7) as usize),
            crosses: packed >> 63 != 0,
        }
    }

    /// The page that its code starts in.
    #[must_use]
    pub const fn page(self) -> u64 {
        self.at >> PAGE_SHIFT
    }

    /// What is equal for blocks that begin in the same page and mode, and never [`NOWHERE`].
    #[must_use]
    pub const fn place(self) -> u64 {
        Self::place_of(self.page(), self.mode)
    }

    /// The place that is left behind: that of the last page.
    #[must_use]
    pub const fn last_place(self) -> u64 {
        Self::place_of(self.page() + self.crosses as u64, self.mode)
    }

    const fn place_of(page: u64, mode: Mode) -> u64 {
        page << PAGE_SHIFT | (mode as u64 + 1)
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
        for at in [0, 0x8000_0002, 0xffff_ffff_8000_0ffe, 0x00ff_ffff_ffff_fffe, 0xff00_0000_0000_0000] {
            for mode in Mode::ALL {
                for crosses in [false, true] {
                    let block = Block { at, mode, crosses };
                    assert_eq!(Block::unpack(block.pack()), block);
                    assert_ne!(block.place(), NOWHERE);
                }
            }
        }
        let near = |at, mode| Block { at, mode, crosses: false }.place();
        assert_eq!(near(0x1000, Mode::S), near(0x1ffe, Mode::S));
        assert_ne!(near(0x1000, Mode::S), near(0x1000, Mode::U));
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
