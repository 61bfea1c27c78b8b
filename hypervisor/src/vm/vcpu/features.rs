//! The firmware features that a vCPU's kernel has asked for (SBI FWFT).

/// The features of [`crate::exit::sbi`]'s FWFT that guests have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Features {
    /// Set if the kernel handles the exceptions of misaligned accesses itself.
    pub delegates_misaligned: bool,
    /// Set if `delegates_misaligned` must not change before the vCPU's next start.
    pub is_locked: bool,
}
