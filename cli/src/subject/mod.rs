//! The subjects that tests and benchmarks compare: variants of Gnomon, the bare machine, Linux KVM, and workloads under Linux.

pub mod bare;
pub mod kvm;
pub mod variant;
pub mod workload;
