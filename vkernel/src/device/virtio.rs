//! The VM's virtio devices, before their drivers differ.
#![expect(unsafe_code, reason = "devices' registers, by their addresses")]

use crate::machine::{direct, physical};
use ::virtio::Addresses;
pub use ::virtio::{notify, start};
use virtio_drivers::PhysAddr;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::mmio::MmioTransport;

/// Addresses of the kernel's: those of the direct map.
#[derive(Debug)]
pub struct Direct;

// SAFETY: the heap, all stacks and all statics lie in the direct map.
unsafe impl Addresses for Direct {
    fn physical(at: *const u8) -> PhysAddr {
        physical(at)
    }

    fn pointer(at: PhysAddr) -> *mut u8 {
        direct(at)
    }
}

/// Memory for drivers.
pub type HeapHal = ::virtio::HeapHal<Direct>;

/// Opens a device at a place for one, if it is of that kind, with those of its features that are wanted.
pub fn open(at: u64, kind: DeviceType, wanted: u64) -> Option<(MmioTransport<'static>, u64)> {
    const BYTES: usize = 0x1000;
    // SAFETY: a virtio-mmio slot that the device tree names, and that no other code uses.
    unsafe { ::virtio::open(direct(at), BYTES, kind, wanted) }
}
