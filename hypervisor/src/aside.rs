//! A VM's vCPUs that are neither on a hart nor with the scheduler. `docs/invariants.md` has the order of the locks.

use crate::vcpu::VcpuRun;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use spin::Mutex;

/// Those of one VM.
#[derive(Default)]
pub struct Aside {
    /// Those that are stopped, by hart id.
    pub parked: Mutex<BTreeMap<u32, Box<VcpuRun>>>,
    /// While the VM is paused, those that have left their harts for that.
    pub paused: Mutex<Option<Vec<Box<VcpuRun>>>>,
}
