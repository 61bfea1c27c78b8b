//! The port by which the host gives input and gets output: a virtio console with several ports (virtio 1.2, 5.3), of which one is used.
#![expect(unsafe_code, reason = "buffers that the device uses are the driver's until they come back")]

use super::virtio::{self, HeapHal, notify, open};
use crate::link;
use crate::sync::Mutex;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

/// Entries of each queue, and as many buffers.
const SIZE: usize = 4;
/// Bytes of a buffer.
const BYTES: usize = 4096;
const MULTIPORT: u64 = 1 << 1;
const VERSION_1: u64 = 1 << 32;
/// Queues: control messages, and the first port that has a name.
const CONTROL_RECEIVE: u16 = 2;
const CONTROL_TRANSMIT: u16 = 3;
const RECEIVE: u16 = 4;
const TRANSMIT: u16 = 5;
/// The number of that port.
const PORT: u32 = 1;

/// Events of control messages.
mod event {
    pub const DEVICE_READY: u16 = 0;
    pub const PORT_ADD: u16 = 1;
    pub const PORT_READY: u16 = 3;
    pub const PORT_OPEN: u16 = 6;
}

/// A queue with its buffers, each of which the device or the driver has.
struct Queue {
    number: u16,
    ring: Box<VirtQueue<HeapHal, SIZE>>,
    free: Vec<Box<[u8; BYTES]>>,
    /// Buffers that the device has, by the ring's tokens, with the number of bytes that are sent.
    used: Vec<(u16, Box<[u8; BYTES]>, usize)>,
}

impl Queue {
    fn new(transport: &mut MmioTransport<'static>, number: u16) -> Option<Self> {
        let ring = Box::new(VirtQueue::new(transport, number, false, false).ok()?);
        let free = (0..SIZE).map(|_| Box::new([0; BYTES])).collect();
        Some(Self { number, ring, free, used: Vec::new() })
    }

    /// Gives the device all free buffers to fill.
    fn offer(&mut self, transport: &mut MmioTransport<'static>) {
        while let Some(mut buffer) = self.free.pop() {
            // SAFETY: the buffer stays in `used` until the device gives it back.
            match unsafe { self.ring.add(&[], &mut [&mut buffer[..]]) } {
                Ok(token) => self.used.push((token, buffer, 0)),
                Err(_) => return self.free.push(buffer),
            }
        }
        notify(transport, &self.ring, self.number);
    }

    /// Takes a buffer that the device has filled.
    fn received(&mut self) -> Option<(Box<[u8; BYTES]>, usize)> {
        let token = self.ring.peek_used()?;
        let at = self.used.iter().position(|(used, ..)| *used == token)?;
        let (_, mut buffer, _) = self.used.swap_remove(at);
        // SAFETY: the buffer that was added with this token.
        let count = unsafe { self.ring.pop_used(token, &[], &mut [&mut buffer[..]]) }.ok()?;
        Some((buffer, (count as usize).min(BYTES)))
    }

    /// Takes back buffers that were sent.
    fn reclaim(&mut self) {
        while let Some(token) = self.ring.peek_used() {
            let Some(at) = self.used.iter().position(|(used, ..)| *used == token) else { return };
            let (_, buffer, bytes) = self.used.swap_remove(at);
            // SAFETY: the buffer that was added with this token.
            let _ = unsafe { self.ring.pop_used(token, &[&buffer[..bytes]], &mut []) };
            self.free.push(buffer);
        }
    }

    /// Sends what `fill` writes into a buffer, if there is one and anything was written. Returns whether that is so.
    fn send(&mut self, transport: &mut MmioTransport<'static>, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        self.reclaim();
        let Some(mut buffer) = self.free.pop() else { return false };
        let bytes = fill(&mut buffer[..]);
        if bytes == 0 {
            self.free.push(buffer);
            return false;
        }
        // SAFETY: the buffer stays in `used` until the device gives it back.
        match unsafe { self.ring.add(&[&buffer[..bytes]], &mut []) } {
            Ok(token) => self.used.push((token, buffer, bytes)),
            Err(_) => self.free.push(buffer),
        }
        notify(transport, &self.ring, self.number);
        true
    }
}

struct Driver {
    transport: MmioTransport<'static>,
    control_in: Queue,
    control_out: Queue,
    data_in: Queue,
    data_out: Queue,
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);
/// Set if the device is to be serviced.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Set if the device has interrupted.
static IS_RAISED: AtomicBool = AtomicBool::new(false);

// SAFETY: its pointers are to memory and registers that are its own, on whichever hart it is used.
unsafe impl Send for Driver {}

/// Uses the device at a place, if it has ports.
pub fn start(at: u64) -> bool {
    let Some((mut transport, features)) = open(at, DeviceType::Console, MULTIPORT | VERSION_1) else { return false };
    if features & MULTIPORT == 0 {
        return false;
    }
    let mut queue = |number| Queue::new(&mut transport, number);
    // The first port's queues are the console's.
    let queues = (queue(CONTROL_RECEIVE), queue(CONTROL_TRANSMIT), queue(RECEIVE), queue(TRANSMIT));
    let (Some(control_in), Some(control_out), Some(data_in), Some(data_out)) = queues else { return false };
    virtio::start(&mut transport);
    let mut driver = Driver { transport, control_in, control_out, data_in, data_out };
    driver.control_in.offer(&mut driver.transport);
    driver.data_in.offer(&mut driver.transport);
    driver.control(0, event::DEVICE_READY, 1);
    *DRIVER.lock() = Some(driver);
    link::use_it();
    true
}

/// Ends the device's interrupt.
pub fn acknowledge() {
    WANTED.store(true, Ordering::SeqCst);
    // Whichever hart has the device does it.
    IS_RAISED.store(true, Ordering::SeqCst);
    service();
}

/// Moves what has come, and what is to be sent.
pub fn service() {
    WANTED.store(true, Ordering::SeqCst);
    while WANTED.load(Ordering::SeqCst) {
        // The hart that has the device, which may be this one, looks again when it is done.
        let Some(mut driver) = DRIVER.try_lock() else { return };
        WANTED.store(false, Ordering::SeqCst);
        if let Some(driver) = &mut *driver {
            if IS_RAISED.swap(false, Ordering::SeqCst) {
                driver.transport.ack_interrupt();
            }
            driver.service();
        }
    }
}

impl Driver {
    fn control(&mut self, id: u32, event: u16, value: u16) {
        self.control_out.send(&mut self.transport, |to| {
            to[..4].copy_from_slice(&id.to_le_bytes());
            to[4..6].copy_from_slice(&event.to_le_bytes());
            to[6..8].copy_from_slice(&value.to_le_bytes());
            8
        });
    }

    fn service(&mut self) {
        while let Some((buffer, count)) = self.control_in.received() {
            if count >= 8 {
                let id = u32::from_le_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
                let [event, value] = [4, 6].map(|at| u16::from_le_bytes([buffer[at], buffer[at + 1]]));
                self.control_in.free.push(buffer);
                self.handle(id, event, value);
            } else {
                self.control_in.free.push(buffer);
            }
        }
        self.control_in.offer(&mut self.transport);
        while let Some((buffer, count)) = self.data_in.received() {
            link::receive(&buffer[..count]);
            self.data_in.free.push(buffer);
        }
        self.data_in.offer(&mut self.transport);
        while self.data_out.send(&mut self.transport, link::send) {}
    }

    fn handle(&mut self, id: u32, event: u16, value: u16) {
        match event {
            event::PORT_ADD => {
                self.control(id, event::PORT_READY, u16::from(id == PORT));
                if id == PORT {
                    self.control(id, event::PORT_OPEN, 1);
                }
            }
            event::PORT_OPEN if id == PORT => link::set_connected(value != 0),
            _ => {}
        }
    }
}
