//! The hypervisor CSRs, and names of their bits.

use rv::Interrupt;

/// The VS-level interrupts, by their bits in `hvip` and `hie`.
pub const VS_INTERRUPTS: u64 = Interrupt::VsSoft.bit() | Interrupt::VsTimer.bit() | Interrupt::VsExternal.bit();

/// The hypervisor CSRs of a vCPU that are not views of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HypervisorCsrs {
    /// `hstatus`, without VSXL.
    pub hstatus: u64,
    /// `hedeleg`.
    pub hedeleg: u64,
    /// `hideleg`.
    pub hideleg: u64,
    /// `hie`. While L2 runs, the bits that `hideleg` delegates are in its `vsie`.
    pub hie: u64,
    /// `hcounteren`.
    pub hcounteren: u64,
    /// `htimedelta`.
    pub htimedelta: u64,
    /// `htval`.
    pub htval: u64,
    /// `htinst`.
    pub htinst: u64,
    /// `hgatp`.
    pub hgatp: u64,
    /// `henvcfg`.
    pub henvcfg: u64,
}
