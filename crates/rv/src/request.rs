//! The request of a memory access.

/// The kind of an access. It decides which permission is needed and which fault is raised; the
/// fault is always that of the original access, even when an implicit page-table read fails
/// (norm:H_vm_gpapriv).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// A load.
    Load,
    /// A store or AMO.
    Store,
    /// An instruction fetch.
    Fetch,
    /// HLVX: a load that needs execute permission in place of read permission.
    LoadExec,
}

/// The effective privilege of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// U or VU.
    User,
    /// S, HS or VS.
    Supervisor,
}

/// An access with everything outside the page tables that its permission check depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// The kind of access.
    pub access: Access,
    /// Effective privilege.
    pub mode: Mode,
    /// `SUM` of the status register that governs the first stage.
    pub sum: bool,
    /// `MXR` of the status register that governs the first stage (vsstatus, for two stages).
    pub mxr: bool,
    /// `sstatus.MXR` of HS: makes execute-only pages readable in *both* stages
    /// (norm:sstatus-mxr_vm). Equal to `mxr` or false for one-stage walks.
    pub hs_mxr: bool,
}

impl Request {
    /// A supervisor access with SUM and MXR clear.
    #[must_use]
    pub const fn supervisor(access: Access) -> Self {
        Self { access, mode: Mode::Supervisor, sum: false, mxr: false, hs_mxr: false }
    }

    /// A user access with MXR clear.
    #[must_use]
    pub const fn user(access: Access) -> Self {
        Self { access, mode: Mode::User, sum: false, mxr: false, hs_mxr: false }
    }

    /// Returns the request as the G-stage sees it: user mode, and only HS's MXR counts (norm:H_vm_gpapriv).
    #[must_use]
    pub const fn at_g_stage(self) -> Self {
        Self { mode: Mode::User, sum: false, mxr: self.hs_mxr, ..self }
    }
}
