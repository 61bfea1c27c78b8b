//! A guest's CSRs.

/// A guest's supervisor state: the VS-level CSRs and those S-level ones that it has to itself. If it runs in S mode
/// ([`crate::device::offer::GuestMode`]) the S-level ones are its own, and hold what the names say here. They stay in
/// the hart between exits and are swapped with the vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VsCsrs {
    /// `vsstatus`.
    pub vsstatus: u64,
    /// `vsie`.
    pub vsie: u64,
    /// `vstvec`.
    pub vstvec: u64,
    /// `vsscratch`.
    pub vsscratch: u64,
    /// `vsepc`.
    pub vsepc: u64,
    /// `vscause`.
    pub vscause: u64,
    /// `vstval`.
    pub vstval: u64,
    /// `vsatp`. Under shadow tables the hart's register names one of those, and this is the guest's own
    /// `satp`, whether the vCPU is loaded or not.
    pub vsatp: u64,
    /// `hvip`; of a guest in S mode, `mip`'s S-level bits at the VS-level ones' places.
    pub hvip: u64,
    /// `vstimecmp`, with Sstc.
    pub vstimecmp: u64,
    /// `scounteren`.
    pub scounteren: u64,
    /// `senvcfg`.
    pub senvcfg: u64,
    /// `scountinhibit` of a guest in S mode, on harts that have it.
    pub scountinhibit: u64,
}

/// The registers that a trap into the guest changes, and those it depends on: VS-level ones, or, where
/// the guest runs in S mode ([`crate::device::offer::GuestMode`]), the S-level ones themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VsTrapRegs {
    /// `vsstatus`.
    pub vsstatus: u64,
    /// `vstvec`.
    pub vstvec: u64,
    /// `vsepc`.
    pub vsepc: u64,
    /// `vscause`.
    pub vscause: u64,
    /// `vstval`.
    pub vstval: u64,
}

/// The list of the CSRs that a trap to supervisor mode is about, by their names in [`VsCsrs`] and in the privileged spec. Everything
/// that saves or restores them all (a change of vCPUs, a snapshot, the debugger) does so by this list: the macro `$each` gets its other
/// arguments first, then the list.
#[macro_export]
macro_rules! supervisor_csrs {
    ($each:ident! { $($args:tt)* }) => {
        $each! {
            $($args)*
            [
                vsstatus sstatus, vsie sie, vstvec stvec, vsscratch sscratch, vsepc sepc, vscause scause, vstval stval
            ]
        }
    };
}
pub use supervisor_csrs;
