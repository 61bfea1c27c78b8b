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
/// Pieces that the device may fill: a long message is some of them, and then it need not wait for each.
const PIECES: usize = 16;
/// Bytes of a piece. QEMU does not fill more than 4 KiB of one.
const PIECE: usize = 4 << 10;

/// The device.
pub struct ControlDevice {
    transport: MmioTransport<'static>,
    incoming: Box<VirtQueue<HeapHal, PIECES>>,
    outgoing: Box<VirtQueue<HeapHal, QUEUE>>,
    /// The memory for the device's input: the device's own while it is offered.
    pieces: Vec<Box<[u8; PIECE]>>,
    /// The piece that was offered by each token.
    offered: [u8; PIECES],
    /// The piece that is filled and not released, with the number of its bytes.
    filled: Option<(usize, usize)>,
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
        let pieces = (0..PIECES).map(|_| Box::new([0; PIECE])).collect();
        let mut device = Self { transport, incoming, outgoing, pieces, offered: [0; PIECES], filled: None, sent: None };
        (0..PIECES).for_each(|piece| device.offer(piece));
        notify(&mut device.transport, &device.incoming, RECEIVE);
        Some(device)
    }

    /// Offers a piece to the device, which is to be notified.
    fn offer(&mut self, piece: usize) {
        // SAFETY: the buffer stays where it is, and is not looked at before the device has given it back.
        let added = unsafe { self.incoming.add(&[], &mut [&mut self.pieces[piece][..]]) };
        // The queue has room for all of them.
        if let Ok(token) = added {
            self.offered[usize::from(token)] = piece as u8;
        }
    }

    /// Takes a piece that the device has filled, and the number of its bytes.
    fn take(&mut self) -> Option<(usize, usize)> {
        // The interrupt was noticed before this looks.
        fence(Ordering::SeqCst);
        let token = self.incoming.peek_used()?;
        let piece = self.offered.get(usize::from(token)).map(|piece| usize::from(*piece));
        let Some(piece) = piece else { panic!("a console has filled what it was not given") };
        // SAFETY: the buffer that it was given.
        let popped = unsafe { self.incoming.pop_used(token, &[], &mut [&mut self.pieces[piece][..]]) };
        let Ok(length) = popped else { panic!("a console has filled what it was not given") };
        Some((piece, PIECE.min(length as usize)))
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

    fn piece(&mut self) -> Option<&[u8]> {
        if self.filled.is_none() {
            self.filled = self.take();
        }
        self.filled.map(|(piece, bytes)| &self.pieces[piece][..bytes])
    }

    fn release(&mut self) {
        if let Some((piece, _)) = self.filled.take() {
            self.offer(piece);
            notify(&mut self.transport, &self.incoming, RECEIVE);
        }
    }

    fn has_more(&mut self) -> bool {
        fence(Ordering::SeqCst);
        self.filled.is_some() || self.incoming.can_pop()
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
