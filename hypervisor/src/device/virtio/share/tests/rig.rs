//! A driver, and a model of the host's device that answers when it is told to.

use super::super::*;
use crate::backend::port::HostDevice;
use crate::backend::shares::{MOST_FLYING, Token, UNIT_BYTES, UNITS};
use crate::device::interface::Answer as Access;
use crate::device::interface::tests::RAM;
use crate::device::virtio::Mmio;
use crate::device::virtio::driver::Driver;
pub(super) use crate::device::virtio::driver::{DRIVER, ENTRIES, TABLES};
pub(super) use crate::random::Random;
use alloc::boxed::Box;
use alloc::vec;
use core::ops::{Deref, DerefMut};

/// Messages and room for answers: 256 KiB for each.
pub(super) const MESSAGES: u64 = RAM + 0x2_0000;
pub(super) const PLACE: u64 = 512 << 10;
const ROOM: u64 = 256 << 10;
/// The largest number of messages under way at a time.
pub(super) const MOST_PLACES: usize = 40;

/// The state of the host's device, beside its buffer.
#[derive(Default)]
pub(super) struct Model {
    /// The requests that it has begun, each with the message as it was then.
    pub(super) begun: Vec<(Token, Asked, Vec<u8>)>,
    /// The requests that it reports as answered next, or as lost.
    done: VecDeque<(Token, Asked, Option<Vec<u8>>)>,
    tokens: u16,
    /// Set if it refuses all.
    pub(super) is_broken: bool,
    /// The number of messages that it takes at a time.
    pub(super) most: Option<usize>,
}

impl Model {
    fn is_flying(&self, units: Units) -> bool {
        let begun = self.begun.iter().map(|(_, asked, _)| asked.units);
        let mut flying = begun.chain(self.done.iter().map(|(_, asked, ..)| asked.units));
        flying.any(|other| units.first < other.first + other.count && other.first < units.first + units.count)
    }

    /// Answers one of the messages that it has begun.
    pub(super) fn answer(&mut self, at: usize, answer: Vec<u8>) {
        let (token, asked, _) = self.begun.remove(at);
        self.done.push_back((token, asked, Some(answer)));
    }

    /// Ends: nothing is answered any more, and nothing is begun.
    pub(super) fn end(&mut self) {
        self.is_broken = true;
        self.done.extend(self.begun.drain(..).map(|(token, asked, _)| (token, asked, None)));
    }
}

struct ModelShare {
    model: Arc<Mutex<Model>>,
    buffer: Vec<u8>,
}

impl ModelShare {
    fn message(&self, asked: &Asked) -> Vec<u8> {
        self.buffer[asked.units.first * UNIT_BYTES..][asked.message()].to_vec()
    }
}

impl HostDevice for ModelShare {
    type Asked = Asked;
    type Outcome = Result<usize, Lost>;

    fn buffer(&mut self, units: Units) -> &mut [u8] {
        assert!(!self.model.lock().is_flying(units), "{units:?} are the device's");
        &mut self.buffer[units.first * UNIT_BYTES..][..units.bytes()]
    }
    fn begin(&mut self, asked: &Asked) -> Result<Token, NotBegun> {
        let message = self.message(asked);
        let mut model = self.model.lock();
        assert!(asked.bytes() <= asked.units.bytes() && !model.is_flying(asked.units), "{asked:?}");
        super::decode(&message).unwrap_or_else(|| panic!("the host cannot read {message:?}"));
        if model.is_broken {
            return Err(NotBegun::Failed);
        }
        if model.begun.len() + model.done.len() >= model.most.unwrap_or(MOST_FLYING) {
            return Err(NotBegun::Busy);
        }
        model.tokens = model.tokens.wrapping_add(1);
        let token = Token(model.tokens);
        model.begun.push((token, *asked, message));
        Ok(token)
    }
    fn finished(&mut self) -> Option<(Token, Result<usize, Lost>)> {
        let (token, asked, answer) = self.model.lock().done.pop_front()?;
        let Some(answer) = answer else { return Some((token, Err(Lost))) };
        assert!(answer.len() <= asked.room, "{} bytes answered, with room for {}", answer.len(), asked.room);
        let start = asked.units.first * UNIT_BYTES + asked.answer().start;
        self.buffer[start..start + answer.len()].copy_from_slice(&answer);
        Some((token, Ok(answer.len())))
    }
    fn acknowledge(&mut self) {}
}

/// A driver that has set up its device.
pub(super) struct Rig {
    driver: Driver<Share>,
    pub(super) port: Arc<Mutex<Port>>,
    pub(super) model: Arc<Mutex<Model>>,
}

impl Deref for Rig {
    type Target = Driver<Share>;

    fn deref(&self) -> &Driver<Share> {
        &self.driver
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Driver<Share> {
        &mut self.driver
    }
}

impl Rig {
    pub(super) fn new() -> Self {
        let model = Arc::new(Mutex::new(Model::default()));
        let device = ModelShare { model: Arc::clone(&model), buffer: vec![0; UNITS * UNIT_BYTES] };
        let port = Arc::new(Mutex::new(Port::new(Box::new(device))));
        let ram = (MESSAGES - RAM + PLACE * MOST_PLACES as u64) as usize;
        let driver = Driver::new(Mmio::new(0x1000_a000, 12, Share::new(Arc::clone(&port), "src", 10_000_000)), ram);
        let mut rig = Self { driver, port, model };
        rig.start();
        rig
    }

    /// Resets the device and sets it up.
    pub(super) fn start(&mut self) {
        self.driver.start(1 | 1 << 28, ENTRIES);
    }

    /// Returns the addresses of a place's message and of its answer.
    pub(super) fn at(place: usize) -> (u64, u64) {
        let start = MESSAGES + PLACE * place as u64;
        (start, start + ROOM)
    }

    /// Makes a message available, with room for the answer, both cut where the driver likes.
    pub(super) fn message(&mut self, place: usize, message: &[u8], room: u32, cuts: &[u32]) {
        let (from, to) = Self::at(place);
        self.poke(from, message);
        self.poke(to, &vec![0xee; ROOM as usize]);
        let mut buffers = Vec::new();
        for (start, bytes, is_written) in [(from, message.len() as u32, false), (to, room, true)] {
            let mut done = 0;
            for cut in cuts.iter().copied().chain([u32::MAX]) {
                let length = cut.min(bytes - done);
                if length != 0 {
                    buffers.push((start + u64::from(done), length, is_written));
                }
                done += length;
            }
        }
        self.chain(place, &buffers);
    }

    /// Notifies, as often as the device wants that.
    pub(super) fn notify(&mut self) {
        for _ in 0..10_000 {
            if self.set(0x050, 0) == Access::Done(()) {
                return;
            }
        }
        panic!("a notification comes to no end");
    }

    /// Raises the host's interrupt, and gives the device the moments that it asks for.
    pub(super) fn moment(&mut self) {
        self.port.lock().attend();
        for _ in 0..10_000 {
            self.world.is_soon = false;
            self.driver.moment();
            if !self.world.is_soon {
                return;
            }
        }
        panic!("a moment comes to no end");
    }

    /// Returns the messages that have come back since: by place, with the number of bytes.
    pub(super) fn come_back(&mut self) -> Vec<(usize, usize)> {
        self.used().into_iter().map(|(place, bytes)| (place, bytes as usize)).collect()
    }

    /// Sends a message, lets the host's device answer it if it comes there, and says what the guest hears.
    pub(super) fn ask(&mut self, message: &[u8], room: u32) -> Vec<u8> {
        self.message(0, message, room, &[]);
        self.notify();
        let begun = self.model.lock().begun.first().cloned();
        if let Some((_, _, seen)) = begun {
            let answer = super::reply(&seen);
            self.model.lock().answer(0, answer);
            self.moment();
        }
        let back = self.come_back();
        assert_eq!((back.len(), back[0].0), (1, 0));
        self.bytes(Self::at(0).1, back[0].1).to_vec()
    }

    pub(super) fn free_units(&self) -> usize {
        let mut port = self.port.lock();
        let taken: Vec<_> = core::iter::from_fn(|| port.take(1)).collect();
        taken.iter().for_each(|units| port.give(*units));
        taken.len()
    }

    /// Returns whether the device wants to be reset.
    pub(super) fn is_lost(&mut self) -> bool {
        matches!(self.get(0x070, 4), Access::Done(status) if status & 64 != 0)
    }
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
