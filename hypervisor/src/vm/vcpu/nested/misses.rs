//! The places in L1's code after which runs have found nothing.

/// Places from which the last run reached no instruction that would trap: runs from there are made seldom, since what they execute costs more in
/// software than by the hart. A table by the place's address; one place displaces another.
#[derive(Clone, Debug)]
pub struct Misses([Miss; Self::PLACES]);

#[derive(Clone, Copy, Debug)]
struct Miss {
    pc: u64,
    /// Runs that are left out before the next one.
    left: u8,
}

impl Default for Misses {
    fn default() -> Self {
        Self([Miss { pc: 0, left: 0 }; Self::PLACES])
    }
}

impl Misses {
    const PLACES: usize = 64;
    /// Runs that are left out after one in vain.
    const LEFT_OUT: u8 = 63;

    const fn at(&mut self, pc: u64) -> &mut Miss {
        &mut self.0[(pc >> 1 ^ pc >> 7) as usize % Self::PLACES]
    }

    /// Returns whether a run from `pc` is left out. Each call counts as one.
    pub const fn leaves_out(&mut self, pc: u64) -> bool {
        let miss = self.at(pc);
        let leaves = miss.pc == pc && miss.left != 0;
        if leaves {
            miss.left -= 1;
        }
        leaves
    }

    /// Notes that a run from `pc` was in vain.
    pub const fn note(&mut self, pc: u64) {
        *self.at(pc) = Miss { pc, left: Self::LEFT_OUT };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_tried_again_now_and_then() {
        let mut misses = Misses::default();
        assert!(!misses.leaves_out(0x1000) && !misses.leaves_out(0));
        misses.note(0x1000);
        assert!((0..Misses::LEFT_OUT).all(|_| misses.leaves_out(0x1000)));
        assert!(!misses.leaves_out(0x1000), "its turn has come");
        misses.note(0x1000);
        assert!(!misses.leaves_out(0x1002), "another place");
        // The same entry of the table.
        misses.note(0x1000 + (64 << 7 << 6));
        assert!(!misses.leaves_out(0x1000), "displaced");
    }
}
