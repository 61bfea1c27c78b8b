//! Which exits may be brief: what the trap vector looks at before it takes an exit the long way.

use core::mem::offset_of;
use rv::Exception;
use rv::Exit;

/// By which causes exits may be *brief*. The trap vector looks: the bit of a cause is the one that a shift to the left by the cause
/// brings to the top.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BriefCauses(u64);

impl BriefCauses {
    /// None.
    pub const NONE: Self = Self(0);

    /// These, and that of an exception of this code, which is below 64.
    #[must_use]
    pub const fn and(self, code: u64) -> Self {
        Self(self.0 | 1 << 63 >> code)
    }

    /// Returns whether that is the cause of such exits.
    #[must_use]
    pub const fn has(self, cause: u64) -> bool {
        cause < 64 && ((self.0 << cause) as i64) < 0
    }
}

/// Which brief exits are known to be by an access to one place: those of one kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BriefExits {
    cause: u64,
    /// Those bits of the trap value that count.
    mask: u64,
    /// The values of those bits, together with those of the guest physical address that the trap names.
    place: u64,
}

impl BriefExits {
    /// Offset of the cause, in bytes.
    pub const CAUSE_AT: usize = offset_of!(Self, cause);
    /// Offset of the mask.
    pub const MASK_AT: usize = offset_of!(Self, mask);
    /// Offset of the place.
    pub const PLACE_AT: usize = offset_of!(Self, place);
    /// None.
    pub const NONE: Self = Self { cause: u64::MAX, mask: 0, place: 0 };

    /// Guest-page faults by stores to the 4 bytes around `gpa`.
    #[must_use]
    pub const fn of_guest_page(gpa: u64) -> Self {
        Self { cause: Exception::StoreGuestPage.code(), mask: 0, place: gpa >> 2 }
    }

    /// Faults of the cause of `exit`, by stores to its virtual address. Where the trap names a guest physical address as well, one of
    /// another virtual address may be among them.
    #[must_use]
    pub const fn like(exit: &Exit) -> Self {
        Self { cause: exit.cause, mask: u64::MAX, place: exit.tval | exit.tval2 }
    }

    /// Returns whether they are told by the guest physical address alone.
    #[inline(always)]
    #[must_use]
    pub const fn are_of_guest_page(&self) -> bool {
        self.mask == 0
    }

    /// Returns whether that exit is one of them.
    #[inline(always)]
    #[must_use]
    pub const fn has(&self, exit: &Exit) -> bool {
        exit.cause == self.cause && exit.tval & self.mask | exit.tval2 == self.place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_bits_that_a_shift_brings_to_the_top() {
        let causes = BriefCauses::NONE.and(0).and(15).and(63);
        for cause in 0..64 {
            assert_eq!(causes.has(cause), [0, 15, 63].contains(&cause), "{cause}");
        }
        assert!(!causes.has(1 << 63 | 15) && !causes.has(64) && !BriefCauses::NONE.has(0));
    }
}
