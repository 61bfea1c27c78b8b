//! The address-space calls: a kernel names the page tables of its programs to Gnomon, and switches, invalidates and runs
//! them by call (`docs/vmspace.md`; DragonFly's `vmspace_*` calls).
//!
//! The extension is that of the [root cache](crate::root_cache::EXTENSION). A call's function is in a6, its arguments in
//! a0 to a5. It returns an SBI error in a0 and a value in a1.
//!
//! | function | arguments | way | value |
//! |---|---|---|---|
//! | [`INFO`] | | | [`info`] |
//! | [`CREATE`] | root | `nested`, `soft` | handle |
//! | [`DESTROY`] | handle | `nested`, `soft` | 0 |
//! | [`SET_ROOT`] | handle, root | `nested`, `soft` | 0 |
//! | [`INVALIDATE`] | handle, GPA of the list, count | `nested`, `soft` | 0 |
//! | [`RUN`] | handle, GPA of the context page | `soft` | 0 |
//! | [`SWITCH`] | handle | `nested` | 0 |
//! | [`READ`] | handle, VA, GPA, bytes | `nested`, `soft` | bytes copied to the kernel's RAM |
//! | [`WRITE`] | handle, VA, GPA, bytes | `nested`, `soft` | bytes copied to the space |

use serde::{Deserialize, Serialize};

/// The SBI extension.
pub const EXTENSION: usize = crate::root_cache::EXTENSION;

/// Returns the ways that the VM has, and the one that it is to use ([`info`]).
pub const INFO: usize = 16;
/// Makes a space of a root: a `satp` value whose ASID is 0.
pub const CREATE: usize = 17;
/// Ends a space.
pub const DESTROY: usize = 18;
/// Gives a space another root.
pub const SET_ROOT: usize = 19;
/// Invalidates ranges of a space, or all of it if the count is 0.
pub const INVALIDATE: usize = 20;
/// Runs a program in a space until it traps.
pub const RUN: usize = 21;
/// Makes a space the current root.
pub const SWITCH: usize = 22;
/// Copies from a space's user memory to the kernel's RAM.
pub const READ: usize = 23;
/// Copies from the kernel's RAM to a space's user memory.
pub const WRITE: usize = 24;

/// The most spaces that a VM has at a time.
pub const MOST_SPACES: usize = 256;
/// The most ranges in the list of one [`INVALIDATE`].
pub const MOST_RANGES: u64 = 256;
/// Bytes of a range in the list: its first address and its length in bytes, 8 bytes each.
pub const RANGE_BYTES: u64 = 16;
/// The most bytes that one [`READ`] or [`WRITE`] copies.
pub const MOST_BYTES: u64 = 4096;

/// The offset of x0 to x31 in the context page, 8 bytes each. x0 is ignored.
pub const REGISTERS_AT: u64 = 0;
/// The offset of the program's `pc`.
pub const PC_AT: u64 = 256;
/// The offset of the cause of [`RUN`]'s end, in `scause` format. Written by Gnomon.
pub const CAUSE_AT: u64 = 264;
/// The offset of the trap value, as `stval` has it. Written by Gnomon.
pub const TVAL_AT: u64 = 272;
/// The offset of the instruction that trapped; 0 if it is not known. Written by Gnomon.
pub const INSTRUCTION_AT: u64 = 280;
/// The offset of the flags: 0.
pub const FLAGS_AT: u64 = 288;
/// Bytes of the context page that are used.
pub const CONTEXT_BYTES: u64 = 296;

/// A way in which a kernel runs its programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Way {
    /// No calls: the kernel's own `satp`, `sfence.vma` and `sret`.
    #[default]
    Direct = 0,
    /// The hart walks the kernel's tables behind the G-stage; a switch and an invalidation are one call each.
    Nested = 1,
    /// Gnomon shadows the kernel's tables; one call runs a program until it traps.
    Soft = 2,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Direct, Self::Nested, Self::Soft];

    /// Returns its name, as VM files have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nested => "nested",
            Self::Soft => "soft",
        }
    }

    /// Returns the way with that number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Direct),
            1 => Some(Self::Nested),
            2 => Some(Self::Soft),
            _ => None,
        }
    }
}

/// Returns [`INFO`]'s value: bits 2:0 are the ways that exist, by their numbers; bits 15:8 are the number of the way to use.
#[must_use]
pub const fn info(has_nested: bool, has_soft: bool, way: Way) -> u64 {
    1 | (has_nested as u64) << 1 | (has_soft as u64) << 2 | (way as u64) << 8
}

/// Returns whether a value of [`INFO`] has that way.
#[must_use]
pub const fn has(info: u64, way: Way) -> bool {
    info >> way as u8 & 1 != 0
}

/// Returns the way to use, by a value of [`INFO`].
#[must_use]
pub const fn used(info: u64) -> Option<Way> {
    Way::from_number((info >> 8) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_has_ways_and_the_one_to_use() {
        let value = info(false, true, Way::Soft);
        assert_eq!((value, used(value)), (0x205, Some(Way::Soft)));
        assert_eq!(Way::ALL.map(|way| has(value, way)), [true, false, true]);
        assert_eq!((info(true, false, Way::Direct), used(0x300)), (3, None));
        assert_eq!(Way::ALL.map(|way| Way::from_number(way as u8)), Way::ALL.map(Some));
    }
}
