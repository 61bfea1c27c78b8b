//! The host's virtio devices, before their drivers differ.

pub use ::virtio::notify;
use ::virtio::{Addresses, open, start};
use alloc::boxed::Box;
use core::ptr;
use hypervisor::device::virtio::wire::{EVENT_IDX, INDIRECT_DESC};
use hypervisor::machine::description::VirtioSlot;
use virtio_drivers::PhysAddr;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

/// Addresses of Gnomon's, which are physical ones in both seats.
#[derive(Debug)]
pub struct Physical;

// SAFETY: as said above.
unsafe impl Addresses for Physical {
    fn physical(at: *const u8) -> PhysAddr {
        at.expose_provenance() as u64
    }

    fn pointer(at: PhysAddr) -> *mut u8 {
        ptr::with_exposed_provenance_mut(at as usize)
    }
}

/// Memory for drivers.
pub type HeapHal = ::virtio::HeapHal<Physical>;

/// A device with which the driver has agreed on features, and that does nothing yet.
pub struct Opened {
    transport: MmioTransport<'static>,
    /// The features that both have.
    pub features: u64,
}

impl Opened {
    /// Opens a device at a place for one, if it is of that kind. It is to have those of its features that are wanted.
    pub fn open(slot: &VirtioSlot, kind: DeviceType, wanted: u64) -> Option<Self> {
        let registers = ptr::with_exposed_provenance_mut(slot.span.start as usize);
        // SAFETY: a virtio-mmio slot that the device tree names, and that no other code uses.
        let (transport, features) = unsafe { open(registers, slot.span.bytes as usize, kind, wanted) }?;
        Some(Self { transport, features })
    }

    /// Returns the first six bytes of its configuration: the Ethernet address of a network device.
    pub fn address(&self) -> Option<[u8; 6]> {
        let mut address = [0; 6];
        for (at, byte) in address.iter_mut().enumerate() {
            *byte = self.transport.read_config_space(at).ok()?;
        }
        Some(address)
    }

    /// Sets a queue up. It is large, and stacks are small.
    #[inline(never)]
    pub fn queue<const SIZE: usize>(&mut self, at: u16) -> Option<Box<VirtQueue<HeapHal, SIZE>>> {
        let has = |feature| self.features & feature != 0;
        VirtQueue::new(&mut self.transport, at, has(INDIRECT_DESC), has(EVENT_IDX)).ok().map(Box::new)
    }

    /// Lets it work. Returns its registers, and the features.
    pub fn start(mut self) -> (MmioTransport<'static>, u64) {
        start(&mut self.transport);
        (self.transport, self.features)
    }
}
