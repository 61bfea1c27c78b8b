//! The line of the control channel: port 0 of the host's virtio console. The machine's own console is its UART.
//!
//! The queues are those of the crate `virtio-drivers`; its driver of consoles would wait for what it sends.

use crate::virtio::{HeapHal, Opened, notify};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use hypervisor::backend::channel::Line;
use hypervisor::device::virtio::wire::VERSION_1;
use hypervisor::machine::description::VirtioSlot;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const QUEUE: usize = 2;
/// Bytes of a piece.
const PIECE: usize = 4 << 10;

/// The device.
pub struct ControlDevice {
    transport: MmioTransport<'static>,
    incoming: Box<VirtQueue<HeapHal, QUEUE>>,
    outgoing: Box<VirtQueue<HeapHal, QUEUE>>,
    /// The memory for the device's input: the device's own while it is offered.
    piece: Box<[u8; PIECE]>,
    /// The frame that the device sends, if it is not sent yet, and its token.
    sent: Option<(u16, Vec<u8>)>,
}

impl ControlDevice {
    /// Opens the console at a place for one, if there is one.
    pub fn open(slot: &VirtioSlot) -> Option<Self> {
        let mut opened = Opened::open(slot, DeviceType::Console, VERSION_1)?;
        let incoming = opened.queue(RECEIVE)?;
        let mut outgoing = opened.queue(TRANSMIT)?;
        // What was sent is looked after when more is.
        outgoing.set_dev_notify(false);
        let (transport, _) = opened.start();
        let mut device = Self { transport, incoming, outgoing, piece: Box::new([0; PIECE]), sent: None };
        device.offer();
        Some(device)
    }

    fn offer(&mut self) {
        // SAFETY: the buffer stays where it is, and is not looked at before the device has given it back.
        let added = unsafe { self.incoming.add(&[], &mut [&mut self.piece[..]]) };
        // There is never another one in the queue. Without one, nothing comes any more.
        if added.is_ok() {
            notify(&mut self.transport, &self.incoming, RECEIVE);
        }
    }

    /// Takes back what the device has sent.
    fn reclaim(&mut self) {
        let Some(token) = self.outgoing.peek_used() else { return };
        let Some((_, frame)) = self.sent.take_if(|(own, _)| *own == token) else {
            panic!("a console has sent what it was not given")
        };
        // SAFETY: what it was given.
        let popped = unsafe { self.outgoing.pop_used(token, &[&frame], &mut []) };
        assert!(popped.is_ok(), "a console mixes up what it has sent");
    }
}

impl Line for ControlDevice {
    fn acknowledge(&mut self) {
        let _ = self.transport.ack_interrupt();
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        // The interrupt was noticed before this looks.
        fence(Ordering::SeqCst);
        let Some(token) = self.incoming.peek_used() else { return false };
        // SAFETY: the buffer that it was given.
        let popped = unsafe { self.incoming.pop_used(token, &[], &mut [&mut self.piece[..]]) };
        let Ok(length) = popped else { panic!("a console has filled what it was not given") };
        into.extend_from_slice(&self.piece[..PIECE.min(length as usize)]);
        self.offer();
        true
    }

    fn has_more(&mut self) -> bool {
        fence(Ordering::SeqCst);
        self.incoming.can_pop()
    }

    fn send(&mut self, frame: Vec<u8>) {
        self.reclaim();
        if self.sent.is_some() {
            return;
        }
        // SAFETY: the frame is kept, and not written, until the device has done with it.
        let added = unsafe { self.outgoing.add(&[&frame], &mut []) };
        if let Ok(token) = added {
            self.sent = Some((token, frame));
            notify(&mut self.transport, &self.outgoing, TRANSMIT);
        }
    }
}
