//! Tests of ports that have names, as a driver sees them, and of the programs that are connected to them.

use super::super::*;
use crate::device::interface::tests::RAM;
use crate::device::interface::{Answer, Device};
use crate::device::virtio::driver::{DEVICE, DRIVER, Driver, ENTRIES, TABLE, TABLES};
use crate::device::virtio::wire::console::event;
use crate::random::Random;
use abi::control::port::{MOST_KEPT, MOST_SENT};
use abi::snapshot::bytes::Bytes;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

/// Buffers of 4 KiB, one for each place.
const DATA: u64 = RAM + 0x2_0000;
const BYTES: u64 = 4 << 10;
const QUEUES: usize = 8;
/// The queues of the first port, and of the second.
const IN: [usize; 2] = [4, 6];
const OUT: [usize; 2] = [5, 7];

fn device(is_console: bool) -> Mmio<Console> {
    let first = if is_console { First::Console } else { First::Nobody };
    Mmio::new(0x1000_f000, 17, Console::new(10_000_000, first, &["one".into(), "two".into()]))
}

const fn data(place: usize) -> u64 {
    DATA + BYTES * place as u64
}

struct Rig(Driver<Console>);

impl Deref for Rig {
    type Target = Driver<Console>;

    fn deref(&self) -> &Driver<Console> {
        &self.0
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Driver<Console> {
        &mut self.0
    }
}

/// Makes a message: port, kind, value.
fn message(port: u32, kind: u16, value: u16) -> [u8; 8] {
    let words = u64::from(port) | u64::from(kind) << 32 | u64::from(value) << 48;
    words.to_le_bytes()
}

impl Rig {
    fn new(is_console: bool) -> Self {
        let mut rig = Self(Driver::with_queues(device(is_console), (data(64) - RAM) as usize, QUEUES));
        rig.start(1 << 28 | MULTIPORT as u32, ENTRIES);
        rig
    }

    /// Makes a rig whose driver knows all ports.
    fn ready(is_console: bool) -> Self {
        let mut rig = Self::new(is_console);
        rig.offer_messages(0..8);
        rig.tell(&message(u32::MAX, event::DEVICE_READY, 1));
        for port in u32::from(!is_console)..3 {
            rig.tell(&message(port, event::PORT_READY, 1));
        }
        rig.told();
        rig.offer_messages(8..16);
        rig
    }

    fn offer_messages(&mut self, places: core::ops::Range<usize>) {
        for place in places {
            self.offer(CONTROL_RECEIVE, place, 64);
        }
    }

    fn offer(&mut self, queue: usize, place: usize, bytes: u32) {
        self.choose(queue);
        self.chain(place, &[(data(place), bytes, true)]);
        self.notify(queue);
    }

    /// Notifies until the device goes on no more by that.
    fn notify(&mut self, queue: usize) {
        let is_done = (0..1000).any(|_| self.set(0x050, queue as u32) == Answer::Done(()));
        assert!(is_done, "a notification comes to an end");
    }

    /// Sends a message about ports.
    fn tell(&mut self, message: &[u8]) {
        self.say(CONTROL_TRANSMIT, 63, message);
        self.choose(CONTROL_TRANSMIT);
        assert_eq!(self.used(), [(63, 0)]);
    }

    fn say(&mut self, queue: usize, place: usize, bytes: &[u8]) {
        self.poke(data(place), bytes);
        self.choose(queue);
        self.chain(place, &[(data(place), bytes.len() as u32, false)]);
        self.notify(queue);
    }

    /// Returns the data that the driver was given since.
    fn given(&mut self, queue: usize) -> Vec<Vec<u8>> {
        self.choose(queue);
        let used = self.used();
        used.into_iter().map(|(place, bytes)| self.bytes(data(place), bytes as usize).to_vec()).collect()
    }

    /// Returns the messages about ports that the driver was sent.
    fn told(&mut self) -> Vec<Vec<u8>> {
        self.given(CONTROL_RECEIVE)
    }

    fn exchange(&mut self, port: usize, said: &Exchange) -> Heard {
        let Driver { device, world, .. } = &mut self.0;
        device.exchange(port, said, Some(world)).expect("there is such a port")
    }

    fn close(&mut self, port: usize, connection: u32) {
        let Driver { device, world, .. } = &mut self.0;
        assert_eq!(device.close(port, connection, Some(world)), Some(()));
    }
}

fn said(connection: u32, at: u64, bytes: &[u8], from: u64) -> Exchange {
    Exchange { connection, at, bytes: Bytes(bytes.to_vec()), from, most: u32::MAX }
}

#[test]
fn a_driver_is_told_of_ports_when_it_asks() {
    for is_console in [true, false] {
        let mut rig = Rig::new(is_console);
        assert_eq!([0, 2, 4].map(|at| rig.get(0x100 + at, 2)), [0, 0, 3].map(Answer::Done), "three ports at most");
        rig.offer_messages(0..1);
        rig.exchange(1, &said(7, 0, b"", 0));
        assert!(rig.told().is_empty(), "nothing before it is there");
        rig.tell(&message(u32::MAX, event::DEVICE_READY, 1));
        let first = u32::from(!is_console);
        assert_eq!(rig.told(), [message(first, event::PORT_ADD, 1)], "there is one buffer");
        rig.offer_messages(1..16);
        let rest: Vec<_> = (first + 1..3).map(|port| message(port, event::PORT_ADD, 1)).collect();
        assert_eq!(rig.told(), rest);
        for port in 0..3 {
            rig.tell(&message(port, event::PORT_READY, 1));
        }
        let named = |port, name: &[u8]| [&message(port, event::PORT_NAME, 1), name].concat();
        let mut all = vec![named(1, b"one"), named(2, b"two"), message(2, event::PORT_OPEN, 1).to_vec()];
        if is_console {
            all.splice(..0, [event::CONSOLE_PORT, event::PORT_OPEN].map(|kind| message(0, kind, 1).to_vec()));
        }
        assert_eq!(rig.told(), all);
        assert_eq!(rig.device.backend().counts().ports.nonsense, u64::from(!is_console));
    }
}

#[test]
fn each_connection_is_seen_to_begin_and_to_end() {
    let mut rig = Rig::ready(false);
    let opens = |values: &[u16]| values.iter().map(|value| message(1, event::PORT_OPEN, *value)).collect::<Vec<_>>();
    rig.exchange(0, &said(1, 0, b"", 0));
    rig.exchange(0, &said(1, 0, b"", 0));
    assert_eq!(rig.told(), opens(&[1]));
    rig.close(0, 2);
    assert!(rig.told().is_empty(), "that is another one's");
    rig.close(0, 1);
    rig.close(0, 1);
    assert_eq!(rig.told(), opens(&[0]));
    rig.exchange(0, &said(3, 0, b"", 0));
    rig.exchange(0, &said(4, 0, b"", 0));
    assert_eq!(rig.told(), opens(&[1, 0, 1]));
    // As long as it has no buffers: of what is over before it could be told, nothing.
    let mut rig = Rig::new(false);
    rig.tell(&message(u32::MAX, event::DEVICE_READY, 1));
    rig.tell(&message(1, event::PORT_READY, 1));
    (1..5).for_each(|connection| _ = rig.exchange(0, &said(connection, 0, b"", 0)));
    rig.close(0, 4);
    rig.offer_messages(0..8);
    let all = rig.told();
    assert!(all.iter().all(|told| told[4] != event::PORT_OPEN as u8), "{all:?}");
}

#[test]
fn what_each_says_comes_once_whatever_is_lost_between() {
    let mut rig = Rig::ready(true);
    rig.tell(&message(1, event::PORT_OPEN, 1));
    rig.offer(IN[0], 20, 3);
    let heard = rig.exchange(0, &said(1, 0, b"hello", 0));
    assert_eq!((heard.taken, heard.waiting, heard.is_open), (5, 2, true));
    assert_eq!(rig.given(IN[0]), [b"hel"]);
    // The answer was lost: it is said again, with more behind it. And what is behind a gap is not taken.
    rig.offer(IN[0], 21, 100);
    assert_eq!(rig.given(IN[0]), [b"lo"]);
    assert_eq!(rig.exchange(0, &said(1, 100, b"far", 0)).taken, 5);
    assert_eq!(rig.exchange(0, &said(1, 2, b"llo!", 0)).taken, 6);
    rig.say(OUT[0], 22, b"answer");
    for from in [0, 0, 4] {
        let heard = rig.exchange(0, &Exchange { most: 4, ..said(1, 6, b"", from) });
        assert_eq!(heard.bytes.0, if from == 0 { &b"answ"[..] } else { b"er" });
    }
    assert_eq!(rig.exchange(0, &said(1, 6, b"", 0)).bytes.0, b"", "that has come, it was said");
    assert_eq!(rig.exchange(1, &said(1, 0, b"other", 0)), Heard { taken: 5, waiting: 5, ..Heard::default() });
    assert!(rig.0.device.exchange(2, &said(1, 0, b"", 0), None).is_none());
}

#[test]
fn a_port_that_is_not_open_is_given_nothing_and_nobody_is_said_nothing() {
    let mut rig = Rig::ready(false);
    rig.offer(IN[0], 20, 100);
    let many = [7; MOST_SENT];
    let mut taken = 0;
    for _ in 0..20 {
        taken = rig.exchange(0, &said(1, taken, &many, 0)).taken;
    }
    assert_eq!(taken, MOST_KEPT as u64, "what is behind it waits where it comes from");
    assert!(rig.given(IN[0]).is_empty());
    rig.tell(&message(1, event::PORT_OPEN, 1));
    assert_eq!(rig.given(IN[0]), [[7; 100]]);
    rig.close(0, 1);
    rig.offer(IN[0], 20, 100);
    assert!(rig.given(IN[0]).is_empty(), "the rest went with the connection");
    rig.say(OUT[0], 22, b"to nobody");
    rig.choose(OUT[0]);
    assert_eq!(rig.used(), [(22, 0)]);
    assert_eq!(rig.device.backend().counts().ports.unheard, 9);
}

#[test]
fn who_does_not_listen_holds_back_its_own_port_only() {
    let mut rig = Rig::ready(false);
    rig.exchange(0, &said(1, 0, b"", 0));
    for place in 20..24 {
        rig.say(OUT[0], place, &[place as u8; BYTES as usize]);
    }
    rig.choose(OUT[0]);
    assert_eq!(rig.used().len(), 2, "8 KiB are kept");
    rig.say(OUT[1], 30, b"nobody");
    rig.choose(OUT[1]);
    assert_eq!(rig.used().len(), 1);
    let heard = rig.exchange(0, &said(1, 0, b"", 0));
    assert_eq!(heard.bytes.0.len(), MOST_KEPT);
    // The end of the connection gives the driver its buffers back.
    rig.close(0, 1);
    rig.choose(OUT[0]);
    assert_eq!(rig.used().len(), 2);
}

/// Runs a life at random: each side has what the other has said.
fn live(seed: u64) {
    let (mut rig, random) = (Rig::ready(seed.is_multiple_of(2)), &mut Random(seed));
    rig.tell(&message(1, event::PORT_OPEN, 1));
    rig.tell(&message(2, event::PORT_OPEN, 1));
    // Output before the first connection is counted as unheard.
    (0..2).for_each(|port| _ = rig.exchange(port, &said(1, 0, b"", 0)));
    let byte = |port: usize, at: u64| (at * 7 + at / 251 + port as u64) as u8;
    let mut free: [Vec<usize>; 4] = core::array::from_fn(|n| (8 * (n + 2)..8 * (n + 3)).collect());
    let (mut spoken, mut shown) = ([0_u64; 2], [0_u64; 2]);
    let (mut taken, mut heard, mut read) = ([0_u64; 2], [0_u64; 2], [0_u64; 2]);
    rig.world.later = (!seed.is_multiple_of(3)).then_some(seed);
    for _ in 0..600 {
        let port = random.below(2) as usize;
        match random.below(4) {
            0 => {
                if let Some(place) = free[port].pop() {
                    let bytes = 1 + random.below(3000);
                    let text: Vec<u8> = (0..bytes).map(|n| byte(port, spoken[port] + n)).collect();
                    spoken[port] += bytes;
                    rig.poke(data(place), &text);
                    rig.choose(OUT[port]);
                    let cut = random.below(bytes);
                    rig.chain(
                        place,
                        &[(data(place), cut as u32, false), (data(place) + cut, (bytes - cut) as u32, false)],
                    );
                    rig.notify(OUT[port]);
                }
            }
            1 => {
                if let Some(place) = free[2 + port].pop() {
                    rig.choose(IN[port]);
                    let half = 1 + random.below(2000) as u32;
                    rig.chain(place, &[(data(place), half, true), (data(place) + u64::from(half), half, true)]);
                    rig.notify(IN[port]);
                }
            }
            2 => {
                let text: Vec<u8> = (0..random.below(1900)).map(|n| byte(port, taken[port] + n)).collect();
                let most = random.below(9000) as u32;
                let answer = rig.exchange(port, &Exchange { most, ..said(1, taken[port], &text, heard[port]) });
                let good = answer.bytes.0.iter().zip(heard[port]..).all(|(got, at)| *got == byte(port, at));
                assert!(good, "seed {seed}");
                // Some answers are lost on the way.
                if !random.one_in(4) {
                    taken[port] = answer.taken;
                    heard[port] += answer.bytes.0.len() as u64;
                }
            }
            _ => {
                rig.world.is_foreign = random.one_in(3);
                rig.moment();
                rig.world.is_foreign = false;
            }
        }
        for port in 0..2 {
            rig.choose(OUT[port]);
            let back = rig.used();
            shown[port] += back.len() as u64;
            free[port].extend(back.iter().map(|(place, _)| *place));
            rig.choose(IN[port]);
            for (place, bytes) in rig.used() {
                let got = rig.bytes(data(place), bytes as usize);
                assert!(got.iter().zip(read[port]..).all(|(got, at)| *got == byte(port, at)), "seed {seed}");
                read[port] += u64::from(bytes);
                free[2 + port].push(place);
            }
        }
    }
    let counts = rig.device.backend().counts().ports;
    assert!(read[0] > 10_000 && heard[0] > 10_000 && shown[0] > 10, "{read:?} {heard:?}");
    assert_eq!((rig.device.counts().1, counts.refused, counts.nonsense), (0, 0, 0), "seed {seed}");
}

#[test]
fn all_comes_as_it_was_said() {
    (1..40).for_each(|seed| live(seed * 0x9e37_79b9));
}

#[test]
fn nonsense_is_passed_over() {
    let mut rig = Rig::ready(true);
    let before = rig.device.backend().control.save();
    for (port, kind) in [(1, 2), (1, 4), (1, 5), (1, 7), (1, 8), (1, u16::MAX), (3, 6), (3, 3), (u32::MAX, 6), (4, 1)] {
        rig.tell(&message(port, kind, 1));
    }
    rig.tell(b"short");
    rig.tell(b"");
    assert_eq!(rig.device.backend().counts().ports.nonsense, 12);
    assert_eq!(rig.device.backend().control.save(), before);
    // A driver that can make nothing of a port, or of all.
    rig.tell(&message(1, event::PORT_READY, 0));
    rig.exchange(0, &said(1, 0, b"x", 0));
    assert!(rig.told().is_empty());
    rig.tell(&message(0, event::DEVICE_READY, 0));
    assert!(rig.told().is_empty());
    // Buffers that are too short come back empty; what is to be said is said in the next.
    let mut rig = Rig::new(true);
    rig.tell(&message(0, event::DEVICE_READY, 1));
    rig.offer(CONTROL_RECEIVE, 1, 7);
    rig.choose(CONTROL_RECEIVE);
    assert_eq!(rig.used(), [(1, 0)]);
    rig.offer_messages(2..3);
    assert_eq!(rig.told(), [message(0, event::PORT_ADD, 1)]);
}

#[test]
fn whatever_stands_in_the_rings_comes_to_an_end() {
    for seed in 1..120_u64 {
        let (mut rig, random) = (Rig::ready(seed.is_multiple_of(2)), &mut Random(seed * 0x1234_5679));
        rig.world.later = random.one_in(2).then_some(seed);
        let places = [RAM, TABLE, DRIVER, DEVICE, TABLES, DATA, 0, u64::MAX - 0x1ff];
        for step in 0..200 {
            let queue = random.below(QUEUES as u64) as usize;
            rig.choose(queue);
            let place = places[random.below(8) as usize].wrapping_add(random.below(600));
            let bytes = if random.one_in(3) { random.below(1 << 32) } else { random.below(5000) };
            let descriptor = [place, bytes & 0xffff_ffff | random.below(8) << 32 | random.below(70) << 48];
            let at = [rig.ring(TABLE), TABLES][random.below(2) as usize] + 16 * random.below(64);
            rig.poke(at, descriptor.map(u64::to_le_bytes).as_flattened());
            let message = message(random.below(4) as u32, random.below(9) as u16, random.below(2) as u16);
            rig.poke(DATA + random.below(600), &message);
            rig.poke_ring(DRIVER + 4 + 2 * random.below(64), &(random.below(66) as u16).to_le_bytes());
            rig.available = rig.available.wrapping_add(random.below(4) as u16);
            let available = rig.available;
            rig.poke_ring(DRIVER + 2, &available.to_le_bytes());
            let port = random.below(2) as usize;
            let before = rig.world.accesses;
            match random.below(10) {
                0 => rig.start(1 << 28 | 2, ENTRIES),
                1 => {
                    _ = rig
                        .exchange(port, &said(random.below(3) as u32, random.below(100), &[5; 500], random.below(9000)))
                }
                2 => rig.close(port, random.below(3) as u32),
                3 => rig.moment(),
                4 => {
                    // What it is saved as, it can go on from.
                    let state = rig.device.save().expect("it can always be saved");
                    assert_eq!(device(seed.is_multiple_of(2)).restore(&state), Ok(()), "seed {seed}, step {step}");
                }
                _ => _ = rig.set(0x050, queue as u32),
            }
            assert!(rig.world.accesses - before < 450, "{} accesses", rig.world.accesses - before);
            rig.world.printed.clear();
        }
        // A driver that starts over has all ports.
        rig.world.later = None;
        let mut rig = {
            rig.start(1 << 28 | 2, ENTRIES);
            rig
        };
        rig.offer_messages(0..8);
        rig.tell(&message(u32::MAX, event::DEVICE_READY, 1));
        assert_eq!(rig.told().len(), 2 + usize::from(seed.is_multiple_of(2)));
    }
}

#[test]
fn a_portion_is_one_by_how_often_memory_is_reached() {
    let mut rig = Rig::ready(true);
    rig.tell(&message(1, event::PORT_OPEN, 1));
    rig.exchange(0, &said(1, 0, &[b'x'; 1900], 0));
    for (queue, flags) in [(OUT[0], 1), (IN[0], 3), (OUT[1], 1), (CONTROL_TRANSMIT, 1), (CONTROL_RECEIVE, 3)] {
        rig.choose(queue);
        for n in 0..u64::from(ENTRIES) {
            let flags = if n == 63 { flags - 1 } else { flags };
            // A message of one byte in each buffer.
            let words = [data(40) + 8 * n, 1 | flags << 32 | (n + 1) << 48];
            let at = rig.ring(TABLE) + 16 * n;
            rig.poke(at, words.map(u64::to_le_bytes).as_flattened());
        }
        rig.poke_ring(RAM + 0x800, &[[0, 0], ENTRIES.to_le_bytes()].concat());
        (rig.available, rig.seen) = (ENTRIES, 0);
    }
    let mut most = 0;
    for round in 0..1000 {
        let before = rig.world.accesses;
        match round % 4 {
            0 => rig.moment(),
            1 => _ = rig.set(0x050, [5, 4, 3, 2, 7][round / 4 % 5]),
            _ => _ = rig.exchange(0, &said(1, 1900, b"", 0)),
        }
        most = most.max(rig.world.accesses - before);
    }
    // Each takes some 390 instructions.
    assert!(most < 450, "{most}");
}

#[test]
fn another_guests_hart_does_a_portion_and_then_seldom_one() {
    let mut rig = Rig::ready(false);
    for place in 0..60 {
        rig.choose(OUT[0]);
        rig.chain(place, &[(data(place), BYTES as u32, false)]);
    }
    (rig.world.is_foreign, rig.world.is_soon, rig.world.now) = (true, false, 7);
    let mut back = 0;
    for _ in 0..10 {
        rig.world.at = None;
        rig.moment();
        rig.choose(OUT[0]);
        let some = rig.used().len();
        assert!(some <= 20 && !rig.world.is_soon, "{some}");
        back += some;
        assert_eq!(rig.world.at, (back < 60).then_some(7 + 10_000_000 / SELDOM), "{back}");
    }
    assert_eq!(back, 60);
}

#[test]
fn a_port_goes_on_elsewhere_where_nobody_is_connected() {
    let mut rig = Rig::ready(true);
    rig.tell(&message(1, event::PORT_OPEN, 1));
    rig.tell(&message(0, event::PORT_OPEN, 1));
    rig.exchange(0, &said(1, 0, b"lost with whoever said it", 0));
    rig.told();
    let state = rig.device.save().expect("it can be");
    let mut there = device(true);
    assert_eq!(there.restore(&state), Ok(()));
    rig.0.device = there;
    rig.moment();
    assert_eq!(rig.told(), [message(1, event::PORT_OPEN, 0)]);
    let heard = rig.exchange(0, &said(9, 0, b"new", 0));
    assert!(heard.is_open);
    assert_eq!(rig.told(), [message(1, event::PORT_OPEN, 1)]);
    assert!(rig.device.backend().is_listening(), "its console has been opened");
    // Not as one that has other ports.
    let mut other = Mmio::new(0, 17, Console::new(10_000_000, First::Console, &["one".into()]));
    assert!(other.restore(&state).is_err());
}

#[test]
fn a_console_among_ports_is_given_what_is_typed_once_it_is_open() {
    let (mut rig, mut uart) = (Rig::ready(true), Uart::default());
    b"ahead".iter().for_each(|byte| uart.receive(*byte));
    let pass = |rig: &mut Rig, uart: &mut Uart| {
        let Driver { device, world, .. } = &mut rig.0;
        device.take_input(uart, world);
    };
    rig.offer(RECEIVE, 20, 100);
    rig.say(TRANSMIT, 21, b"printed before that");
    pass(&mut rig, &mut uart);
    assert!(rig.given(RECEIVE).is_empty());
    rig.tell(&message(0, event::PORT_OPEN, 1));
    pass(&mut rig, &mut uart);
    assert_eq!(rig.given(RECEIVE), [b"ahead"]);
    // Without a console, input is not for port 0, and output there is discarded.
    let (mut rig, mut uart) = (Rig::ready(false), Uart::default());
    uart.receive(b'x');
    rig.tell(&message(0, event::PORT_OPEN, 1));
    rig.offer(RECEIVE, 20, 100);
    rig.say(TRANSMIT, 21, b"nothing");
    pass(&mut rig, &mut uart);
    rig.choose(TRANSMIT);
    assert_eq!((rig.used(), rig.world.printed.len()), (vec![(21, 0)], 0));
    assert!(rig.given(RECEIVE).is_empty() && uart.has_received());
}
