//! Shares: virtio 9P devices, of one queue. The specification (virtio 1.2, 5) reserves their number; their only field is the tag.
#![expect(unsafe_code, reason = "buffers that the device uses are the driver's until they come back")]

use super::virtio::{self, HeapHal, notify, open};
use crate::share::{self, Client, Message, Transport};
use crate::sync::Mutex;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport as _};

/// Messages in flight: each takes two entries of the queue.
const MESSAGES: usize = 16;
const SIZE: usize = 2 * MESSAGES;
const QUEUE: u16 = 0;
const MOUNT_TAG: u64 = 1;
const VERSION_1: u64 = 1 << 32;
/// The longest tag, in bytes.
const MOST_TAG: usize = 255;

/// A message in flight, whose buffers the device has.
struct InFlight {
    token: u16,
    message: Arc<Message>,
    bytes: Vec<u8>,
    answer: Vec<u8>,
}

struct Driver {
    transport: MmioTransport<'static>,
    ring: Box<VirtQueue<HeapHal, SIZE>>,
    /// By their tags.
    flights: [Option<InFlight>; MESSAGES],
    /// Set if the device has broken the protocol of the queue. No message is sent any more.
    is_lost: bool,
}

// SAFETY: its pointers are to memory and registers that are its own, on whichever hart it is used.
unsafe impl Send for Driver {}

/// A device.
struct Port {
    driver: Mutex<Driver>,
    /// Set if the device is to be serviced.
    is_wanted: AtomicBool,
    /// Set if the device has interrupted.
    is_raised: AtomicBool,
}

impl core::fmt::Debug for Port {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Port").finish_non_exhaustive()
    }
}

/// All devices with their clients.
static ALL: Mutex<Vec<(Arc<Port>, Arc<Client>)>> = Mutex::new(Vec::new());

/// Uses the device at a place, if it is a share, and begins its session.
pub fn start(at: u64) -> bool {
    let Some((mut transport, features)) = open(at, DeviceType::_9P, MOUNT_TAG | VERSION_1) else { return false };
    let Some(tag) = tag(&transport).filter(|_| features & MOUNT_TAG != 0) else { return false };
    let Ok(ring) = VirtQueue::new(&mut transport, QUEUE, false, false) else { return false };
    virtio::start(&mut transport);
    let driver = Driver { transport, ring: Box::new(ring), flights: [const { None }; MESSAGES], is_lost: false };
    let port = Arc::new(Port {
        driver: Mutex::new(driver),
        is_wanted: AtomicBool::new(false),
        is_raised: AtomicBool::new(false),
    });
    let client = Client::new(Arc::clone(&port) as Arc<dyn Transport>);
    ALL.lock().push((port, Arc::clone(&client)));
    if let Err(why) = share::add(&tag, &client) {
        crate::report(format_args!("share {tag}: error {}", why.0));
    }
    true
}

fn tag(transport: &MmioTransport<'static>) -> Option<String> {
    let length = usize::from(transport.read_config_space::<u16>(0).ok()?).min(MOST_TAG);
    let bytes: Option<Vec<u8>> = (0..length).map(|at| transport.read_config_space::<u8>(2 + at).ok()).collect();
    let tag = String::from_utf8(bytes?).ok()?;
    let is_name = !matches!(&*tag, "" | "." | "..") && !tag.contains(['/', '\0']);
    is_name.then_some(tag)
}

/// Ends the interrupts of all devices.
pub fn acknowledge() {
    for (port, client) in &*ALL.lock() {
        port.is_raised.store(true, Ordering::SeqCst);
        port.service(client);
    }
}

/// Moves the messages and answers of all devices.
pub fn service() {
    ALL.lock().iter().for_each(|(port, client)| port.service(client));
}

impl Transport for Port {
    fn service(&self, client: &Client) {
        self.is_wanted.store(true, Ordering::SeqCst);
        while self.is_wanted.load(Ordering::SeqCst) {
            // The hart that has the device looks again when it is done.
            let Some(mut driver) = self.driver.try_lock() else { return };
            self.is_wanted.store(false, Ordering::SeqCst);
            if self.is_raised.swap(false, Ordering::SeqCst) {
                driver.transport.ack_interrupt();
            }
            driver.receive(client);
            driver.send(client);
        }
    }
}

impl Driver {
    /// Takes answers.
    fn receive(&mut self, client: &Client) {
        while !self.is_lost
            && let Some(token) = self.ring.peek_used()
        {
            let has_token = |flight: &Option<InFlight>| flight.as_ref().is_some_and(|flight| flight.token == token);
            let Some(tag) = self.flights.iter().position(has_token) else { return self.lose(client) };
            let Some(mut flight) = self.flights[tag].take() else { return };
            // SAFETY: the buffers that were added with this token.
            let used = unsafe { self.ring.pop_used(token, &[&flight.bytes], &mut [&mut flight.answer]) };
            let Ok(count) = used else {
                self.flights[tag] = Some(flight);
                return self.lose(client);
            };
            flight.answer.truncate(count as usize);
            flight.message.complete(client, tag as u16, flight.answer);
        }
    }

    /// Ends all messages of a device that does not keep to the protocol. It may still write to the buffers, so they are never freed.
    fn lose(&mut self, client: &Client) {
        self.is_lost = true;
        for (tag, slot) in self.flights.iter_mut().enumerate() {
            if let Some(flight) = slot.take() {
                core::mem::forget((flight.bytes, flight.answer));
                flight.message.complete(client, tag as u16, Vec::new());
            }
        }
    }

    /// Sends messages as far as there is room.
    fn send(&mut self, client: &Client) {
        let mut has_sent = false;
        while let Some(tag) = self.flights.iter().position(|slot| slot.is_none() || self.is_lost) {
            let Some(message) = client.next() else { break };
            if self.is_lost {
                message.complete(client, tag as u16, Vec::new());
                continue;
            }
            let (bytes, mut answer) = (message.take(tag as u16), vec![0; message.room]);
            // SAFETY: the buffers stay in `flights` until the device gives them back.
            match unsafe { self.ring.add(&[&bytes], &mut [&mut answer]) } {
                Ok(token) => self.flights[tag] = Some(InFlight { token, message, bytes, answer }),
                Err(_) => message.complete(client, tag as u16, Vec::new()),
            }
            has_sent = true;
        }
        if has_sent {
            notify(&mut self.transport, &self.ring, QUEUE);
        }
    }
}
