//! What a vCPU's kernel has asked its firmware for (SBI FWFT).

/// The features of [`crate::exit::sbi`]'s FWFT that guests have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Features {
    /// It wants misaligned accesses' exceptions itself.
    pub delegates_misaligned: bool,
    /// That is not to be changed before its next start.
    pub is_locked: bool,
}
