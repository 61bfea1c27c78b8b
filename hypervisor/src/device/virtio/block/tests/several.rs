//! A disk with several queues.

use super::*;
use crate::device::virtio::wire::block::{MQ, NUM_QUEUES};

fn read(sector: u64) -> Made {
    Made::new(T_IN, sector, 512, Vec::new())
}

#[test]
fn there_are_as_many_as_harts_and_eight_at_most() {
    for (harts, queues) in [(1, 1), (2, 2), (8, 8), (9, 8), (32, 8)] {
        let mut rig = Rig::new();
        rig.device = Mmio::new(0x1000_2000, 2, Block::new(Arc::clone(&rig.port), "x", harts, 10_000_000));
        let offset = 0x100 + NUM_QUEUES as u64;
        assert_eq!(rig.get(offset, 2), Answer::Done(queues));
        assert_eq!(rig.device.backend().features() & MQ != 0, queues > 1, "{harts}");
        let sizes = (0..40).map(|queue| {
            rig.set(0x030, queue);
            rig.get(0x034, 4)
        });
        assert_eq!(sizes.filter(|size| *size != Answer::Done(0)).count(), queues as usize);
    }
}

#[test]
fn what_is_asked_by_one_queue_comes_back_there_whoever_notifies() {
    let mut rig = Rig::with_queues(3);
    for (place, queue) in [2, 0, 1, 2].into_iter().enumerate() {
        rig.choose(queue);
        rig.request(place, read(place as u64), &[]);
        rig.notify();
    }
    assert_eq!(rig.model.lock().begun.len(), 4);
    // All have landed when a queue is notified of that has nothing to do with them.
    while !rig.model.lock().begun.is_empty() {
        rig.finish_unsaid(0, Ok(()));
    }
    rig.choose(0);
    rig.notify_once();
    assert!(rig.device.interrupt(), "one interrupt is for all queues");
    let back: Vec<usize> = rig.come_back().iter().map(|(place, ..)| *place).collect();
    assert_eq!(back, [1, 2, 0, 3], "by queue, and in each as they were asked for");
}

#[test]
fn a_full_queue_keeps_no_other_waiting() {
    let mut rig = Rig::with_queues(2);
    rig.model.lock().most = 1;
    // Requests without data, as many as are worked on at a time and more: the host's device takes one after the other.
    rig.poke(HEADERS, &[u64::from(T_FLUSH), 0].map(u64::to_le_bytes).concat());
    let fill = |rig: &mut Rig, queue: usize, count: usize| {
        rig.choose(queue);
        for place in 0..count {
            rig.chain(place, &[(HEADERS, 16, false), (STATUSES + place as u64, 1, true)]);
        }
        rig.notify_once();
    };
    fill(&mut rig, 0, usize::from(ENTRIES));
    rig.finish(0, Ok(()));
    // As soon as one of the first queue has come back there is room for one of the second, and then it is each one's turn.
    fill(&mut rig, 1, 8);
    let mut back = [0; 2];
    for _ in 0..80 {
        if rig.model.lock().begun.is_empty() {
            break;
        }
        rig.finish(0, Ok(()));
        for (queue, count) in back.iter_mut().enumerate() {
            rig.choose(queue);
            *count += rig.used().len();
            // If there is room, the driver makes another request, in the first queue.
            if queue == 0 && back_is_short(&rig) {
                rig.chain(usize::from(ENTRIES) - 1, &[(HEADERS, 16, false), (STATUSES + 99, 1, true)]);
            }
        }
    }
    assert_eq!(back[1], 8, "{back:?}");
    assert!(back[0] >= 60, "{back:?}");
}

/// Returns whether the chosen queue has fewer chains than it has entries.
fn back_is_short(rig: &Rig) -> bool {
    rig.available.wrapping_sub(rig.seen) < ENTRIES
}

#[test]
fn with_many_in_flight_no_queue_need_be_notified_of() {
    let mut rig = Rig::with_queues(2);
    rig.has_events = true;
    rig.start();
    for place in 0..8 {
        rig.choose(place % 2);
        rig.request(place, read(place as u64), &[]);
        rig.notify_if_wanted();
    }
    // The first two of each, until four are in flight; and one of the first queue, where it had been asked for before.
    assert_eq!((rig.device.counts().0, rig.model.lock().begun.len()), (5, 5));
    rig.settle();
    assert_eq!(rig.model.lock().begun.len(), 8);
    // As long as one queue has new ones, the other is looked at as well.
    rig.finish_all();
    assert_eq!(rig.come_back().len(), 8);
}

#[test]
fn a_ring_that_is_malformed_ends_the_device_and_the_reset_all_queues() {
    let mut rig = Rig::with_queues(2);
    rig.request(0, read(1), &[]);
    rig.notify();
    rig.choose(1);
    rig.poke_ring(DRIVER + 2, &99_u16.to_le_bytes());
    rig.notify_once();
    assert_eq!((rig.device.counts().1, rig.get(0x070, 4)), (1, Answer::Done(15 | 64)));
    rig.finish_all();
    assert!(rig.come_back().is_empty(), "nothing more comes of it");
    rig.start();
    for queue in 0..2 {
        rig.choose(queue);
        assert_eq!(rig.do_one(T_OUT, 0, 512, vec![7; 512]), (S_OK, 1));
    }
    assert_eq!(rig.free_units(), UNITS);
}

#[test]
fn what_belongs_to_a_queue_that_is_gone_is_nobodys() {
    let mut rig = Rig::with_queues(2);
    rig.choose(1);
    rig.request(0, read(1), &[]);
    rig.notify();
    rig.set(0x030, 1);
    rig.set(0x044, 0);
    rig.finish_all();
    assert_eq!(rig.device.save().map(|_| ()), Ok(()), "nothing is under way");
    assert_eq!((rig.used().len(), rig.free_units()), (0, UNITS));
    // Notifications of it, and of one that does not exist, are nothing.
    for queue in [1, 2, u32::MAX] {
        assert_eq!(rig.set(0x050, queue), Answer::Done(()));
    }
    rig.made.fill(None);
    rig.choose(0);
    assert_eq!(rig.do_one(T_IN, 1, 512, Vec::new()), (S_OK, 513));
}

#[test]
fn what_came_by_a_queue_before_it_was_stopped_does_not_come_back_by_the_next() {
    let mut rig = Rig::with_queues(2);
    rig.model.lock().sectors.fill(7);
    rig.choose(1);
    // One that is in flight, one that is over, one that has no room, and one whose header is not there yet.
    rig.model.lock().most = 2;
    (0..2).for_each(|place| rig.request(place, read(1), &[]));
    rig.notify();
    rig.finish_unsaid(0, Ok(()));
    rig.request(2, read(1), &[]);
    rig.notify_once();
    rig.request(3, Made::new(T_GET_ID, 0, 20, Vec::new()), &[]);
    let there = |rig: &Rig, place: u64| rig.bytes(DATA + DATA_BYTES * place, 512).iter().all(|byte| *byte == 7);
    let was_there = (0..4).map(|place| there(&rig, place)).collect::<Vec<_>>();
    assert_eq!(was_there, [true, false, false, false]);
    for (register, value) in [(0x030, 1), (0x044, 0)] {
        rig.set(register, value);
    }
    rig.made.fill(None);
    (rig.available, rig.seen) = (0, 0);
    rig.poke_ring(DRIVER, &[0; 0x300]);
    rig.set(0x044, 1);
    rig.finish_all();
    rig.settle();
    assert!((1..4).all(|place| !there(&rig, place)), "nothing is copied for a driver that has stopped");
    assert_eq!(rig.used().len(), 0, "nor given back");
    let state = rig.device.save().expect("nothing is under way");
    let mut other = Mmio::new(0x1000_2000, 2, Block::new(Arc::clone(&rig.port), "x", 2, 10_000_000));
    assert_eq!(other.restore(&state), Ok(()));
    assert_eq!((rig.do_one(T_IN, 1, 512, Vec::new()), rig.free_units()), ((S_OK, 513), UNITS));
}

#[test]
fn what_two_queues_have_asked_for_is_done_before_it_is_saved_and_the_rest_elsewhere() {
    let mut rig = Rig::with_queues(2);
    rig.model.lock().most = 2;
    let write = |n: u64| Made::new(T_OUT, 8 * n, 4096, pattern(n, 4096));
    let ask = |rig: &mut Rig, place: usize| {
        rig.choose(place % 2);
        rig.request(place, write(place as u64), &[]);
    };
    for place in 0..2 {
        ask(&mut rig, place);
        rig.notify_once();
    }
    assert_eq!((rig.model.lock().begun.len(), rig.device.save()), (2, Err(Unsaved::Busy)));
    rig.finish(1, Ok(()));
    assert_eq!(rig.device.save(), Err(Unsaved::Busy), "one queue's is done, the other's is not");
    rig.finish(0, Ok(()));
    // The VM is paused before it notifies of the next ones.
    (2..4).for_each(|place| ask(&mut rig, place));
    let state = rig.device.save().expect("all that was taken is done");
    let DeviceState::Virtio(saved) = &state else { panic!("a virtio device's") };
    assert_eq!(saved.queues.iter().map(|queue| queue.ready).collect::<Vec<_>>(), [Some([1, 1, 1]); 2]);
    let new = |harts| Mmio::new(0x1000_2000, 2, Block::new(Arc::clone(&rig.port), "x", harts, 10_000_000));
    // Fewer queues than the driver has set up, or than it was told of.
    assert!(new(1).restore(&state).is_err());
    let mut other = new(2);
    assert_eq!(other.restore(&state), Ok(()));
    assert_eq!(other.save(), Ok(state.clone()));
    rig.device = other;
    assert_eq!(rig.come_back().len(), 2);
    // It looks by itself at what there may be in each.
    rig.moment();
    rig.finish_all();
    assert_eq!(rig.come_back().len(), 2);
    assert!((0..4).all(|n| rig.model.lock().sectors[4096 * n..][..4096] == pattern(n as u64, 4096)));
}

#[test]
fn a_state_of_one_queue_goes_on_where_there_are_more() {
    let mut rig = Rig::new();
    assert_eq!(rig.do_one(T_OUT, 8, 512, vec![5; 512]), (S_OK, 1));
    let state = rig.device.save().expect("nothing is under way");
    // As snapshots have it that are older than several queues.
    let mut other = Mmio::new(0x1000_2000, 2, Block::new(Arc::clone(&rig.port), "x", 4, 10_000_000));
    assert_eq!(other.restore(&state), Ok(()));
    rig.device = other;
    assert_eq!(rig.do_one(T_IN, 8, 512, Vec::new()), (S_OK, 513));
    assert_eq!(rig.bytes(DATA, 512), [5; 512]);
}

#[test]
fn a_portion_is_one_by_how_often_memory_is_reached() {
    let mut rig = Rig::new();
    // All entries are the same chain: as many buffers as there may be, and a byte or a word in each.
    rig.poke(HEADERS, &[u64::from(T_IN), 0].map(u64::to_le_bytes).concat());
    for n in 0..u64::from(ENTRIES) {
        let (gpa, bytes, flags) = match n {
            0 => (HEADERS, 16, 1),
            63 => (STATUSES, 1, 2),
            n => (DATA + 16 * n, if n == 62 { 1048 } else { 8 }, 3),
        };
        rig.poke(TABLE + 16 * n, [gpa, bytes | flags << 32 | (n + 1) << 48].map(u64::to_le_bytes).as_flattened());
    }
    rig.poke(DRIVER, &[[0, 0], ENTRIES.to_le_bytes()].concat());
    let mut most = 0;
    for _ in 0..10_000 {
        while !rig.model.lock().begun.is_empty() {
            rig.finish_unsaid(0, Ok(()));
        }
        let before = rig.world.accesses;
        rig.set(0x050, 0);
        most = most.max(rig.world.accesses - before);
    }
    assert_eq!((rig.used().len(), rig.device.counts().1), (64, 0));
    // Each takes some 390 instructions.
    assert!(most < 450, "{most}");
}
