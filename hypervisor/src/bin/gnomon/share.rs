//! A virtio network device of the host's by which the server of a share is reached ([`hypervisor::backend::shares`]).
//!
//! The device gives packets to the places that it was offered, in their order, and answers come in the order of their
//! messages. So the place of an answer is offered together with its message.

use crate::buffer::{Buffer, bytes_of};
use crate::virtio::{HeapHal, Opened};
use abi::mac::Mac;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use arrayvec::ArrayVec;
use core::ops::Range;
use core::sync::atomic::{Ordering, fence};
use hypervisor::backend::port::HostDevice;
use hypervisor::backend::shares::{Asked, Lost, MOST_FLYING, NotBegun, PACKET_HEAD, Token, Units};
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

/// A part of an answer that a packet is to fill.
#[derive(Clone)]
struct Place {
    token: u16,
    /// Of the units: the bytes of the head, and those behind it.
    head: Range<usize>,
    content: Range<usize>,
    /// The length of the content, once the packet has come.
    filled: Option<usize>,
}

/// A part of a message that goes as a packet: its bytes of the units.
#[derive(Clone)]
struct Part {
    token: u16,
    content: Range<usize>,
    /// Set if the head is that of the units, in front of the content.
    is_first: bool,
}

/// A message in flight.
struct Flight {
    token: Token,
    asked: Asked,
    places: ArrayVec<Place, 2>,
    /// The parts that the device still has.
    parts: ArrayVec<Part, 2>,
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

    fn piece(&self, asked: &Asked, bytes: &Range<usize>) -> Piece {
        assert!(bytes.end <= asked.units.bytes(), "more than the units have");
        self.buffer.piece(asked.units, bytes.start, bytes.len())
    }

    /// Returns bytes of units that are in flight. Gnomon reads them, and the device has finished with them or only reads
    /// them too.
    fn bytes(&self, asked: &Asked, bytes: &Range<usize>) -> &[u8] {
        // SAFETY: the buffer's, which no code writes while they are in flight.
        unsafe { bytes_of(&self.piece(asked, bytes)) }
    }

    /// Offers the device a place for a packet of the answer.
    fn offer(&mut self, asked: &Asked, content: Range<usize>, is_first: bool) -> Option<Place> {
        let incoming = &mut self.device.incoming;
        // The second packet continues the first, so its head is behind it.
        let at = if is_first { content.start - PACKET_HEAD } else { content.end };
        let head = at..at + PACKET_HEAD;
        let piece = |bytes: Range<usize>| self.buffer.piece(asked.units, bytes.start, bytes.len());
        // SAFETY: units are the device's until it has answered, and no code accesses them until then.
        let added = unsafe {
            match is_first {
                true => incoming.add(&[], &mut [bytes_of(&piece(head.start..content.end))]),
                false => incoming.add(&[], &mut [bytes_of(&piece(head.clone())), bytes_of(&piece(content.clone()))]),
            }
        };
        Some(Place { token: added.ok()?, head, content, filled: None })
    }

    /// Sends a part of the message.
    fn send(&mut self, asked: &Asked, content: Range<usize>, is_first: bool) -> Option<Part> {
        let outgoing = &mut self.device.outgoing;
        let piece = |bytes: Range<usize>| self.buffer.piece(asked.units, bytes.start, bytes.len());
        // SAFETY: units are the device's until it has answered, and no code writes them until then.
        let added = unsafe {
            match is_first {
                true => {
                    let whole = bytes_of(&piece(content.start - PACKET_HEAD..content.end));
                    whole[..PACKET_HEAD].fill(0);
                    outgoing.add(&[whole], &mut [])
                }
                false => outgoing.add(&[&PLAIN, bytes_of(&piece(content.clone()))], &mut []),
            }
        };
        Some(Part { token: added.ok()?, content, is_first })
    }

    /// Takes back what the device has sent.
    fn reclaim(&mut self) -> Result<(), Lost> {
        let Self { device, buffer, flights, .. } = self;
        while let Some(token) = device.outgoing.peek_used() {
            let flight = flights.iter_mut().find(|flight| !flight.parts.is_empty()).ok_or(Lost)?;
            let part = flight.parts.remove(0);
            let piece = |start: usize| buffer.piece(flight.asked.units, start, part.content.end - start);
            // SAFETY: what it was given; a token that is another one's is refused.
            let popped = unsafe {
                match part.is_first {
                    true => device.outgoing.pop_used(part.token, &[bytes_of(&piece(part.content.start - PACKET_HEAD))], &mut []),
                    false => device.outgoing.pop_used(part.token, &[&PLAIN, bytes_of(&piece(part.content.start))], &mut []),
                }
            };
            if token != part.token || popped.is_err() {
                return Err(Lost);
            }
        }
        Ok(())
    }

    /// Takes packets that have come for the oldest message. Returns whether all of its answer is there.
    fn collect(&mut self) -> Result<bool, Lost> {
        let Self { device, buffer, flights, .. } = self;
        let Some(flight) = flights.front_mut() else { return Ok(false) };
        for (at, place) in flight.places.iter_mut().enumerate().filter(|(_, place)| place.filled.is_none()) {
            let Some(token) = device.incoming.peek_used() else { return Ok(false) };
            let piece = |bytes: &Range<usize>| buffer.piece(flight.asked.units, bytes.start, bytes.len());
            // SAFETY: what it was given; a token that is another one's is refused.
            let popped = unsafe {
                match at {
                    0 => {
                        let whole = place.head.start..place.content.end;
                        device.incoming.pop_used(place.token, &[], &mut [bytes_of(&piece(&whole))])
                    }
                    _ => {
                        let parts = &mut [bytes_of(&piece(&place.head)), bytes_of(&piece(&place.content))];
                        device.incoming.pop_used(place.token, &[], parts)
                    }
                }
            };
            let length = popped.ok().filter(|_| token == place.token).ok_or(Lost)?;
            let length = (length as usize).checked_sub(PACKET_HEAD).filter(|length| *length <= place.content.len());
            place.filled = Some(length.ok_or(Lost)?);
        }
        // What has been answered was sent. If the device says otherwise, it may still read the message.
        Ok(flight.parts.is_empty())
    }

    /// Returns the length of the oldest answer, if it has come.
    fn look(&mut self) -> Result<Option<usize>, Lost> {
        self.reclaim()?;
        if !self.collect()? {
            return Ok(None);
        }
        let Some(flight) = self.flights.front() else { return Ok(None) };
        let packets = flight.places.iter().map(|place| {
            let head = self.bytes(&flight.asked, &place.head).first_chunk().copied().unwrap_or_default();
            (head, place.filled.unwrap_or_default())
        });
        let packets: ArrayVec<_, 2> = packets.collect();
        let (message, answer) = (flight.asked.message(), flight.asked.answer());
        let (message, answer) = (self.bytes(&flight.asked, &message), self.bytes(&flight.asked, &answer));
        flight.asked.answered(message, answer, &packets).map(Some)
    }
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
        // Those of messages in flight always suffice; whose answers have come may still have some.
        let free = self.device.incoming.available_desc().min(self.device.outgoing.available_desc());
        if free < MOST_DESCRIPTORS || self.flights.len() >= MOST_FLYING {
            return Err(NotBegun::Busy);
        }
        let (first, second) = asked.filled(self.bytes(asked, &asked.message()));
        let (mut places, mut parts) = (ArrayVec::new(), ArrayVec::new());
        for (at, content) in [Some(first), second].into_iter().flatten().enumerate() {
            places.push(self.offer(asked, content, at == 0).ok_or(NotBegun::Failed)?);
        }
        for (at, content) in asked.sent().enumerate() {
            parts.push(self.send(asked, content, at == 0).ok_or(NotBegun::Failed)?);
        }
        self.tokens = self.tokens.wrapping_add(1);
        let token = Token(self.tokens);
        self.flights.push_back(Flight { token, asked: *asked, places, parts });
        let ShareDevice { transport, incoming, outgoing } = &mut self.device;
        if incoming.should_notify() {
            transport.notify(RECEIVE as u16);
        }
        if outgoing.should_notify() {
            transport.notify(TRANSMIT as u16);
        }
        Ok(token)
    }

    fn finished(&mut self) -> Option<(Token, Result<usize, Lost>)> {
        if !self.is_lost {
            // The interrupt was noticed before this looks; what was taken before is told to the device first.
            fence(Ordering::SeqCst);
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

    fn acknowledge(&mut self) {
        let _ = self.device.transport.ack_interrupt();
    }
}
