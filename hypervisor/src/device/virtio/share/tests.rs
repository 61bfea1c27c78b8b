//! The share behind its transport, as a driver sees it.

mod rig;
mod saved;

use super::message::{ERROR, HEAD, MOST_FILES, SMALL};
use super::*;
use crate::backend::shares::{MOST_FLYING, UNITS};
use crate::device::interface::Answer as Access;
use crate::device::interface::tests::RAM;
use alloc::vec;
use rig::*;

const WRITE: u8 = 118;
const READ: u8 = 116;
const CLUNK: u8 = 120;

/// Makes a message: its type, its tag, and the rest.
fn message(kind: u8, tag: u16, rest: &[u8]) -> Vec<u8> {
    let length = (HEAD + rest.len()) as u32;
    [&length.to_le_bytes()[..], &[kind], &tag.to_le_bytes(), rest].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
}

fn clunk(tag: u16) -> Vec<u8> {
    message(CLUNK, tag, &[tag as u8, 0, 0, 0])
}

fn read(tag: u16, count: u32) -> Vec<u8> {
    message(READ, tag, &[&[1, 0, 0, 0][..], &[0; 8], &count.to_le_bytes()].concat())
}

fn write(tag: u16, data: &[u8]) -> Vec<u8> {
    message(WRITE, tag, &[&[1, 0, 0, 0][..], &[0; 8], &(data.len() as u32).to_le_bytes(), data].concat())
}

fn version(msize: u32, dialect: &str) -> Vec<u8> {
    message(100, 0xffff, &[&msize.to_le_bytes()[..], &text(dialect)].concat())
}

fn error(tag: u16, why: u32) -> Vec<u8> {
    message(7, tag, &why.to_le_bytes())
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|n| (n.wrapping_mul(seed | 1) >> 3) as u8 ^ seed as u8).collect()
}

/// Returns the host's answer: as many bytes as are asked for, or nothing.
fn reply(message: &[u8]) -> Vec<u8> {
    let (kind, tag) = (message[4], number(&message[5..7]) as u16);
    match kind {
        READ => {
            let count = number(&message[19..23]) as usize;
            self::message(kind + 1, tag, &[&(count as u32).to_le_bytes()[..], &pattern(tag.into(), count)].concat())
        }
        100 => self::message(101, tag, &message[7..]),
        WRITE => self::message(kind + 1, tag, &message[19..23]),
        _ => self::message(kind + 1, tag, &[]),
    }
}

/// Reads a message as a server does, by the protocol's own formats; `None` if one runs over its end.
fn decode(message: &[u8]) -> Option<()> {
    let length = number(message.get(..4)?) as usize;
    assert_eq!(length, message.len(), "the length that it says");
    let format = match message[4] {
        8 | 22 | 120 | 122 => "d",
        12 | 50 => "dd",
        14 => "dsddd",
        16 => "dssd",
        18 => "dsdddd",
        20 | 30 | 70 => "dds",
        24 => "dq",
        26 => "dddddqqqqq",
        32 => "dsqd",
        40 | 116 => "dqd",
        52 => "dbdqqds",
        54 => "dbqqds",
        72 => "dsdd",
        74 => "dsds",
        76 => "dsd",
        100 => "ds",
        104 => "ddssd",
        108 => "w",
        110 => "ddW",
        118 => "dqD",
        _ => return None,
    };
    let mut rest = message.get(7..)?;
    let mut take = |bytes: u64| {
        let (taken, left) = rest.split_at_checked(usize::try_from(bytes).ok()?)?;
        rest = left;
        Some(number(&taken[..taken.len().min(8)]))
    };
    for field in format.chars() {
        match field {
            'b' => take(1)?,
            'w' => take(2)?,
            'd' => take(4)?,
            'q' => take(8)?,
            's' => {
                let length = take(2)?;
                take(length)?
            }
            'D' => {
                let length = take(4)?;
                take(length)?
            }
            'W' => {
                let count = take(2)?;
                assert!(count <= 16);
                for _ in 0..count {
                    let length = take(2)?;
                    take(length)?;
                }
                0
            }
            _ => unreachable!(),
        };
    }
    Some(())
}

#[test]
fn messages_pass_and_answers_come_back_however_they_are_cut() {
    for cuts in [&[][..], &[7], &[1, 2, 4, 9], &[4096, 4095], &[3, 60_000]] {
        let mut rig = Rig::new();
        for bytes in [1, 600, 4096, 100_000] {
            let data = pattern(bytes as u64, bytes);
            rig.message(1, &write(5, &data), 11, cuts);
            rig.message(2, &read(6, bytes as u32), bytes as u32 + 11, cuts);
            rig.notify();
            assert_eq!(rig.come_back(), [], "there is no answer yet");
            let begun: Vec<_> = rig.model.lock().begun.iter().map(|(.., message)| message.clone()).collect();
            assert_eq!(begun, [write(5, &data), read(6, bytes as u32)]);
            // The later one first.
            rig.model.lock().answer(1, reply(&begun[1]));
            rig.model.lock().answer(0, reply(&begun[0]));
            rig.moment();
            assert_eq!(rig.come_back(), [(2, bytes + 11), (1, 11)]);
            assert_eq!(rig.bytes(Rig::at(2).1, bytes + 11), reply(&begun[1]), "{bytes} bytes, {cuts:?}");
            assert_eq!(rig.bytes(Rig::at(1).1, 11), reply(&begun[0]));
            assert_eq!(rig.bytes(Rig::at(1).1 + 11, 1), [0xee], "and nothing behind it");
        }
        assert_eq!((rig.free_units(), rig.device.counts().1), (UNITS, 0));
        let counts = *rig.device.backend().counts();
        assert_eq!((counts.messages, counts.refused, counts.unfit), (8, 0, 0));
    }
}

#[test]
fn the_configuration_has_the_tag() {
    let mut rig = Rig::new();
    let mut word = |offset: u64, width| rig.get(0x100 + offset, width);
    assert_eq!((word(0, 2), word(2, 1), word(4, 1), word(5, 1)), [3, 115, 99, 0].map(Access::Done).into());
    assert_eq!((word(0, 4), word(0x80, 4)), (Access::Done(0x7273_0003), Access::Done(0)));
    assert_eq!(rig.device.backend().features(), 1);
}

#[test]
fn a_session_has_messages_that_gnomon_has_room_for() {
    let mut rig = Rig::new();
    let said = |answer: Vec<u8>| (number(&answer[7..11]), answer[13..].to_vec());
    let most = MOST_MESSAGE as u64;
    for (msize, agreed) in [(8192, 8192), (most, most), (most + 1, most), (0xffff_ffff, most)] {
        let answer = rig.ask(&version(msize as u32, "9P2000.L"), 64);
        assert_eq!(said(answer), (agreed, b"9P2000.L".to_vec()));
    }
    // Another dialect is answered as one that is not known.
    for dialect in ["9P2000", "9P2000.u", "", "9P2000.Lx", &"x".repeat(5000)] {
        let answer = rig.ask(&version(4000, dialect), 64);
        assert_eq!((answer[4], said(answer)), (101, (4000, b"unknown".to_vec())), "{dialect}");
    }
    assert_eq!(rig.device.backend().counts().messages, 4);
}

#[test]
fn what_is_read_fits_into_the_room() {
    let mut rig = Rig::new();
    let got = |answer: Vec<u8>| (number(&answer[7..11]) as usize, answer.len());
    for (count, room, least) in [
        (100, 111, 100),
        (100, 4096, 100),
        (5000, 4096, 4085),
        (u32::MAX, 4096, 4085),
        (u32::MAX, 256 << 10, MOST_MESSAGE - 11),
        (1 << 17, 256 << 10, MOST_MESSAGE - 11),
        (0, 4096, 0),
        (77, 11, 0),
    ] {
        assert_eq!(got(rig.ask(&read(1, count), room)), (least, least + 11), "{count} bytes into {room}");
    }
    assert_eq!((rig.free_units(), rig.device.backend().counts().unfit), (UNITS, 0));
    // A small one takes no more room than it needs.
    rig.message(0, &read(1, 512), 128 << 10, &[]);
    rig.notify();
    assert_eq!(rig.model.lock().begun[0].1.units.count, 1);
}

#[test]
fn what_is_no_message_is_answered_and_does_not_reach_the_host() {
    const INVALID: u32 = 22;
    let fid = |file: u32| file.to_le_bytes();
    let walk = |names: u16, rest: &[u8]| message(110, 3, &[&fid(1)[..], &fid(2), &names.to_le_bytes(), rest].concat());
    let attribute =
        |bytes: u64| message(32, 3, &[&fid(1)[..], &text("user.a"), &bytes.to_le_bytes(), &fid(0)].concat());
    let mut long = clunk(3);
    long[0] += 1;
    let mut short = clunk(3);
    short[0] = 6;
    let mut huge = clunk(3);
    huge[..4].fill(0xff);
    let mut lies = write(3, &[1, 2, 3]);
    lies[19] = 4;
    let mut wraps = write(3, &[1, 2, 3]);
    wraps[19..23].fill(0xff);
    for (what, message, why) in [
        ("longer than its buffers", long, INVALID),
        ("shorter than a head", short, INVALID),
        ("as long as can be", huge, INVALID),
        ("more data than there is", lies, INVALID),
        ("data that wraps", wraps, INVALID),
        ("less data than there is", write(3, &[1; 9]).split_off(0).tap(|all| all[19] = 8), INVALID),
        ("a field too few", message(12, 3, &fid(1)), INVALID),
        ("a field too many", message(CLUNK, 3, &[0; 5]), INVALID),
        ("a text without an end", message(20, 3, &[&fid(1)[..], &fid(2), &[5, 0, b'x']].concat()), INVALID),
        ("seventeen names", walk(17, &[0; 34]), INVALID),
        ("fewer names than it says", walk(3, &[0; 4]), INVALID),
        ("as many names as can be", walk(0xffff, &[0; 4]), INVALID),
        ("another type", message(99, 3, &[0; 4]), 95),
        ("an answer", message(101, 3, &[0; 20]), 95),
        ("another dialect's open", message(112, 3, &[0; 5]), 95),
        ("another dialect's stat", message(124, 3, &fid(1)), 95),
        ("authentication", message(102, 3, &[&fid(1)[..], &text("u"), &text("")].concat()), 95),
        ("longer than any name", message(20, 3, &[&[0; 8][..], &text(&"x".repeat(SMALL))].concat()), 90),
        ("a long attribute", attribute(4097), 7),
        ("a file of too high a number", message(110, 3, &[&fid(1)[..], &fid(MOST_FILES), &[0; 2]].concat()), 24),
        ("the same of an attribute", message(30, 3, &[&fid(1)[..], &fid(u32::MAX), &text("")].concat()), 24),
    ] {
        let mut rig = Rig::new();
        assert_eq!(rig.ask(&message, 64), error(3, why), "{what}");
        assert_eq!((rig.device.backend().counts().messages, rig.free_units()), (0, UNITS), "{what}");
        assert_eq!(rig.ask(&attribute(4096), 64)[4], 33, "the next one after {what}");
        assert!(!rig.is_lost());
    }
    let mut rig = Rig::new();
    let too_long = write(3, &vec![0; MOST_MESSAGE - 22]);
    assert_eq!(too_long.len(), MOST_MESSAGE + 1);
    assert_eq!(rig.ask(&too_long, 64), error(3, 90));
    assert_eq!(rig.ask(&write(3, &vec![0; MOST_MESSAGE - 23]), 64)[4], WRITE + 1);
}

/// Changes a value on its way.
trait Tap: Sized {
    fn tap(self, change: impl FnOnce(&mut Self)) -> Self;
}

impl<T> Tap for T {
    fn tap(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

#[test]
fn a_chain_without_a_message_or_room_comes_back_empty() {
    let (from, to) = Rig::at(0);
    for buffers in [
        &[(from, 6, false), (to, 64, true)][..],
        &[(from, 11, false)],
        &[(from, 11, false), (to, 10, true)],
        &[(to, 64, true)],
        &[(u64::MAX - 3, 11, false), (to, 64, true)],
        &[(0, 11, false), (to, 64, true)],
    ] {
        let mut rig = Rig::new();
        rig.poke(from, &clunk(3));
        rig.chain(0, buffers);
        rig.notify();
        assert_eq!(rig.come_back(), [(0, 0)], "{buffers:?}");
        assert_eq!((rig.device.backend().counts().refused, rig.is_lost()), (1, false));
    }
    // A head that is there, and what it speaks of is not.
    let mut rig = Rig::new();
    rig.poke(from, &write(3, &[0; 100]));
    rig.chain(0, &[(from, 30, false), (u64::MAX - 10, u32::MAX, false), (to, u32::MAX, true)]);
    rig.notify();
    assert_eq!((rig.come_back(), rig.bytes(to, ERROR).to_vec()), (vec![(0, 11)], error(3, 14)));
    assert_eq!((rig.free_units(), rig.device.backend().counts().messages), (UNITS, 0));
    // Room for the answer that is nowhere.
    rig.poke(from, &clunk(3));
    rig.chain(0, &[(from, 11, false), (RAM - 64, u32::MAX, true)]);
    rig.notify();
    rig.model.lock().answer(0, reply(&clunk(3)));
    rig.moment();
    assert_eq!((rig.come_back(), rig.device.backend().counts().unfit, rig.free_units()), (vec![(0, 0)], 1, UNITS));
}

#[test]
fn rings_that_are_wild_ask_for_a_reset_and_nothing_else() {
    type Wild = fn(&mut Rig);
    let wild: [(&str, Wild); 4] = [
        ("an index that runs ahead", |rig| rig.poke(DRIVER + 2, &66_u16.to_le_bytes())),
        ("a head that is none", |rig| {
            rig.chain(0, &[(MESSAGES, 11, false)]);
            rig.poke(DRIVER + 4 + 2, &64_u16.to_le_bytes());
        }),
        ("a loop", |rig| {
            rig.chain(0, &[(MESSAGES, 1, false), (MESSAGES, 1, false)]);
            rig.poke(TABLES + 16 + 12, &[1, 0, 0, 0]);
        }),
        ("a buffer to be read behind one to be written", |rig| {
            rig.chain(0, &[(MESSAGES, 64, true), (MESSAGES, 11, false)]);
        }),
    ];
    for (what, make) in wild {
        let mut rig = Rig::new();
        rig.message(1, &clunk(1), 64, &[]);
        rig.notify();
        make(&mut rig);
        rig.notify();
        assert!(rig.is_lost(), "{what}");
        rig.model.lock().answer(0, reply(&clunk(1)));
        rig.moment();
        assert_eq!(rig.come_back(), [], "{what}: nothing more is done");
        rig.start();
        assert_eq!(rig.ask(&clunk(2), 64)[4], CLUNK + 1, "{what}");
        assert_eq!(rig.free_units(), UNITS);
    }
}

#[test]
fn what_was_asked_before_a_reset_comes_to_nothing_and_is_waited_for() {
    let mut rig = Rig::new();
    for place in 0..3 {
        rig.message(place, &read(place as u16, 60_000), 60_011, &[]);
    }
    rig.notify();
    assert_eq!(rig.model.lock().begun.len(), 3);
    let first = rig.model.lock().begun[0].2.clone();
    // One has been answered, and the driver did not hear of it.
    rig.model.lock().answer(0, reply(&first));
    rig.port.lock().attend();
    rig.start();
    let before = rig.world.ram.clone();
    rig.moment();
    assert!(rig.come_back().is_empty() && rig.world.ram == before, "the old driver's answer is discarded");
    rig.message(0, &clunk(9), 64, &[]);
    rig.notify();
    assert_eq!(rig.model.lock().begun.len(), 2, "what is new waits");
    for _ in 0..2 {
        let old = rig.model.lock().begun[0].2.clone();
        rig.model.lock().answer(0, reply(&old));
        rig.moment();
    }
    assert_eq!(rig.come_back(), []);
    assert_eq!(rig.model.lock().begun.iter().map(|(.., message)| message.clone()).collect::<Vec<_>>(), [clunk(9)]);
    rig.model.lock().answer(0, reply(&clunk(9)));
    rig.moment();
    assert_eq!((rig.come_back(), rig.free_units()), (vec![(0, 7)], UNITS));
}

#[test]
fn what_has_no_room_waits_and_keeps_its_turn() {
    let mut rig = Rig::new();
    // Large ones until the buffer is full, then a small one behind them.
    for place in 0..6 {
        rig.message(place, &write(place as u16, &vec![place as u8; 100_000]), 11, &[]);
    }
    rig.message(6, &clunk(6), 64, &[]);
    rig.notify();
    let begun = rig.model.lock().begun.len();
    assert!((3..6).contains(&begun), "{begun} of them");
    let mut order = Vec::new();
    while !rig.model.lock().begun.is_empty() {
        let (.., message) = rig.model.lock().begun[0].clone();
        order.push(message[5]);
        rig.model.lock().answer(0, reply(&message));
        rig.moment();
    }
    assert_eq!((order, rig.come_back().len(), rig.free_units()), ((0..7).collect(), 7, UNITS));
    // A host that takes one at a time, and then none at all.
    rig.model.lock().most = Some(1);
    (0..MOST_PLACES).for_each(|place| rig.message(place, &clunk(place as u16), 64, &[]));
    rig.notify();
    for place in 0..MOST_PLACES {
        assert_eq!(rig.model.lock().begun.len(), 1);
        rig.model.lock().answer(0, reply(&clunk(place as u16)));
        rig.moment();
    }
    assert_eq!(rig.come_back(), (0..MOST_PLACES).map(|place| (place, 7)).collect::<Vec<_>>());
    rig.model.lock().is_broken = true;
    assert_eq!(rig.ask(&clunk(1), 64), error(1, 5));
    assert_eq!(rig.free_units(), UNITS);
}

#[test]
fn as_many_are_in_flight_as_may_be() {
    let mut rig = Rig::new();
    (0..MOST_PLACES).for_each(|place| rig.message(place, &clunk(place as u16), 64, &[]));
    rig.notify();
    assert_eq!(rig.model.lock().begun.len(), MOST_FLYING);
    let old = rig.model.lock().begun[5].2.clone();
    rig.model.lock().answer(5, reply(&old));
    rig.moment();
    assert_eq!(rig.come_back(), [(5, 7)]);
    assert_eq!(rig.model.lock().begun.len(), MOST_FLYING);
}

#[test]
fn an_answer_that_is_too_long_is_told_as_such() {
    let mut rig = Rig::new();
    rig.message(0, &message(22, 4, &[1, 0, 0, 0]), 64, &[]);
    rig.notify();
    rig.model.lock().answer(0, message(23, 4, &text(&"x".repeat(100))));
    rig.moment();
    assert_eq!((rig.come_back(), rig.bytes(Rig::at(0).1, 11).to_vec()), (vec![(0, 11)], error(4, 90)));
}

#[test]
fn when_the_server_has_ended_all_messages_are_answered_with_errors() {
    let mut rig = Rig::new();
    (0..MOST_PLACES).for_each(|place| rig.message(place, &clunk(place as u16), 64, &[]));
    rig.notify();
    rig.model.lock().answer(0, reply(&clunk(0)));
    rig.model.lock().end();
    rig.moment();
    let expected: Vec<_> = (0..MOST_PLACES).map(|place| (place, if place == 0 { 7 } else { 11 })).collect();
    assert_eq!((rig.come_back(), rig.free_units()), (expected, UNITS));
    (1..MOST_PLACES).for_each(|place| assert_eq!(rig.bytes(Rig::at(place).1, 11), error(place as u16, 5)));
    // It stays so, also after a reset.
    rig.start();
    assert_eq!(rig.ask(&clunk(1), 64), error(1, 5));
    assert_eq!(rig.free_units(), UNITS);
}

#[test]
fn what_the_guest_writes_while_it_is_copied_does_not_matter() {
    let mut rig = Rig::new();
    let (from, to) = (Rig::at(0).0 + 1, Rig::at(0).1);
    // Words that are not aligned cost more: it takes two portions.
    rig.poke(from, &write(3, &vec![7; 120_000]));
    rig.chain(0, &[(from, 120_023, false), (to, 64, true)]);
    assert_eq!(rig.set(0x050, 0), Access::Again);
    // A message that is longer, and of another type; and then more data than there is.
    rig.poke(from, &message(100, 9, &[0xff; 16]));
    rig.notify();
    let begun = rig.model.lock().begun.first().map(|(.., message)| message.clone());
    assert_eq!(begun.map(|message| message == write(3, &vec![7; 120_000])), Some(true), "it is as it was first read");
}

#[test]
fn each_message_is_answered_once_whatever_comes_in_between() {
    for seed in 1..60 {
        let (mut rig, mut random) = (Rig::new(), Random(seed * 7919));
        rig.world.later = (seed % 3 == 0).then_some(seed);
        let mut made: Vec<Option<Vec<u8>>> = vec![None; 8];
        for _ in 0..300 {
            let place = random.below(8) as usize;
            match random.below(8) {
                0..4 if made[place].is_none() => {
                    let tag = place as u16;
                    let bytes = [random.below(64), random.below(4096), random.below(100_000)][random.below(3) as usize];
                    let message = match random.below(3) {
                        0 => clunk(tag),
                        1 => write(tag, &pattern(random.below(99), bytes as usize)),
                        _ => read(tag, bytes as u32),
                    };
                    let room = 11 + if message[4] == READ { bytes as u32 } else { 0 };
                    rig.message(place, &message, room, &[random.below(5000) as u32, random.below(99) as u32]);
                    made[place] = Some(message);
                    rig.notify();
                }
                4..6 => {
                    let mut model = rig.model.lock();
                    if !model.begun.is_empty() {
                        let at = random.below(model.begun.len() as u64) as usize;
                        let answer = reply(&model.begun[at].2);
                        model.answer(at, answer);
                    }
                }
                6 if random.one_in(40) => {
                    rig.start();
                    made.fill(None);
                }
                _ => rig.moment(),
            }
            for (place, bytes) in rig.come_back() {
                let message = made[place].take().expect("it comes back once");
                assert!(rig.bytes(Rig::at(place).1, bytes) == reply(&message), "seed {seed}");
            }
        }
        rig.world.later = None;
        // With nothing left out, all come back.
        for _ in 0..100 {
            rig.moment();
            let mut model = rig.model.lock();
            if !model.begun.is_empty() {
                let answer = reply(&model.begun[0].2);
                model.answer(0, answer);
            }
        }
        rig.moment();
        rig.come_back().into_iter().for_each(|(place, _)| made[place] = None);
        assert_eq!((made.iter().flatten().count(), rig.free_units()), (0, UNITS), "seed {seed}");
    }
}

#[test]
fn whatever_passes_a_server_can_read() {
    let mut random = Random(77);
    let mut passed = 0;
    for round in 0..60_000 {
        let mut all = match round % 4 {
            0 => write(1, &pattern(round, random.below(40) as usize)),
            1 => message(110, 1, &[&[1, 0, 0, 0, 2, 0, 0, 0, 2, 0][..], &text("a"), &text("bc")].concat()),
            2 => message(74, 1, &[&[1, 0, 0, 0][..], &text("a"), &[2, 0, 0, 0], &text("b")].concat()),
            _ => message(random.below(130) as u8, 1, &pattern(round, random.below(80) as usize)),
        };
        for _ in 0..random.below(4) {
            let at = 4 + random.below(all.len() as u64 - 4) as usize;
            all[at] = [0, 1, 0xff, random.below(256) as u8][random.below(4) as usize];
        }
        let head = Head::of(*all.first_chunk().expect("a head"));
        if head.check(all.len() as u64).is_ok() && head.examine(&mut all, 8192) == Verdict::Pass {
            assert_eq!(decode(&all), Some(()), "{all:?}");
            passed += 1;
        }
    }
    assert!((1000..59_000).contains(&passed), "{passed} pass");
}
