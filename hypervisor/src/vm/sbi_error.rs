//! SBI error codes.

/// SBI error codes (SBI 3.0, table 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i64)]
pub enum Error {
    /// SBI_ERR_FAILED.
    Failed = -1,
    /// SBI_ERR_NOT_SUPPORTED.
    NotSupported = -2,
    /// SBI_ERR_INVALID_PARAM.
    InvalidParam = -3,
    /// SBI_ERR_DENIED.
    Denied = -4,
    /// SBI_ERR_INVALID_ADDRESS.
    InvalidAddress = -5,
    /// SBI_ERR_ALREADY_AVAILABLE.
    AlreadyAvailable = -6,
    /// SBI_ERR_ALREADY_STARTED.
    AlreadyStarted = -7,
    /// SBI_ERR_ALREADY_STOPPED.
    AlreadyStopped = -8,
    /// SBI_ERR_NO_SHMEM.
    NoShmem = -9,
    /// SBI_ERR_INVALID_STATE.
    InvalidState = -10,
    /// SBI_ERR_BAD_RANGE.
    BadRange = -11,
    /// SBI_ERR_DENIED_LOCKED.
    DeniedLocked = -14,
}
