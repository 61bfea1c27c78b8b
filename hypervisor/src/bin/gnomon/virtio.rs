//! The common part of all drivers of the host's virtio devices.

use alloc::alloc::{alloc_zeroed, dealloc};
use alloc::boxed::Box;
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::{Ordering, fence};
use hypervisor::device::virtio::wire::{EVENT_IDX, INDIRECT_DESC};
use hypervisor::machine::description::VirtioSlot;
use rv::PAGE_BYTES;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// Memory for the driver, whose addresses are physical ones in both seats.
pub struct HeapHal;

fn layout(pages: usize) -> Layout {
    let bytes = pages * PAGE_BYTES as usize;
    Layout::from_size_align(bytes, PAGE_BYTES as usize).unwrap_or_else(|_| panic!("{pages} pages for a queue"))
}

// SAFETY: the memory is the heap's, and has no other user until it is freed; a physical address that the device is
// given is that of the buffer.
unsafe impl Hal for HeapHal {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // SAFETY: not of size 0.
        let at = NonNull::new(unsafe { alloc_zeroed(layout(pages)) });
        at.map_or((0, NonNull::dangling()), |at| (at.as_ptr().expose_provenance() as u64, at))
    }

    unsafe fn dma_dealloc(_: PhysAddr, at: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: by the caller's promise.
        unsafe { dealloc(at.as_ptr(), layout(pages)) };
        0
    }

    unsafe fn mmio_phys_to_virt(at: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(ptr::with_exposed_provenance_mut(at as usize)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.as_ptr().cast::<u8>().expose_provenance() as u64
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// A device with which the driver has agreed on features, and that does nothing yet.
pub struct Opened {
    transport: MmioTransport<'static>,
    /// The features that both have.
    pub features: u64,
}

impl Opened {
    /// Opens a device at a place for one, if it is of that kind. It is to have those of its features that are wanted.
    pub fn open(slot: &VirtioSlot, kind: DeviceType, wanted: u64) -> Option<Self> {
        let header = NonNull::new(ptr::with_exposed_provenance_mut::<VirtIOHeader>(slot.span.start as usize))?;
        // SAFETY: a virtio-mmio slot that the device tree names, and that no other code uses.
        let mut transport = unsafe { MmioTransport::new(header, slot.span.bytes as usize) }.ok()?;
        if transport.device_type() != kind {
            return None;
        }
        transport.set_status(DeviceStatus::empty());
        let status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
        transport.set_status(status);
        let features = transport.read_device_features() & wanted;
        transport.write_driver_features(features);
        transport.set_status(status | DeviceStatus::FEATURES_OK);
        transport.set_guest_page_size(PAGE_BYTES as u32);
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
        let status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER | DeviceStatus::FEATURES_OK;
        self.transport.set_status(status | DeviceStatus::DRIVER_OK);
        (self.transport, self.features)
    }
}

/// Notifies the device of what was added to `queue`, its queue number `at`, if the device wants to hear of it.
pub fn notify<const SIZE: usize>(transport: &mut MmioTransport<'_>, queue: &VirtQueue<HeapHal, SIZE>, at: u16) {
    // The device asks to be notified, and then looks for what was added: one of both sees the other (virtio 1.2, 2.7.13.4.1).
    // `should_notify` may otherwise be answered before what was added is seen, and the queue stands still.
    fence(Ordering::SeqCst);
    if queue.should_notify() {
        transport.notify(at);
    }
}
