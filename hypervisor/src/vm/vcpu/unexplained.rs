//! Access faults of a vCPU's on shadow tables that nothing there explains.

/// The last of them, and how often it came in a row.
#[derive(Clone, Copy, Debug)]
pub struct Unexplained {
    /// The instruction's address.
    pub pc: u64,
    /// The address that the fault was about.
    pub tval: u64,
    /// Which exit of the vCPU's it was.
    pub exit: u64,
    /// [`mmu::shadow::Shadow::emptied`] then.
    pub emptied: u64,
    /// The number of times that it came with no other exit in between, and with tables that allowed it all the time.
    pub times: u32,
}

impl Unexplained {
    /// None.
    pub const NONE: Self = Self { pc: 0, tval: 0, exit: 0, emptied: 0, times: 0 };
}
