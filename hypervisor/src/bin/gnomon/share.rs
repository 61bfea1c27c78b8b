//! A virtio 9P device of the host's, by which guests reach a folder of it.
//!
//! The queue is that of the crate `virtio-drivers`, which has no driver of such devices.

use crate::block::Piece;
use crate::virtio::{HeapHal, Opened};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::array;
use core::sync::atomic::{Ordering, fence};
use hypervisor::device::virtio::wire::share::MOUNT_TAG;
use hypervisor::device::virtio::wire::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use hypervisor::disks::NotBegun;
use hypervisor::machine::VirtioSlot;
use hypervisor::shares::{Asked, HostShare, MOST_FLYING, Token, UNIT_BYTES, UNITS, Units};
use mmu::frames::{Frames, Owner, Use};
use rv::{Addr, Hpa, PAGE_BYTES};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

const QUEUE: u16 = 0;
/// Descriptors: two for each message, where they are not indirect.
const DESCRIPTORS: usize = 2 * MOST_FLYING;
/// Pages of a buffer, as a power of two.
const BUFFER_ORDER: u8 = (UNITS * UNIT_BYTES / PAGE_BYTES as usize).trailing_zeros() as u8;

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
    buffer: Addr<Hpa>,
    /// By token.
    pending: Box<[Option<Asked>; DESCRIPTORS]>,
}

impl GuestShare {
    /// That device, with a buffer that it has for ever; `None` if there is no memory for one.
    pub fn new(device: ShareDevice, frames: &Frames) -> Option<Self> {
        let buffer = frames.alloc(Owner::Host, Use::Other, BUFFER_ORDER).ok()?;
        Some(Self { device, buffer: buffer.first().base(), pending: Box::new(array::from_fn(|_| None)) })
    }

    /// So many bytes of the buffer, from that one on.
    fn piece(&self, units: Units, at: usize, bytes: usize) -> Piece {
        assert!(units.first + units.count <= UNITS && at + bytes <= units.bytes(), "more than the units have");
        Piece { start: Addr::new(self.buffer.raw() + (units.first * UNIT_BYTES + at) as u64), bytes }
    }

    /// Where a message is, and where its answer is to be.
    fn pieces(&self, asked: &Asked) -> (Piece, Piece) {
        let Asked { units, message, room } = *asked;
        (self.piece(units, 0, message), self.piece(units, asked.answer_at(), room))
    }
}

impl HostShare for GuestShare {
    fn buffer(&mut self, units: Units) -> &mut [u8] {
        // SAFETY: frames that are this share's for ever, and units that are not in flight, as the caller promises.
        unsafe { self.piece(units, 0, units.bytes()).bytes() }
    }

    fn begin(&mut self, asked: &Asked) -> Result<Token, NotBegun> {
        let (message, answer) = self.pieces(asked);
        let device = &mut self.device;
        // SAFETY: units are the device's until it has answered, and nobody touches them so long.
        let added = unsafe { device.queue.add(&[message.bytes()], &mut [answer.bytes()]) };
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
        let popped = unsafe { self.device.queue.pop_used(token, &[message.bytes()], &mut [answer.bytes()]) };
        Some((Token(token), popped.map_or(0, |bytes| bytes as usize)))
    }

    fn acknowledge(&mut self) {
        let _ = self.device.transport.ack_interrupt();
    }
}
