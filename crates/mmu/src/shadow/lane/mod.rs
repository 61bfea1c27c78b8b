//! The gate and the memory that the engine shares with the lane.

mod gate;
mod memory;

pub use gate::Gate;
pub use memory::{GLOBAL_LEAVES, ID_AT, LEAVES, LINE_BYTES, LOG_AT, LaneMemory, Leaves, faults_always, whole_chunk};
