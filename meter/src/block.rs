//! Translation blocks: straight code that QEMU translates at once, in one mode.

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
    /// True if it reaches into the next page.
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

    /// A value that is equal for blocks of one page and mode, which need no look at each other, and never [`NOWHERE`].
    #[must_use]
    pub const fn place(self) -> u64 {
        self.page << 3 | (self.mode as u64 + 1)
    }
}

/// No block's place.
pub const NOWHERE: u64 = 0;

/// Instructions of a block that are attempted either all or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// The number of the first one in its block.
    pub first: usize,
    /// The number of instructions.
    pub insns: u64,
}

/// Returns whether an instruction of a block that runs in a mode may be the store that powers the machine off. Below
/// M mode, where devices are behind translations, drivers order such stores with a fence before them. An
/// emulator that counts instructions may put what accesses a device into a block of its own.
#[must_use]
pub fn may_power_off(insns: &[Insn], number: usize, mode: Mode) -> bool {
    let is_behind_fence = || insns[..number].iter().any(|before| before.orders_output);
    insns[number].is_device_like && (mode == Mode::M || insns.len() == 1 || is_behind_fence())
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
                    assert_ne!(block.place(), NOWHERE);
                }
            }
        }
        let place = |page, mode| Block { page, mode, crosses: false }.place();
        assert_ne!(place(1, Mode::S), place(1, Mode::U));
        assert_ne!(place(1, Mode::VU), place(2, Mode::M));
    }

    #[test]
    fn stores_to_devices() {
        // sw; fence rw, rw; sw; fence w, o; addi; sw; sd
        let words = [0x00b5_2023, 0x0330_000f, 0x00b5_2023, 0x0140_000f, 0x13, 0x00b5_2023, 0x00b5_3023];
        let block = words.map(Insn::decode);
        let found = |mode| (0..block.len()).filter(|number| may_power_off(&block, *number, mode)).collect::<Vec<_>>();
        assert_eq!((found(Mode::M), found(Mode::S)), (vec![0, 2, 5], vec![5]));
        assert!(may_power_off(&block[..1], 0, Mode::S) && !may_power_off(&block[6..], 0, Mode::S));
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
