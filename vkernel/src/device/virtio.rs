//! The common part of all drivers of virtio devices.
#![expect(unsafe_code, reason = "devices' registers and buffers, by their addresses")]

use crate::machine::{direct, physical};
use crate::memory::frames::PAGE;
use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// Memory for drivers: the kernel's heap, which lies in the direct map.
#[derive(Debug)]
pub struct HeapHal;

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * PAGE, PAGE).unwrap_or_else(|_| panic!("{pages} pages for a queue"))
}

// SAFETY: the memory is the heap's, and has no other user until it is freed; a physical address that the device is given is that of the
// buffer.
unsafe impl Hal for HeapHal {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // SAFETY: not of size 0.
        let at = NonNull::new(unsafe { alloc_zeroed(layout(pages)) });
        at.map_or((0, NonNull::dangling()), |at| (physical(at.as_ptr()), at))
    }

    unsafe fn dma_dealloc(_: PhysAddr, at: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: by the caller's promise.
        unsafe { dealloc(at.as_ptr(), layout(pages)) };
        0
    }

    unsafe fn mmio_phys_to_virt(at: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(direct(at)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        physical(buffer.as_ptr().cast::<u8>())
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// Opens a device at a place for one, if it is of that kind, with those of its features that are wanted.
pub fn open(at: u64, kind: DeviceType, wanted: u64) -> Option<(MmioTransport<'static>, u64)> {
    const BYTES: usize = 0x1000;
    let header = NonNull::new(direct(at).cast::<VirtIOHeader>())?;
    // SAFETY: a virtio-mmio slot that the device tree names, and that no other code uses.
    let mut transport = unsafe { MmioTransport::new(header, BYTES) }.ok()?;
    if transport.device_type() != kind {
        return None;
    }
    transport.set_status(DeviceStatus::empty());
    let status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
    transport.set_status(status);
    let features = transport.read_device_features() & wanted;
    transport.write_driver_features(features);
    transport.set_status(status | DeviceStatus::FEATURES_OK);
    transport.set_guest_page_size(PAGE as u32);
    Some((transport, features))
}

/// Notifies the device of what was added to a queue, its number `at`, if the device wants to hear of it.
pub fn notify<const SIZE: usize>(transport: &mut MmioTransport<'_>, queue: &VirtQueue<HeapHal, SIZE>, at: u16) {
    // The device asks to be notified, and then looks for what was added: one of both sees the other (virtio 1.2, 2.7.13.4.1).
    fence(Ordering::SeqCst);
    if queue.should_notify() {
        transport.notify(at);
    }
}
