//! The disk behind its transport, as a driver sees it.

mod lending;
mod rig;
mod several;

use super::*;
use crate::backend::disks::{Clears, IoError, UNITS};
use crate::device::interface::tests::RAM;
use crate::device::interface::{Answer, Device, Unsaved};
use crate::device::virtio::Mmio;
use crate::device::virtio::wire::block::{BLK_SIZE, DISCARD, FLUSH, READ_ONLY, SEG_MAX, SEGMENT_UNMAP, WRITE_ZEROES};
use abi::snapshot::device::{DeviceState, VirtioState};
use alloc::vec;
use rig::*;

fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|n| (n.wrapping_mul(seed | 1) >> 3) as u8 ^ seed as u8).collect()
}

#[test]
fn what_is_written_is_read_whatever_its_length() {
    let mut rig = Rig::new();
    for (n, bytes) in [(1, 512), (2, 4096), (3, 64 << 10), (4, (64 << 10) + 512), (5, 256 << 10)] {
        let content = pattern(n, bytes);
        assert_eq!(rig.do_one(T_OUT, 8 * n, bytes, content.clone()), (S_OK, 1));
        rig.poke(DATA, &vec![0; bytes as usize]);
        assert_eq!(rig.do_one(T_IN, 8 * n, bytes, Vec::new()), (S_OK, bytes as u32 + 1));
        assert!(rig.bytes(DATA, bytes) == content, "{bytes} bytes");
    }
    assert_eq!(rig.do_one(T_FLUSH, 0, 0, Vec::new()), (S_OK, 1));
    let counts = *rig.device.backend().counts();
    assert_eq!((counts.reads, counts.writes, counts.flushes, counts.errors), (5, 5, 1, 0));
    // What is read comes by parts of 64 KiB, of which none is smaller than it has to be; what is written goes at once.
    assert_eq!(counts.parts, (1 + 1 + 1 + 2 + 4) + 5 + 1);
    assert_eq!((counts.bytes_written, counts.bytes_lent), (counts.bytes_read, counts.bytes_read));
    assert_eq!(rig.free_units(), UNITS);
}

#[test]
fn the_configuration_says_what_there_is() {
    let mut rig = Rig::new();
    let mut word = |offset: u64, width| match rig.get(0x100 + offset, width) {
        Answer::Done(value) => value,
        other => panic!("{other:?}"),
    };
    assert_eq!((word(0, 4), word(4, 4), word(12, 4), word(20, 4)), (SECTORS, 0, 254, 512));
    assert_eq!((word(0, 2), word(1, 1), word(24, 4), word(0xfc, 4)), (SECTORS, SECTORS >> 8, 0, 0));
    // The most that may be discarded, in how many segments, at multiples of what; then the same of zeroes, and whether they may unmap.
    assert_eq!([36, 40, 44, 48, 52].map(|at| word(at, 4)), [2048, 1, 8, 1024, 1]);
    assert_eq!((word(56, 1), word(57, 1), word(60, 4)), (1, 0, 0));
    let features = |rig: &Rig| rig.device.backend().features();
    let always = SEG_MAX | BLK_SIZE | FLUSH;
    assert_eq!(features(&rig), always | DISCARD | WRITE_ZEROES);
    rig.model.lock().clears.most_discarded = 0;
    assert_eq!(features(&rig), always | WRITE_ZEROES);
    rig.model.lock().clears = Clears { most_discarded: 2048, ..Clears::default() };
    assert_eq!(features(&rig), always | DISCARD);
    rig.model.lock().is_read_only = true;
    assert_eq!(features(&rig), always | READ_ONLY);
    let word = rig.get(0x100 + 36, 4);
    assert_eq!(word, Answer::Done(0), "nothing may be discarded");
}

#[test]
fn the_guest_hears_the_name() {
    let mut rig = Rig::new();
    assert_eq!(rig.do_one(T_GET_ID, 0, 20, Vec::new()), (S_OK, 1));
    assert_eq!(rig.bytes(DATA, 20), b"a disk with a name t");
}

#[test]
fn what_is_no_request_for_this_disk_fails_by_itself() {
    let mut rig = Rig::new();
    let end = SECTORS * SECTOR;
    for (kind, sector, bytes, status) in [
        (T_IN, SECTORS, 512, S_IOERR),
        (T_IN, SECTORS - 1, 1024, S_IOERR),
        (T_OUT, SECTORS, 512, S_IOERR),
        (T_IN, u64::MAX, 512, S_IOERR),
        (T_OUT, u64::MAX - 7, 4096, S_IOERR),
        (T_IN, 0, 511, S_IOERR),
        (T_OUT, 0, 513, S_IOERR),
        (12, 0, 512, S_UNSUPP),
        (u32::MAX, 0, 0, S_UNSUPP),
        // What is nothing is done.
        (T_IN, SECTORS, 0, S_OK),
    ] {
        let content = vec![0; bytes as usize];
        assert_eq!(rig.do_one(kind, sector, bytes, content).0, status, "{kind} {sector:#x} {bytes}");
    }
    assert_eq!(rig.do_one(T_IN, end / SECTOR - 1, 512, Vec::new()).0, S_OK);
    rig.model.lock().is_read_only = true;
    assert_eq!(rig.do_one(T_OUT, 0, 512, vec![0; 512]).0, S_IOERR);
    rig.model.lock().is_read_only = false;
    rig.model.lock().is_broken = true;
    assert_eq!(rig.do_one(T_IN, 0, 512, Vec::new()).0, S_IOERR);
    assert_eq!((rig.free_units(), rig.device.counts().1), (UNITS, 0));
}

#[test]
fn what_is_zeroed_reads_as_zero_and_what_is_around_stays() {
    let mut rig = Rig::new();
    for (flags, most) in [(0, 1024), (SEGMENT_UNMAP, 1), (0, 7), (SEGMENT_UNMAP, 1024)] {
        rig.model.lock().sectors.fill(NEW);
        // The sector of the header means nothing.
        assert_eq!(rig.do_one(T_WRITE_ZEROES, 99, 0, segment(100, most, flags)), (S_OK, 1));
        let (start, end) = (100 * SECTOR as usize, (100 + u64::from(most)) as usize * SECTOR as usize);
        let model = rig.model.lock();
        assert!(model.sectors[start..end].iter().all(|byte| *byte == 0), "{most} sectors");
        assert!(model.sectors[..start].iter().chain(&model.sectors[end..]).all(|byte| *byte == NEW), "around {most}");
    }
    rig.model.lock().sectors.fill(NEW);
    assert_eq!(rig.do_one(T_DISCARD, 0, 0, segment(SECTORS - 2048, 2048, 0)), (S_OK, 1));
    let start = ((SECTORS - 2048) * SECTOR) as usize;
    assert!(rig.model.lock().sectors[start..].iter().all(|byte| *byte == DISCARDED));
    assert!(rig.model.lock().sectors[..start].iter().all(|byte| *byte == NEW));
    let counts = *rig.device.backend().counts();
    assert_eq!((counts.discards, counts.zeroes, counts.parts, counts.refused), (1, 4, 5, 0));
    assert_eq!((counts.bytes_written, rig.free_units()), (0, UNITS));
}

#[test]
fn the_host_is_told_whether_it_may_drop_what_is_zeroed() {
    for (kind, flags, operation) in [
        (T_WRITE_ZEROES, 0, Operation::Zero),
        (T_WRITE_ZEROES, SEGMENT_UNMAP, Operation::ZeroUnmap),
        (T_DISCARD, 0, Operation::Discard),
    ] {
        let mut rig = Rig::new();
        // The segment in pieces.
        let content = segment(8, 16, flags);
        rig.request(0, Made::new(kind, 0, 0, content), &[3, 9, 1]);
        rig.notify();
        let asked = Asked { operation, sector: 8, units: Units::NONE, bytes: 16 * SECTOR as usize };
        assert_eq!(rig.model.lock().begun.iter().map(|(_, asked)| *asked).collect::<Vec<_>>(), [asked]);
        rig.finish(0, Err(IoError));
        assert_eq!(rig.come_back()[0].2, S_IOERR);
    }
}

#[test]
fn what_cannot_be_cleared_is_refused_and_nothing_begun() {
    let mut rig = Rig::new();
    let last = SECTORS - 1;
    let two = [segment(0, 1, 0), segment(8, 1, 0)].concat();
    for (kind, content, status) in [
        // Behind the end, and round it.
        (T_DISCARD, segment(SECTORS, 1, 0), S_IOERR),
        (T_WRITE_ZEROES, segment(last, 2, 0), S_IOERR),
        (T_WRITE_ZEROES, segment(u64::MAX, 1, 0), S_IOERR),
        (T_DISCARD, segment(u64::MAX - 8, 16, 0), S_IOERR),
        (T_DISCARD, segment(u64::MAX / SECTOR, 8, 0), S_IOERR),
        // More than is offered.
        (T_DISCARD, segment(0, 2049, 0), S_IOERR),
        (T_WRITE_ZEROES, segment(0, 1025, SEGMENT_UNMAP), S_IOERR),
        (T_WRITE_ZEROES, segment(0, u32::MAX, 0), S_IOERR),
        // Flags that there are not, or not here.
        (T_DISCARD, segment(0, 1, SEGMENT_UNMAP), S_UNSUPP),
        (T_DISCARD, segment(0, 1, 2), S_UNSUPP),
        (T_WRITE_ZEROES, segment(0, 1, 3), S_UNSUPP),
        (T_WRITE_ZEROES, segment(0, 1, 1 << 31), S_UNSUPP),
        // No segment, part of one, two.
        (T_DISCARD, Vec::new(), S_IOERR),
        (T_WRITE_ZEROES, segment(0, 1, 0)[..15].to_vec(), S_IOERR),
        (T_DISCARD, two.clone(), S_IOERR),
        (T_WRITE_ZEROES, two[..17].to_vec(), S_IOERR),
    ] {
        let what = content.clone();
        rig.request(0, Made::new(kind, 0, 0, content), &[]);
        rig.notify();
        assert!(rig.model.lock().begun.is_empty(), "{kind} {what:?}");
        assert_eq!(rig.come_back().first().map(|back| back.2), Some(status), "{kind} {what:?}");
    }
    // None at all are cleared at once, and the last ones as others.
    assert_eq!(rig.do_one(T_WRITE_ZEROES, 0, 0, segment(SECTORS, 0, 0)).0, S_OK);
    assert_eq!(rig.do_one(T_DISCARD, 0, 0, segment(last, 1, 0)).0, S_OK);
    // A segment that is nowhere.
    rig.poke(HEADERS, &[u64::from(T_DISCARD), 0].map(u64::to_le_bytes).concat());
    rig.made[0] = Some(Made::new(T_DISCARD, 0, 0, Vec::new()));
    rig.chain(0, &[(HEADERS, 16, false), (u64::MAX - 7, 16, false), (STATUSES, 1, true)]);
    rig.notify();
    assert_eq!(rig.come_back()[0].2, S_IOERR);
    for (change, status) in [
        ((|model| model.is_read_only = true) as fn(&mut Model), S_IOERR),
        (|model| (model.is_read_only, model.clears) = (false, Clears::default()), S_UNSUPP),
    ] {
        change(&mut rig.model.lock());
        for kind in [T_DISCARD, T_WRITE_ZEROES] {
            assert_eq!(rig.do_one(kind, 0, 0, segment(0, 1, 0)).0, status);
        }
    }
    assert_eq!((rig.free_units(), rig.device.counts().1), (UNITS, 0));
}

#[test]
fn zeroes_of_an_earlier_life_come_before_what_is_written_then() {
    let mut rig = Rig::new();
    rig.request(0, Made::new(T_WRITE_ZEROES, 0, 0, segment(0, 8, 0)), &[]);
    rig.notify();
    rig.start();
    rig.request(0, Made::new(T_OUT, 0, 4096, vec![2; 4096]), &[]);
    rig.notify();
    assert_eq!(rig.model.lock().begun.len(), 1, "nothing new is begun");
    rig.finish_all();
    assert_eq!((rig.come_back().len(), rig.free_units()), (1, UNITS));
    assert!(rig.model.lock().sectors[..4096].iter().all(|byte| *byte == 2));
}

#[test]
fn chains_that_are_no_requests_come_back() {
    let mut rig = Rig::new();
    rig.poke(HEADERS, &[0; 16]);
    let nowhere = 0x1000;
    for buffers in [
        // Too short for a header; without a status; both nowhere.
        &[(HEADERS, 15, false), (STATUSES, 1, true)][..],
        &[(HEADERS, 16, false)],
        &[(HEADERS, 16, false), (STATUSES, 0, true)],
        &[(nowhere, 16, false), (STATUSES, 1, true)],
        &[(u64::MAX - 3, 16, false), (STATUSES, 1, true)],
        &[(HEADERS, 16, false), (nowhere, 1, true)],
        &[(HEADERS, 16, false), (u64::MAX, u32::MAX, true), (u64::MAX, 1, true)],
        // Data that is nowhere.
        &[(HEADERS, 16, false), (nowhere, 512, true), (STATUSES, 1, true)],
        &[(HEADERS, 16, false), (u64::MAX - 255, 512, true), (STATUSES, 1, true)],
        &[(HEADERS, 16, false), (DATA, 512, true), (nowhere, 512, true), (STATUSES, 1, true)],
    ] {
        rig.poke(STATUSES, &[NEW]);
        rig.made[0] = Some(Made::new(T_IN, 0, 0, Vec::new()));
        rig.chain(0, buffers);
        rig.notify();
        rig.finish_all();
        let [(_, _, status, _)] = rig.come_back().try_into().expect("it comes back");
        assert!(status == S_IOERR || status == NEW, "{buffers:x?}: {status}");
        assert_eq!((rig.free_units(), rig.device.counts().1), (UNITS, 0), "{buffers:x?}");
    }
    assert_eq!(rig.do_one(T_IN, 0, 512, Vec::new()).0, S_OK);
}

#[test]
fn the_borders_of_buffers_are_nothing_to_the_device() {
    let mut rig = Rig::new();
    let content = pattern(9, 1024);
    rig.model.lock().sectors[..1024].copy_from_slice(&content);
    rig.poke(HEADERS, &[0; 16]);
    rig.made[0] = Some(Made::new(T_IN, 0, 1024, Vec::new()));
    // The header in three, the data in odd pieces, the last one with the status.
    let header = [(HEADERS, 1, false), (HEADERS + 1, 0, false), (HEADERS + 1, 14, false), (HEADERS + 15, 1, false)];
    let data = [(DATA + 1, 3, true), (DATA + 4, 700, true), (DATA + 704, 322, true)];
    rig.chain(0, &[&header[..], &data].concat());
    rig.notify();
    rig.finish_all();
    assert_eq!(rig.come_back()[0].3, 1025);
    assert!(rig.bytes(DATA + 1, 1024) == content && rig.bytes(DATA + 1025, 1) == [S_OK]);
}

#[test]
fn a_reset_waits_for_what_an_earlier_life_has_asked() {
    let mut rig = Rig::new();
    rig.model.lock().most_pieces = 0;
    let ask = |rig: &mut Rig, kind, content| rig.request(0, Made::new(kind, 0, 4096, content), &[]);
    ask(&mut rig, T_OUT, vec![1; 4096]);
    rig.request(1, Made::new(T_IN, 8, 4096, Vec::new()), &[]);
    rig.notify();
    assert_eq!(rig.model.lock().begun.len(), 2);
    rig.start();
    rig.poke(DATA + DATA_BYTES, &[NEW; 4096]);
    ask(&mut rig, T_OUT, vec![2; 4096]);
    rig.notify();
    // Nothing is begun: else the old request could be done after the new one.
    assert_eq!(rig.model.lock().begun.len(), 2);
    rig.finish(1, Ok(()));
    rig.finish(0, Ok(()));
    assert_eq!(rig.model.lock().sectors[0], 1);
    assert_eq!(rig.model.lock().begun.len(), 1);
    // The data that was read for the old life is discarded.
    assert!(rig.bytes(DATA + DATA_BYTES, 4096).iter().all(|byte| *byte == NEW));
    rig.finish_all();
    assert_eq!((rig.come_back().len(), rig.free_units()), (1, UNITS));
    assert_eq!(rig.model.lock().sectors[0], 2);
}

#[test]
fn with_many_in_flight_the_driver_need_not_notify() {
    let mut rig = Rig::new();
    rig.has_events = true;
    rig.start();
    for place in 0..6 {
        rig.request(place, Made::new(T_IN, place as u64, 512, Vec::new()), &[]);
        rig.notify_if_wanted();
    }
    assert_eq!((rig.device.counts().0, rig.model.lock().begun.len()), (4, 4));
    // A moment later the others are begun, too, although nothing has landed.
    rig.settle();
    assert_eq!(rig.model.lock().begun.len(), 6);
    // One that comes then is notified of.
    rig.request(6, Made::new(T_IN, 9, 512, Vec::new()), &[]);
    rig.notify_if_wanted();
    assert_eq!((rig.device.counts().0, rig.model.lock().begun.len()), (5, 7));
}

#[test]
fn a_part_beyond_those_that_may_be_in_flight_waits_for_one_to_land() {
    let mut rig = Rig::new();
    rig.model.lock().most = MOST_FLYING;
    // Each of the first is one part without data, the next two parts: that is all that may be in flight. There are units for more.
    let last = usize::from(ENTRIES) - 1;
    rig.poke(HEADERS, &[u64::from(T_FLUSH), 0].map(u64::to_le_bytes).concat());
    for place in 0..last - 1 {
        rig.chain(place, &[(HEADERS, 16, false), (STATUSES + place as u64, 1, true)]);
    }
    for (place, sector, bytes) in [(last - 1, 0, 128 << 10), (last, 1000, 4096)] {
        let header = HEADERS + 16 * place as u64;
        rig.poke(header, &[u64::from(T_OUT), sector].map(u64::to_le_bytes).concat());
        rig.poke(STATUSES + place as u64, &[NEW]);
        rig.chain(place, &[(header, 16, false), (DATA, bytes, false), (STATUSES + place as u64, 1, true)]);
    }
    let content = pattern(7, 128 << 10);
    rig.poke(DATA, &content);
    rig.notify();
    assert_eq!((rig.used().len(), rig.model.lock().begun.len()), (0, MOST_FLYING));
    rig.finish_all();
    assert_eq!(rig.used().len(), usize::from(ENTRIES));
    assert_eq!(rig.bytes(STATUSES + last as u64, 1), [S_OK]);
    assert!(rig.model.lock().sectors[1000 * SECTOR as usize..][..4096] == content[..4096], "it was written");
    assert_eq!(rig.free_units(), UNITS);
}

#[test]
fn a_disk_without_a_driver_is_saved_once_it_has_done_what_the_last_one_asked_for() {
    let mut rig = Rig::new();
    for place in 0..6 {
        rig.request(place, Made::new(T_IN, place as u64, 512, Vec::new()), &[]);
    }
    rig.notify();
    assert_eq!(rig.set(0x070, 0), Answer::Done(()));
    assert_eq!((rig.model.lock().begun.len(), rig.device.save()), (6, Err(Unsaved::Busy)));
    rig.finish_all();
    assert!(rig.device.save().is_ok(), "saving collects what is finished");
    assert_eq!(rig.free_units(), UNITS);
}

#[test]
fn a_notification_is_done_in_portions() {
    let mut rig = Rig::new();
    rig.model.lock().most = 64;
    rig.model.lock().most_pieces = 0;
    // An odd place makes each word of two, which costs.
    let (header, status) = (HEADERS, STATUSES);
    rig.poke(header, &[u64::from(T_OUT), 0].map(u64::to_le_bytes).concat());
    rig.made[0] = Some(Made::new(T_OUT, 0, 0, Vec::new()));
    rig.chain(0, &[(header, 16, false), (DATA + 1, 250 << 10, false), (status, 1, true)]);
    let portions = (1..1000).find(|_| rig.set(0x050, 0) == Answer::Done(())).expect("it comes to an end");
    assert!(portions >= 3, "{portions} portions");
    rig.finish_all();
    assert_eq!(rig.come_back()[0].2, S_OK);
}

/// Runs a life of requests at random, by up to eight queues, each about sectors that no other one is about at the time.
fn live(seed: u64, steps: usize) {
    let queues = [1, 2, 3, 8][(seed / 5 % 4) as usize];
    let mut rig = Rig::with_queues(queues);
    let random = &mut Random(seed);
    rig.world.later = (!seed.is_multiple_of(3)).then_some(seed);
    rig.has_events = seed.is_multiple_of(2);
    rig.start();
    rig.model.lock().most = 1 + random.below(20) as usize;
    rig.model.lock().most_pieces = [254, 254, 0, 1, 3][random.below(5) as usize];
    let mut oracle = vec![0; (SECTORS * SECTOR) as usize];
    let range = |made: &Made| (made.sector * SECTOR) as usize..(made.sector * SECTOR + made.bytes) as usize;
    for _ in 0..steps {
        rig.choose(random.below(queues as u64) as usize);
        match random.below(12) {
            0..5 => {
                let Some(place) = rig.made.iter().position(Option::is_none) else { continue };
                let kinds = [T_IN, T_OUT, T_OUT, T_FLUSH, T_WRITE_ZEROES, T_DISCARD];
                let kind = *kinds.get(random.below(6) as usize).expect("six");
                let most = 1 << random.below(9);
                let bytes = if kind == T_FLUSH { 0 } else { SECTOR * (1 + random.below(most)) };
                let sector = random.below(SECTORS - bytes / SECTOR);
                let content = match kind {
                    T_OUT => pattern(random.below(1 << 40), bytes),
                    T_WRITE_ZEROES => segment(sector, (bytes / SECTOR) as u32, random.below(2) as u32),
                    T_DISCARD => segment(sector, (bytes / SECTOR) as u32, 0),
                    _ => Vec::new(),
                };
                let made = Made::new(kind, sector, bytes, content);
                let (this, others) = (range(&made), rig.made.iter().flatten().map(range));
                if others.into_iter().any(|other| this.start < other.end && other.start < this.end) {
                    continue;
                }
                let cuts: Vec<u32> = (0..random.below(8)).map(|_| 1 + random.below(20_000) as u32).collect();
                rig.request(place, made, &cuts);
                match rig.has_events {
                    true => rig.notify_if_wanted(),
                    false if random.one_in(4) => {}
                    false => rig.notify(),
                }
            }
            5..11 => {
                let count = rig.model.lock().begun.len() as u64;
                if count != 0 {
                    let result = if random.one_in(16) { Err(IoError) } else { Ok(()) };
                    rig.finish(random.below(count) as usize, result);
                }
            }
            _ if random.one_in(4) => {
                // All at once: what was under way is done or is not.
                let wild: Vec<Made> = rig.made.iter().flatten().cloned().collect();
                rig.start();
                let data: Vec<u8> = rig.bytes(DATA, DATA_BYTES * MOST_MADE as u64).to_vec();
                rig.finish_all();
                assert!(rig.bytes(DATA, DATA_BYTES * MOST_MADE as u64) == data, "an old request reached the guest");
                let model = rig.model.lock();
                wild.iter().for_each(|made| oracle[range(made)].copy_from_slice(&model.sectors[range(made)]));
            }
            _ if rig.has_events => rig.settle(),
            _ => rig.notify(),
        }
        for (place, made, status, written) in rig.come_back() {
            let there = range(&made);
            let is_read = made.kind == T_IN;
            assert_eq!(written, if is_read && status == S_OK { made.bytes as u32 + 1 } else { 1 });
            match status {
                S_OK if is_read => {
                    let read = rig.bytes(DATA + DATA_BYTES * place as u64, made.bytes);
                    assert!(read == &oracle[there], "{made:?}");
                }
                S_OK if made.kind == T_OUT => oracle[there].copy_from_slice(&made.content),
                S_OK if made.kind == T_WRITE_ZEROES => oracle[there].fill(0),
                S_OK if made.kind == T_DISCARD => oracle[there].fill(DISCARDED),
                S_OK => {}
                // Parts of it may have been done.
                S_IOERR => oracle[there.clone()].copy_from_slice(&rig.model.lock().sectors[there]),
                other => panic!("status {other}"),
            }
        }
    }
    rig.world.later = None;
    for queue in 0..queues {
        rig.choose(queue);
        if !rig.has_events {
            rig.notify_once();
        }
    }
    rig.settle();
    rig.finish_all();
    rig.come_back();
    assert!(rig.made.iter().all(Option::is_none), "some have not come back: {:?}", rig.device);
    assert_eq!((rig.free_units(), rig.device.counts().1), (UNITS, 0));
}

#[test]
fn requests_come_back_with_what_the_disk_has() {
    (1..60).for_each(|seed| live(seed * 0x9e37_79b9, 400));
}

#[test]
fn whatever_stands_in_the_rings_comes_to_an_end() {
    for seed in 1..200 {
        let queues = 1 + seed as usize % 3;
        let (mut rig, random) = (Rig::with_queues(queues), &mut Random(seed * 0x1234_5679));
        rig.world.later = random.one_in(2).then_some(seed);
        let places = [RAM, TABLE, DRIVER, DEVICE, TABLES, HEADERS, DATA, 0, u64::MAX - 0x1ff, RAM + 0x20_0000];
        for _ in 0..200 {
            rig.choose(random.below(queues as u64) as usize);
            let place = places[random.below(10) as usize].wrapping_add(random.below(600));
            let bytes = if random.one_in(3) { random.below(1 << 32) } else { 512 * random.below(300) };
            let flags = random.below(8);
            let descriptor = [place, bytes & 0xffff_ffff | flags << 32 | random.below(70) << 48];
            let at = [rig.ring(TABLE), TABLES][random.below(2) as usize] + 16 * random.below(64);
            rig.poke(at, descriptor.map(u64::to_le_bytes).as_flattened());
            let header = [random.below(16) | random.below(2) << 40, random.below(SECTORS + 9)];
            rig.poke(HEADERS + 8 * random.below(16), header.map(u64::to_le_bytes).as_flattened());
            rig.poke_ring(DRIVER + 4 + 2 * random.below(64), &(random.below(66) as u16).to_le_bytes());
            match random.below(8) {
                0 => rig.start(),
                // A queue may go, and come again, with whatever is under way.
                1 if random.one_in(4) => {
                    let queue = rig.chosen() as u32;
                    rig.set(0x030, queue);
                    rig.set(0x044, random.below(2) as u32);
                }
                1..3 => {
                    let count = rig.model.lock().begun.len() as u64;
                    if count != 0 {
                        let at = random.below(count) as usize;
                        rig.finish_unsaid(at, if random.one_in(4) { Err(IoError) } else { Ok(()) });
                        rig.port.lock().attend();
                        rig.moment();
                    }
                }
                _ => {
                    rig.available = rig.available.wrapping_add(random.below(4) as u16);
                    let available = rig.available;
                    rig.poke_ring(DRIVER + 2, &available.to_le_bytes());
                    for _ in 0..4 {
                        rig.set(0x050, random.below(queues as u64 + 1) as u32);
                    }
                }
            }
        }
        // A driver that starts over has the whole disk.
        rig.world.later = None;
        rig.start();
        while !rig.model.lock().begun.is_empty() {
            rig.finish(0, Ok(()));
        }
        rig.port.lock().attend();
        assert_eq!(rig.free_units(), UNITS);
        assert_eq!(rig.do_one(T_OUT, 0, 512, vec![7; 512]).0, S_OK);
    }
}

#[test]
fn a_disk_goes_on_elsewhere_once_it_has_done_what_it_was_asked_for() {
    let mut rig = Rig::new();
    let write = |n: u64| Made::new(T_OUT, 8 * n, 4096, pattern(n, 4096));
    assert_eq!(rig.do_one(T_OUT, 0, 4096, pattern(0, 4096)), (S_OK, 1));
    rig.request(1, write(1), &[]);
    rig.request(2, write(2), &[]);
    rig.notify();
    // One that the device has not been told of.
    rig.request(3, write(3), &[]);
    assert_eq!(rig.device.save(), Err(Unsaved::Busy), "the host's device has it");
    rig.model.lock().most = 2;
    rig.finish(0, Ok(()));
    assert_eq!(rig.device.save(), Err(Unsaved::Busy));
    rig.finish_all();
    let state = rig.device.save().expect("all is done");
    let mut other = Mmio::new(0x1000_2000, 2, Block::new(Arc::clone(&rig.port), "x", 1, 10_000_000));
    assert_eq!(other.restore(&state), Ok(()));
    assert_eq!(other.save(), Ok(state.clone()));
    assert_eq!((other.interrupt(), rig.device.interrupt()), (true, true), "what was done is still to be told");
    rig.device = other;
    assert!(rig.come_back().iter().all(|(_, _, status, _)| *status == S_OK));
    for n in 0..4 {
        rig.moment();
        rig.finish_all();
        assert_eq!(rig.do_one(T_IN, 8 * n, 4096, Vec::new()), (S_OK, 4097));
        assert!(rig.bytes(DATA, 4096) == pattern(n, 4096), "{n}");
    }
    // States that no driver brings about.
    let DeviceState::Virtio(good) = state else { panic!("a virtio device's") };
    let mut refused = |change: &dyn Fn(&mut VirtioState)| {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(rig.device.restore(&DeviceState::Virtio(bad)).is_err());
        rig.device.reset();
    };
    refused(&|state| state.id = 1);
    refused(&|state| state.driver_features |= 1 << 63);
    refused(&|state| state.queues.clear());
    refused(&|state| state.queues[0].size = 3);
    refused(&|state| state.queues[0].descriptors = u64::MAX);
    refused(&|state| state.queues[0].ready = Some([200, 0, 0]));
    refused(&|state| state.own = OwnState::Balloon { target: 0, actual: 0 });
}
