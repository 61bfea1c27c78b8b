//! Drivers of cards on one network, and a model of the host's device, which is the world.

use super::super::*;
use crate::backend::network::frame::LEAST;
pub(super) use crate::backend::network::switch::WORLD;
use crate::backend::network::{Full, HostNetwork, Network};
pub(super) use crate::device::interface::tests::RAM;
use crate::device::interface::tests::World;
use crate::device::interface::{Answer, Device};
use crate::device::virtio::Mmio;
pub(super) use crate::random::Random;
use crate::slots::Handle;
use crate::sync::Mutex;
use abi::credit;
use abi::mac::Mac;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
pub(super) use alloc::vec;

/// The start of the data that the places of the transmit queue send: 2 KiB each.
pub(super) const SENT: u64 = RAM + 0x8000;
/// The start of the buffers that the places of the receive queue offer: 2 KiB each.
pub(super) const GIVEN: u64 = SENT + 64 * 2048;
const TABLES: u64 = RAM + 0x2000;
const PLACES: usize = 64;
const RAM_BYTES: usize = (GIVEN - RAM) as usize + PLACES * 2048;

pub(super) const OUTSIDE: Mac = Mac([0x52, 0x55, 10, 0, 2, 2]);
pub(super) const OTHER: Mac = Mac([2, 9, 9, 9, 9, 1]);
pub(super) const OTHER_TOO: Mac = Mac([2, 9, 9, 9, 9, 2]);
pub(super) const ALL: Mac = Mac([0xff; 6]);
pub(super) const NOBODY: Mac = Mac([0; 6]);

/// Returns the address of a card.
pub(super) fn mac(at: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, at as u8 + 1])
}

/// Makes a frame, known by a number if it is long enough.
pub(super) fn frame(destination: Mac, source: Mac, bytes: usize, number: u64) -> Vec<u8> {
    let mut frame = [&destination.0[..], &source.0, &[0x88, 0xb5], &number.to_le_bytes()].concat();
    frame.extend((0..bytes as u64).map(|n| (n.wrapping_mul(number | 1) >> 2) as u8));
    frame.truncate(bytes);
    frame
}

/// The state of the host's device.
pub(super) struct Model {
    /// The frames that are to come.
    incoming: VecDeque<Vec<u8>>,
    /// The frames that it was given, and is not done with.
    pub(super) sent: Vec<Arc<Frame>>,
    /// The number of frames that it takes at a time.
    pub(super) room: usize,
}

struct ModelNetwork {
    model: Arc<Mutex<Model>>,
    frames: Vec<Arc<Frame>>,
}

impl HostNetwork for ModelNetwork {
    fn receive(&mut self) -> Option<Arc<Frame>> {
        let mut model = self.model.lock();
        let frame = self.frames.iter_mut().find_map(|frame| Arc::get_mut(frame).is_some().then_some(frame))?;
        let bytes = model.incoming.pop_front()?;
        let inside = Arc::get_mut(frame).expect("it is the only reference");
        inside.room()[HEADER..HEADER + bytes.len()].copy_from_slice(&bytes);
        assert!(inside.fill(HEADER + bytes.len()));
        Some(Arc::clone(frame))
    }
    fn make_room(&mut self) -> bool {
        self.frames.iter_mut().any(|frame| Arc::get_mut(frame).is_some())
    }
    fn send(&mut self, frame: &Arc<Frame>) -> Result<(), Full> {
        let mut model = self.model.lock();
        if model.sent.len() >= model.room {
            return Err(Full);
        }
        model.sent.push(Arc::clone(frame));
        Ok(())
    }
    fn reclaim(&mut self) {}
    fn notify(&mut self) {}
    fn acknowledge(&mut self) {}
}

/// A card, with its driver.
pub(super) struct Card {
    pub(super) device: Mmio<Net>,
    pub(super) world: World,
    /// By queue: what was made available, what was seen of what came back, and when the driver thought of notifying.
    pub(super) available: [u16; 2],
    seen: [u16; 2],
    told: [u16; 2],
    /// By queue, the places that the device has.
    offered: [[bool; PLACES]; 2],
}

/// Cards on a network.
pub(super) struct Rig {
    pub(super) network: Network,
    pub(super) model: Arc<Mutex<Model>>,
    pub(super) cards: Vec<Card>,
    /// By card, the frames from the world for it, and those of them that it is said to be done with.
    pub(super) from_world: Vec<(u32, u32)>,
    /// Set if each side says from where on it wants to hear from the other.
    pub(super) has_events: bool,
}

impl Rig {
    /// Makes `count` cards, each with a driver that has offered all its buffers.
    pub(super) fn new(count: usize) -> Self {
        let model = Arc::new(Mutex::new(Model { incoming: VecDeque::new(), sent: Vec::new(), room: 50 }));
        let device = ModelNetwork {
            model: Arc::clone(&model),
            frames: (0..16 + SHARE * count).map(|_| Arc::default()).collect(),
        };
        let network = Network::new((0..count).map(mac), Some(Box::new(device)), 10_000_000);
        let card = |at: usize| {
            let plug = network.plug(mac(at)).expect("it is on the network");
            plug.set_user(Handle { slot: at, number: at as u64 });
            Card {
                device: Mmio::new(0x1000_9000, 9, Net::new(plug)),
                world: World { ram: vec![0; RAM_BYTES], ..World::default() },
                available: [0; 2],
                seen: [0; 2],
                told: [0; 2],
                offered: [[false; PLACES]; 2],
            }
        };
        let cards = (0..count).map(card).collect();
        let mut rig = Self { cards, from_world: vec![(0, 0); count], network, model, has_events: false };
        (0..count).for_each(|at| rig.restart(at));
        (0..count).for_each(|at| rig.offer_all(at));
        rig
    }

    pub(super) fn set(&mut self, at: usize, offset: u64, value: u32) -> Answer<()> {
        let card = &mut self.cards[at];
        card.device.store(offset, 4, value.into(), &mut card.world)
    }

    /// Resets a card and sets it up, as its driver.
    pub(super) fn restart(&mut self, at: usize) {
        let card = &mut self.cards[at];
        (card.available, card.seen, card.told) = ([0; 2], [0; 2], [0; 2]);
        card.offered = [[false; PLACES]; 2];
        card.world.ram[..0x2000].fill(0);
        let events = u32::from(self.has_events) << 29;
        for (offset, value) in
            [(0x070, 0), (0x070, 3), (0x024, 0), (0x020, 1 << 5 | 1 << 28 | events), (0x024, 1), (0x020, 1)]
        {
            self.set(at, offset, value);
        }
        self.set(at, 0x070, 11);
        for queue in 0..2 {
            self.set(at, 0x030, queue);
            self.set(at, 0x038, PLACES as u32);
            for (offset, place) in [(0x080, 0), (0x090, 0x800), (0x0a0, 0xa00)] {
                let address = RAM + 0x1000 * u64::from(queue) + place;
                self.set(at, offset, address as u32);
                self.set(at, offset + 4, (address >> 32) as u32);
            }
            self.set(at, 0x044, 1);
        }
        self.set(at, 0x070, 15);
    }

    /// Does something that the guest does itself, whose memory is there then.
    pub(super) fn poke(&mut self, at: usize, gpa: u64, bytes: &[u8]) {
        let start = (gpa - RAM) as usize;
        self.cards[at].world.ram[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn bytes(&self, at: usize, gpa: u64, bytes: usize) -> &[u8] {
        &self.cards[at].world.ram[(gpa - RAM) as usize..][..bytes]
    }

    fn peek(&self, at: usize, gpa: u64) -> u16 {
        self.bytes(at, gpa, 2).try_into().map(u16::from_le_bytes).unwrap()
    }

    /// Offers a chain of eight buffers at most: where, how long, and whether the device writes it.
    pub(super) fn offer(&mut self, at: usize, queue: usize, place: usize, buffers: &[(u64, u32, bool)]) {
        let ring = RAM + 0x1000 * queue as u64;
        let table = TABLES + 128 * (PLACES * queue + place) as u64;
        for (n, (gpa, bytes, is_written)) in buffers.iter().enumerate() {
            let flags = u64::from(n + 1 < buffers.len()) | u64::from(*is_written) << 1;
            let words = [*gpa, u64::from(*bytes) | flags << 32 | (n as u64 + 1) << 48];
            self.poke(at, table + 16 * n as u64, words.map(u64::to_le_bytes).as_flattened());
        }
        let words = [table, (16 * buffers.len() as u64) | (4 << 32)];
        self.poke(at, ring + 16 * place as u64, words.map(u64::to_le_bytes).as_flattened());
        let available = self.cards[at].available[queue];
        self.poke(at, ring + 0x804 + 2 * u64::from(available % 64), &(place as u16).to_le_bytes());
        self.poke(at, ring + 0x802, &available.wrapping_add(1).to_le_bytes());
        self.cards[at].available[queue] = available.wrapping_add(1);
        self.cards[at].offered[queue][place] = true;
    }

    /// Notifies until the device goes on no more by that, if it wants to hear of what was offered.
    pub(super) fn notify(&mut self, at: usize, queue: usize) {
        let event = self.peek(at, RAM + 0x1000 * queue as u64 + 0xa04 + 8 * 64);
        let available = self.cards[at].available[queue];
        let new = available.wrapping_sub(core::mem::replace(&mut self.cards[at].told[queue], available));
        if self.has_events && available.wrapping_sub(event).wrapping_sub(1) >= new {
            return;
        }
        let done = (0..10_000).any(|_| {
            let answer = self.set(at, 0x050, queue as u32);
            self.deliver();
            answer == Answer::Done(())
        });
        assert!(done, "a notification comes to an end");
    }

    /// Returns the buffers that have come back in a queue: places, and the number of bytes written.
    pub(super) fn used(&mut self, at: usize, queue: usize) -> Vec<(usize, u32)> {
        let ring = RAM + 0x1000 * queue as u64 + 0xa00;
        let (index, mut all) = (self.peek(at, ring + 2), Vec::new());
        while self.cards[at].seen[queue] != index {
            let element = self.bytes(at, ring + 4 + 8 * u64::from(self.cards[at].seen[queue] % 64), 8);
            let [place, written] = [0, 4].map(|at| u32::from_le_bytes(element[at..at + 4].try_into().unwrap()));
            assert!(core::mem::take(&mut self.cards[at].offered[queue][place as usize]), "it was offered");
            all.push((place as usize, written));
            self.cards[at].seen[queue] = self.cards[at].seen[queue].wrapping_add(1);
        }
        all
    }

    /// Sends a frame, if there is a place for it.
    pub(super) fn try_send(&mut self, at: usize, frame: &[u8]) -> bool {
        self.used(at, TRANSMIT);
        let Some(place) = self.cards[at].offered[TRANSMIT].iter().position(|is_offered| !is_offered) else {
            return false;
        };
        let gpa = SENT + 2048 * place as u64;
        // The contents of the driver's header are ignored.
        self.poke(at, gpa, &[0xee; HEADER]);
        self.poke(at, gpa + HEADER as u64, frame);
        self.offer(at, TRANSMIT, place, &[(gpa, (HEADER + frame.len()) as u32, false)]);
        self.notify(at, TRANSMIT);
        self.settle();
        true
    }

    pub(super) fn send(&mut self, at: usize, frame: &[u8]) {
        assert!(self.try_send(at, frame), "there is a place");
    }

    /// Offers all buffers for what comes that the device has not, those which have come aside.
    pub(super) fn offer_all(&mut self, at: usize) {
        let waits = self.cards[at].seen[RECEIVE] != self.peek(at, RAM + 0xa02);
        for place in 0..PLACES {
            if !self.cards[at].offered[RECEIVE][place] && !waits {
                self.offer(at, RECEIVE, place, &[(GIVEN + 2048 * place as u64, (HEADER + MOST) as u32, true)]);
            }
        }
        self.notify(at, RECEIVE);
    }

    /// Returns the frames that a card's driver was given.
    pub(super) fn received(&mut self, at: usize) -> Vec<Vec<u8>> {
        let used = self.used(at, RECEIVE);
        let mut all = Vec::new();
        for (place, written) in used.into_iter().filter(|(_, written)| *written != 0) {
            let bytes = self.bytes(at, GIVEN + 2048 * place as u64, written as usize);
            assert_eq!(bytes[..HEADER], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
            all.push(bytes[HEADER..].to_vec());
        }
        all
    }

    /// Sends a frame from the world.
    pub(super) fn world_sends(&mut self, frame: &[u8]) {
        let to = (0..self.cards.len()).filter(|at| frame.starts_with(&mac(*at).0));
        to.for_each(|at| self.from_world[at].0 += 1);
        self.model.lock().incoming.push_back(frame.to_vec());
        self.network.acknowledge();
        self.settle();
    }

    /// Returns the frames that the world has got.
    pub(super) fn world_has(&mut self) -> Vec<Vec<u8>> {
        let (reports, frames): (Vec<_>, Vec<_>) =
            self.model.lock().sent.drain(..).partition(|frame| credit::read(frame.content()).is_some());
        for (of, counts) in reports.iter().flat_map(|frame| credit::read(frame.content())).flatten() {
            let at = (0..self.cards.len()).find(|at| mac(*at) == of).expect("a card");
            let (sent, told) = &mut self.from_world[at];
            assert!((*told..=counts.come).contains(&counts.done) && counts.come <= *sent, "{counts:?} of {sent}");
            *told = counts.done;
        }
        frames.iter().map(|frame| frame.content().to_vec()).collect()
    }

    fn now(&self) -> u64 {
        self.cards[0].world.now
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, ticks: u64) {
        self.cards.iter_mut().for_each(|card| card.world.now += ticks);
    }

    /// Serves the cards that frames wait for.
    fn deliver(&mut self) {
        self.network.take_in(self.now());
        while let Some((user, _)) = self.network.next_due() {
            let card = &mut self.cards[user.slot];
            card.device.moment_of(RECEIVE, &mut card.world);
        }
    }

    /// Runs all cards until there is nothing more to be done, or one waits for something.
    pub(super) fn settle(&mut self) {
        for _ in 0..300 {
            self.deliver();
            for card in &mut self.cards {
                if core::mem::take(&mut card.world.is_soon) {
                    card.device.moment(&mut card.world);
                }
            }
        }
    }

    pub(super) fn counts(&self, at: usize) -> Counts {
        *self.cards[at].device.backend().counts()
    }

    pub(super) fn lost(&self, at: usize) -> u64 {
        self.cards[at].device.backend().plug().lost()
    }
}

/// The frames of each sender, by numbers, and those of them that have arrived.
#[derive(Default)]
pub(super) struct Flows {
    sent: BTreeMap<u64, (usize, usize)>,
    /// The last that has arrived, by where from and where to.
    last: BTreeMap<(Mac, usize), u64>,
    pub(super) received: usize,
}

impl Flows {
    /// Records a frame that was sent to a card, to the world (3) or to all (4).
    pub(super) fn sent(&mut self, from: usize, to: usize, number: u64) {
        self.sent.insert(number, (from, to));
    }

    /// Checks the frames that have arrived.
    pub(super) fn check(&mut self, rig: &mut Rig) {
        for at in 0..rig.cards.len() {
            for got in rig.received(at) {
                self.look(at, &got);
            }
        }
        for got in rig.world_has() {
            self.look(3, &got);
        }
    }

    fn look(&mut self, at: usize, got: &[u8]) {
        assert!(got.len() >= LEAST + 8);
        let number = u64::from_le_bytes(got[LEAST..LEAST + 8].try_into().unwrap());
        let address = |from: usize| Mac(got[from..from + 6].try_into().unwrap());
        let (destination, source) = (address(0), address(6));
        let (_, to) = self.sent[&number];
        assert!(got == frame(destination, source, got.len(), number), "{number} has changed on its way");
        // What is for the world goes to all before that was heard of.
        assert!(to == at || to >= 3, "{number} is for {to}, and not for {at}");
        assert_ne!(source, if at < 3 { mac(at) } else { OUTSIDE }, "it comes back");
        let last = self.last.insert((source, at), number);
        assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
        self.received += 1;
    }
}
