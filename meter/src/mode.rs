//! Privilege modes, as QEMU tells them.

use serde::Serialize;

/// A privilege mode. On a hart without the H extension, or with V=0, `S` is HS.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[repr(u8)]
pub enum Mode {
    /// Machine.
    M,
    /// Supervisor, or hypervisor-extended supervisor.
    S,
    /// User.
    U,
    /// Virtual supervisor.
    VS,
    /// Virtual user.
    VU,
}

/// Something for each mode.
pub type PerMode<T> = [T; Mode::ALL.len()];

impl Mode {
    /// All, in the order of their indices.
    pub const ALL: [Self; 5] = [Self::M, Self::S, Self::U, Self::VS, Self::VU];

    /// Its place in a [`PerMode`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The mode with this index, which is less than 5.
    #[must_use]
    pub const fn from_index(index: usize) -> Self {
        Self::ALL[index]
    }

    /// Its usual name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::M => "M",
            Self::S => "S",
            Self::U => "U",
            Self::VS => "VS",
            Self::VU => "VU",
        }
    }

    /// A privilege level (0, 1 or 3; 2 is taken for 1) with the virtualization mode V.
    #[must_use]
    pub const fn new(privilege: u64, is_virtual: bool) -> Self {
        match (privilege & 3, is_virtual) {
            (3, _) => Self::M,
            (0, false) => Self::U,
            (0, true) => Self::VU,
            (_, false) => Self::S,
            (_, true) => Self::VS,
        }
    }

    /// Reads QEMU's register `priv`: the level in bits 1:0, V in bit 2.
    #[must_use]
    pub const fn from_priv(value: u64) -> Self {
        Self::new(value, value & 4 != 0)
    }

    /// The mode whose translation an access uses, by QEMU's index of its softmmu tables: bits 1:0 are
    /// U, S, S with SUM, M; bit 2 is V. MPRV and HLV have had their say.
    #[must_use]
    pub const fn from_mmu_index(index: u32) -> Self {
        Self::new(index as u64 & 3, index & 4 != 0)
    }

    /// An index that [`Mode::from_mmu_index`] reads as this mode.
    #[must_use]
    pub const fn mmu_index(self) -> u32 {
        match self {
            Self::U => 0,
            Self::S => 1,
            Self::M => 3,
            Self::VU => 4,
            Self::VS => 5,
        }
    }

    /// Returns whether V=1.
    #[must_use]
    pub const fn is_virtual(self) -> bool {
        matches!(self, Self::VS | Self::VU)
    }

    /// Returns whether this is U or VU.
    #[must_use]
    pub const fn is_user(self) -> bool {
        matches!(self, Self::U | Self::VU)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_and_registers() {
        for mode in Mode::ALL {
            assert_eq!(Mode::from_index(mode.index()), mode);
            assert_eq!(Mode::from_mmu_index(mode.mmu_index()), mode);
        }
        assert_eq!([0, 1, 3, 4, 5].map(Mode::from_priv), [Mode::U, Mode::S, Mode::M, Mode::VU, Mode::VS]);
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6].map(Mode::from_mmu_index),
            [Mode::U, Mode::S, Mode::S, Mode::M, Mode::VU, Mode::VS, Mode::VS]
        );
    }
}
