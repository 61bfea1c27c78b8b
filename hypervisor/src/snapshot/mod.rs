//! Snapshots of VMs ([`abi::snapshot`]): how one is taken by the control channel, and how a VM goes on from one.
//!
//! ```text
//!  Save::Begin ──► paused ──► all vCPUs aside, devices done with what they were asked for ──► frozen: the state is encoded
//!                   Later ◄────────┘                                                            │
//!  Save::Pages, Save::State ◄──── RAM and state, which nobody changes ◄─────────────────────────┤
//!  Save::End, or resume, or stop ──► nobody can ask for more of it ◄────────────────────────────┘
//! ```
//!
//! RAM comes into the machine as images do, by segments of the bundle, so nothing of the VM's memory is different from that of one which
//! has just been started. The state replaces what [`VcpuRun::reset`](crate::vcpu::VcpuRun::reset) and the devices' resets would leave.

mod check;
mod put;
mod take;

pub use check::{check, clock};
pub(crate) use put::put;
pub(crate) use take::{ask, let_go};

use alloc::vec::Vec;

/// The snapshots of a VM.
#[derive(Debug, Default)]
pub struct Savings {
    /// The number of the last one.
    last: u32,
    /// The one that is being taken.
    now: Option<Saving>,
}

impl Savings {
    /// Whether one is being taken.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.now.is_some()
    }
}

/// A snapshot that is being taken.
#[derive(Debug)]
struct Saving {
    id: u32,
    /// Whether the VM ran before.
    was_running: bool,
    /// The encoded state, once it is there. Until then the VM may not stand still.
    state: Option<Vec<u8>>,
}
