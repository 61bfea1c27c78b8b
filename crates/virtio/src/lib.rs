//! The common part of all drivers of virtio devices: their memory, and the steps before and behind a driver's own.
#![no_std]
#![expect(unsafe_code, reason = "devices' registers and buffers, by their addresses")]

extern crate alloc;

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use rv::PAGE_BYTES;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// The relation of the program's addresses to physical ones.
///
/// # Safety
/// Each function is right for all memory of the heap and for all buffers that drivers use.
pub unsafe trait Addresses {
    /// Returns the physical address of something.
    fn physical(at: *const u8) -> PhysAddr;
    /// Returns the address by which the program reaches a physical one.
    fn pointer(at: PhysAddr) -> *mut u8;
}

/// Memory for drivers: the heap.
#[derive(Debug)]
pub struct HeapHal<A>(PhantomData<A>);

fn layout(pages: usize) -> Layout {
    let bytes = pages * PAGE_BYTES as usize;
    Layout::from_size_align(bytes, PAGE_BYTES as usize).unwrap_or_else(|_| panic!("{pages} pages for a queue"))
}

// SAFETY: the memory is the heap's, and has no other user until it is freed; a physical address that the device is
// given is that of the buffer.
unsafe impl<A: Addresses> Hal for HeapHal<A> {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // SAFETY: not of size 0.
        let at = NonNull::new(unsafe { alloc_zeroed(layout(pages)) });
        at.map_or((0, NonNull::dangling()), |at| (A::physical(at.as_ptr()), at))
    }

    unsafe fn dma_dealloc(_: PhysAddr, at: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: by the caller's promise.
        unsafe { dealloc(at.as_ptr(), layout(pages)) };
        0
    }

    unsafe fn mmio_phys_to_virt(at: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(A::pointer(at)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        A::physical(buffer.as_ptr().cast())
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// Opens the device in a slot, if it is of that kind: the driver has agreed on those of its features that are wanted, and sets queues up next.
/// Returns the features.
///
/// # Safety
/// `registers` is a virtio-mmio slot of so many bytes, which no other code uses.
pub unsafe fn open(
    registers: *mut u8,
    bytes: usize,
    kind: DeviceType,
    wanted: u64,
) -> Option<(MmioTransport<'static>, u64)> {
    let header = NonNull::new(registers.cast::<VirtIOHeader>())?;
    // SAFETY: by the caller's promise.
    let mut transport = unsafe { MmioTransport::new(header, bytes) }.ok()?;
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
    Some((transport, features))
}

/// Lets a device work whose queues are set up.
pub fn start(transport: &mut MmioTransport<'_>) {
    let status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER | DeviceStatus::FEATURES_OK;
    transport.set_status(status | DeviceStatus::DRIVER_OK);
}

/// Notifies the device of what was added to `queue`, its queue number `at`, if the device wants to hear of it.
pub fn notify<H: Hal, const SIZE: usize>(transport: &mut MmioTransport<'_>, queue: &VirtQueue<H, SIZE>, at: u16) {
    // The device asks to be notified, and then looks for what was added: one of both sees the other (virtio 1.2, 2.7.13.4.1).
    // `should_notify` may otherwise be answered before what was added is seen, and the queue stands still.
    fence(Ordering::SeqCst);
    if queue.should_notify() {
        transport.notify(at);
    }
}
