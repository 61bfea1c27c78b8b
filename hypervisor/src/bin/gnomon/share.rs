//! A virtio network device of the host's by which the server of a share is reached ([`hypervisor::backend::shares`]).
//!
//! The device gives packets to the places that it was offered, in their order, and answers come in the order of their
//! messages. So the place of an answer is offered together with its message.

use crate::buffer::{Buffer, bytes_of};
use crate::virtio::{HeapHal, Opened, notify};
use abi::mac::Mac;
use abi::share::has_two_packets;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::ops::Range;
use core::sync::atomic::{Ordering, fence};
use hypervisor::backend::port::HostDevice;
use hypervisor::backend::shares::{self, Asked, BUFFERS_AT, Lost, MOST_FLYING, NotBegun, PACKET_HEAD, Token, Units};
use hypervisor::device::virtio::wire::VERSION_1;
use hypervisor::device::virtio::wire::net::{MAC, MRG_RXBUF, RECEIVE, TRANSMIT};
use hypervisor::machine::description::VirtioSlot;
use mmu::frames::{Frames, Piece};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

/// Most descriptors of a message, and of its answer: one for the first packet, and two for the second, whose head is elsewhere.
const MOST_DESCRIPTORS: usize = 3;
/// Descriptors of a queue.
const DESCRIPTORS: usize = 128;
const _: () = assert!(DESCRIPTORS >= MOST_FLYING * MOST_DESCRIPTORS);

/// The head of a packet that goes: there is nothing to be done about it.
static PLAIN: [u8; PACKET_HEAD] = [0; PACKET_HEAD];

type Queue = VirtQueue<HeapHal, DESCRIPTORS>;

/// The device.
pub struct ShareDevice {
    transport: MmioTransport<'static>,
    incoming: Box<Queue>,
    outgoing: Box<Queue>,
}

impl ShareDevice {
    /// Opens the network device at a place for one, if it is a share's by its address. Returns the share's number as well.
    pub fn open(slot: &VirtioSlot) -> Option<(Self, u32)> {
        let mut opened = Opened::open(slot, DeviceType::Network, MAC | MRG_RXBUF | VERSION_1)?;
        // Without one of these the head of a packet is shorter.
        if opened.features & MAC == 0 || opened.features & (MRG_RXBUF | VERSION_1) == 0 {
            return None;
        }
        let number = abi::share::number_of(Mac(opened.address()?))?;
        let incoming = opened.queue(RECEIVE as u16)?;
        let mut outgoing = opened.queue(TRANSMIT as u16)?;
        // What was sent is looked after when it is answered.
        outgoing.set_dev_notify(false);
        let (transport, _) = opened.start();
        Some((Self { transport, incoming, outgoing }, number))
    }
}

/// The device's work on a message, or on its answer: the tokens of its packets in their order, and how many it has done.
#[derive(Clone, Copy, Default)]
struct Packets {
    tokens: [u16; 2],
    count: u8,
    done: u8,
}

impl Packets {
    fn push(&mut self, token: u16) {
        self.tokens[usize::from(self.count)] = token;
        self.count += 1;
    }

    /// Returns the token of the next packet, if the device has one, and whether it is the first.
    fn next(&self) -> Option<(u16, bool)> {
        (self.done < self.count).then(|| (self.tokens[usize::from(self.done)], self.done == 0))
    }
}

/// A message in flight.
struct Flight {
    token: Token,
    asked: Asked,
    incoming: Packets,
    outgoing: Packets,
    /// The lengths of the packets that have come, in bytes.
    lengths: [usize; 2],
}

impl Flight {
    /// Returns the bytes of the units that a packet of the answer fills: its head, and its content. The second packet
    /// continues the first, so its head is behind it.
    fn place(&self, is_first: bool) -> (Range<usize>, Range<usize>) {
        let (first, second) = self.asked.filled(self.incoming.count > 1 || !is_first);
        let content = if is_first { first } else { second };
        let at = if is_first { content.start - PACKET_HEAD } else { content.end };
        (at..at + PACKET_HEAD, content)
    }
}

/// A guest's share, with the buffer that messages go through.
pub struct GuestShare {
    device: ShareDevice,
    buffer: Buffer,
    flights: VecDeque<Flight>,
    tokens: u16,
    /// Set when the server is of no use any more. The device was reset then, and reaches no memory.
    is_lost: bool,
}

impl GuestShare {
    /// Makes a share of that device, with a buffer that it has for ever; `None` if there is no memory for one.
    pub fn new(device: ShareDevice, frames: &Frames) -> Option<Self> {
        let flights = VecDeque::with_capacity(MOST_FLYING);
        Some(Self { device, buffer: Buffer::new(frames)?, flights, tokens: 0, is_lost: false })
    }

    /// Returns bytes of units that are in flight. Gnomon reads them, and the device has finished with them or only reads
    /// them too.
    fn bytes(&self, asked: &Asked, bytes: Range<usize>) -> &[u8] {
        // SAFETY: the buffer's, which no code writes while they are in flight.
        unsafe { bytes_of(&piece(&self.buffer, asked, bytes)) }
    }

    /// Offers the device a place for a packet of the answer.
    fn offer(&mut self, flight: &mut Flight, is_first: bool) -> virtio_drivers::Result {
        let (head, content) = flight.place(is_first);
        let (incoming, piece) = (&mut self.device.incoming, |bytes| piece(&self.buffer, &flight.asked, bytes));
        // SAFETY: units are the device's until it has answered, and no code accesses them until then.
        let added = unsafe {
            match is_first {
                true => incoming.add(&[], &mut [bytes_of(&piece(head.start..content.end))]),
                false => incoming.add(&[], &mut [bytes_of(&piece(head)), bytes_of(&piece(content))]),
            }
        };
        flight.incoming.push(added?);
        Ok(())
    }

    /// Sends a part of the message.
    fn send(&mut self, flight: &mut Flight, content: Range<usize>, is_first: bool) -> virtio_drivers::Result {
        let (outgoing, piece) = (&mut self.device.outgoing, |bytes| piece(&self.buffer, &flight.asked, bytes));
        // SAFETY: units are the device's until it has answered, and no code writes them until then.
        let added = unsafe {
            match is_first {
                true => {
                    let whole = bytes_of(&piece(content.start - PACKET_HEAD..content.end));
                    whole[..PACKET_HEAD].copy_from_slice(&PLAIN);
                    outgoing.add(&[whole], &mut [])
                }
                false => outgoing.add(&[&PLAIN, bytes_of(&piece(content))], &mut []),
            }
        };
        flight.outgoing.push(added?);
        Ok(())
    }

    /// Takes back what the device has sent of the oldest message. Returns whether that is all.
    fn reclaim(&mut self) -> Result<bool, Lost> {
        let Self { device, buffer, flights, .. } = self;
        let Some(flight) = flights.front_mut() else { return Ok(true) };
        while let Some((token, is_first)) = flight.outgoing.next() {
            let Some(sent) = device.outgoing.peek_used() else { return Ok(false) };
            let content = flight.asked.sent().nth(usize::from(flight.outgoing.done)).ok_or(Lost)?;
            let piece = |bytes| piece(buffer, &flight.asked, bytes);
            // SAFETY: what it was given; a token that is another one's is refused.
            let popped = unsafe {
                let outgoing = &mut device.outgoing;
                match is_first {
                    true => {
                        outgoing.pop_used(token, &[bytes_of(&piece(content.start - PACKET_HEAD..content.end))], &mut [])
                    }
                    false => outgoing.pop_used(token, &[&PLAIN, bytes_of(&piece(content))], &mut []),
                }
            };
            if sent != token || popped.is_err() {
                return Err(Lost);
            }
            flight.outgoing.done += 1;
        }
        Ok(true)
    }

    /// Takes packets that have come for the oldest message. Returns whether its answer is complete.
    fn collect(&mut self) -> Result<bool, Lost> {
        let Self { device, buffer, flights, .. } = self;
        let Some(flight) = flights.front_mut() else { return Ok(false) };
        while let Some((token, is_first)) = flight.incoming.next() {
            let Some(came) = device.incoming.peek_used() else { return Ok(false) };
            let (head, content) = flight.place(is_first);
            let room = content.len();
            let piece = |bytes| piece(buffer, &flight.asked, bytes);
            // SAFETY: what it was given; a token that is another one's is refused.
            let popped = unsafe {
                let incoming = &mut device.incoming;
                match is_first {
                    true => incoming.pop_used(token, &[], &mut [bytes_of(&piece(head.start..content.end))]),
                    false => incoming.pop_used(token, &[], &mut [bytes_of(&piece(head)), bytes_of(&piece(content))]),
                }
            };
            let length = popped.ok().filter(|_| came == token).ok_or(Lost)?;
            let length = shares::content(length as usize, room)?;
            flight.lengths[usize::from(flight.incoming.done)] = length;
            flight.incoming.done += 1;
        }
        Ok(true)
    }

    /// Finishes the oldest message, if its answer has come, or the server is of no use any more.
    // A part of its own, so that a look in vain saves no registers.
    #[inline(never)]
    fn finish(&mut self) -> Option<(Token, Result<usize, Lost>)> {
        if !self.is_lost {
            match self.look() {
                Ok(length) => {
                    let length = length?;
                    return Some((self.flights.pop_front()?.token, Ok(length)));
                }
                Err(Lost) => {
                    self.device.transport.set_status(DeviceStatus::empty());
                    self.is_lost = true;
                }
            }
        }
        Some((self.flights.pop_front()?.token, Err(Lost)))
    }

    /// Returns the length of the oldest answer, if it has come.
    fn look(&mut self) -> Result<Option<usize>, Lost> {
        if !self.collect()? {
            return Ok(None);
        }
        let Some(flight) = self.flights.front() else { return Ok(None) };
        let asked = &flight.asked;
        let is_one = |at: usize| self.bytes(asked, flight.place(at == 0).0)[BUFFERS_AT..] == 1_u16.to_le_bytes();
        let packets = &flight.lengths[..usize::from(flight.incoming.count)];
        // What is longer than its place goes on in the next one.
        if !(0..packets.len()).all(is_one) {
            return Err(Lost);
        }
        let length = asked.answered(self.bytes(asked, asked.message()), self.bytes(asked, asked.answer()), packets)?;
        // What has been answered was sent. A device that says otherwise may still read the message.
        if self.reclaim()? { Ok(Some(length)) } else { Err(Lost) }
    }
}

/// Returns bytes of units.
fn piece(buffer: &Buffer, asked: &Asked, bytes: Range<usize>) -> Piece {
    buffer.piece(asked.units, bytes.start, bytes.len())
}

impl HostDevice for GuestShare {
    type Asked = Asked;
    type Outcome = Result<usize, Lost>;

    fn buffer(&mut self, units: Units) -> &mut [u8] {
        // SAFETY: units that are not in flight, as the caller promises.
        unsafe { self.buffer.bytes(units) }
    }

    fn begin(&mut self, asked: &Asked) -> Result<Token, NotBegun> {
        assert!(asked.bytes() <= asked.units.bytes(), "more than the units have");
        if self.is_lost {
            return Err(NotBegun::Failed);
        }
        let free = self.device.incoming.available_desc().min(self.device.outgoing.available_desc());
        if free < MOST_DESCRIPTORS || self.flights.len() >= MOST_FLYING {
            return Err(NotBegun::Busy);
        }
        self.tokens = self.tokens.wrapping_add(1);
        let token = Token(self.tokens);
        let (incoming, outgoing) = (Packets::default(), Packets::default());
        let mut flight = Flight { token, asked: *asked, incoming, outgoing, lengths: [0; 2] };
        let is_double = has_two_packets(self.bytes(asked, asked.message()));
        // There are descriptors for all: nothing of this fails.
        self.offer(&mut flight, true).map_err(|_| NotBegun::Failed)?;
        if is_double {
            self.offer(&mut flight, false).map_err(|_| NotBegun::Failed)?;
        }
        for (at, content) in asked.sent().enumerate() {
            self.send(&mut flight, content, at == 0).map_err(|_| NotBegun::Failed)?;
        }
        self.flights.push_back(flight);
        let ShareDevice { transport, incoming, outgoing } = &mut self.device;
        notify(transport, incoming, RECEIVE as u16);
        notify(transport, outgoing, TRANSMIT as u16);
        Ok(token)
    }

    #[inline]
    fn finished(&mut self) -> Option<(Token, Result<usize, Lost>)> {
        // The interrupt was noticed before this looks; what was taken before is told to the device first.
        fence(Ordering::SeqCst);
        if !self.is_lost && self.device.incoming.peek_used().is_none() {
            return None;
        }
        self.finish()
    }

    fn acknowledge(&mut self) {
        let _ = self.device.transport.ack_interrupt();
    }
}
