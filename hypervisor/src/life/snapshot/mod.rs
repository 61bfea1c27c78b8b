//! Snapshots ([`abi::snapshot`]): [`take`] takes them, `put` restores a VM from one.
//!
//! RAM comes into the machine as images do, by segments of the bundle, so nothing of the VM's memory is different from
//! that of one which has just been started. The state replaces what [`VcpuRun::reset`](crate::vm::vcpu::VcpuRun::reset)
//! and the devices' resets would leave.

mod arrive;
mod check;
mod log;
mod put;
pub(crate) mod take;

pub(crate) use arrive::ask as load;
pub(crate) use check::disks;
pub use check::{check, clock};
pub(crate) use put::put;
