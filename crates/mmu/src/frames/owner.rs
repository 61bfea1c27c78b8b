//! The owners of frames, the uses of frames, and their numbers.

use core::fmt;

/// Most VMs that can own frames at a time.
pub const MOST_OWNERS: u16 = 64;

/// The account that a frame is charged to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// The hypervisor itself; images shared by VMs, too.
    Host,
    /// A VM, by number.
    Vm(u16),
}

/// The use of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Use {
    /// Guest memory.
    Guest,
    /// Page tables.
    Table,
    /// Images: kernels, initial RAM disks, firmware.
    Image,
    /// Anything else.
    Other,
}

/// The cause of a failed allocation: the owner's limit, or the host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// The owner would exceed its limit: the owner is to blame.
    OverLimit {
        /// The owner that the frames were for.
        owner: Owner,
        /// Its limit, in frames.
        limit: u64,
    },
    /// No run of that size is free, for any owner.
    OutOfMemory,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::OverLimit { owner, limit } => write!(f, "{owner:?} has reached its limit of {limit} frames"),
            AllocError::OutOfMemory => write!(f, "the host is out of memory"),
        }
    }
}

/// The number of an owner's frames, by use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Guest memory.
    pub guest: u64,
    /// Page tables.
    pub table: u64,
    /// Images.
    pub image: u64,
    /// Anything else.
    pub other: u64,
}

impl Usage {
    /// Returns the sum.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.guest + self.table + self.image + self.other
    }
}
