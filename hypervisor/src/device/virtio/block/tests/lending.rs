//! Tests of writes that are lent to the host's device.

use super::*;
use mmu::frames::Piece;

fn write(sector: u64, content: Vec<u8>) -> Made {
    Made::new(T_OUT, sector, content.len() as u64, content)
}

/// Returns the bytes that were lent for each request that the host's device has begun.
fn lent(rig: &Rig) -> Vec<usize> {
    let model = rig.model.lock();
    model.begun.iter().filter_map(|(token, _)| model.lent.get(&token.0)).map(|loan| loan.bytes()).collect()
}

#[test]
fn nobody_copies_what_is_written() {
    let mut rig = Rig::new();
    rig.request(0, write(1, pattern(3, 256 << 10)), &[4096, 512, 1, 511, 8192]);
    rig.notify();
    assert_eq!((lent(&rig), rig.free_units()), (vec![256 << 10], UNITS));
    // The device reads when it likes.
    rig.poke(DATA + 5, &[9; 7000]);
    rig.finish_all();
    assert_eq!(rig.come_back()[0].2, S_OK);
    let model = Arc::clone(&rig.model);
    assert!(model.lock().sectors[512..][..256 << 10] == *rig.bytes(DATA, 256 << 10));
    assert_eq!(rig.device.backend().counts().bytes_lent, 256 << 10);
}

#[test]
fn what_a_host_takes_no_more_pieces_of_goes_in_parts_of_whole_sectors() {
    let mut rig = Rig::new();
    rig.model.lock().most_pieces = 3;
    let content = pattern(5, 8192);
    // Of four buffers that do not follow each other the first three end within a sector.
    rig.poke(HEADERS, &[u64::from(T_OUT), 8].map(u64::to_le_bytes).concat());
    let cuts = [(0_usize, 1000_usize), (1000, 700), (1700, 900), (2600, 8192 - 2600)];
    let buffers = cuts.map(|(at, bytes)| {
        let gpa = DATA + 3 * at as u64 + 9;
        rig.poke(gpa, &content[at..at + bytes]);
        (gpa, bytes as u32, false)
    });
    rig.made[0] = Some(Made::new(T_OUT, 8, 8192, content.clone()));
    rig.chain(0, &[&[(HEADERS, 16, false)], &buffers[..], &[(STATUSES, 1, true)]].concat());
    rig.notify();
    assert_eq!(lent(&rig), [2560, 8192 - 2560]);
    rig.finish_all();
    assert_eq!((rig.come_back()[0].2, rig.free_units()), (S_OK, UNITS));
    assert!(rig.model.lock().sectors[8 * 512..][..8192] == content);
}

#[test]
fn what_is_cut_too_finely_is_copied() {
    let mut rig = Rig::new();
    rig.model.lock().most_pieces = 2;
    let content = pattern(6, 1024);
    rig.poke(HEADERS, &[u64::from(T_OUT), 2].map(u64::to_le_bytes).concat());
    let buffers: Vec<_> = (0..32_u64)
        .map(|n| {
            rig.poke(DATA + 100 * n, &content[32 * n as usize..][..32]);
            (DATA + 100 * n, 32, false)
        })
        .collect();
    rig.made[0] = Some(Made::new(T_OUT, 2, 1024, content.clone()));
    rig.chain(0, &[&[(HEADERS, 16, false)], &buffers[..], &[(STATUSES, 1, true)]].concat());
    rig.notify();
    assert!(lent(&rig).is_empty() && rig.model.lock().begun.len() == 1);
    rig.finish_all();
    assert_eq!((rig.come_back()[0].2, rig.device.backend().counts().bytes_lent, rig.free_units()), (S_OK, 0, UNITS));
    assert!(rig.model.lock().sectors[1024..][..1024] == content);
}

#[test]
fn a_queue_of_256_takes_a_request_of_as_many_buffers() {
    let mut rig = Rig::new();
    // Where the data of the last requests is else.
    let (rings, table, data) = (DATA + 5 * DATA_BYTES, DATA + 6 * DATA_BYTES, DATA + 7 * DATA_BYTES);
    rig.set(0x044, 0);
    rig.set(0x038, 256);
    for (offset, address) in [(0x080, rings), (0x090, rings + 0x1000), (0x0a0, rings + 0x2000)] {
        rig.set(offset, address as u32);
    }
    rig.set(0x044, 1);
    assert_eq!(rig.get(0x044, 4), Answer::Done(1));
    let content = pattern(8, 254 * 512);
    rig.poke(HEADERS, &[u64::from(T_OUT), 16].map(u64::to_le_bytes).concat());
    let mut buffers = vec![(HEADERS, 16, 0)];
    for n in 0..254 {
        // From the last to the first: no two are together.
        let gpa = data + 512 * (253 - n);
        rig.poke(gpa, &content[512 * n as usize..][..512]);
        buffers.push((gpa, 512, 0));
    }
    buffers.push((STATUSES, 1, 2));
    for (n, (gpa, bytes, flags)) in buffers.iter().enumerate() {
        let flags = flags | u64::from(n < 255);
        let words = [*gpa, bytes | flags << 32 | (n as u64 + 1) << 48];
        rig.poke(table + 16 * n as u64, words.map(u64::to_le_bytes).as_flattened());
    }
    rig.poke(rings, [table, (16 * 256) | 4 << 32].map(u64::to_le_bytes).as_flattened());
    rig.poke(rings + 0x1002, &[1, 0, 0, 0]);
    rig.notify();
    assert_eq!(lent(&rig), [254 * 512]);
    rig.finish_all();
    assert_eq!((rig.bytes(STATUSES, 1), rig.bytes(rings + 0x2002, 2)), (&[S_OK][..], &[1, 0][..]));
    assert!(rig.model.lock().sectors[16 * 512..][..254 * 512] == content);
    // No queue is longer.
    rig.set(0x044, 0);
    rig.set(0x038, 512);
    rig.set(0x044, 1);
    assert_eq!((rig.get(0x044, 4), rig.device.counts().1), (Answer::Done(0), 1));
}

#[test]
fn a_reset_and_a_stop_are_done_when_nothing_is_read_any_more() {
    for (register, and_back) in [(0x070, 0x070), (0x044, 0x044)] {
        let mut rig = Rig::with_queues(2);
        for queue in 0..2 {
            rig.choose(queue);
            rig.request(queue, write(8 * queue as u64, pattern(queue as u64, 4096)), &[]);
            rig.notify();
        }
        rig.set(0x030, 0);
        let stop = |rig: &mut Rig| rig.set(register, 0);
        assert_eq!([(); 2].map(|()| stop(&mut rig)), [Answer::Again; 2]);
        // What the other queue has lent is nothing to the one that is stopped.
        rig.finish_unsaid(0, Ok(()));
        let is_reset = register == 0x070;
        assert_eq!(stop(&mut rig), if is_reset { Answer::Again } else { Answer::Done(()) });
        rig.finish_unsaid(0, Err(IoError));
        assert_eq!((stop(&mut rig), rig.get(and_back, 4)), (Answer::Done(()), Answer::Done(0)));
        rig.port.lock().attend();
        rig.moment();
        rig.settle();
        rig.choose(1);
        assert_eq!(rig.used().len(), usize::from(!is_reset));
        assert!(rig.device.save().is_ok() && rig.free_units() == UNITS);
    }
}

#[test]
fn what_is_nowhere_fails_and_what_is_not_there_yet_is_lent_later() {
    let mut rig = Rig::new();
    rig.poke(HEADERS, &[u64::from(T_OUT), 0].map(u64::to_le_bytes).concat());
    for gpa in [0, RAM - 256, u64::MAX - 255, u64::MAX] {
        rig.poke(STATUSES, &[NEW]);
        rig.made[0] = Some(write(0, Vec::new()));
        rig.chain(0, &[(HEADERS, 16, false), (DATA, 512, false), (gpa, 512, false), (STATUSES, 1, true)]);
        rig.notify();
        assert_eq!(rig.come_back()[0].2, S_IOERR, "{gpa:#x}");
        assert!(rig.model.lock().begun.is_empty());
    }
    let content = pattern(7, 64 << 10);
    for seed in 1..30 {
        rig.world.later = Some(seed);
        rig.request(0, write(0, content.clone()), &[]);
        rig.notify();
        rig.finish_all();
        assert_eq!(rig.come_back()[0].2, S_OK);
        assert!(rig.model.lock().sectors[..64 << 10] == content);
        rig.model.lock().sectors.fill(0);
    }
}

#[test]
fn a_portion_is_one_by_what_is_lent() {
    let mut rig = Rig::new();
    rig.model.lock().most = MOST_FLYING;
    // Each entry is the same write of buffers that do not follow each other.
    rig.poke(HEADERS, &[u64::from(T_OUT), 0].map(u64::to_le_bytes).concat());
    let data = (0..60).map(|n| (DATA + 8192 * (n % 32) + 512 * n, 512, false));
    let buffers: Vec<_> = [(HEADERS, 16, false)].into_iter().chain(data).chain([(STATUSES, 1, true)]).collect();
    (0..usize::from(ENTRIES)).for_each(|place| rig.chain(place, &buffers));
    let pieces = |rig: &Rig| rig.model.lock().lent.values().map(|loan| loan.pieces().len()).sum::<usize>();
    let mut most = 0;
    loop {
        let before = pieces(&rig);
        let answer = rig.set(0x050, 0);
        most = most.max(pieces(&rig) - before);
        if answer == Answer::Done(()) {
            break;
        }
    }
    assert!((60..500).contains(&most) && pieces(&rig) == 60 * usize::from(ENTRIES), "{most}");
    rig.finish_all();
    assert_eq!((rig.used().len(), rig.bytes(STATUSES, 1)), (64, &[S_OK][..]));
}

/// Makes the largest possible number of writes, each of 64 buffers of 4 KiB that follow each other: one piece.
fn make_long_writes(rig: &mut Rig) {
    rig.model.lock().most = MOST_FLYING;
    rig.poke(HEADERS, &[u64::from(T_OUT), 0].map(u64::to_le_bytes).concat());
    let buffers = [(HEADERS, 16, false), (DATA, 256 << 10, false), (STATUSES, 1, true)];
    (0..usize::from(ENTRIES)).for_each(|place| rig.chain(place, &buffers));
}

#[test]
fn a_portion_is_one_by_the_pages_that_are_lent_however_few_pieces_they_are() {
    for (faults, bound) in [(None, 512), (Some(0), 64)] {
        let mut rig = Rig::new();
        make_long_writes(&mut rig);
        rig.world.faulted = faults;
        let lent = |rig: &Rig| match rig.world.faulted {
            Some(faulted) => faulted,
            None => rig.model.lock().lent.values().map(|loan| loan.bytes() / 4096).sum(),
        };
        let mut most = 0;
        for _ in 0..10_000 {
            let before = lent(&rig);
            let answer = rig.set(0x050, 0);
            most = most.max(lent(&rig) - before);
            if answer == Answer::Done(()) {
                break;
            }
        }
        assert!((16..=bound).contains(&most), "{most} of {}", lent(&rig));
        while !rig.model.lock().begun.is_empty() {
            rig.finish(0, Ok(()));
        }
        assert_eq!((rig.used().len(), rig.bytes(STATUSES, 1)), (64, &[S_OK][..]));
    }
}

#[test]
fn a_portion_is_one_by_the_pages_whose_loans_end() {
    let mut rig = Rig::new();
    make_long_writes(&mut rig);
    rig.notify();
    let flying = |rig: &Rig| rig.port.lock().flying();
    assert_eq!(flying(&rig), MOST_FLYING);
    while !rig.model.lock().begun.is_empty() {
        rig.finish_unsaid(0, Ok(()));
    }
    let mut most = 0;
    while flying(&rig) != 0 {
        let before = flying(&rig);
        rig.moment();
        most = most.max(before - flying(&rig));
    }
    assert!((4..=32).contains(&most), "{most} of 64 pages each");
    rig.settle();
    assert_eq!((rig.used().len(), rig.bytes(STATUSES, 1)), (64, &[S_OK][..]));
}

#[test]
fn what_is_lent_is_said_by_pieces() {
    let mut rig = Rig::new();
    rig.request(0, write(0, vec![1; 10_000 / 512 * 512]), &[512, 1024]);
    rig.notify();
    let model = rig.model.lock();
    let loan = model.lent.values().next().expect("it is lent");
    // Where the guest has its RAM the host has it, and buffers that follow each other are one piece.
    assert_eq!(loan.pieces(), [Piece { start: rv::Addr::new(DATA), bytes: 9728 }]);
}

#[test]
fn what_was_lent_in_an_earlier_life_ends_in_portions_though_there_is_no_driver() {
    let mut rig = Rig::new();
    rig.model.lock().most = MOST_FLYING;
    for place in 0..20 {
        let (header, status) = (HEADERS + 16 * place, STATUSES + place);
        rig.poke(header, &[u64::from(T_OUT), place].map(u64::to_le_bytes).concat());
        rig.chain(place as usize, &[(header, 16, false), (DATA, 512, false), (status, 1, true)]);
    }
    rig.notify();
    assert_eq!(rig.set(0x070, 0), Answer::Again);
    (0..20).for_each(|_| rig.finish_unsaid(0, Ok(())));
    let ends = [(); 4].map(|()| {
        let mut port = rig.port.lock();
        port.attend();
        port.flying()
    });
    assert_eq!((ends, rig.set(0x070, 0)), ([12, 4, 0, 0], Answer::Done(())));
}
