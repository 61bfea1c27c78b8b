//! The trap hardware's description of an exit.

/// The trap hardware's description of an exit. A snapshot: no code below the exit handler reads a CSR.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// `mcause` or `scause`.
    pub cause: u64,
    /// `mtval` or `stval`.
    pub tval: u64,
    /// `mtval2` or `htval`.
    pub tval2: u64,
    /// `mtinst` or `htinst`.
    pub tinst: u64,
}
