//! A virtio 9P device of the host's, by which guests reach a folder of it.
//!
//! The queue is that of the crate `virtio-drivers`, which has no driver of such devices.

use crate::buffer::{Buffer, bytes_of};
use crate::virtio::{HeapHal, Opened};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::array;
use core::sync::atomic::{Ordering, fence};
use hypervisor::backend::port::HostDevice;
use hypervisor::backend::shares::{Asked, MOST_FLYING, NotBegun, Token, Units};
use hypervisor::device::virtio::wire::share::MOUNT_TAG;
use hypervisor::device::virtio::wire::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use hypervisor::machine::description::VirtioSlot;
use mmu::frames::{Frames, Piece};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

const QUEUE: u16 = 0;
/// Descriptors: two for each message, where they are not indirect.
const DESCRIPTORS: usize = 2 * MOST_FLYING;

/// The device.
pub struct ShareDevice {
    transport: MmioTransport<'static>,
    queue: Box<VirtQueue<HeapHal, DESCRIPTORS>>,
}

impl ShareDevice {
    /// Opens the 9P device at a place for one, if there is one. Returns its tag as well.
    pub fn open(slot: &VirtioSlot) -> Option<(Self, String)> {
        let wanted = MOUNT_TAG | INDIRECT_DESC | EVENT_IDX | VERSION_1;
        let mut opened = Opened::open(slot, DeviceType::_9P, wanted)?;
        let queue = opened.queue(QUEUE)?;
        let (transport, features) = opened.start();
        if features & MOUNT_TAG == 0 {
            return None;
        }
        let length = usize::from(transport.read_config_space::<u16>(0).ok()?);
        let bytes = (0..length).map(|at| transport.read_config_space::<u8>(2 + at).ok());
        let tag = String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()?;
        Some((Self { transport, queue }, tag))
    }
}

/// A guest's share, with the buffer that messages go through.
pub struct GuestShare {
    device: ShareDevice,
    buffer: Buffer,
    /// By token.
    pending: Box<[Option<Asked>; DESCRIPTORS]>,
}

impl GuestShare {
    /// Makes a share of that device, with a buffer that it has for ever; `None` if there is no memory for one.
    pub fn new(device: ShareDevice, frames: &Frames) -> Option<Self> {
        Some(Self { device, buffer: Buffer::new(frames)?, pending: Box::new(array::from_fn(|_| None)) })
    }

    /// Returns the pieces of a message and of its answer.
    fn pieces(&self, asked: &Asked) -> (Piece, Piece) {
        assert!(asked.bytes() <= asked.units.bytes(), "more than the units have");
        let piece = |at, bytes| self.buffer.piece(asked.units, at, bytes);
        (piece(0, asked.message), piece(asked.answer_at(), asked.room))
    }
}

impl HostDevice for GuestShare {
    type Asked = Asked;
    type Outcome = usize;

    fn buffer(&mut self, units: Units) -> &mut [u8] {
        // SAFETY: units that are not in flight, as the caller promises.
        unsafe { self.buffer.bytes(units) }
    }

    fn begin(&mut self, asked: &Asked) -> Result<Token, NotBegun> {
        let (message, answer) = self.pieces(asked);
        let device = &mut self.device;
        // SAFETY: units are the device's until it has answered, and no code accesses them until then.
        let added = unsafe { device.queue.add(&[bytes_of(&message)], &mut [bytes_of(&answer)]) };
        let token = added.map_err(|error| match error {
            virtio_drivers::Error::QueueFull => NotBegun::Busy,
            _ => NotBegun::Failed,
        })?;
        self.pending[usize::from(token)] = Some(*asked);
        if device.queue.should_notify() {
            device.transport.notify(QUEUE);
        }
        Ok(Token(token))
    }

    fn finished(&mut self) -> Option<(Token, usize)> {
        // The interrupt was noticed before this looks; what was taken before is told to the device first.
        fence(Ordering::SeqCst);
        let token = self.device.queue.peek_used()?;
        let asked = self.pending.get_mut(usize::from(token)).and_then(Option::take);
        let Some(asked) = asked else { panic!("a 9P device has answered what it was not asked") };
        let (message, answer) = self.pieces(&asked);
        // SAFETY: what the message was begun with.
        let popped = unsafe { self.device.queue.pop_used(token, &[bytes_of(&message)], &mut [bytes_of(&answer)]) };
        Some((Token(token), popped.map_or(0, |bytes| bytes as usize)))
    }

    fn acknowledge(&mut self) {
        let _ = self.device.transport.ack_interrupt();
    }
}
