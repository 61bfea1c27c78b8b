//! Global translations on a hart that several vCPUs use without a VMID between them.
//!
//! A translation by a leaf with G serves whatever ASID the hart has, and a fence of one ASID leaves it. So where shadow tables keep
//! the guest's G, no ASID keeps vCPUs apart, nor a guest's address spaces from its memory with paging off. A hart has those of one
//! vCPU and one format at a time, and none while that vCPU's paging is off: before it changes, it forgets everything.

/// The owner and the mode of the global translations that a hart's TLB may hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Globals {
    /// A vCPU: its VM's number, which no other ever has, and its own.
    owner: (u64, u32),
    /// The mode of the format of its tables (`satp.MODE`); 0 if there are none.
    mode: u8,
}

impl Globals {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { owner: (0, 0), mode: 0 }
    }

    /// Records that a vCPU enters the hart. It `stays` if it has been on no other hart since it was here last. Returns
    /// whether the hart must forget everything before its guest is entered.
    #[must_use = "the hart must forget everything"]
    pub const fn come(&mut self, owner: (u64, u32), stays: bool) -> bool {
        let may_stay = stays && owner.0 == self.owner.0 && owner.1 == self.owner.1;
        self.owner = owner;
        if may_stay {
            return false;
        }
        self.forget()
    }

    /// Sets the mode of the tables by which the vCPU that came last is translated, whose leaves may be global; `None`
    /// if there are none. Returns whether the hart must forget everything before that.
    #[inline(always)]
    #[must_use = "the hart must forget everything"]
    pub const fn go_by(&mut self, mode: Option<u8>) -> bool {
        let mode = match mode {
            Some(mode) => mode,
            None => 0,
        };
        if mode == self.mode {
            return false;
        }
        let had = self.forget();
        self.mode = mode;
        had
    }

    /// Records that there are none from now on. Returns whether there may have been.
    const fn forget(&mut self) -> bool {
        let had = self.mode != 0;
        self.mode = 0;
        had
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SV39: Option<u8> = Some(8);
    const SV48: Option<u8> = Some(9);

    #[test]
    fn a_vcpu_that_stays_finds_what_it_left() {
        let mut globals = Globals::new();
        assert!(!globals.come((7, 1), false));
        assert!(!globals.go_by(SV39));
        assert!(!globals.go_by(SV39));
        assert!(!globals.come((7, 1), true));
        assert!(!globals.go_by(SV39));
    }

    #[test]
    fn another_vcpu_finds_nothing_and_neither_does_one_that_was_elsewhere() {
        for (owner, stays) in [((8, 1), true), ((8, 1), false), ((7, 0), true), ((7, 1), false)] {
            let mut globals = Globals::new();
            assert!(!globals.come((7, 1), false) && !globals.go_by(SV39));
            assert!(globals.come(owner, stays), "{owner:?} {stays}");
            // Once is enough.
            assert!(!globals.come((9, 0), false));
            assert!(!globals.go_by(SV39));
            assert!(globals.come(owner, stays));
        }
    }

    #[test]
    fn with_paging_off_or_by_another_format_there_are_none() {
        let mut globals = Globals::new();
        assert!(!globals.come((7, 1), false) && !globals.go_by(None) && !globals.go_by(SV39));
        assert!(globals.go_by(SV48));
        assert!(globals.go_by(None));
        assert!(!globals.go_by(None));
        assert!(!globals.go_by(SV48));
    }
}
