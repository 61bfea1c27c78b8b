//! The host's virtio entropy device.
//!
//! The queue is that of the crate `virtio-drivers`; its driver of such devices would wait for the bytes.

use crate::virtio::{HeapHal, Opened, notify};
use alloc::boxed::Box;
use core::sync::atomic::{Ordering, fence};
use hypervisor::backend::entropy::{HostEntropy, PIECE};
use hypervisor::device::virtio::wire::VERSION_1;
use hypervisor::machine::description::VirtioSlot;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

const QUEUE: u16 = 0;
const DESCRIPTORS: usize = 2;

/// The device.
pub struct EntropyDevice {
    transport: MmioTransport<'static>,
    queue: Box<VirtQueue<HeapHal, DESCRIPTORS>>,
    /// The memory for the device's bytes: the device's own while it was asked.
    piece: Box<[u8; PIECE]>,
    is_asked: bool,
}

impl EntropyDevice {
    /// Opens the entropy device at a place for one, if there is one.
    pub fn open(slot: &VirtioSlot) -> Option<Self> {
        let mut opened = Opened::open(slot, DeviceType::EntropySource, VERSION_1)?;
        let queue = opened.queue(QUEUE)?;
        let (transport, _) = opened.start();
        Some(Self { transport, queue, piece: Box::new([0; PIECE]), is_asked: false })
    }
}

impl HostEntropy for EntropyDevice {
    fn ask(&mut self) {
        if self.is_asked {
            return;
        }
        // SAFETY: the buffer stays where it is, and is not looked at before the device has given it back.
        let added = unsafe { self.queue.add(&[], &mut [&mut self.piece[..]]) };
        // There is never another one in the queue.
        assert!(added.is_ok(), "an entropy device has no room for one request");
        self.is_asked = true;
        notify(&mut self.transport, &self.queue, QUEUE);
    }

    fn take(&mut self, into: &mut [u8; PIECE]) -> Option<usize> {
        // The interrupt was noticed before this looks.
        fence(Ordering::SeqCst);
        let token = self.queue.peek_used()?;
        // SAFETY: the buffer that it was given.
        let popped = unsafe { self.queue.pop_used(token, &[], &mut [&mut self.piece[..]]) };
        let Ok(count) = popped else { panic!("an entropy device has filled what it was not given") };
        self.is_asked = false;
        into.copy_from_slice(&self.piece[..]);
        // No copy is kept of what a guest is given.
        self.piece.fill(0);
        Some(PIECE.min(count as usize))
    }

    fn acknowledge(&mut self) {
        let _ = self.transport.ack_interrupt();
    }
}
