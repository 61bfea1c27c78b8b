//! Benchmarks: Gnomon beside the bare machine, in units that repeat.

pub mod boot;
