//! vCPUs: what others see of one, and what the hart that runs it owns.

mod run;
mod shared;
mod watch;

pub use run::{VcpuRun, VectorState, VsCsrs};
pub use shared::{FenceQueue, NO_ASID, NOWHERE, Vcpu, hsm, request};
pub use watch::{Stuck, Watch};
