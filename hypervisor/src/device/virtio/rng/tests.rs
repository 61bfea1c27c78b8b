//! The source of random bytes behind its transport, as drivers see it.

use super::*;
use crate::backend::User;
use crate::backend::entropy::{HostEntropy, PIECE, Source};
use crate::device::interface::tests::RAM;
use crate::device::interface::{Answer, Device};
use crate::device::virtio::Mmio;
use crate::device::virtio::driver::{DEVICE, DRIVER, Driver, TABLE};
use crate::slots::Handle;
use crate::sync::Mutex;
use abi::snapshot::device::DeviceState;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

const DATA: u64 = RAM + 0x1000;

/// A host that has the bytes 1, 1, 1, ..., then 2, 2, 2, ...
#[derive(Default)]
struct Model {
    /// The number of times that it was asked.
    asked: usize,
    is_asked: bool,
    /// The number of bytes of the piece that has come.
    come: Option<usize>,
    pieces: u8,
}

struct ModelEntropy(Arc<Mutex<Model>>);

impl HostEntropy for ModelEntropy {
    fn ask(&mut self) {
        let mut model = self.0.lock();
        if !model.is_asked {
            model.is_asked = true;
            model.asked += 1;
        }
    }
    fn take(&mut self, into: &mut [u8; PIECE]) -> Option<usize> {
        let mut model = self.0.lock();
        let count = model.come.take()?;
        model.is_asked = false;
        model.pieces += 1;
        into.fill(model.pieces);
        Some(count)
    }
    fn acknowledge(&mut self) {}
}

struct Rig {
    driver: Driver<Rng>,
    source: Arc<Mutex<Source>>,
    model: Arc<Mutex<Model>>,
}

impl Deref for Rig {
    type Target = Driver<Rng>;

    fn deref(&self) -> &Driver<Rng> {
        &self.driver
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Driver<Rng> {
        &mut self.driver
    }
}

impl Rig {
    fn new() -> Self {
        let model = Arc::new(Mutex::new(Model::default()));
        let source = Arc::new(Mutex::new(Source::new(Box::new(ModelEntropy(Arc::clone(&model))))));
        Self::beside(&source, &model, 0)
    }

    /// Makes another guest at the same source.
    fn beside(source: &Arc<Mutex<Source>>, model: &Arc<Mutex<Model>>, slot: usize) -> Self {
        let place = Place::at(source);
        place.set_user(User { vm: Handle { slot, number: 70 + slot as u64 }, device: 3 });
        let mut driver = Driver::new(Mmio::new(0x1000_e000, 16, Rng::new(place)), 0x4000);
        driver.world.ram.fill(0xee);
        let mut rig = Self { driver, source: Arc::clone(source), model: Arc::clone(model) };
        rig.start();
        rig
    }

    fn start(&mut self) {
        self.driver.start(0, 8);
    }

    /// Offers a buffer, and notifies.
    fn offer(&mut self, gpa: u64, bytes: u32, flags: u64) {
        let at = u64::from(self.available % 8);
        let words = [gpa, u64::from(bytes) | flags << 32];
        self.poke(TABLE + 16 * at, words.map(u64::to_le_bytes).as_flattened());
        self.poke(DRIVER + 4 + 2 * at, &(at as u16).to_le_bytes());
        self.available += 1;
        let available = self.available.to_le_bytes();
        self.poke(DRIVER + 2, &available);
        assert_eq!(self.set(0x050, 0), Answer::Done(()), "the driver does not wait");
    }

    /// Makes a piece of so many bytes come. Returns the member that has it.
    fn come(&mut self, count: usize) -> Option<usize> {
        self.model.lock().come = Some(count);
        let user = self.source.lock().attend();
        user.map(|user| user.vm.slot)
    }

    /// Returns the number of buffers that have come back, and the number of bytes in the last one.
    fn back(&self) -> (u16, u32) {
        let count = u16::from_le_bytes([self.bytes(DEVICE + 2, 1)[0], 0]);
        let last = DEVICE + 8 + 8 * u64::from(count.wrapping_sub(1) % 8);
        (count, u32::from(self.bytes(last, 1)[0]))
    }
}

#[test]
fn bytes_come_when_the_host_has_them_and_each_once() {
    let mut rig = Rig::new();
    rig.offer(DATA, 64, 2);
    rig.offer(DATA + 100, 64, 2);
    assert_eq!((rig.back().0, rig.model.lock().asked), (0, 1), "one at a time");
    assert_eq!(rig.come(64), Some(0));
    rig.moment();
    assert_eq!((rig.back(), rig.bytes(DATA, 65)), ((1, 64), &[&[1; 64][..], &[0xee]].concat()[..]));
    assert_eq!(rig.model.lock().asked, 2);
    // The host has fewer than there is room for.
    rig.come(5);
    rig.moment();
    assert_eq!((rig.back(), rig.bytes(DATA + 100, 6)), ((2, 5), &[2, 2, 2, 2, 2, 0xee][..]));
    assert_eq!((rig.device.backend().counts().bytes, rig.model.lock().asked), (69, 2), "no buffer, no request");
    // And the room is less than the host has: the rest is discarded.
    rig.offer(DATA + 200, 3, 2);
    rig.come(64);
    rig.moment();
    assert_eq!((rig.back(), rig.bytes(DATA + 200, 4)), ((3, 3), &[3, 3, 3, 0xee][..]));
}

#[test]
fn buffers_without_room_or_memory_come_back_empty() {
    let mut rig = Rig::new();
    rig.offer(DATA, 64, 0);
    rig.offer(DATA, 0, 2);
    assert_eq!((rig.back(), rig.model.lock().asked), ((2, 0), 0), "the host is not asked");
    for (gpa, bytes) in [(0, 64), (u64::MAX - 8, 64), (RAM - 1, u32::MAX)] {
        rig.offer(gpa, bytes, 2);
        rig.come(64);
        rig.moment();
        assert_eq!(rig.back().1, 0, "{gpa:#x}");
    }
    assert_eq!(rig.device.backend().counts().refused, 5);
    rig.offer(DATA, u32::MAX, 2);
    rig.come(64);
    rig.moment();
    assert_eq!((rig.back(), rig.device.counts().1), ((6, 64), 0));
    // A loop is a ring's trouble, and a reset ends it.
    rig.offer(DATA, 8, 3);
    assert!(matches!(rig.get(0x070, 4), Answer::Done(status) if status & 64 != 0));
    rig.start();
    rig.offer(DATA, 8, 2);
    rig.come(64);
    rig.moment();
    assert_eq!(rig.back(), (1, 8));
}

#[test]
fn memory_that_comes_later_is_waited_for_with_the_same_bytes() {
    let mut rig = Rig::new();
    rig.offer(DATA, 64, 2);
    rig.come(64);
    for seed in 0..50 {
        rig.world.later = Some(seed);
        rig.moment();
    }
    rig.world.later = None;
    rig.moment();
    assert_eq!((rig.back(), rig.bytes(DATA, 64)), ((1, 64), &[1; 64][..]));
}

#[test]
fn a_buffer_that_came_by_a_queue_before_it_was_stopped_is_not_filled() {
    let mut rig = Rig::new();
    rig.offer(DATA, 64, 2);
    rig.set(0x044, 0);
    rig.poke(DRIVER, &[0; 4]);
    rig.available = 0;
    rig.set(0x044, 1);
    assert_eq!(rig.come(64), None, "no member waits for it");
    rig.moment();
    assert_eq!(rig.bytes(DATA, 1), [0xee]);
    rig.offer(DATA + 100, 8, 2);
    rig.come(8);
    rig.moment();
    assert_eq!(rig.back(), (1, 8));
}

#[test]
fn a_reset_forgets_what_was_asked() {
    let mut rig = Rig::new();
    rig.offer(DATA, 64, 2);
    rig.start();
    assert_eq!(rig.come(64), None, "no member waits for it");
    rig.moment();
    assert_eq!((rig.back().0, rig.bytes(DATA, 1)), (0, &[0xee][..]));
    // One that had come, too.
    rig.offer(DATA, 64, 2);
    rig.come(64);
    rig.start();
    rig.offer(DATA, 64, 2);
    rig.moment();
    assert_eq!(rig.back().0, 0);
    rig.come(64);
    rig.moment();
    assert_eq!((rig.back().0, rig.bytes(DATA, 1)), (1, &[3][..]));
}

#[test]
fn guests_take_turns_and_none_sees_anothers() {
    let mut a = Rig::new();
    let (source, model) = (Arc::clone(&a.source), Arc::clone(&a.model));
    let mut b = Rig::beside(&source, &model, 1);
    (0..8).for_each(|_| a.offer(DATA, 64, 2));
    b.offer(DATA, 64, 2);
    let mut order = Vec::new();
    for _ in 0..4 {
        let who = a.come(64);
        order.push(who);
        a.moment();
        b.moment();
    }
    assert_eq!(order, [Some(0), Some(1), Some(0), Some(0)]);
    assert_eq!((b.back().0, b.bytes(DATA, 64)), (1, &[2; 64][..]));
    assert_eq!((a.back().0, a.bytes(DATA, 64)), (3, &[4; 64][..]));
    // A member that leaves while it waits does not block the queue: the next member gets its piece.
    b.offer(DATA, 64, 2);
    drop(a);
    let who = b.come(64);
    b.moment();
    assert_eq!((who, b.back()), (Some(1), (2, 64)));
}

#[test]
fn a_source_goes_on_elsewhere_with_the_buffer_that_waited() {
    let mut rig = Rig::new();
    rig.offer(DATA, 64, 2);
    rig.come(64);
    rig.moment();
    rig.offer(DATA + 100, 32, 2);
    // It has come, and the guest has not seen it.
    rig.come(64);
    let state = rig.device.save().expect("nothing has to be waited for");
    let mut other = Rig::new();
    let restored = Mmio::new(0x1000_e000, 16, Rng::new(Place::at(&other.source)));
    (other.device, other.available) = (restored, rig.available);
    other.world.ram.clone_from(&rig.world.ram);
    assert_eq!(other.device.restore(&state), Ok(()));
    assert_eq!(other.back().0, 1);
    other.moment();
    assert_eq!((other.back().0, other.model.lock().asked), (1, 1), "the host there is asked");
    other.come(64);
    other.moment();
    assert_eq!((other.back(), other.bytes(DATA + 100, 33)), ((2, 32), &[&[1; 32][..], &[0xee]].concat()[..]));
    // And here it goes on as if nothing had been.
    rig.moment();
    assert_eq!((rig.back(), rig.bytes(DATA + 100, 1)), ((2, 32), &[2][..]));
    other.device.reset();
    let DeviceState::Virtio(mut wild) = state else { panic!("a virtio device's") };
    wild.own = OwnState::Balloon { target: 0, actual: 0 };
    assert!(other.device.restore(&DeviceState::Virtio(wild)).is_err());
}
