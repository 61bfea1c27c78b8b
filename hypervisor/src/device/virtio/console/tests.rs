//! The console behind its transport, as a driver sees it.

use super::*;
use crate::device::interface::tests::RAM;
use crate::device::interface::{Answer, Device};
use crate::device::virtio::driver::{DEVICE, DRIVER, Driver, ENTRIES, TABLE, TABLES};
use crate::random::Random;
use abi::snapshot::device::{DeviceState, PortState};
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

mod ports;

/// Buffers: 16 KiB for each.
const DATA: u64 = RAM + 0x2_0000;
const DATA_BYTES: u64 = 16 << 10;
/// Places of what is printed, and of what is typed.
const PLACES: usize = 8;

struct Rig {
    driver: Driver<Console>,
    uart: Uart,
}

impl Deref for Rig {
    type Target = Driver<Console>;

    fn deref(&self) -> &Driver<Console> {
        &self.driver
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Driver<Console> {
        &mut self.driver
    }
}

fn device() -> Mmio<Console> {
    Mmio::new(0x1000_f000, 17, Console::new(10_000_000, First::Console, &[]))
}

const fn data(place: usize) -> u64 {
    DATA + DATA_BYTES * place as u64
}

impl Rig {
    fn new() -> Self {
        let ram = (data(2 * PLACES) - RAM) as usize;
        let mut rig = Self { driver: Driver::with_queues(device(), ram, 2), uart: Uart::default() };
        rig.start();
        rig
    }

    /// Starts the driver, which has printed something.
    fn start(&mut self) {
        self.driver.start(1 << 28, ENTRIES);
        self.driver.device.backend_mut().has_sent = true;
    }

    /// Does the board's work after an access, or after some time.
    fn pass(&mut self) {
        if self.uart.has_received() {
            self.driver.device.take_input(&mut self.uart, &mut self.driver.world);
        }
    }

    /// Notifies until the device goes on no more by that; returns how often.
    fn notify(&mut self, queue: usize) -> usize {
        let times = (1..1000).find(|_| {
            let answer = self.set(0x050, queue as u32);
            self.pass();
            answer == Answer::Done(())
        });
        times.expect("a notification comes to an end")
    }

    fn moment(&mut self) {
        self.world.is_soon = false;
        self.driver.moment();
        self.pass();
    }

    /// Prints, by buffers that are cut there.
    fn print(&mut self, place: usize, text: &[u8], cuts: &[usize]) {
        self.poke(data(place), text);
        let (mut done, mut buffers, mut cuts) = (0, Vec::new(), cuts.iter());
        while done < text.len() {
            let bytes = cuts.next().map_or(text.len(), |cut| *cut).min(text.len() - done);
            buffers.push((data(place) + done as u64, bytes as u32, false));
            done += bytes;
        }
        self.choose(TRANSMIT);
        self.chain(place, &buffers);
    }

    /// Offers a buffer for what is typed.
    fn offer(&mut self, place: usize, bytes: u32) {
        self.choose(RECEIVE);
        self.chain(place, &[(data(place), bytes, true)]);
    }

    fn type_in(&mut self, text: &[u8]) {
        text.iter().for_each(|byte| self.uart.receive(*byte));
        self.pass();
    }

    /// Returns the bytes in the buffers that have come back of those that were offered.
    fn typed(&mut self) -> Vec<Vec<u8>> {
        self.choose(RECEIVE);
        let used = self.used();
        used.into_iter().map(|(place, bytes)| self.bytes(data(place), bytes as usize).to_vec()).collect()
    }

    /// Returns the number of buffers that have come back of those that were printed.
    fn printed(&mut self) -> usize {
        self.choose(TRANSMIT);
        self.used().len()
    }
}

fn text(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 7 + seed) as u8).collect()
}

#[test]
fn what_is_sent_is_printed_a_portion_at_a_time() {
    let mut rig = Rig::new();
    rig.print(0, b"hello\n", &[2, 0, 3]);
    assert_eq!((rig.notify(TRANSMIT), rig.printed(), rig.device.interrupt()), (1, 1, true));
    assert_eq!(rig.world.printed, b"hello\n");
    rig.world.printed.clear();
    let long = text(3, 10_000);
    rig.print(1, &long, &[4095, 1, 3000]);
    let times = rig.notify(TRANSMIT);
    assert!((4..20).contains(&times), "{times} portions");
    assert!(rig.world.printed == long && rig.printed() == 1);
    assert_eq!(rig.device.backend().counts().bytes_out, 10_006);
}

#[test]
fn where_there_is_no_room_the_buffer_comes_back_later_and_nobody_waits() {
    let mut rig = Rig::new();
    rig.world.room = 1500;
    let long = text(5, 4000);
    rig.print(0, &long, &[]);
    rig.notify(TRANSMIT);
    assert_eq!((rig.world.printed.len(), rig.printed(), rig.world.is_soon), (1500, 0, true));
    for room in [0, 7, 3000] {
        rig.world.room = room;
        (0..4).for_each(|_| rig.moment());
    }
    assert!(rig.world.printed == long && rig.printed() == 1, "{}", rig.world.printed.len());
    assert!(!rig.world.is_soon, "there is nothing left to be done");
}

#[test]
fn what_is_typed_comes_once_and_waits_for_buffers() {
    let mut rig = Rig::new();
    rig.type_in(b"before there is one");
    assert!(rig.typed().is_empty() && rig.uart.has_received());
    rig.offer(8, 6);
    rig.offer(9, 100);
    rig.notify(RECEIVE);
    assert_eq!(rig.typed(), [&b"before"[..], b" there is one"]);
    assert!(!rig.uart.has_received() && rig.device.interrupt());
    rig.offer(8, 100);
    rig.notify(RECEIVE);
    assert!(rig.typed().is_empty(), "nothing was typed");
    rig.type_in(b"x");
    assert_eq!(rig.typed(), [b"x"]);
    assert_eq!(rig.device.backend().counts().bytes_in, 20);
}

#[test]
fn a_driver_that_has_printed_nothing_is_not_there_yet() {
    let mut rig = Rig::new();
    rig.driver.start(1 << 28, ENTRIES);
    rig.offer(8, 100);
    rig.notify(RECEIVE);
    rig.type_in(b"ahead");
    rig.moment();
    assert!(rig.typed().is_empty() && rig.uart.received().eq(b"ahead".iter().copied()));
    // Nothing is nothing.
    rig.choose(TRANSMIT);
    rig.chain(1, &[(data(1), 0, false)]);
    rig.notify(TRANSMIT);
    assert!(rig.typed().is_empty());
    rig.print(2, b"$ ", &[]);
    rig.notify(TRANSMIT);
    assert_eq!(rig.typed(), [b"ahead"]);
}

#[test]
fn without_a_driver_what_is_typed_is_the_uarts() {
    let mut rig = Rig::new();
    rig.offer(8, 100);
    rig.set(0x070, 0);
    rig.type_in(b"firmware");
    assert!(rig.typed().is_empty());
    assert!(rig.uart.received().eq(b"firmware".iter().copied()));
}

#[test]
fn buffers_that_are_none_come_back_and_what_is_typed_is_not_lost() {
    let mut rig = Rig::new();
    rig.type_in(b"kept");
    for buffers in [
        &[(0x1000, 50, true)][..],
        &[(data(8), 0, true)],
        &[(data(8), 50, false)],
        &[(u64::MAX - 1, 50, true)],
        &[(data(8), 2, true), (0x1000, 50, true)],
    ] {
        rig.choose(RECEIVE);
        rig.chain(8, buffers);
        rig.notify(RECEIVE);
        rig.choose(RECEIVE);
        assert_eq!(rig.used(), [(8, 0)], "{buffers:x?}");
    }
    for buffers in
        [&[(0x1000, 50, false)][..], &[(u64::MAX - 1, 50, false)], &[(data(0), 50, true)], &[(data(0), 0, false)]]
    {
        rig.choose(TRANSMIT);
        rig.chain(0, buffers);
        rig.notify(TRANSMIT);
        assert_eq!(rig.printed(), 1, "{buffers:x?}");
    }
    rig.offer(9, 50);
    rig.notify(RECEIVE);
    assert_eq!(rig.typed(), [b"kept"]);
    assert_eq!((rig.device.counts().1, rig.device.backend().counts().refused), (0, 7));
    assert!(rig.world.printed.is_empty());
}

#[test]
fn a_reset_ends_what_is_under_way() {
    let mut rig = Rig::new();
    rig.world.room = 1100;
    rig.print(0, &text(1, 4000), &[]);
    rig.notify(TRANSMIT);
    rig.start();
    rig.world.room = usize::MAX;
    rig.moment();
    assert_eq!(rig.world.printed.len(), 1100, "the rest is of a driver that is gone");
    rig.print(1, b"new", &[]);
    rig.notify(TRANSMIT);
    assert!(rig.world.printed.ends_with(b"new") && rig.printed() == 1);
}

/// Stops both queues with a chain of each under way, and makes them ready anew. Returns whether there was one, which
/// the seed decides.
fn stop(seed: u64) -> bool {
    let mut rig = Rig::new();
    rig.world.room = 1100;
    rig.print(0, &text(1, 4000), &[]);
    rig.notify(TRANSMIT);
    rig.offer(8, 100);
    b"typed".iter().for_each(|byte| rig.uart.receive(*byte));
    rig.world.later = Some(seed);
    rig.pass();
    rig.world.later = None;
    if rig.device.backend().begun(RECEIVE) == 0 {
        return false;
    }
    for queue in [RECEIVE, TRANSMIT] {
        rig.choose(queue);
        (rig.available, rig.seen) = (0, 0);
        rig.poke_ring(RAM, &[0; 0x1000]);
        for (register, value) in [(0x030, queue as u32), (0x044, 0), (0x044, 1)] {
            rig.set(register, value);
        }
    }
    rig.world.room = usize::MAX;
    rig.poke(data(8), &[0xee; 8]);
    (0..3).for_each(|_| rig.moment());
    assert_eq!((rig.world.printed.len(), rig.printed(), rig.typed().len()), (1100, 0, 0));
    assert_eq!(rig.bytes(data(8), 8), [0xee; 8], "the driver has it for something else");
    let state = rig.device.save().expect("it can always be saved");
    assert_eq!(device().restore(&state), Ok(()), "and it can go on");
    rig.print(1, b"new", &[]);
    rig.notify(TRANSMIT);
    rig.offer(9, 100);
    rig.notify(RECEIVE);
    assert!(rig.world.printed.ends_with(b"new") && rig.printed() == 1);
    assert_eq!(rig.typed(), [b"typed"]);
    true
}

#[test]
fn what_came_by_a_queue_that_was_stopped_is_nobodys() {
    assert!((1..60).filter(|seed| stop(*seed)).count() > 3);
}

#[test]
fn another_guests_hart_prints_seldom() {
    let mut rig = Rig::new();
    rig.device = Mmio::new(0x1000_f000, 17, Console::new(10_000_000, First::Console, &[]));
    rig.start();
    rig.world.room = 0;
    let long = text(5, 12_000);
    rig.print(0, &long, &[]);
    rig.notify(TRANSMIT);
    assert!(rig.world.is_soon);
    // There is no room, there is all that it can have, and some.
    rig.world.is_foreign = true;
    for room in [0, usize::MAX, 100] {
        rig.world.printed.clear();
        (rig.world.room, rig.world.now, rig.world.at) = (room, 5, None);
        rig.moment();
        assert_eq!((rig.world.at, rig.world.is_soon), (Some(10_005), false));
        assert!(rig.world.printed.len() <= 2 * PIECE);
    }
    (rig.world.is_foreign, rig.world.room) = (false, usize::MAX);
    (0..8).for_each(|_| rig.moment());
    assert_eq!((rig.printed(), rig.world.is_soon), (1, false));
}

#[test]
fn it_goes_on_elsewhere_without_a_byte_twice_or_lost() {
    let mut rig = Rig::new();
    rig.world.room = 1100;
    let long = text(9, 3000);
    rig.print(0, &long, &[]);
    rig.print(1, b"next", &[]);
    rig.notify(TRANSMIT);
    rig.offer(8, 4);
    let state = rig.device.save().expect("it can always be saved");
    let mut other = device();
    assert_eq!(other.restore(&state), Ok(()));
    assert_eq!(other.save(), Ok(state.clone()), "also before it has gone on");
    rig.device = other;
    rig.world.room = usize::MAX;
    rig.type_in(b"typed");
    (0..4).for_each(|_| rig.moment());
    assert!(rig.world.printed == [&long[..], b"next"].concat() && rig.printed() == 2);
    assert_eq!(rig.typed(), [b"type"]);
    // A count that is beyond the chain: as if all had been printed.
    let DeviceState::Virtio(mut wild) = state else { panic!("a virtio device's") };
    wild.own = OwnState::Console {
        sent: u32::MAX,
        has_sent: true,
        ports: [PortState { owed: u8::MAX, ..PortState::default() }; 5],
    };
    let mut other = device();
    assert_eq!(other.restore(&DeviceState::Virtio(wild.clone())), Ok(()));
    (rig.device, rig.driver.world.printed) = (other, Vec::new());
    (0..4).for_each(|_| rig.moment());
    assert_eq!(rig.world.printed, b"next");
    wild.own = OwnState::Nothing;
    assert!(device().restore(&DeviceState::Virtio(wild)).is_err());
}

/// Runs a life at random: all bytes come as they were sent and typed, whatever room there is, and whatever memory is
/// not there yet.
fn live(seed: u64) {
    let (mut rig, random) = (Rig::new(), &mut Random(seed));
    rig.world.later = (!seed.is_multiple_of(3)).then_some(seed);
    rig.world.room = 0;
    let mut free: [Vec<usize>; 2] = [(PLACES..2 * PLACES).collect(), (0..PLACES).collect()];
    let (mut sent, mut typed, mut read) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..600 {
        match random.below(6) {
            0 | 1 if !free[TRANSMIT].is_empty() => {
                let place = free[TRANSMIT].swap_remove(0);
                let more = text(step, 1 + random.below(DATA_BYTES / 4) as usize);
                let cuts: Vec<usize> = (0..random.below(5)).map(|_| random.below(900) as usize).collect();
                rig.print(place, &more, &cuts);
                sent.extend(more);
                rig.notify(TRANSMIT);
            }
            2 if !free[RECEIVE].is_empty() => {
                let place = free[RECEIVE].swap_remove(0);
                rig.offer(place, 1 + random.below(3000) as u32);
                rig.notify(RECEIVE);
            }
            3 => {
                let more = text(step, random.below(1500) as usize);
                let more: Vec<u8> = more.into_iter().take_while(|_| rig.uart.has_room()).collect();
                if typed.len() - read.len() < 8000 {
                    rig.type_in(&more);
                    typed.extend(more);
                }
            }
            4 => rig.world.room = random.below(5000) as usize,
            _ => rig.moment(),
        }
        rig.choose(RECEIVE);
        for (place, bytes) in rig.used() {
            read.extend_from_slice(rig.bytes(data(place), bytes as usize));
            free[RECEIVE].push(place);
        }
        rig.choose(TRANSMIT);
        free[TRANSMIT].extend(rig.used().iter().map(|(place, _)| *place));
        assert!(sent.starts_with(&rig.world.printed) && typed.starts_with(&read), "seed {seed}");
    }
    (rig.world.room, rig.world.later) = (usize::MAX, None);
    (0..100).for_each(|_| rig.moment());
    assert!(sent == rig.world.printed, "seed {seed}: {} of {}", rig.world.printed.len(), sent.len());
    assert_eq!((rig.device.counts().1, rig.device.backend().counts().refused), (0, 0));
}

#[test]
fn all_comes_as_it_was_sent_and_typed() {
    (1..40).for_each(|seed| live(seed * 0x9e37_79b9));
}

#[test]
fn whatever_stands_in_the_rings_comes_to_an_end() {
    for seed in 1..150 {
        let (mut rig, random) = (Rig::new(), &mut Random(seed * 0x1234_5679));
        rig.world.later = random.one_in(2).then_some(seed);
        let places = [RAM, TABLE, DRIVER, DEVICE, TABLES, DATA, 0, u64::MAX - 0x1ff];
        for _ in 0..200 {
            rig.choose(random.below(2) as usize);
            let place = places[random.below(8) as usize].wrapping_add(random.below(600));
            let bytes = if random.one_in(3) { random.below(1 << 32) } else { random.below(5000) };
            let descriptor = [place, bytes & 0xffff_ffff | random.below(8) << 32 | random.below(70) << 48];
            let at = [rig.ring(TABLE), TABLES][random.below(2) as usize] + 16 * random.below(64);
            rig.poke(at, descriptor.map(u64::to_le_bytes).as_flattened());
            rig.poke_ring(DRIVER + 4 + 2 * random.below(64), &(random.below(66) as u16).to_le_bytes());
            rig.available = rig.available.wrapping_add(random.below(4) as u16);
            let available = rig.available;
            rig.poke_ring(DRIVER + 2, &available.to_le_bytes());
            match random.below(8) {
                0 => rig.start(),
                1 => rig.world.room = random.below(9000) as usize,
                2 => rig.type_in(b"some bytes"),
                3 => rig.moment(),
                // What is printed may be 4 GiB: it goes on with the same store.
                _ => (0..4).for_each(|_| _ = rig.set(0x050, random.below(3) as u32)),
            }
            rig.world.printed.clear();
        }
        // A driver that starts over has the whole console.
        (rig.world.later, rig.world.room) = (None, usize::MAX);
        rig.start();
        rig.print(0, b"again", &[]);
        rig.notify(TRANSMIT);
        assert_eq!((rig.printed(), rig.world.printed.as_slice()), (1, &b"again"[..]));
    }
}

#[test]
fn a_portion_is_one_by_how_often_memory_is_reached() {
    let mut rig = Rig::new();
    for (queue, flags) in [(TRANSMIT, 1), (RECEIVE, 3)] {
        rig.choose(queue);
        for n in 0..u64::from(ENTRIES) {
            let flags = if n == 63 { flags - 1 } else { flags };
            let words = [data(0) + 8 * n, flags << 32 | (n + 1) << 48];
            let at = rig.ring(TABLE) + 16 * n;
            rig.poke(at, words.map(u64::to_le_bytes).as_flattened());
        }
        rig.poke_ring(DRIVER, &[[0, 0], ENTRIES.to_le_bytes()].concat());
        rig.uart.receive(b'x');
        let mut most = 0;
        for _ in 0..1000 {
            let before = rig.world.accesses;
            rig.set(0x050, queue as u32);
            rig.pass();
            most = most.max(rig.world.accesses - before);
        }
        rig.choose(queue);
        assert_eq!((rig.used().len(), rig.device.counts().1), (64, 0));
        // Each takes some 390 instructions.
        assert!(most < 450, "{most}");
    }
}
