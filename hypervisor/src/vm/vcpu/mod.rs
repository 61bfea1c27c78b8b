//! vCPUs: the part of one that others see, and the part that the hart that runs it owns.

mod adapts;
mod csrs;
mod features;
mod looks;
pub mod nested;
pub mod pmu;
mod program;
mod root_cache;
mod run;
mod saved;
mod shared;
mod unexplained;
mod watch;
pub(crate) mod way;

pub use adapts::Adapts;
pub use csrs::{VsCsrs, VsTrapRegs, supervisor_csrs};
pub use features::Features;
pub use looks::Looks;
pub use nested::{Nested, World};
pub use pmu::Pmu;
pub use program::Program;
pub use root_cache::RootCache;
pub use run::{Bank, ShadowState, Tables, VcpuRun, VectorState};
pub use shared::{ANY_SPACE, FenceQueue, NO_SPACE, NOWHERE, Vcpu, hsm, request};
pub use unexplained::Unexplained;
pub use watch::{Concern, Stuck, Watch};
pub use way::Way;
