//! Counters of harts and vCPUs, and the notes that harts take while a client of the control channel asks for them.

pub mod counters;
pub mod probe;
