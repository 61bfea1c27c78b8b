//! Between a VM's devices and the rest: interrupt lines to its vCPUs, devices' access to guest memory, and the events of the
//! host's devices.

mod dma;
pub mod host_events;
pub mod lines;
pub mod outside;
pub mod serial;
