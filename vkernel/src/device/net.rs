//! A virtio network card (virtio 1.2, 5.1) with one pair of queues.
#![expect(unsafe_code, reason = "buffers that the device uses are the driver's until they come back")]

use super::virtio::{self, HeapHal, notify, open};
use crate::net::{self, Link, Settings};
use crate::sync::Mutex;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

/// Frames of each direction.
const FRAMES: usize = 32;
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const MAC: u64 = 1 << 5;
const VERSION_1: u64 = 1 << 32;
/// Bytes in front of a frame (`struct virtio_net_hdr`).
const HEAD: usize = 12;
/// Bytes of a buffer.
const BYTES: usize = HEAD + 1514;

struct Queue {
    number: u16,
    ring: Box<VirtQueue<HeapHal, FRAMES>>,
    /// Buffers that the device has, by the ring's tokens.
    used: Vec<(u16, Vec<u8>)>,
}

/// The registers and the queues.
struct Card {
    transport: MmioTransport<'static>,
    receive: Queue,
    transmit: Queue,
}

// SAFETY: its pointers are to memory and registers that are its own, on whichever hart it is used.
unsafe impl Send for Card {}

static CARD: Mutex<Option<Card>> = Mutex::new(None);
/// Set if the card has interrupted.
static IS_RAISED: AtomicBool = AtomicBool::new(false);

/// The card, for the network.
struct Handle;

/// Uses the device at a place, if it is a card, and the command line has settings for it.
pub fn start(at: u64, settings: Option<Settings>) -> bool {
    let Some(settings) = settings else { return false };
    let Some((mut transport, features)) = open(at, DeviceType::Network, MAC | VERSION_1) else { return false };
    if features != MAC | VERSION_1 || CARD.lock().is_some() {
        return false;
    }
    let mut mac = [0; 6];
    for (at, byte) in mac.iter_mut().enumerate() {
        let Ok(known) = transport.read_config_space::<u8>(at) else { return false };
        *byte = known;
    }
    let mut queue = |number| {
        let ring = VirtQueue::new(&mut transport, number, false, false).ok()?;
        Some(Queue { number, ring: Box::new(ring), used: Vec::new() })
    };
    let (Some(receive), Some(transmit)) = (queue(RECEIVE), queue(TRANSMIT)) else { return false };
    virtio::start(&mut transport);
    let mut card = Card { transport, receive, transmit };
    (0..FRAMES).for_each(|_| card.offer(vec![0; BYTES]));
    notify(&mut card.transport, &card.receive.ring, RECEIVE);
    *CARD.lock() = Some(card);
    if let Err(why) = net::start(Box::new(Handle), mac, settings) {
        crate::report(format_args!("the network: error {}", why.0));
    }
    true
}

/// Ends the card's interrupt, and lets the network look.
pub fn acknowledge() {
    IS_RAISED.store(true, Ordering::SeqCst);
    // Another hart that has the card ends it when it looks next.
    if let Some(mut card) = CARD.try_lock()
        && let Some(card) = &mut *card
    {
        card.end_interrupt();
        net::wake();
    } else {
        net::wake();
    }
}

impl Queue {
    fn add(&mut self, mut buffer: Vec<u8>, is_for_device: bool) {
        // SAFETY: the buffer stays in `used` until the device gives it back.
        let added = unsafe {
            if is_for_device { self.ring.add(&[&buffer], &mut []) } else { self.ring.add(&[], &mut [&mut buffer]) }
        };
        if let Ok(token) = added {
            self.used.push((token, buffer));
        }
    }

    /// Takes a buffer that the device has used, and its length.
    fn take(&mut self, is_for_device: bool) -> Option<(Vec<u8>, usize)> {
        let token = self.ring.peek_used()?;
        let at = self.used.iter().position(|(used, _)| *used == token)?;
        let (_, mut buffer) = self.used.swap_remove(at);
        // SAFETY: the buffer that was added with this token.
        let count = unsafe {
            if is_for_device {
                self.ring.pop_used(token, &[&buffer], &mut [])
            } else {
                self.ring.pop_used(token, &[], &mut [&mut buffer])
            }
        };
        match count {
            Ok(count) => {
                let count = (count as usize).min(buffer.len());
                Some((buffer, count))
            }
            Err(_) => {
                // The device may still write to it.
                core::mem::forget(buffer);
                None
            }
        }
    }
}

impl Card {
    fn offer(&mut self, buffer: Vec<u8>) {
        self.receive.add(buffer, false);
    }

    fn end_interrupt(&mut self) {
        if IS_RAISED.swap(false, Ordering::SeqCst) {
            self.transport.ack_interrupt();
        }
    }
}

impl Link for Handle {
    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut card = CARD.lock();
        let card = card.as_mut()?;
        card.end_interrupt();
        let (buffer, count) = card.receive.take(false)?;
        let frame = buffer[HEAD.min(count)..count].to_vec();
        card.offer(buffer);
        notify(&mut card.transport, &card.receive.ring, card.receive.number);
        Some(frame)
    }

    fn has_room(&mut self) -> bool {
        let mut card = CARD.lock();
        let Some(card) = card.as_mut() else { return false };
        card.end_interrupt();
        while card.transmit.take(true).is_some() {}
        card.transmit.used.len() < FRAMES
    }

    fn send(&mut self, frame: Vec<u8>) {
        let mut card = CARD.lock();
        let Some(card) = card.as_mut() else { return };
        let buffer = [&[0; HEAD][..], &frame].concat();
        card.transmit.add(buffer, true);
        notify(&mut card.transport, &card.transmit.ring, card.transmit.number);
    }
}
